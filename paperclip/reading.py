"""The one way to read a file that an agent's configuration names.

The worker has files that agents must not see (its sealing key, its ServiceAccount's token), and agents can write to the
data volume: a path, or a link that an agent planted there, must not lead out of it into a prompt.
"""

import os
import stat
from pathlib import Path


class Unreadable(ValueError):
    """A file that cannot be had. The message names it and the cause, never its content."""


def read_text(path: Path, *, within: Path | None, limit: int) -> str:
    """The UTF-8 text of the regular file at `path`, without a byte order mark.

    Args:
        path: absolute.
        within: where it must really be, links resolved; None for anywhere.
        limit: in bytes.

    Raises:
        Unreadable: missing, outside `within`, not a regular file, larger than `limit`, or not UTF-8.
    """
    if "\0" in str(path):
        raise Unreadable("a path with a NUL character")
    try:
        real = path.resolve(strict=True)
        if within is not None and not real.is_relative_to(within.resolve()):
            raise Unreadable(f"{path}: leads out of {within}")
        return _content(real, limit).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable(f"{path}: not UTF-8") from None
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        cause = error.strerror if isinstance(error, OSError) else "links in a circle"
        raise Unreadable(f"{path}: {cause}") from None


def is_folder(path: Path) -> bool:
    """Whether a folder is at `path`; one that may not be looked at is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _content(real: Path, limit: int) -> bytes:
    # Without waiting, so that a named pipe cannot hold the worker; links were resolved, a new one is a trick.
    descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable(f"{real}: not a regular file")
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Unreadable(f"{real}: larger than {limit} bytes")
    return content
