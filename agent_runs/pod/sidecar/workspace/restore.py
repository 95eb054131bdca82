"""Makes folders as a tree has them: `python3 -I -S sidecar.pyz restore CONFIG`, before an agent starts.

It may be repeated. What is there already, by an earlier try or anyhow, stays if it has the tree's content, and what is
not in the tree goes. Exit codes: 1: the same may succeed later; 2: it will not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.workspace.folders import FILE, FOLDER, opened
from agent_runs.pod.sidecar.workspace.scan import BLOCK
from agent_runs.pod.sidecar.workspace.store import (
    BATCH,
    BLOCKS_READ,
    DAMAGED,
    RETRY_SECONDS,
    UNAVAILABLE,
    Refused,
    Store,
)

CONNECTIONS = 2
RETRYABLE, FINAL = 1, 2
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Block(NamedTuple):
    """A block of a tree."""

    digest: str
    size: int


class Applied(NamedTuple):
    """What was done: files and bytes that were written, and files that were there already."""

    files: int
    bytes: int
    kept: int


Fetch = Callable[[Sequence[Block]], Generator[bytes, None, None]]
"""Returns the contents of blocks, in their order."""


def apply(tree: Mapping[str, Any], folders: Mapping[str, str], fetch: Fetch) -> Applied:
    """Make these folders as the tree has them. What of the tree is in none of them is left out.

    Args:
        folders: absolute paths by their places in the tree.

    Raises:
        Refused: the tree or a block is damaged, or cannot be fetched.
        OSError: a folder cannot be written.
    """
    try:
        roots = {place: _Root(place, path, tree["entries"]) for place, path in folders.items()}
        for root in roots.values():
            root.prepare()
        wanted = [block for root in roots.values() for file in root.files for block in _blocks(file)]
        with contextlib.closing(fetch(wanted)) as fetched:
            contents = _verified(wanted, fetched)
            for root in roots.values():
                root.write(contents)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(DAMAGED, f"the tree cannot be used: {error!r}") from None
    files = [file for root in roots.values() for file in root.files]
    return Applied(len(files), sum(file["size"] for file in files), sum(root.kept for root in roots.values()))


def _blocks(file: Mapping[str, Any]) -> Iterator[Block]:
    for number, digest in enumerate(file["blocks"]):
        yield Block(digest, min(BLOCK, file["size"] - number * BLOCK))


def _verified(wanted: Sequence[Block], contents: Iterator[bytes]) -> Iterator[bytes]:
    for block in wanted:
        content = next(contents, b"")
        if len(content) != block.size or hashlib.sha256(content).hexdigest() != block.digest:
            raise Refused(DAMAGED, f"block {block.digest} is not what was stored")
        yield content


class _Open:
    """The folder in which the next entry is, and those above it."""

    def __init__(self, place: str, parent: int) -> None:
        self._place = place.rpartition("/")[0]
        self._parent = parent
        self._folders: list[tuple[str, int, int | None]] = []

    def parent(self, path: str) -> tuple[int, str]:
        """The folder of an entry, and its name there; those that are complete get their modes."""
        folder, _, name = path.rpartition("/")
        if name in ("", ".", ".."):
            raise ValueError(path)
        while self._folders and self._folders[-1][0] != folder:
            self._pop()
        if not self._folders and folder != self._place:
            raise ValueError(path)
        return (self._folders[-1][1] if self._folders else self._parent), name

    def push(self, path: str, folder: int, mode: int | None = None) -> None:
        self._folders.append((path, folder, mode))

    def _pop(self) -> None:
        _, folder, mode = self._folders.pop()
        try:
            if mode is not None:
                with contextlib.ExitStack() as stack:
                    if not self._folders:  # a mount of the pod belongs to its node
                        stack.enter_context(contextlib.suppress(PermissionError))
                    os.fchmod(folder, mode & 0o777)
        finally:
            os.close(folder)

    def close(self) -> None:
        while self._folders:
            self._pop()


class _Root:
    """One folder, and its part of the tree.

    Attributes:
        files: those that have to be written.
        kept: how many have not.
    """

    def __init__(self, place: str, path: str, entries: Sequence[Mapping[str, Any]]) -> None:
        self._place, self._path = place, path
        self._entries = [each for each in entries if f"{each['path']}/".startswith(f"{place}/")]
        self._names = dict[str, set[str]]()
        for each in self._entries:
            folder, _, name = each["path"].rpartition("/")
            self._names.setdefault(folder, set()).add(name)
        self.files = list[Mapping[str, Any]]()
        self.kept = 0

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[_Open, str]]:
        folder, _, name = self._path.rstrip("/").rpartition("/")
        with opened(folder, make=True) as parent, contextlib.closing(_Open(self._place, parent)) as tree:
            yield tree, name

    def prepare(self) -> None:
        """Make folders and links, remove what is not in the tree, and find out which files have to be written."""
        with self._opened() as (tree, root):
            if not self._entries:
                _empty(tree.parent(self._place)[0], root)
            for entry in self._entries:
                path, kind = entry["path"], entry["kind"]
                folder, name = tree.parent(path)
                name = root if path == self._place else name
                if kind == "dir":
                    inner = _made(folder, name)
                    tree.push(path, inner)
                    for found in set(os.listdir(inner)) - self._names.get(path, set()):
                        _remove(inner, found)
                elif kind == "link":
                    _link(folder, name, entry["target"])
                elif kind == "file" and _has(folder, name, entry):
                    self.kept += 1
                elif kind == "file":
                    _remove(folder, name)
                    self.files.append(entry)
                else:
                    raise ValueError(kind)

    def write(self, contents: Iterator[bytes]) -> None:
        """Write the files, and set the modes of folders, which may forbid to write there."""
        files = {entry["path"] for entry in self.files}
        with self._opened() as (tree, root):
            for entry in self._entries:
                path = entry["path"]
                folder, name = tree.parent(path)
                name = root if path == self._place else name
                if entry["kind"] == "dir":
                    tree.push(path, os.open(name, FOLDER, dir_fd=folder), entry["mode"])
                elif path in files:
                    _write(folder, name, entry, contents)


def _made(folder: int, name: str) -> int:
    """A folder that we can work in."""
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        about = None
    if about is not None and not stat.S_ISDIR(about.st_mode):
        os.unlink(name, dir_fd=folder)
        about = None
    if about is None:
        os.mkdir(name, 0o700, dir_fd=folder)
    else:
        _unlock(folder, name, about)
    return os.open(name, FOLDER, dir_fd=folder)


def _unlock(folder: int, name: str, about: os.stat_result) -> None:
    """Let us work in a folder that is there."""
    if about.st_uid == os.geteuid() and about.st_mode & 0o700 != 0o700:
        file = os.open(name, _PATH, dir_fd=folder)
        try:
            os.chmod(f"/proc/self/fd/{file}", 0o700)
        finally:
            os.close(file)


def _empty(folder: int, name: str) -> None:
    """Remove what is in a folder that the tree does not have. It may be a mount, and stays."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            inner = _made(folder, name)
            try:
                for each in os.listdir(inner):
                    _remove(inner, each)
            finally:
                os.close(inner)
        else:
            os.unlink(name, dir_fd=folder)


def _remove(folder: int, name: str) -> None:
    """Remove whatever has this name, with all that is in it, but for other volumes."""
    try:
        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if about.st_dev != os.fstat(folder).st_dev:
        return
    if not stat.S_ISDIR(about.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    _empty(folder, name)
    os.rmdir(name, dir_fd=folder)


def _link(folder: int, name: str, target: str) -> None:
    with contextlib.suppress(OSError):
        if os.readlink(name, dir_fd=folder) == target:
            return
    _remove(folder, name)
    os.symlink(target, name, dir_fd=folder)


def _has(folder: int, name: str, entry: Mapping[str, Any]) -> bool:
    """Whether a file has this content already; then its mode and time are set."""
    try:
        file = os.open(name, FILE, dir_fd=folder)
    except OSError:
        return False
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size != entry["size"] or about.st_nlink > 1:
            return False
        for number, (digest, size) in enumerate(_blocks(entry)):
            if hashlib.sha256(os.pread(file, size, number * BLOCK)).hexdigest() != digest:
                return False
        _finish(file, entry)
        return True
    finally:
        os.close(file)


def _write(folder: int, name: str, entry: Mapping[str, Any], contents: Iterator[bytes]) -> None:
    file = os.open(name, _NEW, 0o600, dir_fd=folder)
    try:
        for _ in entry["blocks"]:
            left = memoryview(next(contents))
            while left:
                left = left[os.write(file, left) :]
        _finish(file, entry)
    finally:
        os.close(file)


def _finish(file: int, entry: Mapping[str, Any]) -> None:
    os.fchmod(file, entry["mode"] & 0o777)
    with contextlib.suppress(OverflowError, OSError):  # a time that this file system does not have
        os.utime(file, ns=(entry["modified"] * 1000,) * 2)


# from the store


def fetching(config: Mapping[str, Any], number: int) -> Fetch:
    """Fetches blocks of the tree with this number, the next ones while the last ones are used."""

    def read(store: Store, batch: Sequence[str]) -> list[bytes]:
        names = list(dict.fromkeys(batch))
        contents = dict(zip(names, store.blocks(number, names), strict=True))
        return [contents[name] for name in batch]

    def fetch(blocks: Sequence[Block]) -> Generator[bytes, None, None]:
        with contextlib.ExitStack() as stack:
            stores = [Store(config, _retrying(config)) for _ in range(CONNECTIONS)]
            for store in stores:
                stack.callback(store.close)
            pool = stack.enter_context(ThreadPoolExecutor(CONNECTIONS))
            coming = list[Future[list[bytes]]]()
            for place, batch in enumerate(_batches(blocks)):
                ready = coming.pop(0).result() if len(coming) == CONNECTIONS else ()
                coming.append(pool.submit(read, stores[place % CONNECTIONS], batch))
                yield from ready
            for answer in coming:
                yield from answer.result()

    return fetch


def _batches(blocks: Sequence[Block]) -> Iterator[list[str]]:
    """Blocks that are equal count once, so that a hole of a file is a block, whatever its size."""
    batch, names, size = list[str](), set[str](), 0
    for block in blocks:
        more = 0 if block.digest in names else block.size
        if names and more and (size + more > BATCH or len(names) == BLOCKS_READ):
            yield batch
            batch, names, size = [], set(), 0
            more = block.size
        batch.append(block.digest)
        names.add(block.digest)
        size += more
    if batch:
        yield batch


def _retrying(config: Mapping[str, Any]) -> Callable[[float, float], bool]:
    limit = float(config.get("retry_sec", RETRY_SECONDS))

    def wait(seconds: float, failed_for: float) -> bool:
        time.sleep(seconds)
        return failed_for < limit

    return wait


def main(config: str) -> None:
    """Restore, and say how it went.

    Raises:
        SystemExit: with the code that tells whether another try makes sense.
    """
    try:
        with open(config) as file:
            known = json.load(file)
        began = time.monotonic()
        store = Store(known, _retrying(known))
        tree = json.loads(store.tree(known["restore"]))
        store.close()
        done = apply(tree, known["roots"], fetching(known, known["restore"]))
    except Refused as refused:
        sys.stderr.write(f"workspace: {refused.code}: {refused.message}\n")
        sys.exit(RETRYABLE if refused.code == UNAVAILABLE else FINAL)
    except OSError as error:
        sys.stderr.write(f"workspace: not_written: {error}\n")
        sys.exit(RETRYABLE)
    took = time.monotonic() - began
    sys.stdout.write(f"workspace: {done.files} files, {done.bytes} bytes in {took:.1f} s; {done.kept} were there\n")
