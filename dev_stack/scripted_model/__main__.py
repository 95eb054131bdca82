"""The scripted model as a process of its own: `python -m dev_stack.scripted_model --host ADDRESS --port N`.

After its address it prints each answer that it sends, a JSON object a line.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from dev_stack.scripted_model.server import Sent, serve


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m dev_stack.scripted_model", description="A scripted, offline model."
    )
    parser.add_argument("--host", default="127.0.0.1", help="loopback, unless pods of a real cluster must reach it")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    args = parser.parse_args(argv)
    try:
        asyncio.run(_serve(args.host, args.port))
    except OSError as error:
        print(f"cannot serve on {args.host}:{args.port}: {error}; choose another --host or --port", file=sys.stderr)
        return 1
    return 0


async def _serve(host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve(host, port, _print) as model:
        print(f"scripted model listening on {model.base_url}", flush=True)
        await stop.wait()


def _print(sent: Sent) -> None:
    print(json.dumps(asdict(sent)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
