"""Lines of which only the time does not matter."""

from datetime import UTC, datetime
from typing import Final

from agent_runs.pod.sidecar.encoding import Checksum
from agent_runs.transcript.lines import Line

READ_AT: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


def log_line(sequence: int, stream: str, data: bytes, terminated: bool = True, whole: bool = True) -> Line:
    return Line(sequence, stream, data, terminated, at=READ_AT, whole=whole)


def file_line(data: bytes, stream: str = "stdout", terminated: bool = True) -> Line:
    """A line of a saved output, in which lines have no numbers."""
    return log_line(1, stream, data, terminated)


def checksum_of(data: bytes) -> str:
    """As the sidecar's last frame has it."""
    checksum = Checksum()
    checksum.update(data)
    return str(checksum)
