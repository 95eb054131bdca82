"""Watches: the history of a kind as a stream of events, the way clients resume from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta

from aiohttp import web

from local.cluster.kinds import Object
from local.cluster.refusals import Refused, bad_request
from local.cluster.requests import Target, flag, version_of
from local.cluster.selectors import Predicate
from local.cluster.store import Change, Store
from local.cluster.streams import Stream

_BOOKMARK_EVERY = timedelta(minutes=1)  # as often as a real API server sends them
_LONGEST = timedelta(minutes=30)  # when the client names no timeout


class _Ended(Exception):
    """The server stops, or a fault ends the answer."""


class Watch:
    """One watch of one client."""

    def __init__(
        self,
        store: Store,
        request: web.Request,
        target: Target,
        wanted: Predicate,
        shown: Callable[[Object], Object],
    ) -> None:
        query = request.query
        self._store = store
        self._kind = target.kind
        self._namespace = target.namespace
        self._wanted = wanted
        self._shown = shown
        self._since = version_of(query)
        self._initial = flag(query, "sendInitialEvents")
        self._bookmarks = flag(query, "allowWatchBookmarks")
        self._timeout = _timeout(query.get("timeoutSeconds", ""))
        self._stream = Stream(request)

    async def serve(self, closing: asyncio.Event) -> web.StreamResponse:
        """Tell what is there, if asked for, and what happens then, until the time is over or `closing` is set."""
        await self._stream.open("application/json")
        try:
            async with asyncio.timeout(self._timeout.total_seconds()), asyncio.TaskGroup() as tasks:
                tasks.create_task(_end_with(closing))
                since = await self._tell_initial()
                if self._bookmarks:
                    tasks.create_task(self._tell_bookmarks())
                async for change in self._store.changes(self._kind, since):
                    await self._tell_change(change)
        except* TimeoutError:
            if self._bookmarks:
                await self._tell("BOOKMARK", self._bookmark())
        except* Refused as refusals:
            await self._tell("ERROR", _first(refusals).status)
        except* (_Ended, ConnectionError):
            pass
        return await self._stream.close()

    async def _tell_initial(self) -> int:
        """The objects that are there, unless the client knows them; returns the version to go on from."""
        if self._since and not self._initial:
            return self._since
        since: int = self._store.version
        for body in self._store.every(self._kind, self._namespace):
            if self._wanted(body):
                await self._tell("ADDED", self._shown(body))
        if self._initial:
            bookmark = self._bookmark()
            bookmark["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
            await self._tell("BOOKMARK", bookmark)
        return since

    async def _tell_change(self, change: Change) -> None:
        if self._namespace in ("", change.body["metadata"].get("namespace", "")):
            step = self._step(change)
            if step is not None:
                await self._tell(step, self._shown(change.body))

    def _step(self, change: Change) -> str | None:
        """What this client is told of a change: an object that stops to match is deleted for it."""
        now = self._wanted(change.body)
        before = change.before is not None and self._wanted(change.before)
        if change.type == "DELETED" or not now:
            return "DELETED" if before else None
        return "MODIFIED" if before else "ADDED"

    async def _tell_bookmarks(self) -> None:
        while True:
            await asyncio.sleep(_BOOKMARK_EVERY.total_seconds())
            await self._tell("BOOKMARK", self._bookmark())

    def _bookmark(self) -> Object:
        meta: Object = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        return {"kind": self._kind.name, "apiVersion": self._kind.api_version, "metadata": meta}

    async def _tell(self, step: str, body: Object) -> None:
        line = json.dumps({"type": step, "object": body}, separators=(",", ":")).encode() + b"\n"
        if not await self._stream.write(line):
            raise _Ended


async def _end_with(event: asyncio.Event) -> None:
    await event.wait()
    raise _Ended


def _first(group: BaseExceptionGroup[Refused]) -> Refused:
    found = group.exceptions[0]
    return found if isinstance(found, Refused) else _first(found)


def _timeout(text: str) -> timedelta:
    if text and not text.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return timedelta(seconds=int(text)) if int(text or 0) else _LONGEST
