"""The kubelet's log endpoint over CRI log files, with the traits that log followers have to live with.

`sinceTime` counts whole seconds, inclusive; `tailLines` counts entries of the file and applies before it; a line over
16 KiB is several entries of which only the first gets a stamp in the answer; an unterminated last line ends without a
line end; only the current file is read. Source: kubernetes pkg/kubelet/kuberuntime/logs, as measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_CHUNK = 256 * 1024
_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_POLL = 0.05  # seconds between looks where inotify is not to be had


@dataclass(frozen=True)
class LogOptions:
    """The query of a log request."""

    follow: bool = False
    timestamps: bool = False
    since: datetime | None = None
    tail: int | None = None
    limit: int | None = None


class Entries:
    """Turns the bytes of a CRI log file, in any cutting, into the bytes the log API answers."""

    def __init__(self, options: LogOptions) -> None:
        self._stamped = options.timestamps
        self._since = options.since.strftime("%Y-%m-%dT%H:%M:%S").encode() if options.since else b""
        self._rest = b""
        self._line_begins = True

    def feed(self, data: bytes) -> bytes:
        """The answer's next bytes."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        answer: list[bytes] = []
        for line in lines:
            parts = line.split(b" ", 3)
            if len(parts) != 4 or parts[0] < self._since:
                continue
            if self._stamped and self._line_begins:
                answer += [parts[0], b" "]
            answer.append(parts[3])
            self._line_begins = parts[2] != b"P"
            if self._line_begins:
                answer.append(b"\n")
        return b"".join(answer)


def tail_offset(path: Path, entries: int) -> int:
    """Where the last `entries` entries of a file begin."""
    with path.open("rb") as file:
        end = position = file.seek(0, os.SEEK_END)
        seen = 0
        while position > 0:
            step = min(_CHUNK, position)
            position -= step
            file.seek(position)
            data = file.read(step)
            index = len(data)
            while (index := data.rfind(b"\n", 0, index)) >= 0:
                if position + index == end - 1:
                    continue  # the last entry's own end
                seen += 1
                if seen == entries:
                    return position + index + 1
        return end if entries == 0 else 0


class Ears:
    """Tells when files grow: one inotify instance for all followers, polling where there is none to be had."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watches: dict[int, Path] = {}
        self._listeners: defaultdict[Path, set[asyncio.Event]] = defaultdict(set)
        if self._descriptor >= 0:
            asyncio.get_running_loop().add_reader(self._descriptor, self._hear)

    def close(self) -> None:
        """Give the inotify instance back."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    @contextlib.contextmanager
    def on(self, directory: Path, *others: asyncio.Event) -> Iterator[asyncio.Event]:
        """An event that is set whenever a file of `directory` grows or appears, and with each of the `others`."""
        heard = asyncio.Event()
        watch = self._watch(directory)
        self._listeners[directory].add(heard)
        tasks = [asyncio.ensure_future(_relay(other, heard)) for other in others]
        if watch < 0:
            tasks.append(asyncio.ensure_future(_tick(heard)))
        try:
            yield heard
        finally:
            for task in tasks:
                task.cancel()
            self._listeners[directory].discard(heard)
            if not self._listeners[directory]:
                del self._listeners[directory]
                if watch >= 0 and self._descriptor >= 0:
                    self._watches.pop(watch, None)
                    self._libc.inotify_rm_watch(self._descriptor, watch)

    def _watch(self, directory: Path) -> int:
        if self._descriptor < 0:
            return -1
        events = _IN_MODIFY | _IN_CREATE
        watch = int(self._libc.inotify_add_watch(self._descriptor, os.fsencode(directory), events))
        if watch >= 0:
            self._watches[watch] = directory
        return watch

    def _hear(self) -> None:
        data = os.read(self._descriptor, 65536)
        while data:
            watch, _, _, length = struct.unpack_from("iIII", data)
            data = data[16 + length :]
            for event in self._listeners.get(self._watches.get(watch, Path()), ()):
                event.set()


async def read_log(
    directory: Path, options: LogOptions, ears: Ears, finished: asyncio.Event, cut: asyncio.Event
) -> AsyncGenerator[bytes]:
    """The answer to a log request: what is there, and with `follow` what comes until the container has `finished`.

    `cut` ends a follow early and cleanly, as the death of a kubelet does.
    """
    path = directory / "log"
    entries = Entries(options)
    left = options.limit
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
        except FileNotFoundError:
            return
        heard = stack.enter_context(ears.on(directory, finished, cut)) if options.follow else None
        if options.tail is not None:
            file.seek(tail_offset(path, options.tail))
        while True:
            over = finished.is_set() or cut.is_set()
            moved = path.exists() and path.stat().st_ino != os.fstat(file.fileno()).st_ino
            while data := file.read(_CHUNK):
                answer = entries.feed(data)[:left]
                if answer:
                    yield answer
                if left is not None and (left := left - len(answer)) <= 0:
                    return
            if moved:
                file.close()
                file = stack.enter_context(path.open("rb"))
            elif heard is None or over:
                return
            else:
                await heard.wait()
                heard.clear()


async def _relay(event: asyncio.Event, listener: asyncio.Event) -> None:
    await event.wait()
    listener.set()


async def _tick(listener: asyncio.Event) -> None:
    while True:
        await asyncio.sleep(_POLL)
        listener.set()
