"""A line of output, and how many of them make a page."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

LINE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one line that are kept. The biggest line seen from OpenCode had 2.9 MB; it sets no limit itself."""
LINE_BYTES: Final = 200
"""What a line takes in the store besides its data. Measured: an empty one takes 190 bytes of SQLite's file."""


class _LineFields(msgspec.Struct, frozen=True):
    sequence: int
    stream: str
    data: bytes
    terminated: bool = True


class Line(_LineFields, frozen=True, gc=False, eq=False, kw_only=True):
    """One line of output as the agent wrote it, without its newline. Equal ones say the same, whenever they came.

    Attributes:
        sequence: from 1 on; orders the lines of an attempt over all streams, not without jumps.
        stream: `stdout` or `stderr`; `GAP_STREAM` in the store where lines are missing.
        data: raw bytes: any byte but the newline, not necessarily text; of a line beyond `LINE_LIMIT` its beginning.
        terminated: False for a last line that ended without a newline.
        at: when it was read from the agent's log, aware.
        whole: False when something of it may be missing: it was longer than `LINE_LIMIT`, or frames are lost. Of a line
            from the store that is not known.
    """

    at: datetime
    whole: bool = True

    def __post_init__(self) -> None:
        if self.sequence < 1:
            raise ValueError(f"sequence {self.sequence}: lines count from 1")
        if self.at.tzinfo is None:
            raise ValueError(f"at {self.at}: give it a time zone")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and self._said == other._said

    def __hash__(self) -> int:
        return hash(self._said)

    @property
    def _said(self) -> tuple[int, str, bytes, bool]:
        return self.sequence, self.stream, self.data, self.terminated

    @property
    def raw(self) -> bytes:
        """The line as it was written."""
        return self.data + b"\n" if self.terminated else self.data


def stored_size(lines: Iterable[Line]) -> int:
    """The bytes that the lines take in the store, about."""
    return sum(len(line.data) + LINE_BYTES for line in lines)


def page_end(sizes: Iterable[tuple[int, int]], max_bytes: int) -> int | None:
    """The last sequence of a page of at most `max_bytes`, given (sequence, bytes) in order; None for no lines.

    A first line beyond the limit is a page of its own, else a reader would never get past it.
    """
    end = None
    total = 0
    for sequence, size in sizes:
        total += size
        if end is not None and total > max_bytes:
            break
        end = sequence
    return end
