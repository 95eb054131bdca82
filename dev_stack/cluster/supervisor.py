"""The parent of one container: a small stand-alone program that ends with the cluster that started it.

It reads an object, as `marshal` writes it, from standard input and puts the container's command into a private root
with its declared mounts and, where the system permits, with its own process ids. The command writes to the standard
output and error of this program. A container ends when its main process ends, even if something it left in the
background still holds its output; all of that is killed then. SIGTERM is passed to the main process, SIGUSR1 kills
everything. With `join` in the object it runs one more command inside a container (`kubectl exec`), whose standard input
is the descriptor `stdin`, if there is one. The exit code is that of the command.

On the descriptor `report` it writes why the command could not be started, or closes it when the command runs. Only the
standard library, and little of it, because each container waits for this program's start.
"""

# Importing pathlib would cost every container start several milliseconds.
# ruff: noqa: PTH102, PTH103, PTH110, PTH112, PTH114, PTH115, PTH116, PTH123, PTH208, PTH211

from __future__ import annotations

import ctypes
import marshal
import os
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
DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "ptmx": "pts/ptmx",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
START_ERROR = 128  # the exit code containerd gives a container whose command could not be started

libc = ctypes.CDLL(None, use_errno=True)


class Failed(Exception):
    """A system call refused; the text says which and why."""


def checked(what: str, result: int) -> None:
    if result != 0:
        raise Failed(f"{what}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    checked(f"mount {source} at {target}", result)


# ------------------------------------------------------------------ private root


class PrivateRoot:
    """A root of our own: the host's top-level directories plus the container's mounts, nothing left on the host."""

    def __init__(self, root: str, *, own_processes: bool) -> None:
        self.root = root
        self.own_processes = own_processes
        self.writable: set[str] = set()  # directories in which a mount point may be created

    def build(self, mounts: list[dict[str, object]]) -> None:
        """Mount everything below `self.root`; the process still has its old root afterwards."""
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        _mount("tmpfs", self.root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
        _mount("none", self.root, None, MS_UNBINDABLE)  # else binding its own parent would contain it again
        self.writable.add(self.root)
        self._graft_children("/", self.root)
        self._add_devices(f"{self.root}/dev")
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
        checked("pivot_root", libc.pivot_root(b".", b"."))
        checked("umount of the old root", libc.umount2(b".", MNT_DETACH))
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

    def _add_devices(self, place: str) -> None:
        """Devices as container runtimes give them, with terminals of its own."""
        os.mkdir(place)
        _mount("tmpfs", place, "tmpfs", MS_NOSUID, "mode=0755")
        self.writable.add(place)
        for name in DEVICES:
            os.close(os.open(f"{place}/{name}", os.O_CREAT | os.O_WRONLY, 0o600))
            _mount(f"/dev/{name}", f"{place}/{name}", None, MS_BIND)
        for name, target in DEVICE_LINKS.items():
            os.symlink(target, f"{place}/{name}")
        for name, kind, options in (("pts", "devpts", "newinstance,ptmxmode=0666"), ("shm", "tmpfs", "mode=1777")):
            os.mkdir(f"{place}/{name}")
            _mount(kind, f"{place}/{name}", kind, MS_NOSUID, options)

    def _graft_children(self, source: str, target: str) -> None:
        for entry in os.scandir(source):
            there = f"{target}/{entry.name}"
            if entry.path in (self.root, "/dev") or there == self.root:
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
                continue  # deleted meanwhile, or not ours to show: the container does without it


def enter_user_namespace() -> None:
    """Become able to mount without being root; the user keeps their own id inside."""
    user, group = os.geteuid(), os.getegid()
    checked("unshare of the user namespace", libc.unshare(CLONE_NEWUSER))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


# ------------------------------------------------------------------ the container's process


def become_container(spec: dict[str, Any], parent: int) -> None:
    """In the forked child: mounts, working directory, then the command. Returns only by raising."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not spec["pid_namespace"] and os.getppid() != parent:
        os._exit(START_ERROR)  # the supervisor died between fork and prctl
    os.setsid()
    if spec["mount_namespace"]:
        checked("unshare of the mount namespace", libc.unshare(CLONE_NEWNS))
        private = PrivateRoot(spec["root"], own_processes=spec["pid_namespace"])
        private.build(spec["mounts"])
        private.place(spec["workdir"], directory=True)
        private.enter()
    else:
        os.makedirs(spec["workdir"], exist_ok=True)
    os.chdir(spec["workdir"])
    os.umask(0o022)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    replace_by(spec["command"], spec["env"])


def replace_by(command: list[str], environment: dict[str, str]) -> None:
    """Become this command. Returns only by raising `Failed`, worded as by a container runtime."""
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
                continue  # ended meanwhile
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


# ------------------------------------------------------------------ the supervisor itself


def supervise(spec: dict[str, Any]) -> int:
    """Run one container to its end; returns its exit code."""
    parent = os.getpid()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        if spec["user_namespace"]:
            enter_user_namespace()
        if spec["pid_namespace"]:
            checked("unshare of the pid namespace", libc.unshare(CLONE_NEWPID))
    except (Failed, OSError) as error:
        _report(spec, str(error))
        return START_ERROR
    main = os.fork()
    if main == 0:
        try:
            become_container(spec, parent)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the cluster has to report it
            _report(spec, str(error))
        os._exit(START_ERROR)
    signal.signal(signal.SIGTERM, lambda *_: _signal(main, signal.SIGTERM))
    signal.signal(signal.SIGUSR1, lambda *_: kill_everything())
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
    if os.getppid() != spec["cluster"]:
        kill_everything()
    os.close(spec["report"])
    os.closerange(1, 3)  # only the container holds its output
    code = os.waitstatus_to_exitcode(_wait_for(main))
    kill_everything()
    return code


def _wait_for(main: int) -> int:
    """Reap until the main process has ended; as the subreaper we get its orphans too."""
    while True:
        pid, status = os.wait()
        if pid == main:
            return status


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


def _report(spec: dict[str, Any], text: str) -> None:
    os.write(spec["report"], text.encode()[:4000])


def join(spec: dict[str, Any]) -> int:
    """Run one more command inside a container; returns its exit code."""
    try:
        enter(spec)
        child = os.fork()  # only a child is inside the namespace of process ids
        if child:
            os.close(spec["report"])
            os.closerange(0, 3)  # only the command holds its input and output
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.chdir(spec["workdir"])
        os.umask(0o022)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        replace_by(spec["command"], spec["env"])
    except (Failed, OSError, ValueError) as error:
        _report(spec, str(error))
    os._exit(START_ERROR)


def enter(spec: dict[str, Any]) -> None:
    """Enter the namespaces that the container's main process has of its own; its root comes with its mounts."""
    kinds = [("user", "user", CLONE_NEWUSER), ("pid", "pid", CLONE_NEWPID), ("mount", "mnt", CLONE_NEWNS)]
    namespaces = [
        (name, flag, os.open(f"/proc/{spec['join']}/ns/{file}", os.O_RDONLY | os.O_CLOEXEC))
        for name, file, flag in kinds
        if spec[f"{name}_namespace"]
    ]
    for name, flag, namespace in namespaces:
        checked(f"entering the {name} namespace", libc.setns(namespace, flag))


def main() -> None:
    """Run what standard input asks for; the exit code is 128 and a signal's number for a killed command."""
    spec = marshal.loads(sys.stdin.buffer.read())  # noqa: S302 - the cluster wrote it; importing json costs 8 ms
    os.set_inheritable(spec["report"], False)
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if (stdin := spec.get("stdin")) is not None:
        os.dup2(stdin, 0)
        os.close(stdin)
    code = join(spec) if "join" in spec else supervise(spec)
    os._exit(code if code >= 0 else 128 - code)
