"""The log of one container: written as a container runtime writes it, read as the kubelet's log endpoint reads it.

The file has CRI lines: `<stamp> <stream> <P|F> <text>` with at most 16 KiB of text; P marks all but a line's last part.
The endpoint's traits, which log followers have to live with: `sinceTime` counts whole seconds, inclusive; of a long
line only the first part gets a stamp; an unterminated last line ends without a line end; only the current file is read.
Source: kubernetes pkg/kubelet/kuberuntime/logs, as measured.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

LINE_LIMIT = 16 * 1024
"""containerd's default max_container_log_line_size, bytes per part."""
_READ = 256 * 1024  # bytes at a time


@dataclass(frozen=True)
class LogOptions:
    """The query of a log request.

    Attributes:
        whole_seconds: of `sinceTime` only the second counts; `sinceSeconds` is exact.
    """

    follow: bool = False
    timestamps: bool = False
    since: datetime | None = None
    whole_seconds: bool = True


class ContainerLog:
    """One log file. A log that is not `open` belongs to a container that has ended, perhaps in an earlier cluster."""

    def __init__(self, path: Path, *, open_for_writing: bool = True) -> None:
        self._path = path
        self._rests = {b"stdout": b"", b"stderr": b""}
        self._open = open_for_writing
        self._cuts = 0
        self._changed = asyncio.Event()
        if open_for_writing:
            self._file = path.open("ab", buffering=0)

    # ---------------------------------------------------------------- writing

    def write(self, stream: bytes, data: bytes) -> None:
        """Add what was read from one of the container's streams."""
        *lines, rest = (self._rests[stream] + data).split(b"\n")
        entries: list[bytes] = []
        for line in lines:
            whole = self._split(stream, line, entries)
            entries.append(_entry(stream, b"F", whole.removesuffix(b"\r")))  # containerd drops it too
        self._rests[stream] = self._split(stream, rest, entries)
        self._append(b"".join(entries))

    @staticmethod
    def _split(stream: bytes, line: bytes, entries: list[bytes]) -> bytes:
        """Append the full parts of a long line to `entries`; returns what is left of it."""
        while len(line) > LINE_LIMIT:
            entries.append(_entry(stream, b"P", line[:LINE_LIMIT]))
            line = line[LINE_LIMIT:]
        return line

    def close(self) -> None:
        """Write what has no line end, which containerd marks P; followers end."""
        for stream, rest in self._rests.items():
            if rest:
                self._append(_entry(stream, b"P", rest))
        self._file.close()
        self._open = False
        self._wake()

    def rotate(self) -> None:
        """Begin a new file, as the kubelet does above its size limit; new requests see only that."""
        self._path.rename(self._path.with_suffix(".1"))
        self._file.close()
        self._file = self._path.open("ab", buffering=0)
        self._wake()

    def _append(self, data: bytes) -> None:
        if data:
            self._file.write(data)
            self._wake()

    # ---------------------------------------------------------------- reading

    def end_follows(self) -> None:
        """End every open follow cleanly although the container runs, as the death of a kubelet does."""
        self._cuts += 1
        self._wake()

    async def read(self, options: LogOptions) -> AsyncGenerator[bytes]:
        """The answer to a log request: what is there, and with `follow` what comes until the container has ended."""
        entries, cuts = Entries(options), self._cuts
        try:
            file = self._path.open("rb")
        except FileNotFoundError:  # the pod was deleted meanwhile
            return
        try:
            while True:
                changed, over = self._changed, not self._open or self._cuts != cuts
                rotated = self._path.exists() and self._path.stat().st_ino != os.fstat(file.fileno()).st_ino
                while data := file.read(_READ):
                    if answer := entries.feed(data):
                        yield answer
                if rotated:
                    file.close()
                    file = self._path.open("rb")
                elif over or not options.follow:
                    return
                else:
                    await changed.wait()
        finally:
            file.close()

    async def tail(self, size: int) -> str:
        """The end of the output: `size` bytes at most."""
        text = b""
        async for piece in self.read(LogOptions()):
            text = (text + piece)[-size:]
        return text.decode(errors="replace")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Entries:
    """Turns the bytes of a CRI log file, cut anywhere, into the bytes that the log API answers."""

    def __init__(self, options: LogOptions) -> None:
        self._stamped = options.timestamps
        form = "%Y-%m-%dT%H:%M:%S" if options.whole_seconds else "%Y-%m-%dT%H:%M:%S.%f"
        self._since = options.since.strftime(form).encode() if options.since else b""
        self._rest = b""
        self._line_begins = True

    def feed(self, data: bytes) -> bytes:
        """The answer's next bytes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        answer: list[bytes] = []
        for line in lines:
            stamp, _, mark, text = line.split(b" ", 3)
            if stamp < self._since:
                continue
            if self._stamped and self._line_begins:
                answer += [stamp, b" "]
            answer.append(text)
            self._line_begins = mark != b"P"
            if self._line_begins:
                answer.append(b"\n")
        return b"".join(answer)


def _entry(stream: bytes, mark: bytes, text: bytes) -> bytes:
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return b"%s.%09dZ %s %s %s\n" % (stamp.encode(), nanoseconds, stream, mark, text)
