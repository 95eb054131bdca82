"""SIGTERM and SIGINT: they cancel a start-up, and request the graceful shutdown of a started process."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import structlog

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log: Final[Any] = structlog.get_logger()


class StopSignals:
    """`with StopSignals.installed() as stop`: the handlers stay installed until the event loop ends.

    Until `started` is called a signal cancels the block, which then ends without an error: no activity runs yet, and
    what the start-up waits for may never answer. From then on a signal sets `requested`. Further signals change
    nothing: the graceful shutdown has a time-out of its own.
    """

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.requested = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = task
        self._start_cancelled = False

    @classmethod
    @contextmanager
    def installed(cls) -> Iterator[Self]:
        """Install the handlers for the current task."""
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("must be called in a task")
        stop, loop = cls(task), asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, stop._on_signal)
        try:
            yield stop
        except asyncio.CancelledError:
            if not stop._start_cancelled or task.uncancel():
                raise
            log.info("worker.start_cancelled")

    def started(self) -> None:
        """From now on a signal requests a graceful shutdown."""
        self._starting = None

    def _on_signal(self) -> None:
        self.requested.set()
        if self._starting is not None and not self._start_cancelled:
            self._start_cancelled = True
            self._starting.cancel()
