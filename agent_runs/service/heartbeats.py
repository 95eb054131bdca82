"""Heartbeats of activities that send none themselves: with the answer to one comes a cancel, so it is felt at once."""

import asyncio
from datetime import timedelta
from typing import Any, Final

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from agent_runs.background import in_background

HEARTBEAT_INTERVAL: Final = timedelta(seconds=2)


class Heartbeats(Interceptor):
    """Sends heartbeats without details while one of these activities runs."""

    def __init__(self, activity_types: frozenset[str]) -> None:
        self._activity_types = activity_types

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Wraps the activities of a worker."""
        return _Sender(next, self._activity_types)


class _Sender(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, activity_types: frozenset[str]) -> None:
        super().__init__(inner)
        self._activity_types = activity_types

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        if activity.info().activity_type not in self._activity_types:
            return await self.next.execute_activity(input)
        async with in_background(_send()):
            return await self.next.execute_activity(input)


async def _send() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_INTERVAL.total_seconds())
