"""The file of the lines: only ever appended to, and enough to know after a restart what is in it."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from agent_runs.pod.sidecar.drivers.lines import JOURNALED, Line, dictionary, encoded, integer, text
from agent_runs.pod.sidecar.drivers.opencode_server.children import MAX_CHILDREN, STEP

MAX_ERRORS = 100
"""Errors that are remembered, and that are written."""
MAX_MESSAGE, MAX_REJECTED = 2000, 1000
_HEAD = 600
_TYPE = re.compile(rb'\{"type":"([a-z_]{1,40})","timestamp":(\d{1,16})')
_PIECE = 1024 * 1024


class Record:
    """The lines that are written.

    Args:
        counted: types of the lines that are made of what the agent does, and of that alone.

    Attributes:
        journaled: how many of them there are.
        errors: how many there are of each.
        rejected: requests for a permission.
        children: sub-agents' sessions, each with the `seq` of its newest line.
    """

    def __init__(self, path: str, session: str, counted: Callable[[str], bool] = JOURNALED.__contains__) -> None:
        """Raises OSError if it cannot be read and written."""
        self.session = session
        self._counts = counted
        self.journaled = 0
        self.errors: Counter[tuple[str, str]] = Counter()
        self.rejected: set[str] = set()
        self.children: dict[str, int] = {}
        self._last = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.ftruncate(self._file, self._read())

    def write(self, line: Line) -> None:
        """Append one.

        Raises:
            OSError: the disk is full. What is written of the line then is cut at the next start.
        """
        self._last = max(int(time.time() * 1000), self._last)
        data = encoded(line, self._last, self.session)
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]
        self._note(data)

    def close(self) -> None:
        os.close(self._file)

    def _read(self) -> int:
        """Take note of all whole lines, and return where they end."""
        with os.fdopen(os.dup(self._file), "rb", buffering=_PIECE) as file:
            file.seek(0)
            end = 0
            while line := file.readline():
                if not line.endswith(b"\n"):
                    break
                self._note(line)
                end += len(line)
        return end

    def _note(self, line: bytes) -> None:
        found = _TYPE.match(line[:_HEAD])
        if found is None:
            return
        kind, self._last = found[1].decode(), max(int(found[2]), self._last)
        self.journaled += self._counts(kind)
        if kind == "error" and len(self.errors) < MAX_ERRORS:
            self.errors[error_key(json.loads(line).get("error"))] += 1
        elif kind == "permission_rejected" and len(self.rejected) < MAX_REJECTED:
            self.rejected.add(str(json.loads(line).get("requestID")))
        elif kind == STEP and len(self.children) < MAX_CHILDREN:
            step = json.loads(line)
            self.children[text(step.get("child"), MAX_MESSAGE)] = integer(step.get("seq"))


def error_key(error: object) -> tuple[str, str]:
    """Return by what two reports of one error are the same."""
    fields: dict[str, Any] = dictionary(error)
    data = dictionary(fields.get("data"))
    return text(fields.get("name"), 200), text(data.get("message"), MAX_MESSAGE)
