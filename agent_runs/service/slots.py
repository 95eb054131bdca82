"""Counts activity slots. The SDK stops polling silently when none is left, and runs seem to hang."""

from typing import Any, Final

import structlog
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

log: Final[Any] = structlog.get_logger()

SLOTS_PER_RUN: Final = 2
"""A run follows its agent in one slot for hours; the other is for its short activities, such as `stop_agent`."""
SHORTAGE_END: Final = 0.9
"""A shortage ends when less than this part of the slots is in use."""


class Slots(Interceptor):
    """Counts the activity slots of one worker that are in use. Logs the start and the end of each shortage."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._short = False

    @property
    def full(self) -> bool:
        """Whether the worker can take no further activity, which is no reason to restart it."""
        return self.used >= self.slots

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Count every activity."""
        return _CountingInbound(next, self)

    def acquire(self) -> None:
        """Count the start of an activity."""
        self.used += 1
        if self.full and not self._short:
            self._short = True
            log.warning(
                "worker.slots_exhausted",
                slots=self.slots,
                remedy="activities wait, also `stop_agent`: raise AGENT_RUNS_MAX_RUNS or start another worker",
            )

    def release(self) -> None:
        """Count the end of an activity."""
        self.used -= 1
        if self._short and self.used < self.slots * SHORTAGE_END:
            self._short = False
            log.info("worker.slots_freed", slots=self.slots, used=self.used)


class _CountingInbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, slots: Slots) -> None:
        super().__init__(inner)
        self._slots = slots

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self._slots.acquire()
        try:
            return await super().execute_activity(input)
        finally:
            self._slots.release()
