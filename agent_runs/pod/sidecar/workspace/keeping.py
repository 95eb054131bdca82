"""The sidecar's end of the keeper: starts it, tells it what the agent does, replaces it if it dies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from typing import Any

HEAD = 600
"""Bytes of a line that are looked at."""
MAX_KEEPERS = 4
"""The first, and those that replace it."""
_STEP = re.compile(rb'^\s*\{\s*"type"\s*:\s*"step_finish"([^\n]*)', re.MULTILINE)
_SESSION = re.compile(rb'"sessionID"\s*:\s*"([\w-]{1,128})"')
FAILED = {"code": "keeper_failed", "message": "the process that sends the workspace died, and so did the next ones"}
CUT_OFF = {"code": "cut_off", "message": "the pod was to end before the workspace was sent"}
TOO_SLOW = {"code": "too_slow", "message": "the last checkpoint was not taken in time"}
LAST_SECONDS = 600.0
"""For all that is still to be sent when the agent has ended, if the configuration does not say so. The worker waits
longer for the last frame (`FollowTiming.last_checkpoint_timeout`)."""


class Steps:
    """Counts the agent's steps in its standard output, in whatever pieces that comes.

    Attributes:
        session: the agent's, of the last step.
    """

    def __init__(self) -> None:
        self.number, self.session = 0, ""
        self._partial = b""

    def add(self, piece: bytes) -> bool:
        """Whether a step has ended in it."""
        whole, newline, rest = piece.rpartition(b"\n")
        if not newline:
            self._partial += piece[: max(HEAD - len(self._partial), 0)]
            return False
        found = list(_STEP.finditer(self._partial + whole))
        self._partial = rest[:HEAD]
        self.number += len(found)
        for step in found:
            session = _SESSION.search(step[1][:HEAD])
            self.session = session[1].decode() if session else self.session
        return bool(found)


class Keeping:
    """The keeper's process.

    Args:
        config: the file that it reads.

    Attributes:
        last_seconds: for which the end may take.
        file: readable when it has written something.
        has_ended: it has taken the last checkpoint, or nobody can.
    """

    def __init__(self, config: str) -> None:
        self._config, self._program = os.path.abspath(config), os.path.abspath(sys.argv[0])
        with open(config) as known:
            self.last_seconds = float(json.load(known).get("last_sec", LAST_SECONDS))
        self._read_by_it, self._commands = os.pipe2(os.O_CLOEXEC)
        self.file, self._written = os.pipe2(os.O_CLOEXEC)
        for file in (self._commands, self.file):
            os.set_blocking(file, False)
        self._steps, self._left = Steps(), b""
        self._process = self._keepers = 0
        self._ends = self._knows_end = self.has_ended = False
        self._last: dict[str, Any] = {"number": 0, "steps": 0, "warnings": [], "bytes": 0, "error": None}

    def begin(self) -> None:
        """Start it. Its working directory is the sidecar's own folder, for its copies."""
        self._keepers += 1
        self._knows_end = False
        self._process = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", self._program, "keep", self._config],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, self._read_by_it, 0), (os.POSIX_SPAWN_DUP2, self._written, 1)],
        )

    def saw(self, output: bytes) -> None:
        """Take the next piece of the agent's output."""
        if self._steps.add(output) and not self._ends:
            self._tell("step")

    def end(self) -> None:
        """Have it take the last checkpoint."""
        self._ends = True
        self.take()

    def _tell(self, word: str) -> bool:
        """Whether there was room for it. It reads seldom; of the steps, only the last one matters."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._commands, f"{word} {self._steps.number} {self._steps.session}\n".encode())
            return True
        return False

    def take(self) -> None:
        """Take what it has written, and tell it of the end, if it does not know."""
        if self._ends and not self._knows_end:
            self._knows_end = self._tell("end")
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.file, 65536):
                *lines, self._left = (self._left + piece).split(b"\n")
                for line in lines:
                    self._take_line(json.loads(line))

    def _take_line(self, line: dict[str, Any]) -> None:
        if not line["number"]:  # of one that has stored nothing yet
            line = {**line, "number": self._last["number"], "steps": self._last["steps"]}
        self._last = line

    def collect(self, process: int, status: int) -> None:
        """Replace the keeper, if it is this process, which has ended too early."""
        if process != self._process:
            return
        self._process = 0
        self.take()
        if status == 0 and self._ends:
            self.has_ended = True
        elif self._keepers < MAX_KEEPERS:
            self.begin()
            self.take()
        else:
            self.has_ended = True
            self._last = {**self._last, "error": FAILED}

    def kill(self, error: dict[str, str] = CUT_OFF) -> None:
        """End it, whatever it does. `error` says why."""
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            self._process = 0
            self.take()
            self._last = {**self._last, "error": error}

    @property
    def last(self) -> dict[str, Any]:
        """What it has written last, for the last frame."""
        return self._last
