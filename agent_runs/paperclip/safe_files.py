"""Reads files that an agent's configuration names; nothing else may read them.

The worker has files that agents must not see (its sealing key, its ServiceAccount's token), and agents can write to the
data volume: neither a path nor a link that an agent planted there may lead out of it into a prompt.
"""

import os
import stat
from pathlib import Path


class UnreadableFile(ValueError):
    """A file that cannot be read. The message names it and the cause, never its content."""


def read_text(path: Path, *, root: Path | None, limit: int) -> str:
    """The UTF-8 text of the regular file at `path`, without a byte order mark.

    Args:
        path: absolute.
        root: the folder that must contain it, links resolved; None for anywhere.
        limit: in bytes.

    Raises:
        UnreadableFile: missing, not below `root`, not a regular file, larger than `limit`, or not UTF-8.
    """
    if "\0" in str(path):
        raise UnreadableFile("a path with a NUL character")
    try:
        real = path.resolve(strict=True)
        if root is not None and not real.is_relative_to(root.resolve()):
            raise UnreadableFile(f"{path}: leads out of {root}")
        return _content(real, limit).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile(f"{path}: not UTF-8") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        cause = error.strerror if isinstance(error, OSError) else "links in a circle"
        raise UnreadableFile(f"{path}: {cause}") from None


def is_folder(path: Path) -> bool:
    """Whether a folder is at `path`; False without permission to see it."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _content(real: Path, limit: int) -> bytes:
    # Without waiting, so that a named pipe cannot hold the worker; links were resolved, a new one is a trick.
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableFile(f"{real}: not a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UnreadableFile(f"{real}: larger than {limit} bytes")
    return content
