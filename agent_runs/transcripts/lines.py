"""A line of output, and how many of them make a page."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Protocol

import msgspec

LINE_BYTES: Final = 200
"""What a line takes in the store besides its data. Measured: an empty one takes 190 bytes of SQLite's file."""


class _LineFields(msgspec.Struct, frozen=True, gc=False):
    sequence: int
    stream: str
    data: bytes
    terminated: bool = True


class Line(_LineFields, frozen=True, gc=False, kw_only=True):
    """One line of output as the agent wrote it, without its newline.

    Attributes:
        sequence: from 1 on; orders the lines of an attempt over all streams.
        stream: `stdout`, `stderr` or whatever the source calls it.
        data: raw bytes: any length, any byte but the newline, not necessarily text.
        terminated: False for a last line that ended without a newline.
        at: when it was written, aware.
    """

    at: datetime

    def __post_init__(self) -> None:
        if self.sequence < 1:
            raise ValueError(f"sequence {self.sequence}: lines count from 1")
        if self.at.tzinfo is None:
            raise ValueError(f"at {self.at}: give it a time zone")

    def repeats(self, other: "Line") -> bool:
        """Whether everything but the time is equal."""
        return (self.sequence, self.stream, self.data, self.terminated) == (
            *(other.sequence, other.stream, other.data, other.terminated),
        )


class HasData(Protocol):
    """Whatever has a line's data."""

    @property
    def data(self) -> bytes:
        """Without the newline."""
        ...


def stored_size(lines: Iterable[HasData]) -> int:
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
