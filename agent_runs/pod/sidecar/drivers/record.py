"""The file of the lines: only ever appended to, and enough to know after a restart what is in it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Set as AbstractSet
from typing import Any

from agent_runs.pod.sidecar.drivers.lines import LEFT_OUT_TYPE, USER_MESSAGE, Line, dictionary, encoded
from agent_runs.pod.sidecar.drivers.questions import ANSWERED, ASKED, REJECTED

_HEAD = 600
_TYPE = re.compile(rb'\{"type":"([a-z_]{1,40})","timestamp":(\d{1,16})')
_LEFT_OUT = re.compile(rb',"leftOut":"([a-z_]{1,40})"\}\n$')
_PIECE = 1024 * 1024
_ONCE = {
    USER_MESSAGE: ("message", "id"),
    ASKED: ("question", "id"),
    ANSWERED: ("question", "id"),
    REJECTED: ("requestID",),
}
"""Lines of which there is one for each identifier, and where that is."""


class Record:
    """The lines that are written. `once` has the identifiers of those that are written once, by type.

    A driver that takes the place of a killed one makes the same lines again, in order: those that are written already
    are left out.

    Args:
        live: types of the lines that no driver makes again.
    """

    def __init__(self, path: str, session: str, live: AbstractSet[str]) -> None:
        """Raises OSError if it cannot be read and written."""
        self.session = session
        self._live = live | _ONCE.keys()
        self.once: dict[str, set[str]] = {kind: set() for kind in _ONCE}
        self._repeated = 0  # lines of an earlier driver that this one has still to make
        self._last = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.ftruncate(self._file, self._read())

    def write(self, line: Line) -> None:
        """Append one, unless an earlier driver has.

        Raises:
            OSError: the disk is full. What is written of the line then is cut at the next start.
        """
        if self._repeated and line.type not in self._live:
            self._repeated -= 1
            return
        if line.type in _ONCE and _identifier(line.type, line.content) in self.once[line.type]:
            return
        self._last = max(int(time.time() * 1000), self._last)
        data = encoded(line, self._last, self.session)
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]
        self._take(data)

    def note(self, kind: str, line: bytes) -> None:
        """Take note of a line that is in the file."""

    def _read(self) -> int:
        """Take note of all whole lines, and return where they end."""
        with os.fdopen(os.dup(self._file), "rb", buffering=_PIECE) as file:
            file.seek(0)
            end = 0
            while line := file.readline():
                if not line.endswith(b"\n"):
                    break
                kind = self._take(line)
                if kind == LEFT_OUT_TYPE and (left_out := _LEFT_OUT.search(line)):
                    kind = left_out[1].decode()
                self._repeated += kind != "" and kind not in self._live
                end += len(line)
        return end

    def _take(self, line: bytes) -> str:
        """Take note of a line that is in the file, and return its type; empty if it has none."""
        found = _TYPE.match(line[:_HEAD])
        if found is None:
            return ""
        kind, self._last = found[1].decode(), max(int(found[2]), self._last)
        if kind in _ONCE:
            self.once[kind].add(_identifier(kind, json.loads(line)))
        self.note(kind, line)
        return kind


def _identifier(kind: str, content: Any) -> str:
    for name in _ONCE[kind]:
        content = dictionary(content).get(name)
    return str(content)
