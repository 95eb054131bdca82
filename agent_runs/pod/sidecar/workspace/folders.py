"""Opens what an agent may exchange for anything at any time: one name after the other, and never through a link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


@contextlib.contextmanager
def opened(path: str, *, make: bool = False) -> Iterator[int]:
    """A folder by its absolute path, no part of which may be a link.

    Args:
        make: make what is missing.

    Raises:
        OSError: it is not there, or a link is.
    """
    folder = os.open("/", FOLDER)
    try:
        for name in filter(None, path.split("/")):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=folder)
            inner = os.open(name, FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)
