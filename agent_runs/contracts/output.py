"""A line of an agent's output, as everything that keeps or reads one sees it."""

from typing import Final, Protocol

LINE_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of one line that are kept. The biggest line seen from OpenCode had 2.9 MB; it sets no limit itself."""


class OutputLine(Protocol):
    """What all lines have, whether they come from a container's log, the transcript store or a file."""

    @property
    def stream(self) -> str:
        """`stdout` or `stderr`; `GAP_STREAM` in the transcript store where lines are missing."""
        ...

    @property
    def data(self) -> bytes:
        """The raw bytes without the newline, at most `LINE_LIMIT` of them: of a longer line its beginning."""
        ...

    @property
    def terminated(self) -> bool:
        """Whether a newline ends the line; only the last one of a stream may lack it."""
        ...
