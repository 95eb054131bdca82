"""One run of one container: a directory with its specification, its log and its end, and a supervisor process.

The directory is the truth. A kubelet that starts anew finds the instance there, and the lock that a living supervisor
holds tells whether it still runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from local.cluster.volumes import Mount

# Appended to the path, for this package's modules must not shadow those of the standard library.
_LAUNCHER = "import sys; sys.path.append({!r}); import supervisor; supervisor.main(sys.argv[1:])"
_SUPERVISOR = [sys.executable, "-I", "-S", "-c", _LAUNCHER.format(str(Path(__file__).parent))]
_MARKER = "EMBEDDED_CONTAINER_ID"  # in every container's environment; finds what a killed supervisor left behind


@dataclass(frozen=True)
class Namespaces:
    """What this system lets a container have; found out once by `probe`."""

    user: bool
    mount: bool
    pid: bool
    problem: str = ""

    @classmethod
    def probe(cls, directory: Path) -> Namespaces:
        """Try them out, for a few hundredths of a second."""
        directory.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([*_SUPERVISOR, "--probe", str(directory)], capture_output=True, check=False, timeout=30)  # noqa: S603 - our own program
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            found = {"user": False, "mount": False, "pid": False, "problem": done.stderr.decode()[-500:]}
        return cls(found["user"], found["mount"], found["pid"], found.get("problem", ""))


@dataclass(frozen=True)
class Process:
    """What to start."""

    command: Sequence[str]
    env: dict[str, str]
    workdir: str
    mounts: Sequence[Mount]


@dataclass(frozen=True)
class Command:
    """A further command in a container."""

    process: asyncio.subprocess.Process
    trouble: int

    @property
    def failure(self) -> str:
        """Why it could not be started, once the process has ended."""
        return os.read(self.trouble, 4000).decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


@dataclass(frozen=True)
class End:
    """How an instance ended."""

    code: int
    reason: str
    message: str
    began: datetime
    ended: datetime


class Instance:
    """A container that was started once; `number` counts its restarts."""

    def __init__(self, directory: Path, number: int) -> None:
        self.directory = directory
        self.number = number
        self.id = hashlib.sha256(str(directory).encode()).hexdigest()
        self.finished = asyncio.Event()  # set once `end` is known
        self.end: End | None = None
        self._pidfd: int | None = None
        self._pid: int | None = None
        self.began: datetime | None = None

    @property
    def log(self) -> Path:
        """The current CRI log file."""
        return self.directory / "log"

    # ---------------------------------------------------------------- beginning

    async def start(self, process: Process, namespaces: Namespaces) -> None:
        """Start the supervisor and wait until the command runs or could not be started."""
        self.directory.mkdir(parents=True)
        (self.directory / "root").mkdir()
        spec = {
            "command": list(process.command),
            "env": process.env | {_MARKER: self.id},
            "workdir": process.workdir,
            "mounts": [asdict(mount) for mount in process.mounts],
            "user_namespace": namespaces.user,
            "mount_namespace": namespaces.mount,
            "pid_namespace": namespaces.pid,
        }
        path = self.directory / "spec.json"
        path.touch(mode=0o600)  # it holds the values of Secrets
        path.write_text(json.dumps(spec))
        reader, writer = os.pipe()
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._pid = _spawn(self.directory, writer, lock)
        finally:
            os.close(writer)
            os.close(lock)
        self._observe(self._pid)
        try:
            await _readable(reader)
        except asyncio.CancelledError:
            self.let_go()
            raise
        started = self.directory / "started.json"
        if started.exists():
            self.began = datetime.fromtimestamp(json.loads(started.read_text())["at"], UTC)

    @classmethod
    def adopt(cls, directory: Path, number: int) -> Instance:
        """Take up an instance that an earlier kubelet started."""
        instance = cls(directory, number)
        started = directory / "started.json"
        if started.exists():
            instance.began = datetime.fromtimestamp(json.loads(started.read_text())["at"], UTC)
        if instance._alive():
            pid = directory / "pid"
            instance._observe(int(pid.read_text()) if pid.exists() else _supervisor_of(directory))
        else:
            instance._conclude()
        return instance

    def _alive(self) -> bool:
        if not (self.directory / "lock").exists():
            return False
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _observe(self, pid: int | None) -> None:
        try:
            self._pidfd = None if pid is None else os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None
        if self._pidfd is None or pid is None:
            self._conclude()
            return
        self._pid = pid
        asyncio.get_running_loop().add_reader(self._pidfd, self._supervisor_ended)

    # ---------------------------------------------------------------- end

    def _supervisor_ended(self) -> None:
        self.let_go()
        self._conclude()

    def let_go(self) -> None:
        """Stop watching, without touching what runs: another kubelet will adopt it."""
        if self._pidfd is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        if self._pid is not None:
            with contextlib.suppress(ChildProcessError):  # adopted: not our child
                os.waitpid(self._pid, os.WNOHANG)

    def _conclude(self) -> None:
        path = self.directory / "exit.json"
        if path.exists():
            told = json.loads(path.read_text())
            began, ended = (datetime.fromtimestamp(told[key], UTC) for key in ("began", "ended"))
            reason = "Completed" if told["code"] == 0 else "Error"
            if told["failure"] is not None:
                reason = "StartError"
            self.end = End(told["code"], reason, told["failure"] or "", began, ended)
        else:
            _kill_marked(self.id)
            now = datetime.now(UTC)
            message = "The container could not be located when the pod was terminated"
            self.end = End(137, "ContainerStatusUnknown", message, self.began or now, now)
        self.finished.set()

    def terminate(self) -> None:
        """SIGTERM to the main process."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the main process and everything that descends from it."""
        self._signal(signal.SIGUSR1)

    @contextlib.asynccontextmanager
    async def execute(self, command: Sequence[str]) -> AsyncIterator[Command]:
        """Run a further command inside, with streams to talk to it; it is killed on leaving."""
        reader, writer = os.pipe()
        pipe = asyncio.subprocess.PIPE
        arguments = [*_SUPERVISOR, "--exec", str(self.directory), str(writer), *command]
        try:
            try:
                starting = asyncio.ensure_future(
                    asyncio.create_subprocess_exec(
                        *arguments,
                        stdin=pipe,
                        stdout=pipe,
                        stderr=pipe,
                        pass_fds=[writer],
                        env={},
                        start_new_session=True,
                    )
                )
                process = await _unhurried(starting)
            finally:
                os.close(writer)
            inside = Command(process, reader)
            try:
                yield inside
            finally:
                inside.kill()
                _close_pipes(process)  # first, for a second cancel may come while we wait
                await process.wait()
        finally:
            os.close(reader)

    def rotate_log(self) -> None:
        """Move the log away, as the kubelet does above its size limit; readers of the API see the new file only."""
        self.log.rename(self.directory / "log.1")
        self._signal(signal.SIGHUP)

    def _signal(self, number: signal.Signals) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


def _spawn(directory: Path, writer: int, lock: int) -> int:
    """Start a supervisor in a session of its own, so that no terminal and no dying parent reaches it."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_OPEN, 2, str(directory / "supervisor.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, lock, 3),
    ]
    arguments = [*_SUPERVISOR, str(directory)]
    return os.posix_spawn(sys.executable, arguments, {}, file_actions=actions, setsid=True)


async def _unhurried(starting: asyncio.Future[asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """The started process. A cancel in the middle waits, for asyncio would leak the pipes."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        process.kill()
        _close_pipes(process)
        await process.wait()
        raise


def _close_pipes(process: asyncio.subprocess.Process) -> None:
    """Close our ends even if descendants of the process hold theirs; asyncio has no public way."""
    transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]  # noqa: SLF001 - see above
    transport.close()


async def _readable(descriptor: int) -> None:
    """Wait for data or the end of a pipe, then close it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _supervisor_of(directory: Path) -> int | None:
    """The supervisor that has not yet written its pid."""
    wanted = str(directory).encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if wanted in words and _SUPERVISOR[-1].encode() in words:
                    return int(entry.name)
    return None


def _kill_marked(container: str) -> None:
    """SIGKILL every process that carries the container's mark in its environment."""
    mark = f"{_MARKER}={container}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
