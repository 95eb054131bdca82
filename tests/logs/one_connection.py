"""Reads the text of one connection without a sidecar that repeats what is missing."""

from dataclasses import dataclass

from agent_runs.contracts.outcome import Gap
from agent_runs.logs.log_resume import Cursor, LogReader, ReadResult
from agent_runs.transcript.lines import Line


@dataclass(frozen=True)
class Resumed:
    """The lines and gaps of one connection, and the cursor for the next one."""

    lines: tuple[Line, ...]
    cursor: Cursor
    gaps: tuple[Gap, ...]


def resume(cursor: Cursor, data: bytes, *, final: bool = False) -> Resumed:
    """What the text of one connection, opened at `cursor.second`, adds to what `cursor` has, by a reader of its own.

    Args:
        final: the container has ended, so a suspect last line is delivered as it is.
    """
    reader = LogReader(cursor)
    reader.connect(from_start=True)
    result = fed(reader, data)
    end = reader.disconnect(final=final)
    return Resumed(tuple(result.lines + end.lines), reader.cursor, tuple(result.gaps + end.gaps))


def fed(reader: LogReader, data: bytes) -> ReadResult:
    """What the next piece of a connection yields."""
    result = reader.feed(data)
    while reader.missing_range is not None:
        rest = reader.give_up_missing_range()
        result.lines += rest.lines
        result.gaps += rest.gaps
    return result
