"""A log as a kubelet serves it, for tests of readers: stamps, `sinceTime`, cuts, rotation."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from agent_runs.logs.frames import Frame
from agent_runs.pod.sidecar.encoding import Checksum
from tests.logs.frame_encoding import encode_frame, split_frames

BEGIN = datetime(2026, 11, 21, 23, 0, 0, tzinfo=UTC)


class Log:
    """Stamped lines of one container.

    Args:
        lines: as the container wrote them, newline included if there was one.
        steps: milliseconds between a line and the one before, repeated as needed; negative for a clock set back.
    """

    def __init__(self, lines: Sequence[bytes], steps: Sequence[int] = (1,)) -> None:
        moment = BEGIN
        self.stamped: list[tuple[datetime, bytes]] = []
        for number, line in enumerate(lines):
            moment += timedelta(milliseconds=steps[number % len(steps)])
            self.stamped.append((moment, moment.strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode() + line))
        self.oldest = 0

    def rotate(self, lost: int) -> None:
        """The first `lost` lines are removed."""
        self.oldest = lost

    def has_last_frame(self, upto: int | None = None) -> bool:
        """Whether the sidecar's last frame is among the first `upto` lines."""
        stamped = self.stamped[:upto]
        return bool(stamped) and stamped[-1][1].split(b" ", 2)[1].endswith(b"x.")

    def text(self, since: datetime | None, upto: int | None = None) -> bytes:
        """What a connection opened now would get, of the first `upto` lines."""
        available = self.stamped[self.oldest : upto]
        return b"".join(text for moment, text in available if since is None or moment >= since)


def framed(outputs: Sequence[tuple[str, bytes]], last: bytes | None = b"{}") -> list[bytes]:
    """The frames of a runner whose command wrote these, newline included."""
    frames = [Frame(1, "hello", ".", b'{"format":1}')]
    for stream, data in outputs:
        frames += split_frames("stderr" if stream == "stderr" else "stdout", data, frames[-1].seq + 1)
    if last is not None:
        frames.append(Frame(frames[-1].seq + 1, "last", ".", last))
    return [encode_frame(frame) for frame in frames]


def checksum(output: bytes) -> str:
    """As the last frame has it."""
    found = Checksum()
    found.update(output)
    return str(found)
