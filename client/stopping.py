"""SIGTERM and SIGINT: end a start-up at once, and a started program in its own order."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import structlog

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log: Final[Any] = structlog.get_logger()


class StopSignals:
    """`with StopSignals.caught() as stopping`: from now on, to the end of the loop, the signals are ours.

    Until `started` is called a signal cancels the block, and the block ends without an error: there is nothing to hand
    over yet, and what it waits for may never answer. From then on it sets `asked`. Further signals change nothing: the
    hand-over has a limit of its own.
    """

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.asked = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = task
        self._cut_short = False

    @classmethod
    @contextmanager
    def caught(cls) -> Iterator[Self]:
        """For the current task."""
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("runs in a task")
        stopping, loop = cls(task), asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, stopping._ask)
        try:
            yield stopping
        except asyncio.CancelledError:
            if not stopping._cut_short or task.uncancel():
                raise
            log.info("worker.stopped_while_starting")

    def started(self) -> None:
        """There is something to hand over now."""
        self._starting = None

    def _ask(self) -> None:
        self.asked.set()
        if self._starting is not None and not self._cut_short:
            self._cut_short = True
            self._starting.cancel()
