"""Waits until a file has grown, by inotify: the standard library does not have it, the C library always does."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence

IN_MODIFY = 0x2
"""Source: Linux, inotify(7)."""
SHORTEST_POLL, LONGEST_POLL = 0.02, 0.25
"""Seconds between looks at the files where the node has no inotify instance left; a user has 128 by default."""


class Watch:
    """Wakes a `poll` on `file` when one of the files changes. Without inotify `file` is None."""

    def __init__(self, files: Sequence[int]) -> None:
        self.file: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(None, use_errno=True)
            file = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            paths = [f"/proc/self/fd/{watched}".encode() for watched in files]
            if file >= 0 and all(library.inotify_add_watch(file, path, IN_MODIFY) >= 0 for path in paths):
                self.file = file
        self._quiet_looks = 0

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def drain(self) -> None:
        """Forget the changes so far."""
        if self.file is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self.file, 65536):
                    pass

    def timeout(self, *, grown: bool) -> float | None:
        """Return how long to wait for the next change, in seconds; None for as long as it takes.

        Args:
            grown: the last look has found something.
        """
        self._quiet_looks = 0 if grown else self._quiet_looks + 1
        if grown:
            return 0
        return None if self.file is not None else min(SHORTEST_POLL * (1 + self._quiet_looks // 50), LONGEST_POLL)
