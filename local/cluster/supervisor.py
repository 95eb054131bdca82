"""The parent of one container: a small stand-alone program that outlives the double.

Started as `python -I -S -c LAUNCHER DIRECTORY` (imported, so that its compiled form is used), it reads
DIRECTORY/spec.json, puts the command into a private root with its declared mounts (and, where the system permits, its
own process ids), copies what the command writes into DIRECTORY/log in the CRI log format, and leaves the end in
DIRECTORY/exit.json. A container ends when its main process ends, even if something it left in the background still
holds its output; all of that is killed then. SIGTERM is passed to the main process, SIGUSR1 kills everything, SIGHUP
reopens the log after a rotation. The lock on DIRECTORY/lock is held for as long as this program lives; that is how a
restarted kubelet knows it again.
Only the standard library, and little of it, because each container waits for this program's start.
"""

# Importing pathlib would cost every container start several milliseconds.
# ruff: noqa: PTH102, PTH103, PTH104, PTH110, PTH112, PTH114, PTH115, PTH116, PTH123, PTH208, PTH211

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would cost milliseconds too
    from typing import Any

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_UNBINDABLE, MS_PRIVATE = 4096, 16384, 1 << 17, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LINE_LIMIT = 16 * 1024  # containerd's default max_container_log_line_size, bytes per chunk
START_ERROR = 128  # the exit code containerd gives a container whose command could not be started

libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A system call refused; the text says which and why."""


def _call(what: str, result: int) -> None:
    if result != 0:
        raise Failed(f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _call(f"mount {source} at {target}", result)


def _write_atomically(path: str, text: str) -> None:
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)


# ------------------------------------------------------------------ private root


class PrivateRoot:
    """A root of our own: the host's top-level directories plus the container's mounts, nothing left on the host."""

    def __init__(self, root: str, *, own_processes: bool) -> None:
        self.root = root
        self.own_processes = own_processes
        self.writable: set[str] = set()  # directories in which a mount point may simply be made

    def build(self, mounts: list[dict[str, object]]) -> None:
        """Mount everything below `self.root`; the process still has its old root afterwards."""
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        _mount("tmpfs", self.root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
        _mount("none", self.root, None, MS_UNBINDABLE)  # else binding its own parent would contain it again
        self.writable.add(self.root)
        self._graft_children("/", self.root)
        if self.own_processes:
            _mount("proc", f"{self.root}/proc", "proc", 0)
        read_only = []
        for mount in sorted(mounts, key=lambda mount: str(mount["target"]).count("/")):
            source = str(mount["source"])
            target = self.place(str(mount["target"]), directory=os.path.isdir(source))
            _mount(source, target, None, MS_BIND | MS_REC)
            self.writable.add(target)
            if mount["read_only"]:
                read_only.append(target)
        for target in read_only:
            kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)  # locked in a user namespace
            _mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)

    def enter(self) -> None:
        """Make it the root of this process."""
        os.chdir(self.root)
        _call("pivot_root", libc.pivot_root(b".", b"."))
        _call("umount of the old root", libc.umount2(b".", MNT_DETACH))
        os.chdir("/")

    def place(self, path: str, *, directory: bool) -> str:
        """Where `path` lies below the root; what is missing of it is made, in memory unless inside a mount."""
        current, parts, links = self.root, [part for part in path.split("/") if part], 0
        while parts:
            part = parts.pop(0)
            following = os.path.normpath(f"{current}/{part}")
            if part == ".." or not os.path.lexists(following):
                if part != "..":
                    self._make(current, following, directory=directory or bool(parts))
            elif os.path.islink(following):
                links += 1
                if links > 40:
                    raise Failed(f"{path}: too many levels of symbolic links")
                link = os.readlink(following)
                parts = [piece for piece in link.split("/") if piece] + parts
                following = self.root if link.startswith("/") else current
            current = following if following.startswith(self.root) else self.root
        return current

    def _make(self, parent: str, path: str, *, directory: bool) -> None:
        ours = any(parent == known or parent.startswith(known + "/") for known in self.writable - {self.root})
        if not ours and parent != self.root:
            self._shadow(parent)
        if directory:
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        self.writable.add(path)

    def _shadow(self, place: str) -> None:
        """Replace a host directory by one in memory that shows the same children."""
        original = place[len(self.root) :]
        mode = stat.S_IMODE(os.stat(original).st_mode)
        _mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, f"mode={mode:o}")
        _mount("none", place, None, MS_UNBINDABLE)
        self._graft_children(original, place)
        self.writable.add(place)

    def _graft_children(self, source: str, target: str) -> None:
        for entry in os.scandir(source):
            there = f"{target}/{entry.name}"
            if there == self.root or entry.path == self.root:
                continue
            try:
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), there)
                    continue
                if entry.is_dir():
                    os.mkdir(there)
                else:
                    os.close(os.open(there, os.O_CREAT | os.O_WRONLY, 0o600))
                if not (self.own_processes and there == f"{self.root}/proc"):
                    _mount(entry.path, there, None, MS_BIND | MS_REC)
            except (OSError, Failed):
                continue  # gone meanwhile, or not ours to show: the container does without it


def enter_user_namespace() -> None:
    """Become able to mount without being root; the user keeps their own id inside."""
    user, group = os.geteuid(), os.getegid()
    _call("unshare of the user namespace", libc.unshare(CLONE_NEWUSER))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


# ------------------------------------------------------------------ the container's process


def become_container(spec: dict[str, Any], root: str, parent: int) -> None:
    """In the forked child: mounts, working directory, then the command. Returns only by raising."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not spec["pid_namespace"] and os.getppid() != parent:
        os._exit(START_ERROR)  # the supervisor died between fork and prctl
    os.setsid()
    if spec["mount_namespace"]:
        _call("unshare of the mount namespace", libc.unshare(CLONE_NEWNS))
        private = PrivateRoot(root, own_processes=spec["pid_namespace"])
        private.build(spec["mounts"])
        private.place(spec["workdir"], directory=True)
        private.enter()
    else:
        os.makedirs(spec["workdir"], exist_ok=True)
    os.chdir(spec["workdir"])
    os.umask(0o022)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    replace_by(spec["command"], spec["env"])


def replace_by(command: list[str], environment: dict[str, str]) -> None:
    """Become this command. Returns only by raising `Failed`, in the words of a container runtime."""
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        if "/" not in command[0] and not _findable(command[0], environment.get("PATH", os.defpath)):
            why = "executable file not found in $PATH"
        raise Failed(f'exec: "{command[0]}": {why}: unknown') from None


def _findable(name: str, path: str) -> bool:
    """Whether some directory of PATH has it; one that may not be read has not."""
    return any(os.path.exists(f"{directory}/{name}") for directory in path.split(":"))


def descendants(ancestor: int) -> list[int]:
    """All live processes below `ancestor`; as their subreaper it keeps even those with sessions of their own."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                continue  # ended while we looked
    found: list[int] = []
    edge = {ancestor}
    while edge:
        edge = {pid for pid, parent in parents.items() if parent in edge}
        found.extend(edge)
    return found


def kill_everything() -> None:
    """SIGKILL until nothing is left below this process except unreaped zombies."""
    me = os.getpid()
    for _ in range(100):  # a fork bomb may need several sweeps
        left = [pid for pid in descendants(me) if not _is_zombie(pid)]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.002)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


# ------------------------------------------------------------------ the log


class Log:
    """A CRI log file: `<stamp> <stream> <P|F> <text>`, chunks of at most 16 KiB; P marks all but a line's last."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rests = {b"stdout": b"", b"stderr": b""}
        self.reopen()

    def reopen(self) -> None:
        """Open the file by its name again, after somebody has moved the old one away."""
        self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def rotated(self) -> None:
        """Close the moved file and begin a new one."""
        os.close(self.file)
        self.reopen()

    def write(self, stream: bytes, data: bytes) -> None:
        """Add what was read from one of the container's streams."""
        lines = (self.rests[stream] + data).split(b"\n")
        rest = lines.pop()
        entries: list[bytes] = []
        for line in lines:
            while len(line) > LINE_LIMIT:
                entries.append(self._entry(stream, b"P", line[:LINE_LIMIT]))
                line = line[LINE_LIMIT:]  # noqa: PLW2901 - the loop eats the line chunk by chunk
            entries.append(self._entry(stream, b"F", line.removesuffix(b"\r")))  # containerd drops it too
        while len(rest) > LINE_LIMIT:
            entries.append(self._entry(stream, b"P", rest[:LINE_LIMIT]))
            rest = rest[LINE_LIMIT:]
        self.rests[stream] = rest
        self._append(b"".join(entries))

    def close(self) -> None:
        """Write what has no line end; containerd marks that P."""
        for stream, rest in self.rests.items():
            if rest:
                self._append(self._entry(stream, b"P", rest))
        os.close(self.file)

    def _append(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.file, data) :]
            except OSError:  # a full disk: a container goes on, its output is lost, as on a real node
                return

    @staticmethod
    def _entry(stream: bytes, tag: bytes, text: bytes) -> bytes:
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        return b"%s.%09dZ %s %s %s\n" % (stamp.encode(), nanoseconds, stream, tag, text)


# ------------------------------------------------------------------ the supervisor itself


class Supervisor:
    """Starts one container, keeps its log, and tells its end."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        with open(f"{directory}/spec.json") as file:
            self.spec = json.load(file)
        self.log = Log(f"{directory}/log")
        self.main = 0
        self.rotate = False

    def start(self) -> str | None:
        """Start the main process; returns why that failed, if it did."""
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        failure, failure_end = os.pipe()
        self.streams = {out: b"stdout", err: b"stderr"}
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        parent = os.getpid()
        try:
            if self.spec["user_namespace"]:
                enter_user_namespace()
            if self.spec["pid_namespace"]:
                _call("unshare of the pid namespace", libc.unshare(CLONE_NEWPID))
        except (Failed, OSError) as error:
            return str(error)
        self.main = os.fork()
        if self.main == 0:
            try:
                os.dup2(out_end, 1)
                os.dup2(err_end, 2)
                become_container(self.spec, f"{self.directory}/root", parent)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the parent has to report it
                os.write(failure_end, str(error).encode()[:4000])
            os._exit(START_ERROR)
        for end in (out_end, err_end, failure_end):
            os.close(end)
        with os.fdopen(failure, "rb") as file:
            return file.read().decode(errors="replace") or None

    def follow(self) -> int:
        """Copy output until the main process ends and its streams are empty; returns its exit code."""
        process = os.pidfd_open(self.main)
        poll = select.poll()
        for source in (*self.streams, process):
            poll.register(source, select.POLLIN)
        deadline = None
        ended = False
        while self.streams or not ended:
            patience = None if deadline is None else max(0, int((deadline - time.monotonic()) * 1000))
            ready = poll.poll(patience)
            if self.rotate:
                self.rotate = False
                self.log.rotated()
            for source, _ in ready:
                if source == process:
                    poll.unregister(process)
                    ended = True
                    kill_everything()
                    deadline = time.monotonic() + 1  # somebody beyond our reach may still hold the streams
                elif data := os.read(source, 65536):
                    self.log.write(self.streams[source], data)
                else:
                    poll.unregister(source)
                    del self.streams[source]
            if deadline is not None and time.monotonic() >= deadline:
                break
        self.log.close()
        code = os.waitstatus_to_exitcode(os.waitpid(self.main, 0)[1])
        return code if code >= 0 else 128 - code

    def pass_on_term(self, *_: object) -> None:
        """SIGTERM: the runtime's stop signal goes to the main process only."""
        if self.main:
            try:
                os.kill(self.main, signal.SIGTERM)
            except OSError:
                return

    def kill(self, *_: object) -> None:
        """SIGUSR1: the grace is over."""
        kill_everything()

    def rotate_soon(self, *_: object) -> None:
        """SIGHUP: the log file was moved away."""
        self.rotate = True


def supervise(directory: str) -> None:
    """Run one container to its end."""
    supervisor = Supervisor(directory)
    signal.signal(signal.SIGTERM, supervisor.pass_on_term)
    signal.signal(signal.SIGUSR1, supervisor.kill)
    signal.signal(signal.SIGHUP, supervisor.rotate_soon)
    _write_atomically(f"{directory}/pid", str(os.getpid()))
    began = time.time()
    failure = supervisor.start()
    if failure is None:
        _write_atomically(f"{directory}/started.json", json.dumps({"pid": supervisor.main, "at": began}))
        os.write(1, b"started\n")
        code = supervisor.follow()
    else:
        code = START_ERROR
    end = {"code": code, "began": began, "ended": time.time(), "failure": failure}
    _write_atomically(f"{directory}/exit.json", json.dumps(end))


def execute(directory: str, failure: int, command: list[str]) -> int:
    """Run a further command inside a container; returns its exit code, and writes to `failure` why it did not start."""
    os.set_inheritable(failure, False)
    try:
        with open(f"{directory}/spec.json") as file:
            spec = json.load(file)
        with open(f"{directory}/started.json") as file:
            join(spec, json.load(file)["pid"])
        child = os.fork()  # only a child is inside the namespace of process ids
        if child:
            os.closerange(0, 3)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.chdir(spec["workdir"])
        os.umask(0o022)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        replace_by(command, spec["env"])
    except (Failed, OSError, ValueError) as error:
        os.write(failure, str(error).encode()[:4000])
    os._exit(START_ERROR)


def join(spec: dict[str, Any], pid: int) -> None:
    """Enter the namespaces that the container's main process has of its own; its root comes with its mounts."""
    kinds = [("user", "user", CLONE_NEWUSER), ("pid", "pid", CLONE_NEWPID), ("mount", "mnt", CLONE_NEWNS)]
    doors = [
        (name, flag, os.open(f"/proc/{pid}/ns/{file}", os.O_RDONLY | os.O_CLOEXEC))
        for name, file, flag in kinds
        if spec[f"{name}_namespace"]
    ]
    for name, flag, door in doors:
        _call(f"entering the {name} namespace", libc.setns(door, flag))


def probe(directory: str) -> None:
    """Print which namespaces this system lets us use, trying them out in children: JSON, one key each."""
    answers: dict[str, object] = {}
    for pid_namespace in (True, False):
        for user_namespace in (False, True):
            found = _try_namespaces(directory, user_namespace=user_namespace, pid_namespace=pid_namespace)
            if found is None:
                answers = {"user": user_namespace, "mount": True, "pid": pid_namespace}
                sys.stdout.write(json.dumps(answers))
                return
            answers["problem"] = found
    sys.stdout.write(json.dumps({"user": False, "mount": False, "pid": False, **answers}))


def _try_namespaces(directory: str, *, user_namespace: bool, pid_namespace: bool) -> str | None:
    os.makedirs(f"{directory}/root", exist_ok=True)
    spec = {
        "user_namespace": user_namespace,
        "pid_namespace": pid_namespace,
        "mount_namespace": True,
        "mounts": [],
        "workdir": "/",
        "command": ["true"],
        "env": {"PATH": os.environ.get("PATH", os.defpath)},
    }
    _write_atomically(f"{directory}/spec.json", json.dumps(spec))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        supervisor = Supervisor(directory)
        failure = supervisor.start()
        if failure is None and (code := supervisor.follow()):
            failure = f"`true` ended with {code} in a private root"
        os.write(writer, (failure or "").encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read() or None


def main(arguments: list[str]) -> None:
    """`--probe DIRECTORY`, `--exec DIRECTORY FD COMMAND...`, or a DIRECTORY whose lock is on descriptor 3."""
    if arguments[0] == "--probe":
        probe(arguments[1])
        return
    if arguments[0] == "--exec":
        code = execute(arguments[1], int(arguments[2]), arguments[3:])
        os._exit(code if code >= 0 else 128 - code)
    fcntl.flock(3, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.set_inheritable(3, False)
    supervise(arguments[0])
