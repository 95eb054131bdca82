"""The embedded cluster as a process of its own: `python -m dev_stack.cluster --state DIR [--port N]`.

SIGINT or SIGTERM end it and, with a grace, its containers; a SIGKILL kills them too.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from dev_stack.cluster.embedded_cluster import CannotStart, EmbeddedCluster


async def serve(state: Path, port: int) -> None:
    """Run until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with EmbeddedCluster(state, port) as cluster:
        lines = (f"url={cluster.url}", f"token={cluster.token}", f"export KUBECONFIG={cluster.kubeconfig_path}")
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dev_stack.cluster", description="Run the embedded cluster.")
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="where its state is kept")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; default: any")
    options = parser.parse_args()
    try:
        asyncio.run(serve(options.state, options.port))
    except CannotStart as reason:
        sys.stderr.write(f"{reason}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
