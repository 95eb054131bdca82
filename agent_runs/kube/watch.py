"""One watch of the agents' pods in a namespace, shared by all runs of a worker.

A list and one connection serve any number of runs; a change is passed to the run whose Job owns the pod. The watch
may be cut, expire or fall silent at any time: it continues from the last version it saw, or starts over with a list.
It alone never reports that a pod is deleted. A pod that it no longer shows, or never showed, is read by name first.

Job and events are not watched: a pod's own status decides every start that succeeds, so they are read only when one
does not (activities.await_schedule), and a watch of events cannot be narrowed to our pods.

Source: kubernetes.io, API Concepts, "Efficient detection of changes" and "Watch bookmarks".
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import structlog

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable
from agent_runs.contracts.messages import JobRef
from agent_runs.kube.objects import Pod
from agent_runs.kube.ownership import OURS, selector

if TYPE_CHECKING:
    from agent_runs.kube.client import Cluster

AGENT_PODS: Final = selector(OURS)

log: Final[Any] = structlog.get_logger()


class ResourceVersionExpired(Exception):
    """The API server no longer knows the version that a watch should continue from (410)."""


@dataclass(frozen=True)
class WatchTiming:
    """Pauses and timeouts of a watch.

    Attributes:
        connection_lifetime: how long the server keeps one connection. It then ends cleanly, which is also when a
            watch without readers ends.
        idle_timeout: a connection that is silent for longer counts as dead. API servers send a bookmark every minute.
        first_pause: before the next connection; doubles after each one that brought nothing.
        max_pause: the longest pause.
        list_interval: between lists while watching is forbidden.
        confirm_delay: after which the pods of a Job that has none in the watch are read by name; doubles up to
            `max_pause`.
        unlabelled_interval: between such reads while they find pods that the watch does not show: those that lost
            our labels.
    """

    connection_lifetime: timedelta = timedelta(minutes=5)
    idle_timeout: timedelta = timedelta(seconds=90)
    first_pause: timedelta = timedelta(seconds=0.2)
    max_pause: timedelta = timedelta(seconds=30)
    list_interval: timedelta = timedelta(seconds=5)
    confirm_delay: timedelta = timedelta(seconds=2)
    unlabelled_interval: timedelta = timedelta(seconds=2)


class NamespaceWatch:
    """The agents' pods of one namespace as the API last reported them, and the readers of the watch.

    The first reader starts it.

    Attributes:
        refusal: why the pods are listed instead of watched; None: they are watched.
    """

    def __init__(self, cluster: "Cluster", namespace: str, timing: WatchTiming) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._timing = timing
        self._pods: dict[str, dict[str, Pod]] = {}  # by the owner's uid and the pod's own
        self._readers: dict[str, set[asyncio.Event]] = {}  # by the owner's uid
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self.refusal: str | None = None

    async def states(self, job: JobRef) -> AsyncGenerator[list[Pod]]:
        """Yield the Job's pods whenever they change; see `Cluster.watch_pods`."""
        yielded: list[Pod] | None = None
        pause, unconfirmed = self._timing.confirm_delay, False
        with self._subscription(job.uid) as changed:
            while True:
                changed.clear()
                pods = self._known(job)
                if (unconfirmed and not pods) or _lacks(pods, yielded or ()):
                    pods = await self._cluster.pods_of(job)
                    pause = self._timing.unlabelled_interval if pods else min(pause * 2, self._timing.max_pause)
                if (pods or unconfirmed) if yielded is None else _versions(pods) != _versions(yielded):
                    yielded = pods
                    yield pods
                unconfirmed = not await _is_set_in_time(changed, None if self._known(job) else pause)

    async def close(self) -> None:
        """End the connection; its readers get nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # readers

    @contextmanager
    def _subscription(self, owner: str) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self._readers.setdefault(owner, set()).add(changed)
        try:
            if self._task is None or self._task.done():
                self._failure = None
                # in a context of its own: it outlives the activity that started it
                self._task = asyncio.create_task(self._run(), name=f"watch {self._namespace}", context=Context())
            yield changed
        finally:
            self._readers[owner].discard(changed)
            if not self._readers[owner]:
                del self._readers[owner]

    def _known(self, job: JobRef) -> list[Pod]:
        if self._failure is not None:
            raise self._failure
        return oldest_first(self._pods.get(job.uid, {}).values())

    def _wake(self, owners: Iterable[str]) -> None:
        for owner in owners:
            for changed in self._readers.get(owner, ()):
                changed.set()

    # the connection

    async def _run(self) -> None:
        try:
            await self._keep_watching()
        except Exception as failure:  # noqa: BLE001 - the readers raise it
            self._failure = failure
            self._wake(tuple(self._readers))
        finally:
            self._pods = {}

    async def _keep_watching(self) -> None:
        pause = _Backoff(self._timing)
        while self._readers:
            try:
                pods, version = await self._cluster.list_pods(self._namespace, AGENT_PODS)
                self._replace(pods)
                await self._follow(version, pause)
            except (ResourceVersionExpired, ClusterUnavailable) as error:
                log.info("watch.relisted", namespace=self._namespace, cause=str(error) or "expired")
                await pause.wait()

    async def _follow(self, version: str, pause: "_Backoff") -> None:
        """Open connection after connection, each from the last version seen, as long as there are readers."""
        lifetime, idle = self._timing.connection_lifetime, self._timing.idle_timeout
        while self._readers:
            try:
                events = self._cluster.pod_events(
                    self._namespace, AGENT_PODS, version, lifetime=lifetime, idle_timeout=idle
                )
                async with aclosing(events):
                    async for kind, pod in events:
                        self.refusal = None
                        version = pod.metadata.resource_version or version
                        self._take(kind, pod)
                        pause.reset()
            except ClusterUnavailable as error:
                log.info("watch.interrupted", namespace=self._namespace, cause=str(error))
            except ClusterForbidden as error:
                self.refusal = error.message
                log.warning("watch.forbidden", namespace=self._namespace, cause=str(error), instead="lists")
                await asyncio.sleep(self._timing.list_interval.total_seconds())
                return
            await pause.wait()

    def _take(self, kind: str, pod: Pod) -> None:
        owners = [owner.uid for owner in pod.metadata.owner_references]
        for owner in owners:
            if kind == "DELETED":
                self._drop(owner, pod.metadata.uid)
            elif kind in {"ADDED", "MODIFIED"}:
                self._pods.setdefault(owner, {})[pod.metadata.uid] = pod
        if kind != "BOOKMARK":
            self._wake(owners)

    def _drop(self, owner: str, uid: str) -> None:
        left = self._pods.get(owner, {})
        left.pop(uid, None)
        if not left:
            self._pods.pop(owner, None)

    def _replace(self, pods: Iterable[Pod]) -> None:
        """Take over a list. All readers are woken: only a reader knows what it has yielded already."""
        self._pods = {}
        for pod in pods:
            self._take("ADDED", pod)
        self._wake(tuple(self._readers))


class _Backoff:
    """Pauses between connections: longer after each one that brought nothing, and never in step with other workers."""

    def __init__(self, timing: WatchTiming) -> None:
        self._timing = timing
        self._next = timing.first_pause

    def reset(self) -> None:
        self._next = self._timing.first_pause

    async def wait(self) -> None:
        await asyncio.sleep(self._next.total_seconds() * random.uniform(0.5, 1))  # noqa: S311 - only spreads load
        self._next = min(self._next * 2, self._timing.max_pause)


async def snapshots(states: AsyncIterator[list[Pod]], interval: timedelta) -> AsyncGenerator[list[Pod] | None]:
    """Yield every state, and the last one whenever no new one came for an interval; None while there is none yet."""
    last: list[Pod] | None = None
    state = asyncio.ensure_future(anext(states))
    try:
        while True:
            await asyncio.wait({state}, timeout=interval.total_seconds())
            if state.done():
                last = state.result()
                state = asyncio.ensure_future(anext(states))
            yield last
    finally:
        state.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, ClusterForbidden, ClusterUnavailable):
            await state  # the watch must not be closed while it is still being read


def owned(pods: Iterable[Pod], job: JobRef) -> list[Pod]:
    """Return the pods of this very Job, oldest first: a later Job of the same name has pods with the same label."""
    return oldest_first(pod for pod in pods if any(owner.uid == job.uid for owner in pod.metadata.owner_references))


def oldest_first(pods: Iterable[Pod]) -> list[Pod]:
    """Sort pods by creation, then by name; one without a creation time counts as new."""
    new = datetime.max.replace(tzinfo=UTC)
    return sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or new, pod.metadata.name))


async def _is_set_in_time(event: asyncio.Event, limit: timedelta | None) -> bool:
    try:
        async with asyncio.timeout(None if limit is None else limit.total_seconds()):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _versions(pods: Iterable[Pod]) -> dict[str, str]:
    return {pod.metadata.uid: pod.metadata.resource_version for pod in pods}


def _lacks(pods: Iterable[Pod], earlier: Iterable[Pod]) -> bool:
    return not _versions(earlier).keys() <= _versions(pods).keys()
