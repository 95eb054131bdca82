"""Whether Temporal sees a worker poll its task queue: the server's list of pollers, not the process's own state.

A process can look healthy while it no longer polls. Measured with server 1.32: a poller is listed by its identity for
five minutes after its last poll, also when its worker has ended; an idle worker polls anew after 60 s; the list is in
memory, so a restarted server lists nobody. Two clocks are never compared: what counts is that the server's time of the
last poll advances, and only time in which the server answers counts against the worker.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from agent_runs.service.activity_context import Slots

KINDS: Final[Mapping[str, TaskQueueType.ValueType]] = {
    "workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}
REQUEST_TIMEOUT: Final = timedelta(seconds=2)
MAX_OBSERVATION_GAP: Final = timedelta(seconds=30)
"""Of the time between two observations, no more counts as silence: the server may have been away in between."""


@dataclass(frozen=True)
class SilenceLimits:
    """Limits of the time without a new poll.

    Attributes:
        ready: of a ready worker; the long poll takes 60 s.
        live: of a live worker: after a longer silence a restart is the remedy.
    """

    ready: timedelta = timedelta(seconds=90)
    live: timedelta = timedelta(minutes=4)


@dataclass
class PollSilence:
    """The time in which the server answered but saw no new poll for one kind of task."""

    last: datetime | None = None
    listed: bool = False
    duration: timedelta = timedelta()

    def add(self, last_poll: datetime | None, elapsed: timedelta) -> None:
        """Add the server's time of the last poll (None: not listed), `elapsed` after the observation before."""
        self.listed = last_poll is not None
        if last_poll is not None and last_poll != self.last:
            self.last, self.duration = last_poll, timedelta()
        else:
            self.duration += min(elapsed, MAX_OBSERVATION_GAP)


@dataclass(frozen=True)
class PollingState:
    """The polling of one worker, as the server sees it.

    Attributes:
        polls: it polls for both kinds of task.
        lost: it has not polled for so long that a restart would help.
        detail: for people.
    """

    polls: bool
    lost: bool
    detail: str


class Polling:
    """The polls of one worker as Temporal sees them."""

    def __init__(
        self,
        client: Client,
        task_queue: str,
        identity: str,
        slots: Slots,
        limits: SilenceLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._task_queue = task_queue
        self._identity = identity
        self._slots = slots
        self._limits = limits or SilenceLimits()
        self._clock = clock
        self._observed_at = clock()
        self._silences = {kind: PollSilence() for kind in KINDS}

    async def observe(self) -> PollingState:
        """Query the server.

        Raises:
            RPCError: it does not answer; the silence so far is discarded, because a restart would not help.
        """
        try:
            last_polls = {kind: await self._last_poll(number) for kind, number in KINDS.items()}
        except BaseException:
            self._silences = {kind: PollSilence() for kind in KINDS}
            self._observed_at = self._clock()
            raise
        elapsed = timedelta(seconds=(now := self._clock()) - self._observed_at)
        self._observed_at = now
        for kind, last_poll in last_polls.items():
            self._silences[kind].add(last_poll, elapsed)
        if self._slots.full:
            self._silences["activity"] = PollSilence()
        return self._state()

    def _state(self) -> PollingState:
        silences = dict(self._silences)
        if self._slots.full:  # then a worker correctly polls for no activity
            del silences["activity"]
        silent = [kind for kind, it in silences.items() if not it.listed or it.duration > self._limits.ready]
        if silent:
            duration = max(silences[kind].duration for kind in silent)
            detail = f"Temporal has seen no poll for {' and '.join(silent)} tasks in {duration.total_seconds():.0f} s"
            return PollingState(polls=False, lost=duration > self._limits.live, detail=detail)
        detail = f"{self._identity} polls {self._task_queue}"
        if self._slots.full:
            detail += f"; all {self._slots.slots} activity slots are in use, so further activities wait"
        return PollingState(polls=True, lost=False, detail=detail)

    async def _last_poll(self, kind: TaskQueueType.ValueType) -> datetime | None:
        """The server's time of this worker's last poll; None: not on its list."""
        request = DescribeTaskQueueRequest(
            namespace=self._client.namespace, task_queue=TaskQueue(name=self._task_queue), task_queue_type=kind
        )
        response = await self._client.workflow_service.describe_task_queue(request, timeout=REQUEST_TIMEOUT)
        ours = (it.last_access_time.ToDatetime() for it in response.pollers if it.identity == self._identity)
        return max(ours, default=None)
