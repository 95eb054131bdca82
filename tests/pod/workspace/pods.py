"""A pod's processes that keep and restore a workspace, from the sidecar's archive."""

import json
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.pod.harness import Sidecar
from tests.pod.workspace.service import Run

TIMEOUT = 120


@dataclass
class Keeper:
    """A keeper's process."""

    process: subprocess.Popen[bytes]

    def tell(self, *commands: str) -> None:
        assert self.process.stdin
        self.process.stdin.write("".join(f"{command}\n" for command in commands).encode())
        self.process.stdin.flush()

    def line(self) -> dict[str, Any]:
        """The next checkpoint's line, as soon as it comes."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the keeper ended"
        return dict(json.loads(line))

    def step(self, number: int = 1, session: str = "ses_1") -> dict[str, Any]:
        self.tell(f"step {number} {session}")
        return self.line()

    def end(self, number: int = 9, session: str = "ses_1") -> dict[str, Any]:
        """The last checkpoint's line, and the end of the process."""
        self.tell(f"end {number} {session}")
        lines = self.process.communicate(timeout=TIMEOUT)[0].splitlines()
        assert self.process.returncode == 0
        return dict(json.loads(lines[-1]))


@dataclass
class Pod:
    """The folders of a pod."""

    run: Run
    home: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workspace.mkdir(parents=True)
        self.session.mkdir()
        self.control.mkdir()
        self.sidecar = Sidecar(self.home)

    @property
    def workspace(self) -> Path:
        return self.home / "workspace"

    @property
    def session(self) -> Path:
        return self.home / "database"

    @property
    def control(self) -> Path:
        return self.home / "control"

    @property
    def roots(self) -> dict[str, Path]:
        return {"workspace": self.workspace, "session/opencode": self.session}

    def config(self, **more: Any) -> Path:
        """The file that its processes read."""
        file = self.home / "workspace.json"
        file.write_text(json.dumps(self.run.config(self.roots) | more))
        return file

    def keeper(self, **more: Any) -> Keeper:
        argv = self.sidecar.argv("keep", str(self.config(**{"interval": 0, **more})))
        process = subprocess.Popen(argv, cwd=self.control, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.started.append(process)
        return Keeper(process)

    def restoring(self, number: int = 0, **more: Any) -> subprocess.Popen[bytes]:
        argv = self.sidecar.argv("restore", str(self.config(restore=number or max(self.run.ledger()), **more)))
        process = subprocess.Popen(argv, cwd=self.control, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.started.append(process)
        return process

    def restore(self, number: int = 0, **more: Any) -> tuple[int, str]:
        """Exit code, and what it says."""
        process = self.restoring(number, **more)
        out, err = process.communicate(timeout=TIMEOUT)
        return process.returncode, (out + err).decode()

    def clean_up(self) -> None:
        for process in self.started:
            with process:
                process.kill()


def content(folder: Path) -> dict[str, tuple[Any, ...]]:
    """All that a tree has of a folder."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        name, mode = str(path.relative_to(folder)), stat.S_IMODE(about.st_mode)
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_dir():
            found[name] = ("dir", mode)
        else:
            found[name] = ("file", mode, about.st_mtime_ns // 1000, path.read_bytes())
    return found
