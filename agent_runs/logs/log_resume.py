"""The lines of a container's log, put together over any number of connections. Pure: no clock, no I/O.

The text of a connection, opened with `sinceTime` at the cursor's second, gives the lines that the cursor does not have
yet, the next cursor, and the gaps. The frames of our sidecar are numbered, so repeats and gaps are exact.

The behaviour of the log API (whole seconds, inclusive; unstamped error text inside a good answer; the newest file
only) was measured on kubelet 1.20 and on the log code of 1.36.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from agent_runs.contracts.outcome import Gap
from agent_runs.logs.frames import Frame, FrameReader, Junk, LastFrame, LineAssembler
from agent_runs.transcript.lines import Line

MAX_NOISE_LINES: Final = 20
NOISE_LINE_LIMIT: Final = 500
_NANOSECONDS: Final = re.compile(r"(\.\d{6})\d+")
_KUBELET_IN_FRAME: Final = re.compile(
    rb"(?i)rpc error: code =|unable to retrieve container logs|failed with err |error reading from "
    rb"|failed to (create fsnotify|watch |try resolving|open log|seek |read log|write log|read from)"
)
"""What a kubelet writes in the middle of a log. Source: kubernetes, pkg/kubelet/kuberuntime/logs."""
_KUBELET_HINTS: Final = (
    b"rpc error: code =",
    b"unable to retrieve",
    b"failed with err ",
    b"error reading from ",
    b"failed to ",
)
"""Whatever `_KUBELET_IN_FRAME` matches contains one of them in lower case; searching for them is 100 times cheaper."""
_NO_INOTIFY: Final = re.compile(rb"(?i)fsnotify|inotify|too many open files")


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a log has been read. The default is the start; `Cursor(after=n)` is what a store alone knows.

    Attributes:
        after: sequence of the last line that was delivered.
        first: number of the first frame still needed; smaller than `after` while a line of the other stream is open.
        second: where the next connection begins; None for the start of the log.
        covered: number of the last frame that was delivered or reported as a gap, if that is more than `after`.
    """

    after: int = 0
    first: int = 1
    second: datetime | None = None
    covered: int = 0

    def with_hint(self, after: int, first: int, second: datetime | None) -> "Cursor":
        """Return this cursor with `first` and `second` of another reader that had delivered up to `after`.

        A hint that cannot belong to this cursor changes nothing. A wrong `second` is detected by the frame numbers; a
        wrong `first` loses at most the beginning of one open line per stream, which the receipt shows.
        """
        if not (0 < after <= max(self.after, self.covered) and 0 < first <= after + 1):
            return self
        return replace(self, first=first, second=second)


@dataclass(frozen=True, slots=True)
class NewestFrame:
    """The newest frame of a log that was read, new or repeated.

    Attributes:
        number: its own.
        stamp: RFC 3339, by the node's clock.
    """

    number: int
    stamp: str

    @property
    def written_at(self) -> datetime | None:
        return _moment(self.stamp)

    def equals(self, item: Frame | Junk) -> bool:
        return isinstance(item, Frame) and item.seq == self.number

    def precedes(self, item: Frame | Junk) -> bool:
        """Whether the log has a later frame; what is no frame does not count."""
        return isinstance(item, Frame) and item.seq > self.number


@dataclass
class ReadResult:
    lines: list[Line] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


class LogReader:
    """Reads the log of a sidecar over many connections. What is no frame is noise.

    Call `connect` before each connection, `feed` with its pieces, `disconnect` at its end. When `incomplete` turns
    true, frames are missing that an earlier part of the log may have (a clock was set back), and nothing more is taken
    from this connection. Open the next one at the start of the log. What is missing there is `missing_range`, which is
    set before anything beyond it is delivered: pass the frames to `backfill` (after `begin_backfill`), and call
    `give_up_missing_range` for what remains missing. Feed nothing meanwhile.

    Attributes:
        since: where the next connection should begin; None for the start of the log.
        incomplete: this connection lacks frames that the start of the log may have.
        contiguous: this connection repeated known frames or began right after them, so that none between is lost.
        caught_up: this connection came as far as what is known; one that did not was cut, however cleanly it ended.
        partial_line: the beginning of a line with which the last connection ended.
        newest_number: number of the newest frame that the log has shown, new or repeated; 0 before the first.
        has_stdout: the log has shown a frame of stdout, new or repeated.
        last_frame: None until it was read.
        noise: lines of this connection that are no output.
    """

    def __init__(self, cursor: Cursor | None = None) -> None:
        cursor = cursor or Cursor()
        # what is known
        self._after = max(cursor.after, cursor.covered)
        self._covered = self._after
        self._open_line_start = cursor.first if 1 < cursor.first <= cursor.after else None
        self._lines = LineAssembler(after=self._after, first=cursor.first)
        self._number = cursor.first - 1  # of the last frame that was taken or reported as a gap
        self._needed = (cursor.first, cursor.second)
        self.since = cursor.second
        self.newest_number = 0
        self._newest_stamp: str | None = None
        self.has_stdout = False
        self.last_frame: LastFrame | None = None
        # what is missing
        self._missing_end: int | None = None
        self._postponed: list[Frame | Junk] = []
        self._backfill_reader = FrameReader()
        self._suspect: Frame | None = None
        self._verifies_suspect = False  # the missing range is the suspect frame
        # this connection; the rest is set by `connect`
        self.incomplete = False
        self.noise: list[bytes] = []
        self._reader: FrameReader
        self._from_start: bool
        self._awaits_repeat: bool
        self.contiguous: bool
        self.caught_up: bool
        self.partial_line: bytes

    @property
    def cursor(self) -> Cursor:
        """Where another `LogReader` can continue, also in another process."""
        first, second = self._needed
        return Cursor(after=self._after, first=first, second=second, covered=self._covered)

    @property
    def has_frames(self) -> bool:
        """Whether the sidecar has written any frame, according to what this reader or one before it has read."""
        return max(self.newest_number, self._number, self._after) > 0

    @property
    def newest(self) -> NewestFrame | None:
        """The newest frame that the log has shown, new or repeated."""
        return NewestFrame(self.newest_number, self._newest_stamp) if self._newest_stamp else None

    @property
    def spent(self) -> bool:
        """Whether nothing more is taken from this connection and another one must be opened."""
        return self.incomplete or self._awaits_repeat

    @property
    def missing_range(self) -> range | None:
        """Numbers of the frames that are missing from the log, or suspect there, and may still be backfilled."""
        return None if self._missing_end is None else range(self._number + 1, self._missing_end)

    @property
    def needs_polling(self) -> bool:
        """Whether the node has no inotify instance left to follow a log with, so that the log must be polled."""
        return any(_NO_INOTIFY.search(line) for line in self.noise)

    def connect(self, *, from_start: bool = False) -> None:
        """Begin a connection, opened at `since` or at the start of the log."""
        self._reader = FrameReader(timestamps=True)
        self._from_start = from_start or self.since is None
        self._awaits_repeat = self.incomplete = False
        self.contiguous = self.caught_up = self._number == 0
        self.partial_line = b""
        self.noise.clear()

    def feed(self, data: bytes) -> ReadResult:
        result = ReadResult()
        if not self.spent:
            self._sort(self._reader.feed(data), result)
        return result

    def disconnect(self, *, final: bool = False) -> ReadResult:
        """End a connection. A hint under which the log has shown no frame yet is dropped.

        Args:
            final: the container has ended, so a suspect last line is delivered as it is.
        """
        result = ReadResult()
        for cut in self._reader.close():  # never output, but a kubelet's message may lack a line end
            self.partial_line = cut.data
            self._note(cut.data)
        if not self.newest_number:  # the node's clock may have been set back since the hint was given
            self.since, self._needed = None, (self._needed[0], None)
        if final and self._suspect is not None and self._suspect.seq == self._number + 1:
            self._number = self._suspect.seq
            self._take([self._suspect], result)
        return result

    def open_tail(self, size: int) -> range | None:
        """Treat up to `size` frames after the last known one as missing; None when there is nothing to request.

        That is a guess, also before the log has shown anything: a rotation may have left an empty file.
        """
        if self.last_frame is None:
            self._missing_end = self._number + 1 + size
            self.begin_backfill()
        return self.missing_range

    def close_tail(self) -> int:
        """Treat what was not backfilled as not written yet. Return the number of the next frame."""
        self._missing_end = None
        return self._number + 1

    def begin_backfill(self) -> None:
        """Begin a new text for `backfill`."""
        self._backfill_reader = FrameReader()

    def backfill(self, data: bytes) -> ReadResult:
        """Take the next piece of a text with missing frames, without time stamps; anything else in it is ignored.

        Only the next missing frame is taken each time, and no last frame before frames that are known.
        """
        result, new = ReadResult(), list[Frame]()
        for item in self._backfill_reader.feed(data):
            if self._missing_end is None or isinstance(item, Junk):
                continue
            is_last = item.stream == "last"
            if item.seq == self._number + 1 and not (is_last and self._postponed):
                new.append(item)
                self._number = item.seq
                if self._number + 1 == self._missing_end or is_last:
                    self._missing_end = None
        self._take(new, result)
        if self._missing_end is None:
            self._resume_postponed(result)
        return result

    def give_up_missing_range(self) -> ReadResult:
        """Report what is still missing as a gap."""
        result = ReadResult()
        if self._missing_end is not None:
            end, self._missing_end = self._missing_end, None
            if self._verifies_suspect:
                self._verifies_suspect, self._awaits_repeat = False, True
                return result
            self._record_gap(end, result)
            self._resume_postponed(result)
        return result

    def _resume_postponed(self, result: ReadResult) -> None:
        items, self._postponed, self._verifies_suspect = self._postponed, [], False
        self._sort(items, result)

    def _sort(self, items: Sequence[Frame | Junk], result: ReadResult) -> None:
        """Take new frames up to the first one that must not be delivered yet."""
        self._note_newest(items)
        new: list[Frame] = []
        for index, item in enumerate(items):
            if isinstance(item, Junk):
                self._note(item.data)
                continue
            self.contiguous = True
            self.caught_up = self.caught_up or item.seq >= self._number
            if item.seq <= self._number:
                continue
            if item.seq != self._number + 1:
                if self._from_start:
                    self._missing_end = item.seq
                    self._postponed = list(items[index:])
                else:
                    self.incomplete = True
                break
            if index == len(items) - 1 and self._is_suspect(item):
                self._note(item.payload)
            else:
                self._number = item.seq
                new.append(item)
        self._take(new, result)

    def _note(self, line: bytes) -> None:
        if len(self.noise) < MAX_NOISE_LINES:
            self.noise.append(line[:NOISE_LINE_LIMIT])

    def _note_newest(self, items: Sequence[Frame | Junk]) -> None:
        """Note what was read last, which may come before it is delivered."""
        for item in reversed(items):
            if isinstance(item, Frame):
                if item.seq > self.newest_number and item.timestamp:
                    self.newest_number, self._newest_stamp = item.seq, item.timestamp
                break
        self.has_stdout = self.has_stdout or any(isinstance(item, Frame) and item.stream == "stdout" for item in items)

    def _is_suspect(self, frame: Frame) -> bool:
        """Whether this frame's line may be a part of it followed by a message of the kubelet.

        Nothing follows such a message, and the sidecar can replay the true frame. If it does not, a line that comes
        twice is believed.
        """
        suspect = _has_kubelet_message(frame.payload) if frame.stream != "last" else _is_unreadable(frame)
        before, self._suspect = self._suspect, None
        if not suspect or (before is not None and (before.seq, before.payload) == (frame.seq, frame.payload)):
            return False
        self._suspect = frame
        self._missing_end, self._postponed, self._verifies_suspect = frame.seq + 1, [], True
        return True

    def _record_gap(self, end: int, result: ReadResult) -> None:
        """Record the frames before `end` as lost.

        Those up to `_covered` belong to lines that were delivered already, or to one that was open then, in unknown
        proportion.
        """
        if self._open_line_start is not None and self._open_line_start <= self._number + 1 <= self._covered:
            result.gaps.append(Gap(after_sequence=self._open_line_start - 1, frames=None))
            self._open_line_start = None
        begin = max(self._number + 1, self._covered + 1)
        if end > begin:
            result.gaps.append(Gap(after_sequence=begin - 1, frames=end - begin))
        self._number = end - 1
        self._covered = max(self._covered, end - 1)

    def _take(self, new: list[Frame], result: ReadResult) -> None:
        if not new:
            return
        lines = self._lines.feed(new)
        result.lines += lines
        if lines:
            self._after = lines[-1].sequence
            self._covered = max(self._covered, self._after)
        if new[-1].stream == "last":
            self.last_frame = LastFrame.parse(new[-1].payload)
        self.since = _second_of(new[-1].timestamp) or self.since
        self._remember(new)

    def _remember(self, new: list[Frame]) -> None:
        """Note the first frame that another reader would need, and its second: at least the last frame."""
        needed = min(self._lines.needed_from, self._lines.seq if self.last_frame is not None else self._lines.seq + 1)
        if needed == self._lines.seq + 1:
            self._needed = (needed, self.since)
        else:
            opened = next((frame for frame in new if frame.seq == needed), None)
            self._needed = (needed, _second_of(opened.timestamp) if opened else self._needed[1])


def _has_kubelet_message(payload: bytes) -> bool:
    text = payload.lower()
    return any(map(text.__contains__, _KUBELET_HINTS)) and _KUBELET_IN_FRAME.search(payload) is not None


def _is_unreadable(frame: Frame) -> bool:
    return LastFrame.parse(frame.payload).error == "last_frame_unreadable"


@lru_cache(maxsize=256)  # asked a few times for each line
def _moment(stamp: str) -> datetime | None:
    try:
        return datetime.fromisoformat(_NANOSECONDS.sub(r"\1", stamp)).astimezone(UTC)
    except ValueError:  # digits that are no date
        return None


def _second_of(stamp: str | None) -> datetime | None:
    """Return the second of a frame's stamp, whose form was checked."""
    if not stamp:
        return None
    return _second(stamp[:19].encode(), (stamp[-1:] if stamp.endswith("Z") else stamp[-6:]).encode())


@lru_cache(maxsize=256)  # many frames, of this and of other runs, share a second
def _second(clock: bytes, zone: bytes) -> datetime | None:
    try:
        return datetime.fromisoformat((clock + zone).decode()).astimezone(UTC)
    except (ValueError, OverflowError):  # digits that are no date
        return None
