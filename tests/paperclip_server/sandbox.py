"""Runs a program in namespaces and a root of its own: `python -m tests.paperclip_server.sandbox SANDBOX.json`.

Paperclip's embedded PostgreSQL refuses root, its files must be where pods see them (`/paperclip`), and none of its
processes may outlive the tests. So the program gets a mount namespace with short paths that it may read; a
namespace of process ids, whose end ends all its processes; and an unprivileged user. SIGTERM is passed on; SIGUSR1
kills everything at once, as a lost container does.
"""

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from dev_stack.cluster import supervisor

STOP_GRACE = 30
"""Seconds from SIGTERM to SIGKILL for everything."""


@dataclass(frozen=True)
class Sandbox:
    """What to run, and its view of the machine.

    Attributes:
        mounts: path inside -> path on this machine.
        stale: files to delete before the start.
        user: the user to become and that user's group, when we are root.
    """

    command: list[str]
    environment: dict[str, str]
    workdir: str
    mounts: dict[str, str]
    root: str
    user: tuple[int, int] | None
    stale: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls(**json.loads(path.read_text()))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    def run(self) -> int:
        """Runs the command to its end; returns its exit code, or 128 + the signal that ended it."""
        if self.user is None:
            supervisor.enter_user_namespace()
        supervisor.checked("unshare of the pid namespace", supervisor.libc.unshare(supervisor.CLONE_NEWPID))
        main = os.fork()
        if main == 0:
            try:
                self._enter()
            except BaseException as error:  # noqa: BLE001 - this process can only report it
                sys.stderr.write(f"{error}\n")
                sys.stderr.flush()
            os._exit(supervisor.START_ERROR)

        def terminate(*_: object) -> None:
            os.kill(main, signal.SIGTERM)
            signal.alarm(STOP_GRACE)

        signal.signal(signal.SIGTERM, terminate)
        for number in (signal.SIGUSR1, signal.SIGALRM):
            signal.signal(number, lambda *_: os.kill(main, signal.SIGKILL))
        code = os.waitstatus_to_exitcode(os.waitpid(main, 0)[1])
        return code if code >= 0 else 128 - code

    def _enter(self) -> None:
        os.setsid()
        supervisor.checked("unshare of the mount namespace", supervisor.libc.unshare(supervisor.CLONE_NEWNS))
        private = supervisor.PrivateRoot(self.root, own_processes=True)
        private.build([{"source": here, "target": inside, "read_only": False} for inside, here in self.mounts.items()])
        private.place(self.workdir, directory=True)
        private.enter()
        for path in self.stale:
            Path(path).unlink(missing_ok=True)
        if self.user is not None:
            os.setgroups([])
            os.setgid(self.user[1])
            os.setuid(self.user[0])
        # After the change of user, which clears it. In a namespace of process ids our parent is 0, dead or alive.
        supervisor.libc.prctl(supervisor.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.chdir(self.workdir)
        os.umask(0o022)
        supervisor.replace_by(self.command, self.environment)


if __name__ == "__main__":
    sys.exit(Sandbox.read(Path(sys.argv[1])).run())
