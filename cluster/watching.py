"""One watch of the agents' pods in a namespace, shared by all runs of a worker.

A list and one connection serve any number of runs; a change is handed to the run whose Job owns the pod. The watch
may be cut, expire or fall silent at any time: it goes on from the last version it saw, or begins again with a list.
It never says by itself that a pod is gone. What it no longer shows, or never showed, is asked for by name first.

Job and events are not watched: a pod's own status settles every start that goes well, so they are read only when one
does not (activities.await_schedule), and a watch of events cannot be narrowed to our pods.

Source: kubernetes.io, API Concepts, "Efficient detection of changes" and "Watch bookmarks".
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import structlog

from cluster.objects import Pod
from cluster.ownership import COMPONENT, MANAGED_BY, selector
from contracts.errors import ClusterForbidden, ClusterUnavailable
from contracts.messages import JobRef

OURS: Final = selector({MANAGED_BY: "paperclip", COMPONENT: "agent-job"})

log: Final[Any] = structlog.get_logger()


class Expired(Exception):
    """The version a watch should go on from is no longer known (410)."""


@dataclass(frozen=True)
class WatchPace:
    """Pauses and patience.

    Attributes:
        lasting: how long the server keeps one connection. It then ends cleanly, which is also when a watch that
            nobody needs any more is given up.
        idle: a connection that is silent for longer counts as dead. API servers send a bookmark every minute.
        first: pause before the next connection; doubles after each one that brought nothing.
        longest: the longest pause.
        relist: between lists while watching is forbidden.
        doubt: after which a Job without any pod in the watch is asked for by name; doubles up to `longest`.
        unseen: between questions about a Job whose pods the watch does not show, such as pods that lost our labels.
    """

    lasting: timedelta = timedelta(minutes=5)
    idle: timedelta = timedelta(seconds=90)
    first: timedelta = timedelta(seconds=0.2)
    longest: timedelta = timedelta(seconds=30)
    relist: timedelta = timedelta(seconds=5)
    doubt: timedelta = timedelta(seconds=2)
    unseen: timedelta = timedelta(seconds=2)


class PodSource(Protocol):
    """What the watches need of the API; every call may raise ClusterUnavailable and ClusterForbidden."""

    async def list_pods(self, namespace: str, labels: str) -> tuple[list[Pod], str]:
        """The pods of this label selector, and the version of the list."""
        ...

    def pod_events(
        self, namespace: str, labels: str, version: str, *, lasting: timedelta, idle: timedelta
    ) -> AsyncGenerator[tuple[str, Pod]]:
        """One connection: changes after `version`, until it ends in whatever way.

        Raises:
            Expired: the version is too old.
        """
        ...

    async def pods_of(self, job: JobRef) -> list[Pod]:
        """As `Cluster.pods_of`."""
        ...


class PodWatches:
    """The watches of one client, one for each namespace, each begun by the first who needs it."""

    def __init__(self, source: PodSource, pace: WatchPace) -> None:
        self._source = source
        self._pace = pace
        self._watches: dict[str, NamespaceWatch] = {}

    @asynccontextmanager
    async def of(self, job: JobRef) -> AsyncIterator[AsyncIterator[list[Pod]]]:
        """The states of this Job's pods; see `Cluster.watch_pods`."""
        watch = self._watches.get(job.namespace)
        if watch is None:
            watch = self._watches[job.namespace] = NamespaceWatch(self._source, job.namespace, self._pace)
        async with aclosing(watch.states(job)) as states:
            yield states

    async def close(self) -> None:
        """End all of them."""
        for watch in self._watches.values():
            await watch.close()


class NamespaceWatch:
    """The agents' pods of one namespace as the API last told, and who wants to know."""

    def __init__(self, source: PodSource, namespace: str, pace: WatchPace) -> None:
        self._source = source
        self._namespace = namespace
        self._pace = pace
        self._pods: dict[str, dict[str, Pod]] = {}  # by the owner's uid and the pod's own
        self._readers: dict[str, set[asyncio.Event]] = {}  # by the owner's uid
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    async def states(self, job: JobRef) -> AsyncGenerator[list[Pod]]:
        """The Job's pods whenever they change; see `Cluster.watch_pods`."""
        told: list[Pod] | None = None
        pause, doubtful = self._pace.doubt, False
        with self._reading(job.uid) as news:
            while True:
                news.clear()
                pods = self._known(job)
                if doubtful or _lacks(pods, told or ()):
                    pods = await self._source.pods_of(job)
                    pause = self._pace.unseen if pods else min(pause * 2, self._pace.longest)
                if (pods or doubtful) if told is None else _versions(pods) != _versions(told):
                    told = pods
                    yield pods
                doubtful = not await _comes(news, None if self._known(job) else pause)

    async def close(self) -> None:
        """End the connection; whoever still reads hears nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # who reads

    @contextmanager
    def _reading(self, owner: str) -> Iterator[asyncio.Event]:
        news = asyncio.Event()
        self._readers.setdefault(owner, set()).add(news)
        try:
            if self._task is None or self._task.done():
                self._failure = None
                # of its own context: it outlives the activity that was the first to need it
                self._task = asyncio.create_task(self._run(), name=f"watch {self._namespace}", context=Context())
            yield news
        finally:
            self._readers[owner].discard(news)
            if not self._readers[owner]:
                del self._readers[owner]

    def _known(self, job: JobRef) -> list[Pod]:
        if self._failure is not None:
            raise self._failure
        return oldest_first(self._pods.get(job.uid, {}).values())

    def _wake(self, owners: Iterable[str]) -> None:
        for owner in owners:
            for news in self._readers.get(owner, ()):
                news.set()

    # what comes

    async def _run(self) -> None:
        try:
            await self._keep_watching()
        except Exception as failure:  # noqa: BLE001 - whoever reads raises it; here nobody would
            self._failure = failure
            self._wake(tuple(self._readers))
        finally:
            self._pods = {}

    async def _keep_watching(self) -> None:
        pause = _Pause(self._pace)
        while self._readers:
            try:
                pods, version = await self._source.list_pods(self._namespace, OURS)
                self._replace(pods)
                await self._follow(version, pause)
            except (Expired, ClusterUnavailable) as trouble:
                log.info("watch.begins_again", namespace=self._namespace, cause=str(trouble) or "expired")
                await pause.once()

    async def _follow(self, version: str, pause: "_Pause") -> None:
        """Connection after connection, each from where the last one was, as long as somebody reads."""
        lasting, idle = self._pace.lasting, self._pace.idle
        while self._readers:
            try:
                events = self._source.pod_events(self._namespace, OURS, version, lasting=lasting, idle=idle)
                async with aclosing(events):
                    async for kind, pod in events:
                        version = pod.metadata.resource_version or version
                        self._take(kind, pod)
                        pause.reset()
            except ClusterUnavailable as trouble:
                log.info("watch.interrupted", namespace=self._namespace, cause=str(trouble))
            except ClusterForbidden as refused:
                log.warning("watch.forbidden", namespace=self._namespace, cause=str(refused), instead="lists")
                await asyncio.sleep(self._pace.relist.total_seconds())
                return
            await pause.once()

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
        """What a list says. Whoever reads looks again: only a reader knows what it has told already."""
        self._pods = {}
        for pod in pods:
            self._take("ADDED", pod)
        self._wake(tuple(self._readers))


class _Pause:
    """Between connections: longer with each one that brought nothing, and never in step with other workers."""

    def __init__(self, pace: WatchPace) -> None:
        self._pace = pace
        self._next = pace.first

    def reset(self) -> None:
        self._next = self._pace.first

    async def once(self) -> None:
        await asyncio.sleep(self._next.total_seconds() * random.uniform(0.5, 1))  # noqa: S311 - only spreads load
        self._next = min(self._next * 2, self._pace.longest)


async def looks(states: AsyncIterator[list[Pod]], every: timedelta) -> AsyncGenerator[list[Pod] | None]:
    """Every state, and the last one again whenever nothing came for so long; None while nothing is known."""
    seen: list[Pod] | None = None
    state = asyncio.ensure_future(anext(states))
    try:
        while True:
            await asyncio.wait({state}, timeout=every.total_seconds())
            if state.done():
                seen = state.result()
                state = asyncio.ensure_future(anext(states))
            yield seen
    finally:
        state.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, ClusterForbidden, ClusterUnavailable):
            await state  # the watch must not be closed while it is still being read


def owned(pods: Iterable[Pod], job: JobRef) -> list[Pod]:
    """Those of this very Job: a later Job of the same name has pods with the same label."""
    return oldest_first(pod for pod in pods if any(owner.uid == job.uid for owner in pod.metadata.owner_references))


def oldest_first(pods: Iterable[Pod]) -> list[Pod]:
    """By creation, then by name; one without a date counts as new."""
    new = datetime.max.replace(tzinfo=UTC)
    return sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or new, pod.metadata.name))


async def _comes(news: asyncio.Event, within: timedelta | None) -> bool:
    try:
        async with asyncio.timeout(None if within is None else within.total_seconds()):
            await news.wait()
    except TimeoutError:
        return False
    return True


def _versions(pods: Iterable[Pod]) -> dict[str, str]:
    return {pod.metadata.uid: pod.metadata.resource_version for pod in pods}


def _lacks(pods: Iterable[Pod], told: Iterable[Pod]) -> bool:
    return not _versions(told).keys() <= _versions(pods).keys()
