"""The files that the agent's container writes its output to, forwarded as frames, and repeated on request.

The agent may do to its files whatever it likes. They were opened before it started, so another file in their place is
never read; an emptied file is reported, and its earlier frames are not repeated. What has been forwarded stays
forwarded, and the checksum in the last frame is that of as many bytes of the files as they are at the end.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from agent_runs.pod.sidecar import shared
from agent_runs.pod.sidecar.encoding import Checksum, encode, end_of_line

BLOCK = 64 * 1024
"""Bytes that are read and forwarded at a time; also how far apart places are from which frames can be repeated. Each
takes 150 bytes of memory if all are line breaks, and the sidecar has 128 MiB."""
MAX_FILES = 10_000
"""Of the folder that are measured."""
LEAST_FREE = 8192
"""Bytes of a disk that is not full."""
BLOCK_UNIT = 512
"""Bytes in which `st_blocks` counts."""
PARTIAL_SECONDS = 1.0
"""How long the beginning of a line waits for its end, before it is forwarded: an agent that writes is not silent."""
STREAMS = ((b"o", "stdout"), (b"e", "stderr"))
_HELLO, _END_OF_LINE = 2, 3
"""What a batch is besides the bytes of stream 0 or 1; the end of stream n's line is `_END_OF_LINE` + n."""


class Stream:
    """One file.

    Attributes:
        name: of the stream in the last frame.
        begin: where the output of this turn begins, in bytes.
        at: how far it is forwarded, in bytes.
        lines: newlines among all forwarded bytes.
        open: the last frame does not end its line.
        emptied_at: number of the last frame before the file was emptied.
        partial_since: when the beginning of a line was first seen, by the monotonic clock.
    """

    def __init__(self, folder: str, letter: bytes, name: str, report_as: str | None = None) -> None:
        self.letter = letter
        self.name = report_as or name
        self.file = shared.open_file(folder, name, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
        self.begin = self.at = 0
        self.lines = 0
        self.open = False
        self.emptied_at = 0
        self.partial_since: float | None = None

    def close(self) -> None:
        os.close(self.file)

    @property
    def size(self) -> int:
        return os.fstat(self.file).st_size

    def checksum(self) -> str:
        """Return that of the file, from where the turn begins to what is forwarded."""
        checksum, at = Checksum(), self.begin
        while block := os.pread(self.file, min(BLOCK, self.at - at), at):
            checksum.update(block)
            at += len(block)
        return str(checksum)


class Batches:
    """Which bytes of which stream each frame was made of: enough to make it again.

    Consecutive bytes of a stream are one batch of a `BLOCK` at most, however many frames they are.
    """

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._rest = array("Q")  # kind, from, to

    def add(self, first: int, kind: int, begin: int, end: int, *, continues: bool) -> None:
        """Add a batch, or extend the last one.

        Args:
            continues: its frames are the same if they are made together with those of the batch before.
        """
        last = len(self._firsts) - 1
        if continues and last >= 0:
            before, since, until = self._rest[last * 3 : last * 3 + 3]
            if (before, until) == (kind, begin) and end - since <= BLOCK:
                self._rest[last * 3 + 2] = end
                return
        self._firsts.append(first)
        self._rest.extend((kind, begin, end))

    def between(self, first: int, last: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Return the batches with frames from `first` to `last`: first number, next batch's number, kind, from, to."""
        firsts = self._firsts
        for place in range(max(bisect.bisect_right(firsts, first) - 1, 0), len(firsts)):
            if firsts[place] > last:
                return
            following = firsts[place + 1] if place + 1 < len(firsts) else 0
            kind, begin, end = self._rest[place * 3 : place * 3 + 3]
            yield firsts[place], following, kind, begin, end


class Output:
    """Both files, forwarded in the order in which their bytes are seen.

    Args:
        write: takes frames; may block.
        clock: seconds, monotonic.
        driven: what a driver writes, in the place of the agent's standard output.
        seen: takes what is forwarded of the standard output.
    """

    def __init__(
        self,
        folder: str,
        write: Callable[[bytes], None],
        clock: Callable[[], float] = time.monotonic,
        driven: Stream | None = None,
        seen: Callable[[bytes], None] | None = None,
    ) -> None:
        self._folder = folder
        self._seen = seen
        self._write = write
        self._clock = clock
        self._batches = Batches()
        self._last_frame = b""
        self._was_partial = True
        self.streams = [Stream(folder, letter, name) for letter, name in STREAMS]
        if driven is not None:
            self.streams[0] = driven
        self.number = 0
        self.truncated = False

    @property
    def files(self) -> list[int]:
        """All files that may have output."""
        return list({stream.file for stream in self.streams})

    @property
    def has_ended(self) -> bool:
        """Whether the last frame of the turn is written."""
        return bool(self._last_frame)

    def begin(self) -> None:
        """Write the first frame of a turn."""
        self.number += 1
        self._batches.add(self.number, _HELLO, 0, 0, continues=False)
        self._write(hello(self.number))

    def begin_turn(self, driven: Stream) -> None:
        """Begin the next turn. What came after the turn before belongs to none."""
        errors = self.streams[1]
        errors.begin = errors.at = errors.size
        errors.lines, errors.partial_since = 0, None
        self.streams[0] = driven
        self._batches, self._last_frame, self._was_partial = Batches(), b"", True
        self.begin()

    def forward(self) -> bool:
        """Forward what is there now, a block of each file at most; return whether that was anything."""
        moved = [self._forward(kind, final=False) for kind in range(len(self.streams))]
        return any(moved)

    def _forward(self, kind: int, *, final: bool) -> bool:
        stream = self.streams[kind]
        size = stream.size
        if size < stream.at:
            self.truncated = True
            stream.begin = stream.at = 0
            stream.emptied_at, stream.partial_since = self.number, None
        if size == stream.at:
            return False
        data = os.pread(stream.file, BLOCK, stream.at)
        done = self._encode(stream, kind, data, final=False)
        if not done and (final or self._waited_long(stream)):
            done = self._encode(stream, kind, data, final=True)
        return done

    def _encode(self, stream: Stream, kind: int, data: bytes, *, final: bool) -> bool:
        encoded = encode(stream.letter, data, self.number + 1, final=final)
        if not encoded.frames:
            return False
        begin, stream.at = stream.at, stream.at + encoded.used
        self._batches.add(self.number + 1, kind, begin, stream.at, continues=not self._was_partial)
        self._was_partial = final
        self.number += encoded.frames
        stream.lines += encoded.lines
        stream.open = encoded.open
        stream.partial_since = None
        self._write(encoded.text)
        if self._seen is not None and kind == 0:
            self._seen(data[: encoded.used])
        return True

    def _waited_long(self, stream: Stream) -> bool:
        now = self._clock()
        if stream.partial_since is None:
            stream.partial_since = now
        return now - stream.partial_since >= PARTIAL_SECONDS

    @property
    def due_in(self) -> float | None:
        """Seconds until the beginning of a line is to be forwarded; None if there is none."""
        waiting = [stream.partial_since for stream in self.streams if stream.partial_since is not None]
        return max(min(waiting) + PARTIAL_SECONDS - self._clock(), 0.0) if waiting else None

    def end(self, last: Callable[[], bytes]) -> None:
        """Forward the rest, end lines that have no newline, and write the last frame.

        Args:
            last: returns that frame's payload.
        """
        ends = [stream.size for stream in self.streams]  # and no more: what cannot be stopped must not delay us
        for kind, stream in enumerate(self.streams):
            while stream.at < ends[kind] and self._forward(kind, final=True):
                pass
            if stream.open:
                self.number += 1
                self._batches.add(self.number, _END_OF_LINE + kind, stream.at, stream.at, continues=False)
                stream.open = False
                self._write(end_of_line(self.number, stream.letter))
        self.number += 1
        self._last_frame = b"%dx. %b\n" % (self.number, last())
        self._write(self._last_frame)

    def totals(self) -> dict[str, dict[str, Any]]:
        """Return lines, bytes and checksum of both streams, as the last frame has them."""
        return {
            stream.name: {"lines": stream.lines, "bytes": stream.at - stream.begin, "checksum": stream.checksum()}
            for stream in self.streams
        }

    @property
    def disk_is_full(self) -> bool:
        """Whether nothing more can be written to the disk of the files. No path is opened for it."""
        disk = os.fstatvfs(self.streams[1].file)
        return disk.f_blocks > 0 and disk.f_bavail * disk.f_frsize < LEAST_FREE

    @property
    def disk_bytes(self) -> int | None:
        """What the files in the folder take on its disk; the agent may put others there, so their number is bounded."""
        taken = 0
        try:
            with os.scandir(self._folder) as entries:
                for entry in itertools.islice(entries, MAX_FILES):
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        taken += entry.stat(follow_symlinks=False).st_blocks * BLOCK_UNIT
        except OSError:
            return None
        return taken

    def repeat(self, first: int, last: int) -> Iterator[bytes]:
        """Return frames again, as far as their bytes still exist."""
        for number, following, kind, begin, end in self._batches.between(first, last):
            if kind == _HELLO:
                text = hello(number)
            elif kind >= _END_OF_LINE:
                text = end_of_line(number, self.streams[kind - _END_OF_LINE].letter)
            else:
                text = self._again(number, following, self.streams[kind], begin, end)
            yield _between(text, number, first, last)
        if self._last_frame and last >= self.number:
            yield self._last_frame

    def _again(self, number: int, following: int, stream: Stream, begin: int, end: int) -> bytes:
        if number <= stream.emptied_at:
            return b""
        again = encode(stream.letter, os.pread(stream.file, end - begin, begin), number, final=True)
        changed = following and number + again.frames != following
        return b"" if changed else again.text


def hello(number: int) -> bytes:
    return b'%dh. {"format":1}\n' % number


def _between(text: bytes, number: int, first: int, last: int) -> bytes:
    """Return the frames from `first` to `last` of those that begin with `number`."""
    frames = text.split(b"\n")[:-1]
    chosen = frames[max(first - number, 0) : max(last - number + 1, 0)]
    return b"".join([frame + b"\n" for frame in chosen])
