"""Says when no activity slot is left. The SDK then stops asking for work without a word, and runs seem to hang."""

from typing import Any, Final

import structlog
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

log: Final[Any] = structlog.get_logger()

PER_RUN: Final = 2
"""A run follows its agent in one slot for hours; the other is for its short steps, such as the order to stop."""
SCARCE: Final = 0.9
"""Part of the slots that must be in use still for the shortage to count as the same one."""


class Slots(Interceptor):
    """Counts the activity slots of one worker that are in use. Logs each shortage once, and its end."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._short = False

    @property
    def full(self) -> bool:
        """Whether the worker cannot ask for another step, which is no reason to restart it."""
        return self.used >= self.slots

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Counts around every activity."""
        return _Counted(next, self)

    def take(self) -> None:
        """A step has begun."""
        self.used += 1
        if self.full and not self._short:
            self._short = True
            log.warning(
                "worker.slots_exhausted",
                slots=self.slots,
                remedy="further steps wait, also orders to stop: raise AGENT_RUNS_MAX_RUNS or start another worker",
            )

    def give(self) -> None:
        """A step has ended."""
        self.used -= 1
        if self._short and self.used < self.slots * SCARCE:
            self._short = False
            log.info("worker.slots_free", slots=self.slots, used=self.used)


class _Counted(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, slots: Slots) -> None:
        super().__init__(inner)
        self._slots = slots

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - the SDK's name
        self._slots.take()
        try:
            return await super().execute_activity(input)
        finally:
            self._slots.give()
