"""Watches: the history of a kind as a stream of events, from which clients resume."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

from aiohttp import web

from dev_stack.cluster.errors import ApiError, bad_request
from dev_stack.cluster.kinds import Object
from dev_stack.cluster.requests import Predicate, Target, flag, version_of
from dev_stack.cluster.store import Change, Store
from dev_stack.cluster.streams import Stream

_BOOKMARK_INTERVAL = timedelta(minutes=1)  # as often as a real API server sends them
_DEFAULT_TIMEOUT = timedelta(minutes=30)  # when the client names no timeout


class _Ended(Exception):
    """The server stops, or a fault ends the response."""


class Watch:
    def __init__(self, store: Store, request: web.Request, target: Target, selected: Predicate) -> None:
        query = request.query
        self._store = store
        self._kind = target.kind
        self._namespace = target.namespace
        self._selected = selected
        self._since = version_of(query)
        self._bookmarks = flag(query, "allowWatchBookmarks")
        self._timeout = _timeout(query.get("timeoutSeconds", ""))
        self._stream = Stream(request)

    async def serve(self, closing: asyncio.Event) -> web.StreamResponse:
        """Send the events until the timeout has passed or `closing` is set."""
        await self._stream.open("application/json")
        try:
            async with asyncio.timeout(self._timeout.total_seconds()), asyncio.TaskGroup() as tasks:
                tasks.create_task(_end_with(closing))
                if self._bookmarks:
                    tasks.create_task(self._send_bookmarks())
                async for change in self._store.changes(self._kind, await self._start()):
                    await self._send_change(change)
        except* TimeoutError:
            if self._bookmarks:
                await self._send("BOOKMARK", self._bookmark())
        except* ApiError as errors:
            await self._send("ERROR", _first(errors).status)
        except* (_Ended, ConnectionError):
            pass
        return await self._stream.close()

    async def _start(self) -> int:
        """The version to follow from; without one, the objects that exist are sent first."""
        if self._since:
            return self._since
        version: int = self._store.version
        for body in self._store.every(self._kind, self._namespace):
            if self._selected(body):
                await self._send("ADDED", body)
        return version

    async def _send_change(self, change: Change) -> None:
        """For this client, an object that is not selected any more was deleted."""
        if self._namespace not in ("", change.body["metadata"].get("namespace", "")):
            return
        before = change.before is not None and self._selected(change.before)
        if change.type != "DELETED" and self._selected(change.body):
            await self._send("MODIFIED" if before else "ADDED", change.body)
        elif before:
            await self._send("DELETED", change.body)

    async def _send_bookmarks(self) -> None:
        while True:
            await asyncio.sleep(_BOOKMARK_INTERVAL.total_seconds())
            await self._send("BOOKMARK", self._bookmark())

    def _bookmark(self) -> Object:
        meta: Object = {"resourceVersion": str(self._store.version), "creationTimestamp": None}
        return {"kind": self._kind.name, "apiVersion": self._kind.api_version, "metadata": meta}

    async def _send(self, step: str, body: Object) -> None:
        line = json.dumps({"type": step, "object": body}, separators=(",", ":")).encode() + b"\n"
        if not await self._stream.write(line):
            raise _Ended


async def _end_with(event: asyncio.Event) -> None:
    await event.wait()
    raise _Ended


def _first(group: BaseExceptionGroup[ApiError]) -> ApiError:
    error = group.exceptions[0]
    return error if isinstance(error, ApiError) else _first(error)


def _timeout(text: str) -> timedelta:
    if text and not text.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return timedelta(seconds=int(text)) if int(text or 0) else _DEFAULT_TIMEOUT
