"""Starts processes quickly: one that has imported everything forks whenever it is asked to, and says who ended how.

A worker's imports cost five seconds of a processor; a fork costs none. What is forked is a process like any other: it
has an environment and a log file of its own, and may be killed.
"""

import asyncio
import gc
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODULES = ("tests.faults.mortal", "tests.faults.caller")


@dataclass
class Child:
    """A process that the nursery has started."""

    pid: int
    ended: asyncio.Future[int]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def end(self) -> int:
        """Its exit code, or the negative number of the signal that ended it; as soon as it has ended."""
        return await asyncio.shield(self.ended)


@dataclass
class Nursery:
    """The near side."""

    process: asyncio.subprocess.Process
    children: dict[int, Child] = field(default_factory=dict)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _started: asyncio.Queue[Child] = field(default_factory=asyncio.Queue)

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["Nursery"]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, stdin=pipe, stdout=pipe)
        nursery = cls(process)
        assert process.stdout is not None
        await process.stdout.readline()  # everything is imported
        listening = asyncio.create_task(nursery._listen())
        try:
            yield nursery
        finally:
            assert process.stdin is not None
            process.stdin.close()  # ends all children, too
            await process.wait()
            await listening

    async def start(self, module: str, environment: Mapping[str, str], log: Path) -> Child:
        """Calls `main()` of one of `MODULES` in a process with this environment beside its own."""
        assert self.process.stdin is not None
        async with self._starting:
            order = {"module": module, "environment": dict(environment), "log": str(log)}
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            return await self._started.get()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if "started" in told:
                child = Child(told["started"], asyncio.get_running_loop().create_future())
                self.children[child.pid] = child
                self._started.put_nowait(child)
            else:
                self.children[told["ended"]].ended.set_result(told["code"])


def main() -> None:
    """The far side: orders on stdin, reports on stdout; the end of stdin ends all."""
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()
    _report(ready=os.getpid())
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    alive: set[int] = set()
    orders = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(alive)
        if 0 in ready:
            read = os.read(0, 65536)
            if not read:
                break
            *whole, orders = (orders + read).split(b"\n")
            for order in whole:
                alive.add(_born(json.loads(order)))
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _reap(alive: set[int]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            alive.discard(ended[0])
            _report(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def _born(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        _report(started=pid)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, number)
        os.environ.update(order["environment"])
        importlib.import_module(order["module"]).main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        sys.stderr.write(f"{ended.code}\n")
    except BaseException:  # noqa: BLE001 - the last thing this process can do is to say it
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _report(**told: int) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    main()
