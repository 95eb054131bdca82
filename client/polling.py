"""Whether Temporal sees a worker ask for work: its own list of pollers, not what the process believes.

A process can be well while nothing asks any more. Measured with server 1.32: a poller is listed by its identity for
five minutes after its last poll, also when its worker has ended; an idle worker polls anew after 60 s; the list is in
memory, so a restarted server has forgotten everyone. Two clocks are never compared: what counts is that the server's
time of the last poll moves on, and only time in which the server answers counts against the worker.
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

from client.slots import Slots

KINDS: Final[Mapping[str, TaskQueueType.ValueType]] = {
    "workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}
ANSWER: Final = timedelta(seconds=2)
"""For one question to the server."""
LONGEST_GAP: Final = timedelta(seconds=30)
"""Of the time between two looks, no more counts as silence: nobody knows whether the server was there in between."""


@dataclass(frozen=True)
class Patience:
    """How long a worker may be silent.

    Attributes:
        recent: a worker that polls is never silent for longer; the long poll takes 60 s.
        lost: the silence after which a restart is the remedy.
    """

    recent: timedelta = timedelta(seconds=90)
    lost: timedelta = timedelta(minutes=4)


@dataclass
class Silence:
    """How long the server, while it answered, has not seen a new poll for one kind of task."""

    last: datetime | None = None
    listed: bool = False
    lasted: timedelta = timedelta()

    def look(self, access: datetime | None, passed: timedelta) -> None:
        """Take in the server's time of our last poll (None: not listed), `passed` after the look before."""
        self.listed = access is not None
        if access is not None and access != self.last:
            self.last, self.lasted = access, timedelta()
        else:
            self.lasted += min(passed, LONGEST_GAP)


@dataclass(frozen=True)
class Polls:
    """What is known of one worker's polling.

    Attributes:
        seen: it asks for both kinds of task.
        lost: it has stopped for so long that a restart would help.
        detail: what is wrong, or why it is right.
    """

    seen: bool
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
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._task_queue = task_queue
        self._identity = identity
        self._slots = slots
        self._patience = patience or Patience()
        self._clock = clock
        self._looked = clock()
        self._silences = {kind: Silence() for kind in KINDS}

    async def look(self) -> Polls:
        """Ask the server, and judge.

        Raises:
            RPCError: it does not answer; the silence so far is forgotten, because a restart would not help.
        """
        try:
            accesses = {kind: await self._access(number) for kind, number in KINDS.items()}
        except BaseException:
            self._silences = {kind: Silence() for kind in KINDS}
            self._looked = self._clock()
            raise
        passed = timedelta(seconds=(now := self._clock()) - self._looked)
        self._looked = now
        for kind, access in accesses.items():
            self._silences[kind].look(access, passed)
        if self._slots.full:
            self._silences["activity"] = Silence()
        return self._judged()

    def _judged(self) -> Polls:
        silences = {kind: silence for kind, silence in self._silences.items() if not self._excused(kind)}
        silent = [kind for kind, it in silences.items() if not it.listed or it.lasted > self._patience.recent]
        if silent:
            lasted = max(silences[kind].lasted for kind in silent)
            detail = f"Temporal has seen no poll for {' and '.join(silent)} tasks in {lasted.total_seconds():.0f} s"
            return Polls(seen=False, lost=lasted > self._patience.lost, detail=detail)
        full = f"; all {self._slots.slots} activity slots are in use, so further steps wait" if self._slots.full else ""
        return Polls(seen=True, lost=False, detail=f"{self._identity} polls {self._task_queue}{full}")

    def _excused(self, kind: str) -> bool:
        """A worker with all its slots in use asks for no activity, as it should."""
        return kind == "activity" and self._slots.full

    async def _access(self, kind: TaskQueueType.ValueType) -> datetime | None:
        """The server's time of our last poll; None: we are not on its list."""
        question = DescribeTaskQueueRequest(
            namespace=self._client.namespace, task_queue=TaskQueue(name=self._task_queue), task_queue_type=kind
        )
        answer = await self._client.workflow_service.describe_task_queue(question, timeout=ANSWER)
        ours = (it.last_access_time.ToDatetime() for it in answer.pollers if it.identity == self._identity)
        return max(ours, default=None)
