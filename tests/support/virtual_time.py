"""An event loop whose clock jumps to the next timer whenever there is nothing else to do."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Out = TypeVar("Out")


class _SkippingSelector(selectors.SelectSelector):
    """Never waits; counts the seconds that it should have waited."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left that could happen")
        self.skipped += max(timeout, 0)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Only for what waits for timers and for its own tasks: threads and sockets would never be waited for."""

    def __init__(self) -> None:
        self._skipping = _SkippingSelector()
        super().__init__(self._skipping)

    def time(self) -> float:
        """The seconds that were skipped so far."""
        return self._skipping.skipped


def run_in_virtual_time(main: Coroutine[Any, Any, Out]) -> Out:
    """Run this at time 0; whatever it waits for takes no time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
