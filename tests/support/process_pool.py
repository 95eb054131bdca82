"""Starts processes quickly: a server process that has imported everything forks on request and reports exits.

A worker's imports take five seconds of CPU, those of a command one; a fork takes none. A forked process has an
environment, arguments and output files of its own, and may be killed.
"""

import asyncio
import atexit
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

WORKERS = ("tests.faults.worker_process", "tests.faults.caller_process")
SERVER = (sys.executable, "-m", "tests.support.process_pool")
COMMANDS = "agent_runs.cli.main"


@dataclass
class ChildProcess:
    pid: int
    ended: asyncio.Future[int]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def end(self) -> int:
        """Wait for its end; return its exit code, or the negative number of the signal that ended it."""
        return await asyncio.shield(self.ended)


@dataclass
class ProcessPool:
    """The client of the server process."""

    process: asyncio.subprocess.Process
    children: dict[int, ChildProcess] = field(default_factory=dict)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _started: asyncio.Queue[ChildProcess] = field(default_factory=asyncio.Queue)

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator["ProcessPool"]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*SERVER, *WORKERS, stdin=pipe, stdout=pipe)
        pool = cls(process)
        assert process.stdout is not None
        await process.stdout.readline()  # everything is imported
        listening = asyncio.create_task(pool._listen())
        try:
            yield pool
        finally:
            assert process.stdin is not None
            process.stdin.close()  # ends all children, too
            await process.wait()
            await listening

    async def start(self, module: str, environment: Mapping[str, str], log: Path) -> ChildProcess:
        """Call `main()` of one of `WORKERS` in a process with these environment variables in addition to its own."""
        assert self.process.stdin is not None
        async with self._starting:
            self.process.stdin.write(_request(module, [module], os.environ | environment, log, log))
            return await self._started.get()

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            report = json.loads(line)
            if "started" in report:
                child = ChildProcess(report["started"], asyncio.get_running_loop().create_future())
                self.children[child.pid] = child
                self._started.put_nowait(child)
            else:
                self.children[report["ended"]].ended.set_result(report["code"])


class Commands:
    """The client of a server process that has imported all commands of `agent-runs`, for one command at a time."""

    def __init__(self) -> None:
        package = importlib.import_module("agent_runs.cli")
        modules = [f"{package.__name__}.{each.name}" for each in pkgutil.iter_modules(package.__path__)]
        self._server = subprocess.Popen([*SERVER, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._turn = threading.Lock()
        self._report()
        atexit.register(self._close)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command with exactly this environment; returns its exit code and output."""
        assert self._server.stdin is not None
        with tempfile.TemporaryDirectory() as folder, self._turn:
            out, error = Path(folder, "out"), Path(folder, "error")
            self._server.stdin.write(_request(COMMANDS, ["agent-runs", *arguments], environment, out, error))
            self._server.stdin.flush()
            self._report()
            code = self._report()["code"]
            return subprocess.CompletedProcess(list(arguments), code, out.read_text(), error.read_text())

    def _report(self) -> dict[str, int]:
        assert self._server.stdout is not None
        report: dict[str, int] = json.loads(self._server.stdout.readline())
        return report

    def _close(self) -> None:
        self._server.communicate()


@cache
def commands() -> Commands:
    """That of this process."""
    return Commands()


def _request(module: str, arguments: Sequence[str], environment: Mapping[str, str], output: Path, error: Path) -> bytes:
    request = {"module": module, "arguments": list(arguments), "environment": dict(environment)}
    return json.dumps({**request, "output": str(output), "error": str(error)}).encode() + b"\n"


def main() -> None:
    """The server process: requests on stdin, reports on stdout; the end of stdin ends all children."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()
    _report(ready=os.getpid())
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    alive: set[int] = set()
    unread = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _reap(alive)
        if 0 in ready:
            read = os.read(0, 65536)
            if not read:
                break
            *requests, unread = (unread + read).split(b"\n")
            for request in requests:
                alive.add(_fork(json.loads(request)))
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


def _reap(alive: set[int]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            alive.discard(ended[0])
            _report(ended=ended[0], code=os.waitstatus_to_exitcode(ended[1]))


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        _report(started=pid)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        files = [os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for name in ("output", "error")]
        for number, descriptor in enumerate((nothing, *files)):
            os.dup2(descriptor, number)
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = request["arguments"]
        importlib.import_module(request["module"]).main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if not isinstance(error.code, int | None):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it is
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _report(**fields: int) -> None:
    os.write(1, json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main()
