"""Encodes output as the runner does (`agent_runs/pod/runner.sh`), for logs that no runner wrote."""

from collections.abc import Iterator

from agent_runs.logs.frames import Frame, Mark, Output, Stream, parse_frame

PAYLOAD_LIMIT = 8000
"""Bytes of payload that the runner puts into one frame."""
_LETTERS: dict[Stream, bytes] = {"hello": b"h", "stdout": b"o", "stderr": b"e", "last": b"x"}


def encode_frame(frame: Frame) -> bytes:
    """A frame as the runner writes it, newline included.

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
    """Raw output as the frames that the runner would make of it, numbered from `first`."""
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
