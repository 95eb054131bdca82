"""What the sidecar sees of the runner in the agent's container: a FIFO that it holds open while it lives.

The kernel closes it however the runner ends. Two lines come through it, `started` and `result ...`; the runner is a
shell script, and the agent, which has the same user, can write into the FIFO, too. So a result counts only if it is the
only one, and even then it is the runner's word: the container's status, which Kubernetes keeps, is compared with it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
from typing import Any, NamedTuple

from agent_runs.pod.sidecar import shared

FIFO = "agent"
"""Its name in the folder that both containers share."""
MAX_MESSAGE = 4096
"""Bytes that are kept of what comes through."""
_RESULT = re.compile(
    rb"started\nresult ([0-9]{1,3}) (null|TERM|INT|HUP) (true|false) (null|[a-z_]{1,64}) (null|[A-Za-z0-9_-]{1,64})"
    rb" (null|[0-9]{1,18}) (null|[0-9]{1,18})\n"
)


class Result(NamedTuple):
    """What the runner reports of its command; see `agent_runs.logs.frames.LastFrame`. All None: it could not."""

    exit_code: int | None = None
    stopped_by: str | None = None
    grace_exceeded: bool = False
    error: str | None = None
    detail: str | None = None
    memory_peak: int | None = None
    memory_limit: int | None = None

    def frame(self) -> dict[str, Any]:
        """Return what the last frame says of it."""
        signal = self.exit_code - 128 if self.exit_code is not None and 128 < self.exit_code <= 192 else None
        return {**self._asdict(), "signal": signal}


class Runner:
    """The reading end of the FIFO."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        shared.make_fifo(folder, FIFO)
        self.file = shared.open_fifo(folder, FIFO, os.O_RDONLY)
        self._message = b""
        self.has_started = False

    def has_ended(self) -> bool:
        """Take what came, and return whether nobody holds the FIFO open any more."""
        while True:
            try:
                piece = os.read(self.file, MAX_MESSAGE)
            except BlockingIOError:
                return False
            if not piece:
                return self.has_started or self._is_hung_up()
            self._message = (self._message + piece)[: MAX_MESSAGE + 1]
            if not self.has_started:
                self.has_started = True
                with contextlib.suppress(OSError):  # nobody else has to open it
                    shared.remove(self._folder, FIFO)

    def _is_hung_up(self) -> bool:
        """Whether it was opened and closed; before it was opened Linux reports no hang-up."""
        poll = select.poll()
        poll.register(self.file, select.POLLIN)
        return any(event & select.POLLHUP for _, event in poll.poll(0))

    @property
    def result(self) -> Result:
        """What it reported."""
        match = _RESULT.fullmatch(self._message)
        if match is None or int(match[1]) > 255:
            return Result()
        stopped_by, error, detail = (None if match[n] == b"null" else match[n].decode() for n in (2, 4, 5))
        peak, limit = (None if match[n] == b"null" else int(match[n]) for n in (6, 7))
        return Result(int(match[1]), stopped_by, match[3] == b"true", error, detail, peak, limit)
