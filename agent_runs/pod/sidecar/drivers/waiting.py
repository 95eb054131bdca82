"""Waiting that SIGTERM ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal


class Aborted(Exception):
    """SIGTERM came."""


class Waiter:
    """Waits for sockets or other files, and for SIGTERM."""

    def __init__(self) -> None:
        self.stop_requested = False
        self.ignores_stop = False
        self._wake, writing = os.pipe()
        for end in (self._wake, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._request_stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see `driving`

    def _request_stop(self, *_: object) -> None:
        self.stop_requested = True

    def ready(self, file: int | None, events: int, seconds: float) -> bool:
        """Wait for the file; False if it was not ready in that time.

        Raises:
            Aborted: SIGTERM came, now or before.
        """
        if self.stop_requested and not self.ignores_stop:
            raise Aborted
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if file is not None:
            poll.register(file, events)
        found = dict(poll.poll(max(int(seconds * 1000), 0)))
        if self._wake in found:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake, 1024):
                    pass
        if self.stop_requested and not self.ignores_stop:
            raise Aborted
        return file is not None and file in found
