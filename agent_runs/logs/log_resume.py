"""The lines of a container's log, put together over any number of connections. Pure: no clock, no I/O.

The text of a connection, opened with `sinceTime` at the cursor's second, gives the lines that the cursor does not have
yet, the next cursor, and the gaps. Frames of our sidecar are numbered, so repeats and gaps are exact. A log without
frames is de-duplicated by position: a connection opened at second S repeats all lines since S in their order, so as
many lines as are known since S are dropped from its beginning.

The behaviour of the log API (whole seconds, inclusive; unstamped error text inside a good answer; the newest file
only) was measured on kubelet 1.20 and on the log code of 1.36.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from agent_runs.contracts.outcome import Gap, OutputReceipt
from agent_runs.contracts.output import LINE_LIMIT
from agent_runs.logs.frames import Frame, FrameReader, Junk, LastFrame, LineAssembler, LogLine, Output

NoiseHandler: TypeAlias = Callable[[bytes], None]
"""Receives a line that is no output."""

MAX_RECENT_DIGESTS: Final = 200_000
"""Lines of one second that are remembered of a log without frames; further ones count as new when repeated."""
MAX_NOISE_LINES: Final = 20
NOISE_LINE_LIMIT: Final = 500
_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:\d\d) ")
_NANOSECONDS: Final = re.compile(r"(\.\d{6})\d+")
_KUBELET_MESSAGE: Final = re.compile(rb"(?i)\s*(failed to|unable to|rpc error|error:)")
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
PROBE_LINES: Final = 8
"""Lines within which a log that should have frames must have the first."""
_NO_INOTIFY: Final = re.compile(rb"(?i)fsnotify|inotify|too many open files")


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a log has been read. The default is the start; `Cursor(after=n)` is what a store alone knows.

    Attributes:
        after: sequence of the last line that was delivered.
        first: number of the first frame still needed; smaller than `after` while a line of the other stream is open.
        second: where the next connection begins; None for the start of the log.
        framed: whether the log has frames; None while that is not known.
        covered: number of the last frame that was delivered or reported as a gap, if that is more than `after`.
        recent_digests: hashes of the lines delivered since `second`, for a log without frames.
    """

    after: int = 0
    first: int = 1
    second: datetime | None = None
    framed: bool | None = None
    recent_digests: tuple[bytes, ...] = ()
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
class NewestLine:
    """The newest line of a log that was read, new or repeated.

    Attributes:
        number: of its frame; the ordinal of a line in a log without frames.
        stamp: RFC 3339, by the node's clock.
    """

    number: int
    stamp: str
    framed: bool

    @property
    def written_at(self) -> datetime | None:
        """When it was written, by the node's clock."""
        try:
            return datetime.fromisoformat(_NANOSECONDS.sub(r"\1", self.stamp)).astimezone(UTC)
        except ValueError:  # digits that are no date
            return None

    def equals(self, item: Frame | Junk) -> bool:
        """Whether the log repeats this very line."""
        if isinstance(item, Junk):
            return not self.framed and item.timestamp == self.stamp
        return self.framed and item.seq == self.number

    def precedes(self, item: Frame | Junk) -> bool:
        """Whether the log has a later line; what is no frame does not count where there are frames."""
        if isinstance(item, Junk):
            return not self.framed and (item.timestamp or "") > self.stamp
        return self.framed and item.seq > self.number


@dataclass
class ReadResult:
    """The lines and gaps that a piece of a log yielded."""

    lines: list[LogLine] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


class LogReader:
    """Reads a log over many connections.

    Call `connect` before each connection, `feed` with its pieces, `disconnect` at its end. When `incomplete` turns
    true, frames are missing that an earlier part of the log may have (a clock was set back), and nothing more is taken
    from this connection. Open the next one at the start of the log; what is missing there is a gap.

    Args:
        can_backfill: missing frames may be available elsewhere. Then `missing_range` is set before anything beyond it
            is delivered: pass the frames to `backfill` (after `begin_backfill`), and call `give_up_missing_range` for
            what remains missing. Feed nothing meanwhile.
        expects_frames: the log should have frames, so more lines are examined if the first one has none.
    """

    def __init__(
        self, cursor: Cursor | None = None, *, can_backfill: bool = False, expects_frames: bool = False
    ) -> None:
        self._start = cursor or Cursor()
        self._can_backfill = can_backfill
        self._probe_lines = PROBE_LINES if expects_frames else 1
        self._log: _FramedLog | _PlainLog | None = None
        self._head = b""
        self._opening: tuple[bool, bool]  # set by `connect`
        self._began_too_late = False
        self._is_guess = False  # nothing was read, and frames are requested
        self.noise: list[bytes] = []

    @property
    def cursor(self) -> Cursor:
        """Where another `LogReader` can continue, also in another process."""
        return self._start if self._log is None else self._log.cursor

    @property
    def since(self) -> datetime | None:
        """Where this reader's next connection should begin; None for the start of the log."""
        return self._start.second if self._log is None else self._log.since

    @property
    def incomplete(self) -> bool:
        """Whether this connection lacks frames that the start of the log may have."""
        return self._began_too_late or (isinstance(self._log, _FramedLog) and self._log.incomplete)

    @property
    def spent(self) -> bool:
        """Whether nothing more is taken from this connection and another one must be opened."""
        return self.incomplete or (isinstance(self._log, _FramedLog) and self._log.awaits_repeat)

    @property
    def missing_range(self) -> range | None:
        """Numbers of the frames that are missing from the log, or suspect there, and may still be backfilled."""
        return self._log.missing_range if isinstance(self._log, _FramedLog) else None

    @property
    def contiguous(self) -> bool:
        """Whether this connection repeated known frames or began right after them, so that none between is lost."""
        return not isinstance(self._log, _FramedLog) or self._log.contiguous

    @property
    def caught_up(self) -> bool:
        """Whether this connection came as far as what is known; one that did not was cut, however cleanly it ended."""
        return not isinstance(self._log, _FramedLog) or self._log.caught_up

    @property
    def partial_line(self) -> bytes:
        """The beginning of a line with which the last connection ended."""
        return self._log.partial_line if isinstance(self._log, _FramedLog) else b""

    def open_tail(self, size: int) -> range | None:
        """Treat up to `size` frames after the last known one as missing; None when there is nothing to request.

        A log of which no line could be read counts as one with frames: a rotation may have left an empty file.
        """
        if self._log is None and self._can_backfill and not self._head:
            self._log = _FramedLog(self._start, can_backfill=True)
            self._log.connect(from_start=True, tolerant=True)
            self._is_guess = True
        return self._log.open_tail(size) if isinstance(self._log, _FramedLog) else None

    def close_tail(self) -> int:
        """Treat what was not backfilled as not written yet. Return the number of the next frame."""
        following = self._log.close_tail() if isinstance(self._log, _FramedLog) else 0
        if self._is_guess and following == self._start.first:
            self._log = None  # it has given nothing, so what the log has is still not known
        self._is_guess = False
        return following

    @property
    def framed(self) -> bool:
        """Whether the log has frames."""
        return isinstance(self._log, _FramedLog) or bool(self._start.framed)

    @property
    def newest_number(self) -> int:
        """Number of the newest line that was read, new or repeated; 0 before the first."""
        return self._log.newest_number if self._log is not None else 0

    @property
    def newest(self) -> NewestLine | None:
        """The newest line that was read, new or repeated."""
        if self._log is None or not self._log.newest_stamp:
            return None
        return NewestLine(self._log.newest_number, self._log.newest_stamp, isinstance(self._log, _FramedLog))

    @property
    def has_stdout(self) -> bool:
        """Whether any output on stdout was read, new or repeated."""
        return self._log is not None and self._log.has_stdout

    @property
    def last(self) -> LastFrame | None:
        """The last frame, None until it was read."""
        return self._log.last if isinstance(self._log, _FramedLog) else None

    @property
    def needs_polling(self) -> bool:
        """Whether the node has no inotify instance left to follow a log with, so that the log must be polled."""
        return any(_NO_INOTIFY.search(line) for line in self.noise)

    def connect(self, *, from_start: bool = False, tolerant: bool = False) -> None:
        """Begin a connection, opened at `since` or at the start of the log.

        Args:
            tolerant: missing frames are gaps at once.
        """
        self._head = b""
        self._opening = (from_start, tolerant)
        self._began_too_late = False
        self.noise.clear()
        if self._log is None and self._start.framed is not None:
            self._log = (
                _FramedLog(self._start, can_backfill=self._can_backfill)
                if self._start.framed
                else _PlainLog(self._start)
            )
        if self._log is not None:
            self._log.connect(from_start=from_start, tolerant=tolerant)

    def feed(self, data: bytes) -> ReadResult:
        """Return what the next piece of this connection yields."""
        if self._began_too_late:
            return ReadResult()
        if self._log is None:
            self._head += data
            self._detect_format()
            data, self._head = (self._head, b"") if self._log is not None else (b"", self._head)
        return ReadResult() if self._log is None else self._log.feed(data, self._note)

    def disconnect(self, *, final: bool = False) -> ReadResult:
        """End a connection.

        Args:
            final: the container has ended, so a last line without a newline is the end of the log and not a cut.
        """
        if self._log is not None:
            return self._log.disconnect(self._note, final=final)
        if self._start.second is not None:  # a hint without any lines: the node's clock may have been set back since
            self._start = replace(self._start, second=None)
        if not (final and any(map(_STAMP.match, self._head.split(b"\n")))):
            self._note_rest(self._head)
            return ReadResult()
        self._log = _PlainLog(self._start)
        self._log.connect(from_start=True, tolerant=True)
        result = self._log.feed(self._head, self._note)
        result.lines += self._log.disconnect(self._note, final=True).lines
        return result

    def begin_backfill(self) -> None:
        """Begin a new text for `backfill`."""
        if isinstance(self._log, _FramedLog):
            self._log.begin_backfill()

    def backfill(self, data: bytes) -> ReadResult:
        """Take the next piece of a text with missing frames, without time stamps; anything else in it is ignored."""
        return self._log.backfill(data, self._note) if isinstance(self._log, _FramedLog) else ReadResult()

    def give_up_missing_range(self) -> ReadResult:
        """Report what is still missing as a gap."""
        return self._log.give_up_missing_range(self._note) if isinstance(self._log, _FramedLog) else ReadResult()

    def _detect_format(self) -> None:
        """Detect by the first stamped lines whether the log has frames: a sidecar's log always begins with one."""
        *whole, partial_line = self._head.split(b"\n")
        while whole and not _STAMP.match(whole[0]):
            self._note(whole.pop(0))
        self._head = b"\n".join([*whole, partial_line])
        stamped = [line for line in whole if _STAMP.match(line)][: self._probe_lines]
        reader = FrameReader(timestamps=True)
        if any(isinstance(item, Frame) for line in stamped for item in reader.feed(line + b"\n")):
            self._log = _FramedLog(self._start, can_backfill=self._can_backfill)
        elif len(stamped) == self._probe_lines or len(self._head) > LINE_LIMIT:
            self._use_plain()
            return
        else:
            return
        from_start, tolerant = self._opening
        self._log.connect(from_start=from_start, tolerant=tolerant)

    def _use_plain(self) -> None:
        """Read a log without frames, which needs all lines since the cursor: after a hint it is read from the start."""
        from_start, tolerant = self._opening
        if from_start or self._start.second is None:
            self._log = _PlainLog(self._start)
            self._log.connect(from_start=from_start, tolerant=tolerant)
        else:
            self._start = replace(self._start, second=None)
            self._began_too_late = True

    def _note_rest(self, text: bytes) -> None:
        for line in text.split(b"\n"):
            if line:
                self._note(line)

    def _note(self, line: bytes) -> None:
        if len(self.noise) < MAX_NOISE_LINES:
            self.noise.append(line[:NOISE_LINE_LIMIT])


class _FramedLog:
    """A log with the frames of our sidecar."""

    def __init__(self, cursor: Cursor, *, can_backfill: bool) -> None:
        self._after = max(cursor.after, cursor.covered)
        self._covered = self._after
        self._open_line_start = cursor.first if 1 < cursor.first <= cursor.after else None
        self._lines = LineAssembler(after=self._after, first=cursor.first)
        self._number = cursor.first - 1  # of the last frame that was taken or reported as a gap
        self._reader = FrameReader(timestamps=True)
        self._needed = (cursor.first, cursor.second)
        self._can_backfill = can_backfill
        self._replay_reader = FrameReader()
        self._postponed: list[Frame | Junk] = []
        self._missing_end: int | None = None
        self._suspect: Frame | None = None
        self._verifies_suspect = False  # the missing range is the suspect frame
        self.since = cursor.second
        self.newest_number = 0
        self.newest_stamp: str | None = None
        self.has_stdout = False
        self.last: LastFrame | None = None
        # set by `connect`
        self._tolerant: bool
        self.incomplete: bool
        self.awaits_repeat: bool
        self.contiguous: bool
        self.caught_up: bool
        self.partial_line: bytes

    @property
    def cursor(self) -> Cursor:
        number, second = self._needed
        return Cursor(after=self._after, first=number, second=second, framed=True, covered=self._covered)

    @property
    def missing_range(self) -> range | None:
        return None if self._missing_end is None else range(self._number + 1, self._missing_end)

    def connect(self, *, from_start: bool, tolerant: bool) -> None:
        self._reader = FrameReader(timestamps=True)
        self._tolerant = tolerant or from_start or self.since is None
        self.incomplete = False
        self.awaits_repeat = False
        self.contiguous = self.caught_up = self._number == 0
        self.partial_line = b""

    def open_tail(self, size: int) -> range | None:
        if self.last is None:
            self._missing_end = self._number + 1 + size
            self.begin_backfill()
        return self.missing_range

    def close_tail(self) -> int:
        self._missing_end = None
        return self._number + 1

    def disconnect(self, note: NoiseHandler, *, final: bool) -> ReadResult:
        result = ReadResult()
        for cut in self._reader.close():  # never output, but a kubelet's message may lack a line end
            self.partial_line = cut.data
            note(cut.data)
        if final and self._suspect is not None and self._suspect.seq == self._number + 1:
            self._number = self._suspect.seq
            self._take([self._suspect], result)
        return result

    def feed(self, data: bytes, note: NoiseHandler) -> ReadResult:
        result = ReadResult()
        if not (self.incomplete or self.awaits_repeat):
            self._sort(self._reader.feed(data), result, note)
        return result

    def begin_backfill(self) -> None:
        self._replay_reader = FrameReader()

    def backfill(self, data: bytes, note: NoiseHandler) -> ReadResult:
        """Take only the next missing frame each time, and no `last` before frames that are known."""
        result, new = ReadResult(), list[Frame]()
        for item in self._replay_reader.feed(data):
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
            self._resume_postponed(result, note)
        return result

    def give_up_missing_range(self, note: NoiseHandler) -> ReadResult:
        result = ReadResult()
        if self._missing_end is not None:
            end, self._missing_end = self._missing_end, None
            if self._verifies_suspect:
                self._verifies_suspect, self.awaits_repeat = False, True
                return result
            self._record_gap(end, result)
            self._resume_postponed(result, note)
        return result

    def _resume_postponed(self, result: ReadResult, note: NoiseHandler) -> None:
        items, self._postponed, self._verifies_suspect = self._postponed, [], False
        self._sort(items, result, note)

    def _sort(self, items: Sequence[Frame | Junk], result: ReadResult, note: NoiseHandler) -> None:
        """Take new frames up to the first one that must not be delivered yet."""
        self._note_newest(items)
        new: list[Frame] = []
        for index, item in enumerate(items):
            if isinstance(item, Junk):
                note(item.data)
                continue
            self.contiguous = True
            self.caught_up = self.caught_up or item.seq >= self._number
            if item.seq <= self._number:
                continue
            if item.seq != self._number + 1:
                if not self._tolerant:
                    self.incomplete = True
                    break
                if self._can_backfill:
                    self._missing_end = item.seq
                    self._postponed = list(items[index:])
                    break
                self._record_gap(item.seq, result)
            if index == len(items) - 1 and self._is_suspect(item):
                note(item.payload)
            else:
                self._number = item.seq
                new.append(item)
        self._take(new, result)

    def _note_newest(self, items: Sequence[Frame | Junk]) -> None:
        """Note what was read last, which may come before it is delivered."""
        for item in reversed(items):
            if isinstance(item, Frame):
                if item.seq > self.newest_number and item.timestamp:
                    self.newest_number, self.newest_stamp = item.seq, item.timestamp
                break
        self.has_stdout = self.has_stdout or any(isinstance(item, Frame) and item.stream == "stdout" for item in items)

    def _is_suspect(self, frame: Frame) -> bool:
        """Whether this frame's line may be a part of it followed by a message of the kubelet.

        Nothing follows such a message, and the sidecar can replay the true frame. Where it cannot, a line that comes
        twice is believed.
        """
        suspect = _has_kubelet_message(frame.payload) if frame.stream != "last" else _is_unreadable(frame)
        before, self._suspect = self._suspect, None
        if not suspect or (before is not None and (before.seq, before.payload) == (frame.seq, frame.payload)):
            return False
        self._suspect = frame
        if self._can_backfill:
            self._missing_end, self._postponed, self._verifies_suspect = frame.seq + 1, [], True
        else:
            self.awaits_repeat = True
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
            self.last = LastFrame.parse(new[-1].payload)
        self.since = _second_of(new[-1].timestamp) or self.since
        self._remember(new)

    def _remember(self, new: list[Frame]) -> None:
        """Note the first frame that another reader would need, and its second: at least the last frame."""
        needed = min(self._lines.needed_from, self._lines.seq if self.last is not None else self._lines.seq + 1)
        if needed == self._lines.seq + 1:
            self._needed = (needed, self.since)
        else:
            opened = next((frame for frame in new if frame.seq == needed), None)
            self._needed = (needed, _second_of(opened.timestamp) if opened else self._needed[1])


class _PlainLog:
    """A log without frames."""

    def __init__(self, cursor: Cursor) -> None:
        self._count = cursor.after
        self._recent_digests = list(cursor.recent_digests)
        self._partial = bytearray()
        self.since = cursor.second
        self.newest_stamp: str | None = None
        # set by `connect`
        self._repeats: deque[bytes]
        self._skip: int
        self._overlong: bool
        self._is_first_line: bool

    @property
    def newest_number(self) -> int:
        return self._count if self.newest_stamp else 0

    @property
    def has_stdout(self) -> bool:
        return self._count > 0

    @property
    def cursor(self) -> Cursor:
        return Cursor(
            after=self._count,
            first=self._count + 1,
            second=self.since,
            framed=False,
            recent_digests=tuple(self._recent_digests),
        )

    def connect(self, *, from_start: bool, tolerant: bool) -> None:  # noqa: ARG002 - same shape as _FramedLog
        self._partial.clear()
        self._overlong = False
        self._is_first_line = True
        by_count = from_start or self.since is None
        self._skip = self._count if by_count else 0
        self._repeats = deque(() if by_count else self._recent_digests)

    def feed(self, data: bytes, note: NoiseHandler) -> ReadResult:
        result = ReadResult()
        *whole, partial_line = data.split(b"\n")
        for piece in whole:
            self._buffer(piece)
            self._read(result, note, terminated=True)
        self._buffer(partial_line)
        return result

    def disconnect(self, note: NoiseHandler, *, final: bool) -> ReadResult:
        result = ReadResult()
        if self._partial and not _STAMP.match(self._partial) and _KUBELET_MESSAGE.match(self._partial):
            note(bytes(self._partial))
        elif final and self._partial:
            self._read(result, note, terminated=False)
        return result

    def _buffer(self, piece: bytes) -> None:
        free = LINE_LIMIT - len(self._partial)
        self._overlong = self._overlong or len(piece) > free
        self._partial += piece[:free]

    def _read(self, result: ReadResult, note: NoiseHandler, *, terminated: bool) -> None:
        line, whole = bytes(self._partial), not self._overlong
        self._partial.clear()
        self._overlong = False
        stamp = _STAMP.match(line)
        if stamp is None and (self._is_first_line or _KUBELET_MESSAGE.match(line)):
            note(line)  # the end of a line that was cut by `since`, or a message of the kubelet
            return
        self._is_first_line = False
        if stamp is not None:
            self.newest_stamp = stamp[0].decode().rstrip()
        second = _second(stamp[1], stamp[2]) if stamp is not None else self.since
        if self._repeated(line, second, result):
            return
        self._count += 1
        data = line[stamp.end() :] if stamp is not None else line
        result.lines.append(LogLine(self._count, "stdout", data, terminated=terminated, whole=whole))
        self._remember(line, second)

    def _repeated(self, line: bytes, second: datetime | None, result: ReadResult) -> bool:
        if self._skip:
            self._skip -= 1
            self._remember(line, second)
            return True
        if not self._repeats:
            return False
        digest = _digest(line)
        if digest == self._repeats[0]:
            self._repeats.popleft()
            return True
        if digest in self._repeats:  # an earlier line was stamped before the clock was set back
            while self._repeats.popleft() != digest:
                pass
            return True
        self._repeats.clear()  # the log was rotated: an unknown number of lines is lost
        result.gaps.append(Gap(after_sequence=self._count, frames=None))
        self._count += 1  # the gap has a sequence of its own in the transcript
        return False

    def _remember(self, line: bytes, second: datetime | None) -> None:
        if second is not None and (self.since is None or second > self.since):
            self.since = second
            self._recent_digests.clear()
        if len(self._recent_digests) < MAX_RECENT_DIGESTS:
            self._recent_digests.append(_digest(line))


def _has_kubelet_message(payload: bytes) -> bool:
    text = payload.lower()
    return any(map(text.__contains__, _KUBELET_HINTS)) and _KUBELET_IN_FRAME.search(payload) is not None


def _is_unreadable(frame: Frame) -> bool:
    return LastFrame.parse(frame.payload).error == "last_frame_unreadable"


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=12).digest()


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


@dataclass
class Tally:
    """Counts what was stored of one attempt, to be compared with the last frame. Add lines in their order."""

    lines: dict[Output, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    sizes: dict[Output, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    whole: bool = True

    def __post_init__(self) -> None:
        self._digests = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}

    def add(self, lines: Iterable[LogLine]) -> None:
        """Count these lines."""
        for line in lines:
            raw = line.raw
            self.lines[line.stream] += line.terminated
            self.sizes[line.stream] += len(raw)
            self._digests[line.stream].update(raw)
            self.whole = self.whole and line.whole

    def receipt(self, last: LastFrame | None, gaps: Iterable[Gap] = (), *, framed: bool = True) -> OutputReceipt:
        """Return the receipt for stdout; its state depends on stderr, too."""
        missing = tuple(gaps)
        return OutputReceipt(
            state=self._state(last, missing, framed=framed),
            lines=self.lines["stdout"],
            bytes=self.sizes["stdout"],
            sha256=self._digests["stdout"].hexdigest(),
            gaps=missing,
        )

    def _state(
        self, last: LastFrame | None, gaps: tuple[Gap, ...], *, framed: bool
    ) -> Literal["verified", "unverified", "differs", "best effort"]:
        if not framed and any(self.sizes.values()):
            return "best effort"
        if gaps:
            return "differs"
        if last is None or last.error == "last_frame_unreadable":
            return "unverified" if self.whole else "differs"
        reported = {"stdout": last.stdout, "stderr": last.stderr}
        counted = all(
            (self.lines[stream], self.sizes[stream]) == (reported[stream].lines, reported[stream].bytes)
            and reported[stream].sha256 in {None, self._digests[stream].hexdigest()}
            for stream in self.lines
        )
        if not counted or not (
            self.whole or last.stdout.sha256
        ):  # equal digests prove that an incomplete line is complete
            return "differs"
        return "unverified" if last.stdout.sha256 is None else "verified"
