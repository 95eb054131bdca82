"""What a worker does around each activity: it logs the ids of the run, counts the slot, and sends heartbeats."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import structlog
from structlog.contextvars import bind_contextvars
from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from agent_runs.background import in_background
from agent_runs.contracts.identity import AttemptKey, RunKey

log: Final[Any] = structlog.get_logger()

WITHOUT_HEARTBEATS: Final = frozenset(
    {"prepare_run", "introspect_pod", "bundle_prompt", "create_job", "rotate_token", "tell_agent"}
)
"""Activities that send none themselves. With the answer to one comes a cancel, so it is felt at once."""
HEARTBEAT_INTERVAL: Final = timedelta(seconds=2)
SLOTS_PER_RUN: Final = 2
"""A run follows its agent in one slot for hours; the other is for its short activities, such as `stop_agent`."""
SHORTAGE_END: Final = 0.9
"""A shortage ends when less than this part of the slots is in use."""


class Slots:
    """Counts the activity slots of one worker that are in use. Logs the start and the end of each shortage: the SDK
    stops polling silently when none is left, and runs seem to hang."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used = 0
        self._short = False

    @property
    def full(self) -> bool:
        """Whether the worker can take no further activity, which is no reason to restart it."""
        return self.used >= self.slots

    @contextmanager
    def one(self) -> Iterator[None]:
        """One more is in use until the block ends."""
        self.used += 1
        if self.full and not self._short:
            self._short = True
            log.warning(
                "worker.slots_exhausted",
                slots=self.slots,
                remedy="activities wait, also `stop_agent`: raise AGENT_RUNS_MAX_RUNS or start another worker",
            )
        try:
            yield
        finally:
            self.used -= 1
            if self._short and self.used < self.slots * SHORTAGE_END:
                self._short = False
                log.info("worker.slots_freed", slots=self.slots, used=self.used)


class ActivityContext(Interceptor):
    """Surrounds all activities of a worker."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        return _InContext(next, self._slots)


class _InContext(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, slots: Slots) -> None:
        super().__init__(inner)
        self._slots = slots

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        bind_contextvars(**run_ids(input.args[0] if input.args else None))  # of this activity's own task
        with self._slots.one():
            if activity.info().activity_type not in WITHOUT_HEARTBEATS:
                return await self.next.execute_activity(input)
            async with in_background(_send_heartbeats()):
                return await self.next.execute_activity(input)


async def _send_heartbeats() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_INTERVAL.total_seconds())


def run_ids(message: object) -> dict[str, Any]:
    """The ids of the run that an activity's input is about, with those of the activity's workflow."""
    info = activity.info()
    ids: dict[str, Any] = {"workflow_id": info.workflow_id, "temporal_run_id": info.workflow_run_id}
    ids["activity"] = info.activity_type
    key = getattr(message, "attempt", None) or getattr(message, "run", None)
    if isinstance(key, AttemptKey):
        ids["attempt"], key = key.attempt, key.run
    if isinstance(key, RunKey):
        ids |= {"run_id": key.run_id, "agent_id": key.agent_id}
    return ids
