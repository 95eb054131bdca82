"""Child processes that end with this one: started with a log file, polled until they are ready, then stopped."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Self, TypeVar

from agent_runs.cli.program import Refused

PDEATHSIG: Final = Path(__file__).with_name("pdeathsig.py")
READY_INTERVAL: Final = timedelta(milliseconds=50)
START_TIMEOUT: Final = timedelta(seconds=60)
"""For a start on a busy machine; an idle one needs a second."""
STOP_TIMEOUT: Final = timedelta(seconds=15)
TAIL_BYTES: Final = 4000
TAIL_LINES: Final = 15
Result = TypeVar("Result")


class StackError(Refused):
    """The local stack cannot be brought up or kept up. The text says what happened and what to do."""


@dataclass(frozen=True)
class Program:
    """What to start, where its output goes, and the remedy for people when it does not work.

    Attributes:
        waits: it reads its standard input before it begins; see `Child.go`.
    """

    name: str
    command: Sequence[str]
    log: Path
    remedy: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    waits: bool = False


class Child:
    """One running program, in a session of its own so that Ctrl-C in the terminal reaches only us."""

    def __init__(self, program: Program, process: asyncio.subprocess.Process) -> None:
        self.program = program
        self._process = process
        self.ended = asyncio.create_task(self._end())

    @classmethod
    async def start(cls, program: Program) -> Self:
        """Start it, its output going to its log file.

        Raises:
            StackError: the program or its log file cannot be opened.
        """
        parent_watch = [sys.executable, "-I", "-S", str(PDEATHSIG), str(os.getpid())]
        try:
            program.log.parent.mkdir(parents=True, exist_ok=True)
            with program.log.open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *parent_watch,
                    *program.command,
                    stdin=asyncio.subprocess.PIPE if program.waits else asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**os.environ, **program.env},
                    start_new_session=True,
                )
        except OSError as error:
            raise StackError(f"{program.name} cannot be started: {error}. {program.remedy}") from None
        return cls(program, process)

    def go(self, line: bytes) -> None:
        """Let a program that waits begin. One that has died already is noticed by `ready`."""
        if self._process.stdin is not None:
            self._process.stdin.write(line)
            self._process.stdin.close()

    async def ready(self, ask: Callable[[], Awaitable[bool]], limit: timedelta = START_TIMEOUT) -> None:
        """Poll until `ask` returns True.

        Raises:
            StackError: it ended first, or was not ready in time.
        """
        try:
            async with asyncio.timeout(limit.total_seconds()):
                while not await ask():
                    await asyncio.wait([self.ended], timeout=READY_INTERVAL.total_seconds())
                    if self.ended.done():
                        raise self.unexpected_end()
        except TimeoutError:
            raise StackError(
                f"{self.program.name} was not ready after {limit.total_seconds():g} s. {self._last_output()}"
            ) from None

    def unexpected_end(self) -> StackError:
        """The error for a program that has ended by itself."""
        code = self.ended.result()
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
        return StackError(f"{self.program.name} ended {how}. {self._last_output()}")

    async def stop(self, limit: timedelta = STOP_TIMEOUT) -> None:
        """SIGTERM, and SIGKILL after `limit`."""
        if not self.ended.done():
            self._process.terminate()
            await asyncio.wait([self.ended], timeout=limit.total_seconds())
        if not self.ended.done():
            self._process.kill()
        await self.ended

    async def _end(self) -> int:
        """Wait for its end, then end what it left in its process group."""
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return code

    def _last_output(self) -> str:
        tail = tail_of(self.program.log)
        output = f"The end of {self.program.log}:\n{tail}" if tail else f"It wrote nothing to {self.program.log}."
        return f"{self.program.remedy}\n{output}"


async def run_while_alive(work: Awaitable[Result], children: Sequence[Child]) -> Result:
    """Do `work`, unless one of the children ends first; then it is cancelled.

    Raises:
        StackError: names the child, with the end of its log.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, *(child.ended for child in children)], return_when=asyncio.FIRST_COMPLETED)
        for child in children:
            if child.ended.done() and not task.done():
                raise child.unexpected_end()
        return await task
    finally:
        task.cancel()
        await asyncio.wait([task])


def tail_of(log: Path) -> str:
    """The last lines of a log file, bounded; empty when there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])
