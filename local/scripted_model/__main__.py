"""`python -m local.scripted_model serve | list | config`."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from local.scripted_model.config import API_KEY_VARIABLE, opencode_config
from local.scripted_model.scenarios import SCENARIOS
from local.scripted_model.server import running


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did what was asked."""
    args = _parser().parse_args(argv)
    match args.command:
        case "list":
            for name, scenario in SCENARIOS.items():
                print(f"scenario/{name:18} {scenario.about}")
        case "config":
            key = None if args.no_key else f"{{env:{API_KEY_VARIABLE}}}"
            print(json.dumps(opencode_config(args.base_url, args.model, key), indent=2))
        case _:
            return _served(args)
    return 0


def _served(args: argparse.Namespace) -> int:
    try:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(_serve(args))
    except OSError as error:
        print(f"cannot serve on {args.host}:{args.port}: {error}; choose another --host or --port", file=sys.stderr)
        return 1
    return 0


async def _serve(args: argparse.Namespace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with running(args.host, args.port, args.api_key, args.log) as model:
        if args.port_file is not None:
            _publish(args.port_file, model.base_url.rsplit(":", 1)[1].split("/")[0])
        print(f"scripted model listening on {model.base_url}", flush=True)
        await stop.wait()


def _publish(path: Path, text: str) -> None:
    """Whoever waits for the file finds it whole."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.rename(path)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m local.scripted_model", description="A scripted, offline model.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="run the server")
    serve.add_argument("--host", default="127.0.0.1", help="loopback unless pods of a real cluster must reach it")
    serve.add_argument("--port", type=int, default=8931, help="0: any free port")
    serve.add_argument("--port-file", type=Path, help="write the port here once listening")
    serve.add_argument("--api-key", default=os.environ.get("FAKE_LLM_REQUIRE_KEY"), help="refuse other keys with 401")
    serve.add_argument("--log", type=Path, help="append every request as a JSON line")
    commands.add_parser("list", help="list the scenarios")
    config = commands.add_parser("config", help="print an opencode.json")
    config.add_argument("--base-url", default="http://127.0.0.1:8931/v1")
    config.add_argument("--model", action="append", default=[], metavar="SPEC", help="declare scenario/SPEC as well")
    config.add_argument("--no-key", action="store_true", help="declare no apiKey")
    return parser


if __name__ == "__main__":
    sys.exit(main())
