"""Turns a stream's bytes into frames. Which frames these are depends on nothing but the bytes and where they begin.

So frames can be repeated from the stream's file: the same bytes from the same place give the same frames.
A frame is one line of less than 8 KiB: number, stream, mark, blank, payload.

    number  1, 2, 3, ... over all streams
    stream  o stdout, e stderr, h the first frame, x the last; O, E: the same with NUL written \\0, backslash \\\\, and
            a CR at the end \\r, because container runtimes drop that one
    mark    . ends a line, + the line continues, - ends a line that has no newline
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

WHOLE, ESCAPED = 8000, 4000
"""Bytes of one frame's payload; of one that has to be escaped, before that."""


class Checksum:
    """CRC-32 and Adler-32 of bytes that come in pieces. Whoever has its text goes on with the next piece.

    It shows accidents. It proves nothing about a program that wants to deceive, which is the agent, about itself.
    """

    def __init__(self, text: str = "0000000000000001") -> None:
        self._crc, self._adler = int(text[:8], 16), int(text[8:], 16)

    def update(self, data: bytes) -> None:
        self._crc, self._adler = zlib.crc32(data, self._crc), zlib.adler32(data, self._adler)

    def __str__(self) -> str:
        return f"{self._crc:08x}{self._adler:08x}"


class Encoded(NamedTuple):
    """Frames and what they are made of.

    Attributes:
        text: the frames, each with its newline.
        frames: how many.
        lines: newlines in the bytes.
        used: bytes of the stream.
        open: the last frame does not end its line.
    """

    text: bytes
    frames: int
    lines: int
    used: int
    open: bool


def encode(stream: bytes, data: bytes, first: int, *, final: bool) -> Encoded:
    """Encode whole lines, and whole parts of a long line.

    Args:
        stream: `o` or `e`.
        data: begins where a frame begins.
        first: number of the first frame.
        final: also encode the beginning of a line whose rest is not known.
    """
    end = data.rfind(b"\n") + 1
    lines = data[:end].split(b"\n")
    lines.pop()  # what follows the last newline
    rest = data[end:] if final or len(data) - end > WHOLE else b""
    if not rest and b"\0" not in data and b"\r\n" not in data and max(map(len, lines), default=0) <= WHOLE:
        head = stream + b". %b\n"
        text = b"".join([b"%d" % number + head % line for number, line in enumerate(lines, first)])
        return Encoded(text, len(lines), len(lines), end, open=False)
    frames: list[bytes] = []
    for line in lines:
        used = _parts(frames, stream, line, first, all_of_it=False)
        frames.append(_frame(first + len(frames), stream, b".", line[used:]))
    used = _parts(frames, stream, rest, first, all_of_it=final)
    return Encoded(b"".join(frames), len(frames), len(lines), end + used, open=bool(used))


def _parts(frames: list[bytes], stream: bytes, line: bytes, first: int, *, all_of_it: bool) -> int:
    """Add the frames after which the line continues; return how many bytes they are made of."""
    at = 0
    while True:
        part = line[at : at + WHOLE]
        if _needs_escape(part):
            part = part[:ESCAPED]
        more = at + len(part) < len(line)
        if not (more or (all_of_it and part)):
            return at
        frames.append(_frame(first + len(frames), stream, b"+", part))
        at += len(part)


def _needs_escape(part: bytes) -> bool:
    return b"\0" in part or part.endswith(b"\r")


def _frame(number: int, stream: bytes, mark: bytes, payload: bytes) -> bytes:
    if _needs_escape(payload):
        stream = stream.upper()
        payload = payload.replace(b"\\", b"\\\\").replace(b"\0", b"\\0")
        if payload.endswith(b"\r"):
            payload = payload[:-1] + b"\\r"
    return b"%d%b%b %b\n" % (number, stream, mark, payload)


def end_of_line(number: int, stream: bytes) -> bytes:
    """Return the frame that ends a line without a newline."""
    return b"%d%b- \n" % (number, stream)
