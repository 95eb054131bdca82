"""What a container's log says, put together over any number of connections. Pure: no clock, no I/O.

`resume(cursor, data)` is the whole rule: the text of one connection, opened with `sinceTime` at the cursor's second,
gives the lines that the cursor does not have yet, the next cursor, and the gaps. Frames of our runner are numbered,
so repeats and gaps are exact. A log without frames is de-duplicated by position: a connection opened at second S
repeats all lines since S in their order, so the lines already had since S are dropped from its head.

Facts about the log API (whole seconds, inclusive; unstamped error text inside a good answer; the newest file only)
were measured on kubelet 1.20 and on the log code of 1.36.
"""

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal, TypeAlias

import msgspec

from cluster.frames import LINE_LIMIT, Frame, FrameReader, Junk, LastFrame, Line, LineAssembler
from contracts.outcome import Gap, OutputReceipt

Stream: TypeAlias = Literal["stdout", "stderr"]
Note: TypeAlias = Callable[[bytes], None]
"""Takes a line that is no output."""

TAIL_LIMIT: Final = 200_000
"""Lines of one second remembered of a log without frames; more are not told apart from new ones."""
NOISE_LIMIT: Final = 20
_STAMP: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:\d\d) ")
_KUBELET: Final = re.compile(rb"(?i)\s*(failed to|unable to|rpc error|error:)")
_IN_BAND: Final = re.compile(
    rb"(?i)rpc error: code =|unable to retrieve container logs|failed with err |error reading from "
    rb"|failed to (create fsnotify|watch |try resolving|open log|seek |read log|write log|read from)"
)
"""What a kubelet says in the middle of a log. Source: kubernetes, pkg/kubelet/kuberuntime/logs."""
_HINTS: Final = (
    b"rpc error: code =",
    b"unable to retrieve",
    b"failed with err ",
    b"error reading from ",
    b"failed to ",
)
"""One of them stands, in lower case, in whatever `_IN_BAND` finds: a search for words costs a hundredth of its."""
LOOKED_AT: Final = 8
"""Lines in which a log that should have frames must show the first."""
_NO_WATCHES: Final = re.compile(rb"(?i)fsnotify|inotify|too many open files")


class LogLine(msgspec.Struct, frozen=True, gc=False):
    """One line of the agent's output.

    Attributes:
        sequence: number of its last frame, or its ordinal in a log without frames; grows, with holes.
        stream: `stdout` or `stderr`; always `stdout` in a log without frames.
        data: raw bytes without the newline.
        terminated: False for a last line that had no newline.
        whole: False when parts of it are missing, or it was longer than 16 MiB.
    """

    sequence: int
    stream: Stream
    data: bytes
    terminated: bool
    whole: bool = True

    @property
    def raw(self) -> bytes:
        """As it was written."""
        return self.data + b"\n" if self.terminated else self.data


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a log has been read. The default is the start; `Cursor(after=n)` is what a store alone can tell.

    Attributes:
        after: sequence of the last line that was given out.
        first: number of the first frame still needed; smaller than `after` while a line of the other stream is open.
        second: where the next connection begins; None for the start of the log.
        framed: whether the log has frames; None as long as nobody knows.
        covered: number of the last frame that is given out or told as a gap, when that is more than `after`.
        tail: hashes of the lines given out since `second`, for a log without frames.
    """

    after: int = 0
    first: int = 1
    second: datetime | None = None
    framed: bool | None = None
    tail: tuple[bytes, ...] = ()
    covered: int = 0

    def hinted(self, after: int, first: int, second: datetime | None) -> "Cursor":
        """This one, with what another reading that had given out `after` knew beyond a store: `first` and `second`.

        A hint that cannot be true of this cursor changes nothing. A `second` that is wrong is found out by the
        numbers; a false `first` costs at most the beginning of one open line per stream, which the receipt shows.
        """
        if not (0 < after <= max(self.after, self.covered) and 0 < first <= after + 1):
            return self
        return replace(self, first=first, second=second)


@dataclass
class Step:
    """What a piece of log brought."""

    lines: list[LogLine] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


@dataclass(frozen=True)
class Resumed:
    """What one connection brought, and where the next one begins."""

    lines: tuple[LogLine, ...]
    cursor: Cursor
    gaps: tuple[Gap, ...]


def resume(cursor: Cursor, data: bytes, *, final: bool = False) -> Resumed:
    """What the text of one connection, opened at `cursor.second`, adds to what `cursor` has.

    Args:
        final: the container has ended, so a last line without a newline is the log's end and not a cut.
    """
    reading = Reading(cursor)
    reading.connect(from_start=cursor.second is None, tolerant=True)
    step = reading.feed(data)
    end = reading.disconnect(final=final)
    return Resumed(tuple(step.lines + end.lines), reading.cursor, tuple(step.gaps + end.gaps))


class Reading:
    """The same over many connections without reading anything twice that is still held.

    Call `connect` before each connection, `feed` with its pieces, `disconnect` at its end. When `incomplete` turns
    true, frames are missing that an earlier part of the log may hold (a clock that was set back): nothing more is
    taken from this connection. Open one at the start of the log; what is missing there is a gap.

    Args:
        mendable: somebody may be able to bring missing frames. Then `hole` tells which before anything beyond them is
            given out: bring them with `mend` (after `begin_mending`), and call `give_up_hole` for the rest. Feed
            nothing meanwhile.
        expected: frames are, so a first line that is none may have been spoiled: more lines are looked at.
    """

    def __init__(self, cursor: Cursor | None = None, *, mendable: bool = False, expected: bool = False) -> None:
        self._start = cursor or Cursor()
        self._mendable = mendable
        self._looked_at = LOOKED_AT if expected else 1
        self._log: _Framed | _Plain | None = None
        self._head = b""
        self._opening = (True, False)
        self._misled = False  # this connection began too late
        self.noise: list[bytes] = []

    @property
    def cursor(self) -> Cursor:
        """Where another `Reading` can go on, even in another process."""
        return self._start if self._log is None else self._log.cursor

    @property
    def since(self) -> datetime | None:
        """Where this one's next connection should begin."""
        return self._start.second if self._log is None else self._log.since

    @property
    def incomplete(self) -> bool:
        """This connection lacks frames that the start of the log may have."""
        return self._misled or (isinstance(self._log, _Framed) and self._log.incomplete)

    @property
    def spent(self) -> bool:
        """Nothing more is taken from this connection; open another."""
        return self.incomplete or (isinstance(self._log, _Framed) and self._log.doubting)

    @property
    def hole(self) -> range | None:
        """Numbers of frames that are missing from the log, or doubtful there, and may still be brought."""
        return self._log.hole if isinstance(self._log, _Framed) else None

    @property
    def anchored(self) -> bool:
        """This connection repeated something known or went on right after it: nothing between has vanished unseen."""
        return not isinstance(self._log, _Framed) or self._log.anchored

    @property
    def reached(self) -> bool:
        """This connection came as far as what is known; one that did not was cut, however cleanly it ended."""
        return not isinstance(self._log, _Framed) or self._log.reached

    @property
    def rest(self) -> bytes:
        """The beginning of a line with which the last connection ended."""
        return self._log.rest if isinstance(self._log, _Framed) else b""

    def open_tail(self, size: int) -> range | None:
        """Takes up to `size` frames after the last known one for missing; None when there is nothing to ask about."""
        return self._log.open_tail(size) if isinstance(self._log, _Framed) else None

    def close_tail(self) -> int:
        """What was not brought does not exist yet. The number of the next frame."""
        return self._log.close_tail() if isinstance(self._log, _Framed) else 0

    @property
    def framed(self) -> bool:
        """The log has frames."""
        return isinstance(self._log, _Framed) or bool(self._start.framed)

    @property
    def last(self) -> LastFrame | None:
        """The runner's last word."""
        return self._log.last if isinstance(self._log, _Framed) else None

    @property
    def starved(self) -> bool:
        """The node has no inotify instance left to follow a log with: poll it."""
        return any(_NO_WATCHES.search(line) for line in self.noise)

    def connect(self, *, from_start: bool = False, tolerant: bool = False) -> None:
        """A connection begins, opened at `since`, or at the start of the log. `tolerant`: holes are gaps at once."""
        self._head = b""
        self._opening = (from_start, tolerant)
        self._misled = False
        self.noise.clear()
        if self._log is None and self._start.framed is not None:
            self._log = _Framed(self._start, mendable=self._mendable) if self._start.framed else _Plain(self._start)
        if self._log is not None:
            self._log.connect(from_start=from_start, tolerant=tolerant)

    def feed(self, data: bytes) -> Step:
        """What the next piece of this connection brings."""
        if self._misled:
            return Step()
        if self._log is None:
            self._head += data
            self._decide()
            data, self._head = (self._head, b"") if self._log is not None else (b"", self._head)
        return Step() if self._log is None else self._log.feed(data, self._note)

    def disconnect(self, *, final: bool = False) -> Step:
        """The connection ended; `final` as for `resume`."""
        if self._log is not None:
            return self._log.disconnect(self._note, final=final)
        if self._start.second is not None:  # a hint that showed nothing: the node's clock may have been set back since
            self._start = replace(self._start, second=None)
        if not (final and any(map(_STAMP.match, self._head.split(b"\n")))):
            self._note_rest(self._head)
            return Step()
        self._log = _Plain(self._start)
        self._log.connect(from_start=True, tolerant=True)
        step = self._log.feed(self._head, self._note)
        step.lines += self._log.disconnect(self._note, final=True).lines
        return step

    def begin_mending(self) -> None:
        """What `mend` gets from now on begins a new text."""
        if isinstance(self._log, _Framed):
            self._log.begin_mending()

    def mend(self, data: bytes) -> Step:
        """The next piece of a text that has frames of the hole, without stamps; anything else in it is ignored."""
        return self._log.mend(data, self._note) if isinstance(self._log, _Framed) else Step()

    def give_up_hole(self) -> Step:
        """What is still missing is a gap."""
        return self._log.give_up_hole(self._note) if isinstance(self._log, _Framed) else Step()

    def _decide(self) -> None:
        """The first stamped lines tell: a runner's log begins with a frame, also after a rotation."""
        *whole, rest = self._head.split(b"\n")
        while whole and not _STAMP.match(whole[0]):
            self._note(whole.pop(0))
        self._head = b"\n".join([*whole, rest])
        stamped = [line for line in whole if _STAMP.match(line)][: self._looked_at]
        reader = FrameReader(timestamps=True)
        if any(isinstance(item, Frame) for line in stamped for item in reader.feed(line + b"\n")):
            self._log = _Framed(self._start, mendable=self._mendable)
        elif len(stamped) == self._looked_at or len(self._head) > LINE_LIMIT:
            self._be_plain()
            return
        else:
            return
        from_start, tolerant = self._opening
        self._log.connect(from_start=from_start, tolerant=tolerant)

    def _be_plain(self) -> None:
        """A log without frames is told apart by all its lines: where a hint said when to begin, it must begin again."""
        from_start, tolerant = self._opening
        if from_start or self._start.second is None or self._start.tail:
            self._log = _Plain(self._start)
            self._log.connect(from_start=from_start, tolerant=tolerant)
        else:
            self._start = replace(self._start, second=None)
            self._misled = True

    def _note_rest(self, text: bytes) -> None:
        for line in text.split(b"\n"):
            if line:
                self._note(line)

    def _note(self, line: bytes) -> None:
        if len(self.noise) < NOISE_LIMIT:
            self.noise.append(line[:500])


class _Framed:
    """A log of our runner."""

    def __init__(self, cursor: Cursor, *, mendable: bool) -> None:
        self._after = max(cursor.after, cursor.covered)
        self._covered = self._after
        self._torn = cursor.first if 1 < cursor.first <= cursor.after else None  # a part of a line that was open then
        self._lines = LineAssembler(after=self._after, first=cursor.first)
        self._number = cursor.first - 1  # of the last frame that was taken or given up
        self._reader = FrameReader(timestamps=True)
        self._needed = (cursor.first, cursor.second)
        self._tolerant = False
        self._mendable = mendable
        self._mending = FrameReader()
        self._beyond: list[Frame | Junk] = []
        self._hole_end: int | None = None
        self._doubted: Frame | None = None
        self._verifying = False  # the hole is the doubted frame
        self.doubting = False
        self.since = cursor.second
        self.incomplete = False
        self.anchored = True
        self.reached = True
        self.rest = b""
        self.last: LastFrame | None = None

    @property
    def cursor(self) -> Cursor:
        number, second = self._needed
        return Cursor(after=self._after, first=number, second=second, framed=True, covered=self._covered)

    @property
    def hole(self) -> range | None:
        return None if self._hole_end is None else range(self._number + 1, self._hole_end)

    def connect(self, *, from_start: bool, tolerant: bool) -> None:
        self._reader = FrameReader(timestamps=True)
        self._tolerant = tolerant or from_start or self.since is None
        self.incomplete = False
        self.doubting = False
        self.anchored = self.reached = self._number == 0
        self.rest = b""

    def open_tail(self, size: int) -> range | None:
        if self.last is None:
            self._hole_end = self._number + 1 + size
            self.begin_mending()
        return self.hole

    def close_tail(self) -> int:
        self._hole_end = None
        return self._number + 1

    def disconnect(self, note: Note, *, final: bool) -> Step:
        step = Step()
        for cut in self._reader.close():  # never output, but a kubelet's last words need no line end
            self.rest = cut.data
            note(cut.data)
        if final and self._doubted is not None and self._doubted.seq == self._number + 1:
            self._number = self._doubted.seq
            self._take([self._doubted], step)
        return step

    def feed(self, data: bytes, note: Note) -> Step:
        step = Step()
        if not (self.incomplete or self.doubting):
            self._sort(self._reader.feed(data), step, note)
        return step

    def begin_mending(self) -> None:
        self._mending = FrameReader()

    def mend(self, data: bytes, note: Note) -> Step:
        """Of the hole's frames only the next is ever taken, and never a `last`: the agent could fake its files."""
        step, fresh = Step(), list[Frame]()
        for item in self._mending.feed(data):
            if self._hole_end is None or isinstance(item, Junk):
                continue
            if item.stream != "last" and item.seq == self._number + 1:
                fresh.append(item)
                self._number = item.seq
                if self._number + 1 == self._hole_end:
                    self._hole_end = None
        self._take(fresh, step)
        if self._hole_end is None:
            self._go_on(step, note)
        return step

    def give_up_hole(self, note: Note) -> Step:
        step = Step()
        if self._hole_end is not None:
            end, self._hole_end = self._hole_end, None
            if self._verifying:
                self._verifying, self.doubting = False, True
                return step
            self._record_gap(end, step)
            self._go_on(step, note)
        return step

    def _go_on(self, step: Step, note: Note) -> None:
        items, self._beyond, self._verifying = self._beyond, [], False
        self._sort(items, step, note)

    def _sort(self, items: Sequence[Frame | Junk], step: Step, note: Note) -> None:
        """Takes new frames up to the first one that must not be given out yet."""
        fresh: list[Frame] = []
        for index, item in enumerate(items):
            if isinstance(item, Junk):
                note(item.data)
                continue
            self.anchored = True
            self.reached = self.reached or item.seq >= self._number
            if item.seq <= self._number:
                continue
            if item.seq != self._number + 1:
                if not self._tolerant:
                    self.incomplete = True
                    break
                if self._mendable:
                    self._hole_end = item.seq
                    self._beyond = list(items[index:])
                    break
                self._record_gap(item.seq, step)
            if index == len(items) - 1 and self._doubts(item):
                note(item.payload)
                break
            self._number = item.seq
            fresh.append(item)
        self._take(fresh, step)

    def _doubts(self, frame: Frame) -> bool:
        """Whether the kubelet's words may stand in this frame's line, behind a part of it.

        Nothing follows such words, and the runner tells what the frame really holds. Where nobody can ask it, a line
        that comes a second time is believed.
        """
        suspect = _in_band(frame.payload) if frame.stream != "last" else _unreadable(frame)
        before, self._doubted = self._doubted, None
        if not suspect or (before is not None and (before.seq, before.payload) == (frame.seq, frame.payload)):
            return False
        self._doubted = frame
        if self._mendable and frame.stream != "last":
            self._hole_end, self._beyond, self._verifying = frame.seq + 1, [], True
        else:
            self.doubting = True
        return True

    def _record_gap(self, end: int, step: Step) -> None:
        """The frames before `end` are lost. Those up to `_covered` belong to lines that the caller has already, or to
        one that was open then: how many of them do, nobody knows."""
        if self._torn is not None and self._torn <= self._number + 1 <= self._covered:
            step.gaps.append(Gap(after_sequence=self._torn - 1, frames=None))
            self._torn = None
        begin = max(self._number + 1, self._covered + 1)
        if end > begin:
            step.gaps.append(Gap(after_sequence=begin - 1, frames=end - begin))
        self._number = end - 1
        self._covered = max(self._covered, end - 1)

    def _take(self, fresh: list[Frame], step: Step) -> None:
        if not fresh:
            return
        lines = self._lines.feed(fresh)
        step.lines += map(_line, lines)
        if lines:
            self._after = lines[-1].seq
            self._covered = max(self._covered, self._after)
        if fresh[-1].stream == "last":
            self.last = LastFrame.parse(fresh[-1].payload)
        self.since = _second_of(fresh[-1].timestamp) or self.since
        self._remember(fresh)

    def _remember(self, fresh: list[Frame]) -> None:
        """The first frame another reading would need, and its second: the last one at least, for what it says."""
        needed = min(self._lines.needed_from, self._lines.seq if self.last is not None else self._lines.seq + 1)
        if needed == self._lines.seq + 1:
            self._needed = (needed, self.since)
        elif needed != self._needed[0] or self._needed[1] is None:
            opened = next((frame for frame in fresh if frame.seq == needed), None)
            self._needed = (needed, _second_of(opened.timestamp) if opened else self._needed[1])


class _Plain:
    """A log of anything else."""

    def __init__(self, cursor: Cursor) -> None:
        self._count = cursor.after
        self._tail = list(cursor.tail)
        self._repeats: deque[bytes] = deque()
        self._skip = 0
        self._held = bytearray()
        self._overlong = False
        self._fresh_connection = True
        self.since = cursor.second

    @property
    def cursor(self) -> Cursor:
        return Cursor(after=self._count, first=self._count + 1, second=self.since, framed=False, tail=tuple(self._tail))

    def connect(self, *, from_start: bool, tolerant: bool) -> None:  # noqa: ARG002 - same shape as _Framed
        self._held.clear()
        self._overlong = False
        self._fresh_connection = True
        by_count = from_start or self.since is None
        self._skip = self._count if by_count else 0
        self._repeats = deque(() if by_count else self._tail)

    def feed(self, data: bytes, note: Note) -> Step:
        step = Step()
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._hold(piece)
            self._read(step, note, terminated=True)
        self._hold(rest)
        return step

    def disconnect(self, note: Note, *, final: bool) -> Step:
        step = Step()
        if self._held and not _STAMP.match(self._held) and _KUBELET.match(self._held):
            note(bytes(self._held))
        elif final and self._held:
            self._read(step, note, terminated=False)
        return step

    def _hold(self, piece: bytes) -> None:
        room = LINE_LIMIT - len(self._held)
        self._overlong = self._overlong or len(piece) > room
        self._held += piece[:room]

    def _read(self, step: Step, note: Note, *, terminated: bool) -> None:
        line, whole = bytes(self._held), not self._overlong
        self._held.clear()
        self._overlong = False
        stamp = _STAMP.match(line)
        if stamp is None and (self._fresh_connection or _KUBELET.match(line)):
            note(line)  # the headless rest of a line that was cut by `since`, or the kubelet's own words
            return
        self._fresh_connection = False
        second = _second(stamp[1], stamp[2]) if stamp is not None else self.since
        if self._repeated(line, second, step):
            return
        self._count += 1
        data = line[stamp.end() :] if stamp is not None else line
        step.lines.append(LogLine(self._count, "stdout", data, terminated=terminated, whole=whole))
        self._keep(line, second)

    def _repeated(self, line: bytes, second: datetime | None, step: Step) -> bool:
        if self._skip:
            self._skip -= 1
            self._keep(line, second)
            return True
        if not self._repeats:
            return False
        digest = _digest(line)
        if digest == self._repeats[0]:
            self._repeats.popleft()
            return True
        if digest in self._repeats:  # an earlier line has a stamp from a clock that was set back since
            while self._repeats.popleft() != digest:
                pass
            return True
        self._repeats.clear()  # the log was rotated: what came between is lost, and nobody knows how much
        step.gaps.append(Gap(after_sequence=self._count, frames=None))
        self._count += 1  # the gap has a place of its own in the transcript
        return False

    def _keep(self, line: bytes, second: datetime | None) -> None:
        if second is not None and (self.since is None or second > self.since):
            self.since = second
            self._tail.clear()
        if len(self._tail) < TAIL_LIMIT:
            self._tail.append(_digest(line))


def _in_band(payload: bytes) -> bool:
    text = payload.lower()
    return any(map(text.__contains__, _HINTS)) and _IN_BAND.search(payload) is not None


def _unreadable(frame: Frame) -> bool:
    return LastFrame.parse(frame.payload).error == "last_frame_unreadable"


def _line(line: Line) -> LogLine:
    return LogLine(line.seq, line.stream, line.data, line.terminated, line.whole and not line.cut)


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=12).digest()


def _second_of(stamp: str | None) -> datetime | None:
    """Of a frame's stamp, whose shape was looked at."""
    if not stamp:
        return None
    return _second(stamp[:19].encode(), (stamp[-1:] if stamp.endswith("Z") else stamp[-6:]).encode())


@lru_cache(maxsize=256)  # the frames of one second are many, and most of them the runs' that are followed beside
def _second(clock: bytes, zone: bytes) -> datetime | None:
    try:
        return datetime.fromisoformat((clock + zone).decode()).astimezone(UTC)
    except (ValueError, OverflowError):  # digits that are no date
        return None


@dataclass
class Tally:
    """Counts what was stored of one attempt, to compare with the runner's last frame. Lines come in their order."""

    lines: dict[Stream, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    sizes: dict[Stream, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
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
        """The receipt for stdout; the state also judges stderr."""
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
        said = {"stdout": last.stdout, "stderr": last.stderr}
        counted = all(
            (self.lines[stream], self.sizes[stream]) == (said[stream].lines, said[stream].bytes)
            and said[stream].sha256 in {None, self._digests[stream].hexdigest()}
            for stream in self.lines
        )
        if not counted or not (self.whole or last.stdout.sha256):  # equal digests prove a line of doubtful parts
            return "differs"
        return "unverified" if last.stdout.sha256 is None else "verified"
