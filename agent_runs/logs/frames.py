"""The numbered frames that the sidecar of an agent's pod writes, read back exactly.

A frame is one line of at most 8 KiB: number, stream letter, mark, blank, payload. Numbers count 1, 2, 3, ... over all
streams, so a reader knows what it has, what repeats and what is missing. Everything here is pure, takes any
chunking, never raises on what a container wrote, and keeps a bounded amount of it.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import msgspec

from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.transcript.lines import LINE_LIMIT, Line

FRAME_LIMIT: Final = 8192  # bytes of a frame's line with its newline
JUNK_LIMIT: Final = 64 * 1024  # bytes kept of a line that is no frame

Output = Literal["stdout", "stderr"]
Stream = Literal["hello", "stdout", "stderr", "last"]
Mark = Literal[".", "+", "-"]

_STREAMS: Final[dict[bytes, Stream]] = {
    b"h": "hello", b"o": "stdout", b"O": "stdout", b"e": "stderr", b"E": "stderr", b"x": "last",
}  # fmt: skip
_MARKS: Final[dict[bytes, Mark]] = {b".": ".", b"+": "+", b"-": "-"}
_FRAME_LINE: Final = re.compile(rb"([1-9][0-9]{0,17})(?:([oeOE])([.+-])|([hx])(\.)) (.*)", re.DOTALL)
_ESCAPED: Final = re.compile(rb"(?:[^\\]|\\[0r\\])*", re.DOTALL)
_ESCAPE_SEQUENCE: Final = re.compile(rb"\\([0r\\])")
_UNESCAPED: Final[dict[bytes, bytes]] = {b"0": b"\0", b"r": b"\r", b"\\": b"\\"}
_STAMPED: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (.*)", re.DOTALL)
_COMMON_HEAD: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}(?:Z|[+-]\d\d:\d\d)) ([1-9][0-9]{0,17})([oe])([.+-]) "
)
"""The head of nearly every line of a log: matched in one go, and what follows it is copied once."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame.

    Attributes:
        seq: its number, from 1.
        stream: `hello` (the first frame), `stdout`, `stderr`, or `last`.
        mark: `.` ends a line, `+` the line continues, `-` ends a line that has no newline.
        payload: raw bytes without a newline; JSON for `hello` and `last`.
        timestamp: RFC 3339 text that the log API put before it, if requested.
    """

    seq: int
    stream: Stream
    mark: Mark
    payload: bytes
    timestamp: str | None = None


class Junk(msgspec.Struct, frozen=True, gc=False):
    """A line that is no frame: a message of the kubelet, a frame that was cut, or the sidecar's own stderr.

    Attributes:
        data: at most `JUNK_LIMIT` bytes of it, without its newline.
        timestamp: as for a frame; also None when timestamps were requested and this line has none.
    """

    data: bytes
    timestamp: str | None = None


class FrameReader:
    """Turns log bytes into frames, whatever their chunking. One reader per log stream."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        self._partial = bytearray()
        self._overlong = False

    def feed(self, data: bytes) -> list[Frame | Junk]:
        """Return the frames and other lines that `data` completes. Never raises."""
        if not self._partial and data.find(b"\n") == len(data) - 1 < JUNK_LIMIT:  # one whole line, as most pieces are
            return [self._read(data[:-1], cut=False)] if data else []
        first, newline, rest = data.partition(b"\n")
        if not newline:
            self._buffer(first)
            return []
        *whole, last = rest.split(b"\n")
        self._buffer(first)
        items = [self._complete(ended=True), *map(self._bounded, whole)]
        self._buffer(last)
        return items

    def close(self) -> list[Junk]:
        """Return what the end of the log left unfinished: at most one cut line."""
        if not self._partial:
            return []
        item = self._complete(ended=False)
        return [item] if isinstance(item, Junk) else []

    def _buffer(self, data: bytes) -> None:
        free = JUNK_LIMIT - len(self._partial)
        self._overlong = self._overlong or len(data) > free
        self._partial += data[:free]

    def _complete(self, *, ended: bool) -> Frame | Junk:
        line, whole = bytes(self._partial), ended and not self._overlong
        self._partial.clear()
        self._overlong = False
        return self._read(line, cut=not whole)

    def _bounded(self, line: bytes) -> Frame | Junk:
        return self._read(line[:JUNK_LIMIT], cut=len(line) > JUNK_LIMIT)

    def _read(self, line: bytes, *, cut: bool) -> Frame | Junk:
        timestamp = None
        if self._timestamps and not cut and (frame := _parse_common(line)) is not None:
            return frame
        if self._timestamps:
            stamped = _STAMPED.fullmatch(line)
            if stamped is None:
                return Junk(line)
            timestamp, line = stamped[1].decode("ascii"), stamped[2]
        frame = None if cut else parse_frame(line, timestamp)
        return frame or Junk(line, timestamp)


def _parse_common(line: bytes) -> Frame | None:
    """Parse the common form of a stamped frame. None for any other line, which `FrameReader` examines in full."""
    head = _COMMON_HEAD.match(line)
    if head is None or len(line) - head.start(2) >= FRAME_LIMIT:
        return None
    stamp, number, letter, mark = head.groups()
    return Frame(int(number), _STREAMS[letter], _MARKS[mark], line[head.end() :], stamp.decode("ascii"))


def parse_frame(line: bytes, timestamp: str | None = None) -> Frame | None:
    """Parse the frame on one line without its newline; None when it is no frame."""
    match = _FRAME_LINE.fullmatch(line)
    if match is None or len(line) >= FRAME_LIMIT:
        return None
    number, letter, mark, edge, edge_mark, payload = match.groups()
    letter = letter or edge
    if letter in b"OE":
        if _ESCAPED.fullmatch(payload) is None:
            return None
        payload = _ESCAPE_SEQUENCE.sub(lambda escape: _UNESCAPED[escape[1]], payload)
    return Frame(int(number), _STREAMS[letter], _MARKS[mark or edge_mark], payload, timestamp)


class _Parts:
    """The frames of one unfinished line."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.data = bytearray()
        self.size = 0
        self.since: int | None = None
        self.whole = True

    def add(self, frame: Frame) -> None:
        self.since = self.since or frame.seq
        self.data += frame.payload[: self._limit - len(self.data)]
        self.size += len(frame.payload)

    def line(self, stream: Output, frame: Frame, at: datetime) -> Line:
        whole = self.whole and self.size == len(self.data)
        return Line(frame.seq, stream, bytes(self.data), frame.mark == ".", at=at, whole=whole)


class LineAssembler:
    """Joins frames into lines, per stream.

    Frames must come in the order of their numbers. Repeated ones are dropped; after missing ones the next line of
    each stream is not `whole`, because it is not known whose frames they were.

    Args:
        after: number of the last line the caller already has. Feed it the frames from an earlier point on (a line
            that was open then needs its first parts); lines up to this number are not returned a second time.
        first: number of the first frame it will be fed: `needed_from` of the assembler it takes over from.
        limit: bytes kept of one line.
    """

    def __init__(self, after: int = 0, first: int = 1, limit: int = LINE_LIMIT) -> None:
        self._after = after
        self._limit = limit
        self._parts: dict[Output, _Parts] = {"stdout": _Parts(limit), "stderr": _Parts(limit)}
        self.seq = first - 1

    @property
    def needed_from(self) -> int:
        """Number of the first frame that another assembler must be fed to continue from here without a loss."""
        out, err = self._parts["stdout"].since, self._parts["stderr"].since
        return min(out or self.seq + 1, err or self.seq + 1)

    def feed(self, frames: Iterable[Frame]) -> list[Line]:
        at = datetime.now(UTC)
        return [line for frame in frames if (line := self._take(frame, at)) is not None]

    def _take(self, frame: Frame, at: datetime) -> Line | None:
        if frame.seq <= self.seq:
            return None
        if frame.seq != self.seq + 1:
            for parts in self._parts.values():
                parts.whole = False
        self.seq = frame.seq
        if frame.stream == "stdout" or frame.stream == "stderr":
            return self._add(frame.stream, frame, at)
        return None

    def _add(self, stream: Output, frame: Frame, at: datetime) -> Line | None:
        parts = self._parts[stream]
        if frame.mark != "+" and parts.since is None and parts.whole and len(frame.payload) <= self._limit:
            if frame.seq <= self._after:
                return None
            return Line(frame.seq, stream, frame.payload, frame.mark == ".", at=at)  # one frame, as most are
        parts.add(frame)
        if frame.mark == "+":
            return None
        self._parts[stream] = _Parts(self._limit)
        return parts.line(stream, frame, at) if frame.seq > self._after else None


Count = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[int, msgspec.Meta(ge=0, lt=10**18)]
"""Bytes."""


class Totals(msgspec.Struct, frozen=True):
    """What the sidecar forwarded of one stream; None: a checksum is not known."""

    lines: Count = 0
    bytes: Count = 0
    checksum: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")] | None = None


WARNING_LIMIT: Final = 400
"""Characters of what is said of one file."""


class WorkspaceError(msgspec.Struct, frozen=True):
    """Why the last checkpoint was not taken."""

    code: Annotated[str, msgspec.Meta(max_length=64)]
    message: Annotated[str, msgspec.Meta(max_length=300)]


class LastWorkspace(msgspec.Struct, frozen=True):
    """What the sidecar says of the carried workspace.

    Attributes:
        number: of its last entry in the ledger; 0: it has added none.
        steps: of the agent, that are in it.
        warnings: what is not in it as it should be.
    """

    number: Count
    steps: Count
    warnings: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=WARNING_LIMIT)], ...], msgspec.Meta(max_length=21)
    ] = ()
    error: WorkspaceError | None = None


class LastFrame(msgspec.Struct, frozen=True):
    """The sidecar's last frame.

    Attributes:
        exit_code: the command's; 128+n after signal n, as in every shell; None when it is not known.
        signal: n when the exit code is 128+n. A command that itself exits with such a code looks the same.
        stopped_by: `TERM`, `INT` or `HUP` when the runner got that signal.
        grace_exceeded: True when something had to be killed after a stop.
        error: `workdir`, `folder`, `stdin`, `out`, `api` (nothing was started); `command_not_found`,
            `command_not_executable`; `unkillable`; `disk_full`; `output_truncated` (an output file was emptied);
            `last_frame_unreadable`, which only `parse` gives; `server_lost`, `driver_failed` (OpenCode's server was
            lost in its work, or the sidecar's driver); a word of `SERVER_UNUSABLE`; `agent_not_started`,
            `agent_protocol`, `agent_lost` (an agent that speaks ACP did not start, broke the protocol, ended in its
            turn); None when all is well.
        detail: the option or environment variable that an error is about, or the driver's own words.
        stdout: lines with a newline, bytes, checksum.
        stderr: the same.
        memory_peak: of the agent's container, bytes, page cache included; the runner's word, as the exit code is.
        memory_limit: of that container, bytes.
        disk: bytes that the output's volume took at the end.
        rests: OpenCode's server waits for the agent's next run, so its container has not ended.
        workspace: where the carried workspace stands; None: it is not carried.
    """

    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    stopped_by: Literal["TERM", "INT", "HUP"] | None = None
    grace_exceeded: bool = False
    error: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    detail: Annotated[str, msgspec.Meta(max_length=300)] | None = None
    stdout: Totals = Totals()
    stderr: Totals = Totals()
    memory_peak: Amount | None = None
    memory_limit: Amount | None = None
    disk: Amount | None = None
    rests: bool = False
    workspace: LastWorkspace | None = None

    @classmethod
    def parse(cls, payload: bytes) -> "LastFrame":
        """Parse the payload of the frame `last`. An invalid one has the error `last_frame_unreadable`."""
        try:
            return _LAST.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls(error="last_frame_unreadable")


_LAST: Final = msgspec.json.Decoder(LastFrame)


def with_peaks(end: ContainerEnd, last: LastFrame | None) -> ContainerEnd:
    """The end with the peaks that the last frame reports. The limit of the pod's own declaration has priority.

    A runner that was killed with its container reports no peak: then it is what the status tells.
    """
    if last is None:
        return end
    limit = end.peaks.memory_limit if end.peaks.memory_limit is not None else last.memory_limit
    known = end.peaks.model_copy(update={"memory_limit": limit, "output_disk": last.disk})
    if last.memory_peak is not None:
        known = known.model_copy(update={"memory": last.memory_peak, "memory_reached_limit": False})
    return end.model_copy(update={"peaks": known})
