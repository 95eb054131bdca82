"""Reads the text of one connection with a reader of its own: the rule of `LogReader` as a function."""

from dataclasses import dataclass

from agent_runs.contracts.outcome import Gap
from agent_runs.logs.log_resume import Cursor, LogReader
from agent_runs.transcript.lines import Line


@dataclass(frozen=True)
class Resumed:
    """The lines and gaps of one connection, and the cursor for the next one."""

    lines: tuple[Line, ...]
    cursor: Cursor
    gaps: tuple[Gap, ...]


def resume(cursor: Cursor, data: bytes, *, final: bool = False) -> Resumed:
    """What the text of one connection, opened at `cursor.second`, adds to what `cursor` has.

    Args:
        final: the container has ended, so a suspect last line is delivered as it is.
    """
    reader = LogReader(cursor)
    reader.connect(from_start=cursor.second is None, tolerant=True)
    result = reader.feed(data)
    end = reader.disconnect(final=final)
    return Resumed(tuple(result.lines + end.lines), reader.cursor, tuple(result.gaps + end.gaps))
