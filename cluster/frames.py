"""The numbered frames that the in-pod runner (`cluster/runner.sh`) writes, read back exactly.

A frame is one line of at most 8 KiB: number, stream letter, mark, blank, payload. Numbers count 1, 2, 3, ... over all
streams, so a reader knows what it has, what repeats and what is missing. Everything here is pure, takes any
chunking, never raises on what a container wrote, and keeps a bounded amount of it.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Final, Literal

import msgspec

FORMAT: Final = 1
FRAME_LIMIT: Final = 8192  # bytes of a frame's line with its newline
PAYLOAD_LIMIT: Final = 8000  # bytes of payload the runner puts into one frame
JUNK_LIMIT: Final = 64 * 1024  # bytes kept of a line that is no frame
LINE_LIMIT: Final = 16 * 1024 * 1024  # bytes kept of one output line

Output = Literal["stdout", "stderr"]
Stream = Literal["hello", "stdout", "stderr", "last"]
Mark = Literal[".", "+", "-"]

_STREAMS: Final[dict[bytes, Stream]] = {
    b"h": "hello", b"o": "stdout", b"O": "stdout", b"e": "stderr", b"E": "stderr", b"x": "last",
}  # fmt: skip
_MARKS: Final[dict[bytes, Mark]] = {b".": ".", b"+": "+", b"-": "-"}
_LETTERS: Final[dict[Stream, bytes]] = {"hello": b"h", "stdout": b"o", "stderr": b"e", "last": b"x"}
_FRAME: Final = re.compile(rb"([1-9][0-9]{0,17})(?:([oeOE])([.+-])|([hx])(\.)) (.*)", re.DOTALL)
_ESCAPED: Final = re.compile(rb"(?:[^\\]|\\[0r\\])*", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\([0r\\])")
_MEANT: Final[dict[bytes, bytes]] = {b"0": b"\0", b"r": b"\r", b"\\": b"\\"}
_STAMPED: Final = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (.*)", re.DOTALL)
_USUAL: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}(?:Z|[+-]\d\d:\d\d)) ([1-9][0-9]{0,17})([oe])([.+-]) "
)
"""The head of nearly every line of a log: matched in one go, and what follows it is copied once."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame.

    Attributes:
        seq: its number, from 1.
        stream: `hello` (the first frame), `stdout`, `stderr`, or `last`.
        mark: `.` ends a line, `+` the line goes on, `-` ends a line that has no newline.
        payload: raw bytes without a newline; JSON for `hello` and `last`.
        timestamp: RFC 3339 text that the log API put before it, if asked to.
    """

    seq: int
    stream: Stream
    mark: Mark
    payload: bytes
    timestamp: str | None = None


class Junk(msgspec.Struct, frozen=True, gc=False):
    """A line that is no frame: a message of the kubelet, or a frame that was cut.

    Attributes:
        data: at most `JUNK_LIMIT` bytes of it, without its newline.
        cut: True when bytes are missing: the line was longer, or the log ended inside it.
        timestamp: as for a frame; None too when timestamps were asked for and this line has none.
    """

    data: bytes
    cut: bool = False
    timestamp: str | None = None


class FrameReader:
    """Turns log bytes into frames, whatever their chunking. One reader per log stream."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        self._held = bytearray()
        self._overlong = False

    def feed(self, data: bytes) -> list[Frame | Junk]:
        """The frames and other lines that `data` completes. Never raises."""
        if not self._held and data.find(b"\n") == len(data) - 1 < JUNK_LIMIT:  # one whole line, as most pieces are
            return [self._read(data[:-1], cut=False)] if data else []
        first, newline, rest = data.partition(b"\n")
        if not newline:
            self._hold(first)
            return []
        *whole, last = rest.split(b"\n")
        self._hold(first)
        items = [self._release(complete=True), *map(self._bounded, whole)]
        self._hold(last)
        return items

    def close(self) -> list[Junk]:
        """What the log's end left unfinished: at most one cut line."""
        if not self._held:
            return []
        item = self._release(complete=False)
        return [item] if isinstance(item, Junk) else []

    def _hold(self, data: bytes) -> None:
        room = JUNK_LIMIT - len(self._held)
        self._overlong = self._overlong or len(data) > room
        self._held += data[:room]

    def _release(self, *, complete: bool) -> Frame | Junk:
        line, whole = bytes(self._held), complete and not self._overlong
        self._held.clear()
        self._overlong = False
        return self._read(line, cut=not whole)

    def _bounded(self, line: bytes) -> Frame | Junk:
        return self._read(line[:JUNK_LIMIT], cut=len(line) > JUNK_LIMIT)

    def _read(self, line: bytes, *, cut: bool) -> Frame | Junk:
        timestamp = None
        if self._timestamps and not cut and (usual := _usual(line)) is not None:
            return usual
        if self._timestamps:
            stamped = _STAMPED.fullmatch(line)
            if stamped is None:
                return Junk(line, cut)
            timestamp, line = stamped[1].decode("ascii"), stamped[2]
        frame = None if cut else parse_frame(line, timestamp)
        return frame or Junk(line, cut, timestamp)


def _usual(line: bytes) -> Frame | None:
    """The stamped frame on a line, or None when it is another or none: `FrameReader` looks closer."""
    head = _USUAL.match(line)
    if head is None or len(line) - head.start(2) >= FRAME_LIMIT:
        return None
    stamp, number, letter, mark = head.groups()
    return Frame(int(number), _STREAMS[letter], _MARKS[mark], line[head.end() :], stamp.decode("ascii"))


def parse_frame(line: bytes, timestamp: str | None = None) -> Frame | None:
    """The frame on one line (without its newline), or None when it is none."""
    match = _FRAME.fullmatch(line)
    if match is None or len(line) >= FRAME_LIMIT:
        return None
    number, letter, mark, edge, edge_mark, payload = match.groups()
    letter = letter or edge
    if letter in b"OE":
        if _ESCAPED.fullmatch(payload) is None:
            return None
        payload = _ESCAPE.sub(lambda escape: _MEANT[escape[1]], payload)
    return Frame(int(number), _STREAMS[letter], _MARKS[mark or edge_mark], payload, timestamp)


def encode_frame(frame: Frame) -> bytes:
    """A frame as the runner writes it, newline included. For tests and doubles.

    Raises:
        ValueError: the payload holds a newline, the frame does not fit into 8 KiB, or it could not be read back.
    """
    letter, payload = _LETTERS[frame.stream], frame.payload
    if b"\0" in payload or payload.endswith(b"\r"):
        letter = letter.upper()
        payload = payload.replace(b"\\", b"\\\\").replace(b"\0", b"\\0")
        payload = payload[:-1] + b"\\r" if payload.endswith(b"\r") else payload
    line = b"%d%s%s %s" % (frame.seq, letter, frame.mark.encode(), payload)
    if b"\n" in payload or parse_frame(line) is None:
        raise ValueError(f"frame {frame.seq} of {frame.stream}: its payload does not fit into one frame")
    return line + b"\n"


def split_frames(stream: Output, data: bytes, first: int = 1) -> Iterator[Frame]:
    """Raw output as the frames that the runner would make of it, numbered from `first`. For tests and doubles."""
    lines = data.split(b"\n")
    marks: list[Mark] = ["." for _ in lines]
    marks[-1] = "-"
    if not lines[-1]:
        lines, marks = lines[:-1], marks[:-1]
    seq = first
    for line, mark in zip(lines, marks, strict=True):
        size = 4000 if b"\0" in line or b"\r" in line else PAYLOAD_LIMIT
        parts = [line[at : at + size] for at in range(0, len(line), size)] or [b""]
        for part in parts[:-1]:
            yield Frame(seq, stream, "+", part)
            seq += 1
        yield Frame(seq, stream, mark, parts[-1])
        seq += 1


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line of the command's output.

    Attributes:
        seq: number of its last frame; unique over both streams and growing, hence the line's identity.
        stream: `stdout` or `stderr`.
        data: its raw bytes without the newline, at most `LINE_LIMIT`.
        terminated: False for a last line without a newline.
        cut: True when it was longer than `LINE_LIMIT`; `size` tells by how much.
        whole: False when frames are missing before its end which may have been parts of it.
        size: its length in bytes before any cut.
        timestamp: the log API's text before its last frame.
    """

    seq: int
    stream: Output
    data: bytes
    terminated: bool
    cut: bool
    whole: bool
    size: int
    timestamp: str | None = None


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

    def line(self, stream: Output, frame: Frame) -> Line:
        return Line(
            seq=frame.seq,
            stream=stream,
            data=bytes(self.data),
            terminated=frame.mark == ".",
            cut=self.size > len(self.data),
            whole=self.whole,
            size=self.size,
            timestamp=frame.timestamp,
        )


def _whole_line(stream: Output, frame: Frame) -> Line:
    """The line that is one frame, as most are."""
    return Line(
        seq=frame.seq,
        stream=stream,
        data=frame.payload,
        terminated=frame.mark == ".",
        cut=False,
        whole=True,
        size=len(frame.payload),
        timestamp=frame.timestamp,
    )


class LineAssembler:
    """Joins frames into lines, per stream.

    Frames must come in the order of their numbers. Repeated ones are dropped; after missing ones the next line of
    each stream is not `whole`, because nobody can tell whose frames they were.

    Args:
        after: number of the last line the caller already has. Feed it the frames from an earlier point on (a line
            that was open then needs its first parts); lines up to this number are not given out again.
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
        """Number of the first frame that another assembler must be fed to go on from here without a loss."""
        out, err = self._parts["stdout"].since, self._parts["stderr"].since
        return min(out or self.seq + 1, err or self.seq + 1)

    def feed(self, frames: Iterable[Frame]) -> list[Line]:
        """The lines that these frames complete."""
        return [line for frame in frames if (line := self._take(frame)) is not None]

    def _take(self, frame: Frame) -> Line | None:
        if frame.seq <= self.seq:
            return None
        if frame.seq != self.seq + 1:
            for parts in self._parts.values():
                parts.whole = False
        self.seq = frame.seq
        if frame.stream == "stdout" or frame.stream == "stderr":
            return self._add(frame.stream, frame)
        return None

    def _add(self, stream: Output, frame: Frame) -> Line | None:
        parts = self._parts[stream]
        if frame.mark != "+" and parts.since is None and parts.whole and len(frame.payload) <= self._limit:
            return _whole_line(stream, frame) if frame.seq > self._after else None
        parts.add(frame)
        if frame.mark == "+":
            return None
        self._parts[stream] = _Parts(self._limit)
        return parts.line(stream, frame) if frame.seq > self._after else None


Count = Annotated[int, msgspec.Meta(ge=0)]


class Totals(msgspec.Struct, frozen=True):
    """What the runner forwarded of one stream, and the SHA-256 of the whole file (None: could not be computed)."""

    lines: Count = 0
    bytes: Count = 0
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")] | None = None


class LastFrame(msgspec.Struct, frozen=True):
    """The runner's last word.

    Attributes:
        exit_code: the command's; 128+n after signal n, as every shell says it; None when it was never learned.
        signal: n when the exit code is 128+n. A command that itself exits so cannot be told apart.
        stopped_by: `TERM`, `INT` or `HUP` when the runner was told to stop.
        grace_exceeded: True when something had to be killed after a stop.
        error: `workdir`, `folder`, `stdin`, `out` (nothing was started); `command_not_found`,
            `command_not_executable`; `unkillable`; `disk_full`; `output_truncated` (someone emptied an output file);
            `last_frame_unreadable`, which only `parse` gives; None when all is well.
        detail: the option or environment variable that an error is about.
        stdout: lines with a newline, bytes, digest.
        stderr: the same.
    """

    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    stopped_by: Literal["TERM", "INT", "HUP"] | None = None
    grace_exceeded: bool = False
    error: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    detail: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    stdout: Totals = Totals()
    stderr: Totals = Totals()

    @classmethod
    def parse(cls, payload: bytes) -> "LastFrame":
        """The payload of a frame of the stream `last`. Nonsense gives the error `last_frame_unreadable`."""
        try:
            return _LAST.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return cls(error="last_frame_unreadable")


_LAST: Final = msgspec.json.Decoder(LastFrame)
