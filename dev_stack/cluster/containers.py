"""Containers as processes: each has a supervisor, whose output is the container's log."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import marshal
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dev_stack.cluster.container_log import ContainerLog
from dev_stack.cluster.volumes import Mount

# Appended to the path, for this package's modules must not shadow those of the standard library.
_LAUNCHER = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import supervisor; supervisor.main()"
_SUPERVISOR = [sys.executable, "-I", "-S", "-c", _LAUNCHER]
_READ = 64 * 1024  # bytes at a time
_MESSAGE_BYTES = 4096
_LOGGED_MESSAGE_BYTES = 2048
_OUTPUT_TIMEOUT = 1.0  # seconds, for a process beyond our reach that holds the output of an ended container


@dataclass(frozen=True)
class Namespaces:
    """The kinds of namespace that this system lets a container have; `problem` says why some are missing."""

    user: bool
    mount: bool
    pid: bool
    problem: str = ""

    @classmethod
    async def probe(cls, directory: Path) -> Namespaces:
        """Try them out, the best first, for a few hundredths of a second."""
        (directory / "root").mkdir(parents=True, exist_ok=True)
        problem = ""
        for pid in (True, False):
            for user in (False, True):
                tried = cls(user, mount=True, pid=pid)
                process = Process(["true"], {"PATH": os.environ.get("PATH", os.defpath)}, "/", [])
                container = await Container.start(directory, process, tried)
                await container.finished.wait()
                if container.end is not None and container.end.code == 0:
                    return tried
                problem = container.end.message if container.end else ""
        return cls(user=False, mount=False, pid=False, problem=problem)


@dataclass(frozen=True)
class Process:
    """What to start.

    Attributes:
        message: the file of its termination message; None: it has none.
        log_is_message: without a message the end of a failed container's log is one.
    """

    command: Sequence[str]
    env: dict[str, str]
    workdir: str
    mounts: Sequence[Mount]
    message: str | None = None
    log_is_message: bool = False


@dataclass(frozen=True)
class End:
    """How a container ended."""

    code: int
    reason: str
    message: str
    began: datetime
    ended: datetime


@dataclass(frozen=True)
class Command:
    """One more command in a container.

    Attributes:
        stdin: its standard input; None: /dev/null.
    """

    process: asyncio.subprocess.Process
    report: int
    stdin: asyncio.WriteTransport | None = None

    @property
    def failure(self) -> str:
        """Why it could not be started, once the process has ended."""
        return os.read(self.report, 4000).decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        send_signal(self.process, signal.SIGKILL)


class Container:
    """A container that was started.

    Attributes:
        finished: set once `end` is known.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: ContainerLog, spec: dict[str, Any]) -> None:
        self.id = hashlib.sha256(spec["root"].encode()).hexdigest()
        self.log = log
        self.began = datetime.now(UTC)
        self.end: End | None = None
        self.finished = asyncio.Event()
        self._process = process
        self._spec = spec
        self._oom_killed = False
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, directory: Path, process: Process, namespaces: Namespaces) -> Container:
        """Start the supervisor and wait until the command runs or could not be started."""
        spec = {
            **asdict(process),
            "root": str(directory / "root"),
            "cluster": os.getpid(),
            "user_namespace": namespaces.user,
            "mount_namespace": namespaces.mount,
            "pid_namespace": namespaces.pid,
        }
        (directory / "root").mkdir(parents=True, exist_ok=True)
        supervisor, report = await _spawn(spec)
        container = cls(supervisor, ContainerLog(directory / "log"), spec)
        failure = await asyncio.to_thread(_read_all, report)
        container._watching = asyncio.create_task(container._watch(failure))
        return container

    async def _watch(self, failure: str) -> None:
        """Copy the output to the log until the supervisor has ended."""
        outputs = ((b"stdout", self._process.stdout), (b"stderr", self._process.stderr))
        copying = [asyncio.create_task(self._copy(name, stream)) for name, stream in outputs]
        code = await self._process.wait()
        _, late = await asyncio.wait(copying, timeout=_OUTPUT_TIMEOUT)
        for task in late:
            task.cancel()
        _close_pipes(self._process)
        reason = "Completed" if code == 0 else "Error"
        if self._oom_killed:
            reason = "OOMKilled"
        if failure:
            code, reason = 128, "StartError"
        self.log.close()
        if file := self._spec["message"]:
            failure = failure or await asyncio.to_thread(_end_of, file)
        if code and self._spec["log_is_message"]:
            failure = failure or await self.log.tail(_LOGGED_MESSAGE_BYTES)
        self.end = End(code if code >= 0 else 128 - code, reason, failure, self.began, datetime.now(UTC))
        self.finished.set()

    async def _copy(self, name: bytes, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (data := await stream.read(_READ)):
            self.log.write(name, data)

    @property
    def running(self) -> bool:
        return not self.finished.is_set()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self, *, oom: bool = False) -> None:
        """SIGKILL to the main process and everything that descends from it; `oom`: because of its memory."""
        self._oom_killed = oom and self.running
        self._signal(signal.SIGUSR1)

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            send_signal(self._process, number)

    def _main_process(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    @contextlib.asynccontextmanager
    async def execute(self, command: Sequence[str], *, stdin: bool = False) -> AsyncIterator[Command]:
        """Run one more command inside; it is killed on leaving."""
        spec = {**self._spec, "command": list(command), "join": self._main_process()}
        async with _pipe() if stdin else contextlib.nullcontext((None, None)) as (source, writer):
            process, report = await _spawn(spec, source)
            inside = Command(process, report, writer)
            try:
                yield inside
            finally:
                await _end(inside)


async def _end(command: Command) -> None:
    command.kill()
    _close_pipes(command.process)  # first, for a second cancel may come while we wait
    await command.process.wait()
    os.close(command.report)


@contextlib.asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[int, asyncio.WriteTransport]]:
    """A pipe to a command, not the socket that asyncio would give it: no program can open that as /dev/stdin."""
    source, target = os.pipe()
    writer, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, os.fdopen(target, "wb", 0))
    try:
        yield source, writer
    finally:
        if not writer.is_closing():  # it is when the command has ended
            writer.abort()


def send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Signal a process, if it runs.

    `Process.send_signal` first polls the process, and so may reap one that has just ended before asyncio does, which
    then reports 255 instead of its exit code. Seen with CPython 3.11.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


async def _spawn(spec: dict[str, Any], stdin: int | None = None) -> tuple[asyncio.subprocess.Process, int]:
    """Start a supervisor in a session of its own; with the descriptor of its report. Closes `stdin` here."""
    reader, writer = os.pipe()
    passed = [writer] if stdin is None else [writer, stdin]
    pipe = asyncio.subprocess.PIPE
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *_SUPERVISOR, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=passed, env={}, start_new_session=True
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:  # asyncio would leak the pipes
        process = await starting
        process.kill()
        _close_pipes(process)
        os.close(reader)
        raise
    finally:
        for descriptor in passed:
            os.close(descriptor)
    assert process.stdin is not None  # noqa: S101 - it is a pipe
    process.stdin.write(marshal.dumps({**spec, "report": writer, "stdin": stdin}))
    process.stdin.close()
    return process, reader


def _read_all(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode(errors="replace")


def _end_of(path: str) -> str:
    with Path(path).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MESSAGE_BYTES))
        return file.read().decode(errors="replace")


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close our ends even if descendants of the process hold theirs; asyncio has no public way."""
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    transport.close()
