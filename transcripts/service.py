"""Transcripts over HTTP: the attempts of a run, a finished or growing transcript as NDJSON, and live events as SSE.

Everything is paged from the store at the reader's own speed: nothing is queued for a slow reader, and the only
state of a reader is the sequence it saw last, so a cut connection resumes where it ended.

    GET /runs/{run_id}/attempts                          [{"attempt": 1, "last": 57, "receipt": {…} or null}, …]
    GET /runs/{run_id}/transcript?attempt=1&after=0      NDJSON: what is stored so far
    GET /runs/{run_id}/events?attempt=1&after=0          SSE: one event per line, then `event: end` with the receipt

`attempt` is 1 when it is not given, and never "the newest": a cursor must not move into another attempt's numbers.
"""

import asyncio
import base64
import hmac
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from contracts.errors import TranscriptsUnavailable
from contracts.identity import AttemptKey, RunKey
from transcripts.follow import pages
from transcripts.store import Line, TranscriptStore

POLL: Final = timedelta(seconds=1)
"""How soon another process's writes are seen, and how often a silent stream shows a sign of life."""

CHUNK_BYTES: Final = 256 * 1024
"""Output read for one write to a reader. With one longer line, that is what a reader costs in memory."""

RETRY: Final = timedelta(seconds=1)
DRAIN: Final = timedelta(seconds=5)
_HIGHEST: Final = 2**63 - 1
_HOSTILE: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_LIVE: Final = _HOSTILE | {"X-Accel-Buffering": "no"}

Authorize = Callable[[Request, str], bool]
"""May this request read this run?"""


def bearer(token: str) -> Authorize:
    """Whoever sends `Authorization: Bearer <token>` may read every run."""
    expected = f"Bearer {token}".encode()
    return lambda request, _run_id: hmac.compare_digest(request.headers.get("authorization", "").encode(), expected)


def app(store: TranscriptStore, *, authorize: Authorize, poll: timedelta = POLL) -> Starlette:
    """The service over one store. It neither opens nor closes the store."""
    service = _Service(store, authorize, poll)
    application = Starlette(
        routes=[
            Route("/runs/{run_id}/attempts", service.attempts),
            Route("/runs/{run_id}/transcript", service.transcript),
            Route("/runs/{run_id}/events", service.events),
        ],
        exception_handlers={TranscriptsUnavailable: _unavailable},
    )
    application.state.draining = service.draining
    return application


@asynccontextmanager
async def serving(application: Starlette, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in this event loop and give the base URL; `port` 0 takes a free one. Signals stay with the caller.

    At the end live streams are let go within a poll: their readers resume elsewhere from the last id they saw.
    """
    listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound = listener.getsockname()[1]
    grace = int(DRAIN.total_seconds())
    config = uvicorn.Config(
        application, lifespan="off", ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=grace
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{bound}"
    finally:
        application.state.draining.set()
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    """A server that leaves the process's signal handlers alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True)
class _Service:
    store: TranscriptStore
    authorize: Authorize
    poll: timedelta
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    async def attempts(self, request: Request) -> Response:
        run_id = self._run(request)
        known = await self.store.attempts(run_id)
        if not known:
            raise HTTPException(404, f"run {run_id}: nothing was stored yet")
        return JSONResponse([await self._attempt(_key(run_id, attempt)) for attempt in known], headers=_HOSTILE)

    async def transcript(self, request: Request) -> Response:
        key = self._attempt_asked(request)
        after = _number(request.query_params.get("after", "0"), "after", least=0)
        if key.attempt not in await self.store.attempts(key.run.run_id):
            raise HTTPException(404, f"transcript {key.transcript}: nothing was stored yet")
        stored = pages(self.store, key, after, done=_now, poll=self.poll, max_bytes=CHUNK_BYTES)
        return StreamingResponse(_ndjson(stored), media_type="application/x-ndjson", headers=_HOSTILE)

    async def events(self, request: Request) -> Response:
        """Ends with `event: end` once the attempt is sealed. A reader that comes back after that gets 204: stop."""
        key = self._attempt_asked(request)
        resumed = request.headers.get("last-event-id")
        after = _number(resumed or request.query_params.get("after", "0"), "Last-Event-ID or after", least=0)
        if resumed and await self._sealed(key) and not await self.store.read(key, after, limit=1):
            return Response(status_code=204)  # WHATWG HTML, 9.2.2: 204 stops an EventSource from reconnecting
        return StreamingResponse(self._sse(key, after), media_type="text/event-stream", headers=_LIVE)

    async def _sse(self, key: AttemptKey, after: int) -> AsyncIterator[str]:
        yield f"retry: {RETRY // timedelta(milliseconds=1)}\n\n"

        async def sealed() -> bool:
            return await self._sealed(key)

        async for page in pages(self.store, key, after, done=sealed, poll=self.poll, max_bytes=CHUNK_BYTES):
            yield "".join(f"id: {line.sequence}\ndata: {as_json(line)}\n\n" for line in page) or ": alive\n\n"
            if self.draining.is_set():
                return
        receipt = await self.store.receipt(key)
        yield f"event: end\ndata: {receipt.model_dump_json() if receipt else 'null'}\n\n"

    async def _sealed(self, key: AttemptKey) -> bool:
        return await self.store.receipt(key) is not None

    async def _attempt(self, key: AttemptKey) -> dict[str, Any]:
        receipt = await self.store.receipt(key)
        return {
            "attempt": key.attempt,
            "last": await self.store.last(key),
            "receipt": None if receipt is None else receipt.model_dump(mode="json"),
        }

    def _run(self, request: Request) -> str:
        run_id: str = request.path_params["run_id"]
        if not self.authorize(request, run_id):
            raise HTTPException(401, "this token may not read this run", {"WWW-Authenticate": "Bearer"})
        return run_id

    def _attempt_asked(self, request: Request) -> AttemptKey:
        run_id = self._run(request)
        return _key(run_id, _number(request.query_params.get("attempt", "1"), "attempt", least=1))


def as_json(line: Line) -> str:
    """One line as one line of ASCII JSON, so that no reader can split it at U+2028 and the like.

    `data` is text, or base64 when the bytes are not UTF-8; `encoding` says which.
    """
    try:
        encoding, data = "utf-8", line.data.decode()
    except UnicodeDecodeError:
        encoding, data = "base64", base64.b64encode(line.data).decode()
    return json.dumps(
        {
            "sequence": line.sequence,
            "stream": line.stream,
            "at": line.at.astimezone(UTC).isoformat(timespec="microseconds"),
            "terminated": line.terminated,
            "encoding": encoding,
            "data": data,
        },
        separators=(",", ":"),
    )


async def _ndjson(stored: AsyncIterator[list[Line]]) -> AsyncIterator[str]:
    async for page in stored:
        yield "".join(f"{as_json(line)}\n" for line in page)


async def _now() -> bool:
    return True


def _key(run_id: str, attempt: int) -> AttemptKey:
    """A reader knows no more than the run's id, and the store looks at no more when it reads."""
    return AttemptKey(run=RunKey(agent_id="", company_id="", run_id=run_id), attempt=attempt)


def _number(text: str, name: str, *, least: int) -> int:
    """A whole number from a request; 400 with the field's name when it is none, or none that a store can hold."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_HIGHEST)) and least <= int(text) <= _HIGHEST):
        raise HTTPException(400, f"{name}: give a whole number from {least} on")
    return int(text)


async def _unavailable(_request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": "1"} | _HOSTILE)
