"""A lock between processes."""

import fcntl
from pathlib import Path


class FileLock:
    """A lock file that one process at a time holds, from its construction on."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._file.close()
