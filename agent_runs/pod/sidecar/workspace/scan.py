"""Reads folders as a tree. Everything in them is the agent's, which may change it, and exchange it, at any moment.

A file that is as it was in the scan before is not read again; the rule for that is Git's (its word is racily clean).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agent_runs.pod.sidecar.workspace import database
from agent_runs.pod.sidecar.workspace.folders import FILE, FOLDER, opened

BLOCK = 1024 * 1024
MAX_PATH = 4096
MAX_DEPTH = 128
RACY = 2 * 10**9
"""Nanoseconds: a file that was changed later than that before a scan may change again without another time."""
TRIES = 3
"""To read a file that does not change meanwhile."""
KEPT = 64 * 1024 * 1024
"""Bytes of a file that are kept because it changes all the time."""
COPIES = 16
"""Of databases that are kept until they are sent; of the others another one is made then."""
NAMED = 20
"""Things that were left out and are named."""
NAME_LIMIT, REASON_LIMIT = 120, 200
EMPTY = b'{"entries":[]}'
_SIGNATURE = struct.Struct("<QQQqqIQQq")


class Place(NamedTuple):
    """Where a block is."""

    path: str
    at: int
    size: int


class _Known(NamedTuple):
    """An entry of the last scan. Without a signature it is read again."""

    text: str
    signature: bytes = b""
    size: int = 0
    blocks: Sequence[str] = ()
    is_database: bool = False


class Warnings:
    """What is not in the tree as it should be: the first ones by name, and how many there are."""

    def __init__(self) -> None:
        self._named = dict[str, None]()
        self._more = 0

    def add(self, path: str, reason: str) -> None:
        name = os.fsencode(path).decode("utf-8", "backslashreplace")
        text = f"{name if len(name) <= NAME_LIMIT else '...' + name[-NAME_LIMIT:]}: {reason[:REASON_LIMIT]}"
        if len(self._named) < NAMED:
            self._named[text] = None
        elif text not in self._named:
            self._more += 1

    def texts(self) -> list[str]:
        return [*self._named, *([f"and {self._more} more"] if self._more else [])]


class Scanner:
    """Reads the roots' folders again and again.

    Args:
        roots: absolute paths by their places in the tree.
        ignore: regular expressions of what is left out, relative to `workspace`.
        stored: returns the tree that is stored, as JSON. Asked only if something cannot be read, and no tree that was
            scanned here is stored.
    """

    def __init__(
        self, roots: Mapping[str, str], ignore: Sequence[str] = (), stored: Callable[[], bytes] = lambda: EMPTY
    ) -> None:
        self._roots = {place: roots[place] for place in sorted(roots, key=_order)}
        self._ignored = re.compile("|".join(ignore), re.DOTALL) if ignore else None
        self._index = dict[str, _Known]()
        self._last = dict[str, str]()  # of the tree that was stored last
        self._stored: Callable[[], bytes] | None = stored
        self._unread = dict[str, str]()
        self._copies = dict[str, int]()
        self._kept = dict[str, bytes]()
        self._buffer = bytearray(BLOCK)
        self.warnings = Warnings()

    # the tree

    @property
    def tree(self) -> bytes:
        """The last scan as JSON."""
        entries = ",".join(known.text for known in self._index.values())
        return f'{{"version":1,"entries":[{entries}]}}'.encode()

    def blocks(self) -> dict[str, Place]:
        """The blocks of the tree, but for those of files that the stored tree has, too."""
        changed = ((path, known) for path, known in self._index.items() if self._last.get(path) != known.text)
        return {block: place for path, known in changed for block, place in _places(path, known)}

    def is_stored(self) -> None:
        """The store has this tree."""
        self._last = {path: known.text for path, known in self._index.items()}
        self._stored = None

    def is_lost(self) -> None:
        """The store lacks something of the tree that it had."""
        self._last = {}

    def scan(self) -> None:
        """Read what has changed. What cannot be read stays as the stored tree has it, or is left out."""
        self.close()
        self.warnings = Warnings()
        self._unread.clear()
        self._began = time.time_ns()
        before, self._index = self._index, {}
        for place, path in self._roots.items():
            folder, _, name = path.rstrip("/").rpartition("/")
            try:
                with opened(folder) as parent:
                    self._root(parent, name, place, before)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._unread[place] = _reason(error)
        if self._unread:
            self._settle_unread()

    def _settle_unread(self) -> None:
        """Have what could not be read, and all below it, as the stored tree has it: it was not deleted."""
        if self._stored is not None:
            entries = json.loads(self._stored())["entries"]
            self._last, self._stored = {entry["path"]: json.dumps(entry) for entry in entries}, None
        kept = {path: _Known(text) for path, text in self._last.items() if any(map(self._unread.get, _parts(path)))}
        if kept:
            above = {part for path in kept for part in _parts(path)}
            folders = {path: _Known(self._last[path]) for path in above if path in self._last}
            self._index = dict(sorted({**folders, **kept, **self._index}.items(), key=lambda each: _order(each[0])))
        for path, reason in self._unread.items():
            self.warnings.add(path, f"as it was before: {reason}" if path in kept else f"left out: {reason}")

    def close(self) -> None:
        """Forget the copies of databases and contents that were kept."""
        for copy in self._copies.values():
            os.close(copy)
        self._copies.clear()
        self._kept.clear()

    def _root(self, parent: int, name: str, place: str, before: Mapping[str, _Known]) -> None:
        about = os.stat(name, dir_fd=parent, follow_symlinks=False)
        is_folder = stat.S_ISDIR(about.st_mode)
        if not is_folder and not (stat.S_ISREG(about.st_mode) and "/" in place):
            self._unread[place] = "it is no folder"
            return
        parts = place.split("/")
        for depth in range(1, len(parts)):
            self._add_folder("/".join(parts[:depth]), 0o755)
        if not is_folder:
            self._file(parent, name, place, about, None, before)
            return
        own = about.st_uid == os.geteuid()  # otherwise it is a mount of the pod, whose mode means nothing elsewhere
        with _descriptor(os.open(name, FOLDER, dir_fd=parent)) as folder:
            self._add_folder(place, about.st_mode & 0o777 if own else 0o755)
            self._folder(folder, place, os.fstat(folder).st_dev, len(parts), before)

    def _add_folder(self, path: str, mode: int) -> None:
        self._index[path] = _Known(f'{{"kind":"dir","path":{json.dumps(path)},"mode":{mode}}}')

    def _folder(self, folder: int, path: str, device: int, depth: int, before: Mapping[str, _Known]) -> None:
        found = dict[str, os.stat_result]()
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat(follow_symlinks=False)
        beside = set[str]()
        for name in sorted(found, key=os.fsencode):
            inner, about = f"{path}/{name}", found[name]
            if name in beside or self._is_ignored(inner):
                continue
            if fault := _fault(inner, about, device, depth):
                self._unread[inner] = fault
                continue
            try:
                if stat.S_ISDIR(about.st_mode):
                    with _descriptor(_open_folder(folder, name, device)) as inner_folder:
                        self._add_folder(inner, os.fstat(inner_folder).st_mode & 0o777)
                        self._folder(inner_folder, inner, device, depth + 1, before)
                elif stat.S_ISLNK(about.st_mode):
                    self._link(os.readlink(name, dir_fd=folder), inner)
                else:
                    wal = found.get(f"{name}-wal") if inner.startswith("session/") else None
                    is_database = self._file(folder, name, inner, about, wal, before)
                    beside.update(name + end for end in database.BESIDE if is_database)
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                self._unread[inner] = _reason(error)

    def _is_ignored(self, path: str) -> bool:
        top, _, rest = path.partition("/")
        return self._ignored is not None and top == "workspace" and self._ignored.fullmatch(rest) is not None

    def _link(self, target: str, path: str) -> None:
        if not _is_text(target) or not 0 < len(target.encode()) <= MAX_PATH:
            self._unread[path] = "its target is not UTF-8"
            return
        self._index[path] = _Known(f'{{"kind":"link","path":{json.dumps(path)},"target":{json.dumps(target)}}}')

    # files

    def _file(
        self,
        folder: int,
        name: str,
        path: str,
        about: os.stat_result,
        wal: os.stat_result | None,
        before: Mapping[str, _Known],
    ) -> bool:
        """Add a file; whether it is a database.

        Args:
            wal: of a database's other file, which has what was committed last.
        """
        known = before.get(path)
        if known is not None and known.signature and known.signature == _signature(about, wal):
            self._index[path] = known
            return known.is_database
        try:
            return self._read(folder, name, path, wal)
        except database.NotCopied as error:
            self._unread[path] = str(error)
            return True

    def _read(
        self, folder: int, name: str, path: str, wal: os.stat_result | None = None, *, keep: bool = False
    ) -> bool:
        with _descriptor(_open_file(folder, name)) as file:
            about, content = os.fstat(file), file
            if is_database := path.startswith("session/") and database.is_database(file):
                content = self._copies[path] = database.copy(folder, name, file)
                if len(self._copies) > COPIES:
                    os.close(self._copies.pop(next(iter(self._copies))))
            else:
                wal = None
            now, size, blocks, settled = self._hash_settled(content, keep=keep)
            about = about if is_database else now
            modified = max(about.st_mtime_ns, wal.st_mtime_ns if wal else about.st_mtime_ns)
            changed = max(about.st_ctime_ns, modified)
            self._index[path] = _Known(
                f'{{"kind":"file","path":{json.dumps(path)},"mode":{about.st_mode & 0o777},'
                f'"modified":{modified // 1000},"size":{size},"blocks":{json.dumps(blocks)}}}',
                _signature(about, wal) if settled and changed + RACY < self._began else b"",
                size,
                blocks,
                is_database,
            )
            return is_database

    def _hash_settled(self, file: int, *, keep: bool) -> tuple[os.stat_result, int, list[str], bool]:
        """What a file was, its bytes and blocks, and whether it did not change while it was read."""
        tries = 0
        while True:
            tries += 1
            about = os.fstat(file)
            size, blocks = self._hash(file, about.st_size, keep=keep and about.st_size <= KEPT)
            settled = size == about.st_size and _signature(about) == _signature(os.fstat(file))
            if settled or tries == TRIES:
                return about, size, blocks, settled

    def _hash(self, file: int, size: int, *, keep: bool) -> tuple[int, list[str]]:
        """How many bytes were read, and their blocks."""
        blocks, at, buffer = list[str](), 0, memoryview(self._buffer)
        if keep:
            self._kept.clear()
        while at < size and (read := _fill(file, buffer[: min(BLOCK, size - at)], at)):
            blocks.append(hashlib.sha256(buffer[:read]).hexdigest())
            if keep:
                self._kept[blocks[-1]] = bytes(buffer[:read])
            at += read
            if read < BLOCK:
                break
        return at, blocks

    def _keep_last(self, path: str, reason: str) -> None:
        """Have a file as the stored tree has it."""
        if path in self._last:
            self._index[path] = _Known(self._last[path])
            self.warnings.add(path, f"as it was before: {reason}")
        else:
            self._index.pop(path, None)
            self.warnings.add(path, f"left out: {reason}")

    # what is sent

    def content(self, block: str, place: Place) -> bytes | None:
        """What a block is; None: its file has changed since."""
        if block in self._kept:
            return self._kept[block]
        with contextlib.suppress(OSError), self._content(place.path) as file:
            read = _fill(file, memoryview(self._buffer)[: place.size], place.at)
            content = bytes(self._buffer[:read])
            if hashlib.sha256(content).hexdigest() == block:
                return content
        return None

    @contextlib.contextmanager
    def _content(self, path: str) -> Iterator[int]:
        if path in self._copies:
            yield self._copies[path]
            return
        with self._parent(path) as (folder, name), _descriptor(_open_file(folder, name)) as file:
            yield file

    @contextlib.contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        place = next(place for place in self._roots if path == place or path.startswith(f"{place}/"))
        folder, _, name = (self._roots[place].rstrip("/") + path[len(place) :]).rpartition("/")
        with opened(folder) as parent:
            yield parent, name

    def read_again(self, path: str) -> dict[str, Place]:
        """Read a file that has changed; the blocks that it has now, which are kept if they are few."""
        try:
            with self._parent(path) as (folder, name):
                if (copy := self._copies.pop(path, None)) is not None:
                    os.close(copy)
                self._read(folder, name, path, keep=True)
        except database.NotCopied as error:
            self._keep_last(path, str(error))
        except FileNotFoundError:
            self._index.pop(path, None)
        except OSError as error:
            self._keep_last(path, _reason(error))
        return dict(_places(path, self._index[path])) if path in self._index else {}

    def give_up(self, path: str) -> None:
        """Have a file as it was stored last: it changes faster than it can be sent."""
        self._keep_last(path, "it changes all the time")


def _parts(path: str) -> Iterator[str]:
    """A path and the folders above it."""
    while path:
        yield path
        path = path.rpartition("/")[0]


def _order(place: str) -> bytes:
    return place.replace("/", "\0").encode()


def _is_text(name: str) -> bool:
    """Whether it is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fault(path: str, about: os.stat_result, device: int, depth: int) -> str:
    """Why an entry cannot be in a tree."""
    if not _is_text(path):
        return "its name is not UTF-8"
    if len(path.encode()) > MAX_PATH or depth > MAX_DEPTH:
        return "its path is too long"
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode) or stat.S_ISLNK(about.st_mode)):
        return "it is no file, folder or link"
    return "it is on another volume" if about.st_dev != device else ""


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _signature(about: os.stat_result, wal: os.stat_result | None = None) -> bytes:
    """What changes with a file. SQLite itself changes the owner of its own file, and so when its status changed."""
    return _SIGNATURE.pack(
        *(about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_mode),
        *((wal.st_ino, wal.st_size, wal.st_mtime_ns) if wal else (0, 0, 0)),
    )


def _places(path: str, known: _Known) -> Iterator[tuple[str, Place]]:
    for number, block in enumerate(known.blocks):
        yield block, Place(path, number * BLOCK, min(BLOCK, known.size - number * BLOCK))


def _open_folder(folder: int, name: str, device: int) -> int:
    inner = os.open(name, FOLDER, dir_fd=folder)
    if os.fstat(inner).st_dev != device:
        os.close(inner)
        raise OSError("it was exchanged")
    return inner


def _open_file(folder: int, name: str) -> int:
    file = os.open(name, FILE, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("it was exchanged")
    return file


def _fill(file: int, buffer: memoryview, at: int) -> int:
    """Read as much as is there, and return how much that is."""
    read = 0
    while read < len(buffer) and (piece := os.preadv(file, [buffer[read:]], at + read)):
        read += piece
    return read


@contextlib.contextmanager
def _descriptor(file: int) -> Iterator[int]:
    try:
        yield file
    finally:
        os.close(file)
