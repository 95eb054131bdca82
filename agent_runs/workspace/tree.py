"""A tree: an agent's folder, and the files of its session, at one moment (docs/adr/0035)."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

BLOCK: Final = 1024 * 1024
"""Bytes of a file's block; its last one is shorter."""
ROOTS: Final = ("session", "workspace")
MAX_PATH: Final = 4096
"""Bytes, as Linux has it."""
_QUOTED: Final = 200
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


class UnusableTree(ValueError):
    """A tree that cannot be restored as it is. The text names the entry."""


class TreeTooLarge(UnusableTree):
    """More than the operator's policy allows."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    path: str


class File(_Entry, frozen=True, tag="file"):
    """A regular file.

    Attributes:
        mode: permission bits.
        modified: microseconds since the epoch.
        blocks: SHA-256 of each, in lowercase hexadecimal.
    """

    mode: int
    modified: int
    size: int
    blocks: tuple[str, ...]


class Folder(_Entry, frozen=True, tag="dir"):
    """A folder, also an empty one. `mode` as of a file."""

    mode: int


class Link(_Entry, frozen=True, tag="link"):
    """A symbolic link, which may lead to nowhere."""

    target: str


Entry = File | Folder | Link


class Tree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All entries, sorted by their paths with `/` as the lowest character, so that each comes after its folder.

    The first part of a path is one of `ROOTS`.
    """

    entries: tuple[Entry, ...]
    version: Literal[1] = 1

    @property
    def blocks(self) -> set[str]:
        return {block for each in self.entries if isinstance(each, File) for block in each.blocks}


@dataclass(frozen=True)
class Limits:
    """Of one tree."""

    bytes: float = math.inf
    entries: float = math.inf


NO_LIMITS: Final = Limits()

_DECODER: Final = msgspec.json.Decoder(Tree)


def read_tree(raw: bytes, limits: Limits = NO_LIMITS) -> Tree:
    """Decode a tree, and check that restoring it makes exactly these entries, below its folder.

    Raises:
        UnusableTree: it is malformed, or an entry would be outside of its folder, below a link, or there twice.
        TreeTooLarge: it has more bytes or entries than the limits.
    """
    try:
        tree = _DECODER.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnusableTree(f"this is no tree: {error}") from None
    if len(tree.entries) > limits.entries:
        raise TreeTooLarge(f"the folder has {len(tree.entries)} entries; the policy allows {limits.entries}")
    folders: set[str] = set()
    last, size = b"", 0
    for entry in tree.entries:
        if fault := next(_faults(entry, last, folders), None):
            raise UnusableTree(f"{entry.path[:_QUOTED]!r}: {fault}")
        last = _order(entry.path)
        if isinstance(entry, Folder):
            folders.add(entry.path)
        elif isinstance(entry, File):
            size += entry.size
    if size > limits.bytes:
        raise TreeTooLarge(f"the folder has {size} bytes; the policy allows {limits.bytes}")
    return tree


def digest(content: bytes) -> str:
    """The name of a block."""
    return hashlib.sha256(content).hexdigest()


def _order(path: str) -> bytes:
    return path.replace("/", "\0").encode()


def _faults(entry: Entry, last: bytes, folders: set[str]) -> Iterator[str]:
    place = _order(entry.path)
    folder, _, name = entry.path.rpartition("/")
    if "\0" in entry.path or len(place) > MAX_PATH or name in {"", ".", ".."}:
        yield "this is no path of a file"
    if folder not in folders and not (entry.path in ROOTS and isinstance(entry, Folder)):
        yield "its folder is not there before it"
    if place <= last:
        yield "it is out of order, or there twice"
    if isinstance(entry, Link):
        if "\0" in entry.target or not 0 < len(entry.target.encode()) <= MAX_PATH:
            yield "this is no target of a link"
    elif not 0 <= entry.mode <= 0o777:
        yield "its mode has more than permissions"
    if isinstance(entry, File):
        yield from _block_faults(entry)


def _block_faults(file: File) -> Iterator[str]:
    if len(file.blocks) != -(-file.size // BLOCK) or file.size < 0:
        yield "its size and its blocks contradict each other"
    if not all(len(block) == 64 and set(block) <= _HEXADECIMAL for block in file.blocks):
        yield "a block has no digest"
