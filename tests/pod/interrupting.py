"""What interrupts a driver: a relay that cuts its connections, and kills."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.pod.driving import Served

CUTS = int(os.environ.get("TEST_CUTS", "200"))
"""Of the connection to the server. 1,000 take some minutes, most of them the work of the model and of the commands."""


@dataclass
class Relayed:
    """What passed a relay to the server.

    Attributes:
        cuts: connections that it has cut.
        received: bytes of answers.
    """

    port: int = 0
    cuts: int = 0
    received: int = 0


@asynccontextmanager
async def relaying(port: int, longest: float | None = None, unanswered: bytes = b"") -> AsyncIterator[Relayed]:
    """A relay to the server.

    Args:
        longest: seconds after which at most it cuts a connection with live events.
        unanswered: a part of the path of requests whose answers it does not pass on.
    """
    relayed, relays = Relayed(), set[asyncio.Task[None]]()
    choose = random.Random(14)

    async def forward(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> int:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := await reading.read(choose.randrange(1, 8000)):
                writing.write(piece)
                await writing.drain()
                passed += len(piece)
        writing.close()
        return passed

    async def relay(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        head = await reading.read(4096)
        there, to_there = await asyncio.open_connection("127.0.0.1", port)
        to_there.write(head)
        up = asyncio.create_task(forward(reading, to_there))
        if unanswered and unanswered in head:
            await there.readline()
            writing.transport.abort()
            relayed.cuts += 1
        down = asyncio.create_task(forward(there, writing))
        if b"/event " in head.splitlines()[0] and longest is not None:
            await asyncio.wait([down], timeout=choose.uniform(0.01, longest))
            down.cancel()
            writing.transport.abort()
            relayed.cuts += 1
        with contextlib.suppress(asyncio.CancelledError):
            passed = await down
            relayed.received += passed
        up.cancel()
        for end in (to_there, writing):
            end.close()
            with contextlib.suppress(OSError):
                await end.wait_closed()

    def accept(reading: asyncio.StreamReader, writing: asyncio.StreamWriter) -> None:
        relays.add(asyncio.create_task(relay(reading, writing)))

    listening = await asyncio.start_server(accept, "127.0.0.1")
    async with listening:
        relayed.port = listening.sockets[0].getsockname()[1]
        yield relayed
    await asyncio.gather(*relays)


def address_of(port: int, folder: Path, *, is_opencode_1: bool = True) -> str:
    """A file as that of the server's standard output."""
    address = folder / "address"
    address.write_text(f"{'opencode ' * is_opencode_1}server listening on http://127.0.0.1:{port}\n")
    return str(address)


async def killed_again_and_again(server: Served, turn: Path) -> int:
    """Plays a turn by drivers that are killed until there is an end; how many were."""
    kills, choose = 0, random.Random(14)
    while not (turn / "end").exists():
        driver = await server.start(turn)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(choose.uniform(0.05, 1.5)):
                await driver.wait()
        if driver.returncode is None:
            driver.kill()
            kills += 1
            await driver.wait()
    return kills


async def until_a_tool_runs(turn: Path) -> None:
    async with asyncio.timeout(60):
        while not _has_begun_a_tool(turn):  # noqa: ASYNC110 - a file of another process has no event
            await asyncio.sleep(0.05)


def _has_begun_a_tool(turn: Path) -> bool:
    events = turn / "events"
    return events.exists() and b"tool_running" in events.read_bytes()


def runs(command: str) -> bool:
    """Whether a process of this machine has this command line."""
    found = False
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found = found or path.read_bytes() == command.replace(" ", "\0").encode() + b"\0"
    return found
