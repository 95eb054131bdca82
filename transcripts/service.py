"""Transcripts over HTTP: the attempts of a run, a finished or growing transcript as NDJSON, and live events as SSE.

Everything is paged from the store at the reader's own speed: nothing is queued for a slow reader, and the only
state of a reader is the sequence it saw last, so a cut connection resumes where it ended.

    GET /runs/{run_id}/attempts                          [{"attempt": 1, "last": 57, "receipt": {…} or null}, …]
    GET /runs/{run_id}/transcript?attempt=1&after=0      NDJSON: what is stored so far; `&limit=N`: N lines at most
    GET /runs/{run_id}/events?attempt=1&after=0          SSE: one event per line, then `event: end` with the receipt
    GET /healthz                                         200 while the store answers and nobody asked us to stop

`attempt` is 1 when it is not given, and never "the newest": a cursor must not move into another attempt's numbers.
Every request about a run needs its token (`transcripts.access`). Errors are `{"detail": "…"}`.
"""

import asyncio
import base64
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ExceptionHandler

from contracts.errors import TranscriptsUnavailable
from contracts.identity import AttemptKey, RunKey
from transcripts.access import Access
from transcripts.follow import pages
from transcripts.store import Line, TranscriptStore

POLL: Final = timedelta(seconds=1)
"""How soon another process's writes are seen, and how soon a silent stream notices that the service stops."""

KEEP_ALIVE: Final = timedelta(seconds=15)
"""Silence after which a stream shows a sign of life; proxies often cut after 30 or 60 s."""

CHUNK_BYTES: Final = 256 * 1024
"""Output read for one write to a reader. With one longer line, that is what a reader costs in memory."""

ALIVE: Final = ": alive\n\n"
RETRY: Final = timedelta(seconds=1)
DRAIN: Final = timedelta(seconds=5)
_HIGHEST: Final = 2**63 - 1
_HOSTILE: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_LIVE: Final = _HOSTILE | {"X-Accel-Buffering": "no"}


def app(
    store: TranscriptStore,
    access: Access,
    *,
    poll: timedelta = POLL,
    keep_alive: timedelta = KEEP_ALIVE,
    routes: Sequence[BaseRoute] = (),
    errors: ExceptionHandler | None = None,
) -> Starlette:
    """The service over one store, which it neither opens nor closes.

    Args:
        routes: more of them, such as the page for people; they find `draining` in the application's state.
        errors: shows a refused request; JSON by default.
    """
    service = _Service(store, access, poll, keep_alive)
    application = Starlette(
        routes=[
            Route("/healthz", service.healthz),
            Route("/runs/{run_id}/attempts", service.attempts),
            Route("/runs/{run_id}/transcript", service.transcript),
            Route("/runs/{run_id}/events", service.events),
            *routes,
        ],
        exception_handlers={TranscriptsUnavailable: _unavailable, HTTPException: errors or refused},
    )
    application.state.draining = service.draining
    return application


@asynccontextmanager
async def serving(
    application: Starlette, host: str = "127.0.0.1", port: int = 0, *, drain: timedelta = DRAIN
) -> AsyncIterator[str]:
    """Serve in this event loop and give the base URL; `port` 0 takes a free one. Signals stay with the caller.

    At the end live streams are let go within a poll: their readers resume elsewhere from the last id they saw.
    A reader that does not read is cut after `drain`.

    Raises:
        CannotListen: the address is in use, or none of this machine.
    """
    listener = _listening(host, port)
    bound = listener.getsockname()[1]
    grace = int(drain.total_seconds())
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


class CannotListen(ValueError):
    """The address of the service cannot be listened at. The text names it and the setting."""


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise CannotListen(
            f"the transcript service cannot listen at {host}:{port}: {error}; "
            "stop what listens there or choose another address (AGENT_RUNS_TRANSCRIPTS_LISTEN)"
        ) from None


class _Server(uvicorn.Server):
    """A server that leaves the process's signal handlers alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass(frozen=True)
class _Service:
    store: TranscriptStore
    access: Access
    poll: timedelta
    keep_alive: timedelta
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    async def healthz(self, _request: Request) -> Response:
        if self.draining.is_set():
            raise HTTPException(503, "stopping")
        await self.store.attempts("")
        return JSONResponse({"status": "ok"}, headers=_HOSTILE)

    async def attempts(self, request: Request) -> Response:
        run_id = self.access.run(request)
        known = await self.store.attempts(run_id)
        if not known:
            raise HTTPException(404, f"run {run_id}: nothing was stored yet")
        return JSONResponse([await self._attempt(key_of(run_id, attempt)) for attempt in known], headers=_HOSTILE)

    async def transcript(self, request: Request) -> Response:
        key = self._attempt_asked(request)
        after = number(request.query_params.get("after", "0"), "after", least=0)
        limit = number(request.query_params.get("limit", str(_HIGHEST)), "limit", least=1)
        if key.attempt not in await self.store.attempts(key.run.run_id):
            raise HTTPException(404, f"transcript {key.transcript}: nothing was stored yet")
        stored = pages(self.store, key, after, done=_now, poll=self.poll, max_bytes=CHUNK_BYTES)
        named = {"Content-Disposition": f'attachment; filename="{_file_name(key)}"'}
        return StreamingResponse(_ndjson(stored, limit), media_type="application/x-ndjson", headers=_HOSTILE | named)

    async def events(self, request: Request) -> Response:
        """Ends with `event: end` once the attempt is sealed. A reader that comes back after that gets 204: stop."""
        key = self._attempt_asked(request)
        resumed = request.headers.get("last-event-id")
        after = number(resumed or request.query_params.get("after", "0"), "Last-Event-ID or after", least=0)
        if resumed and await self._sealed(key) and not await self.store.read(key, after, limit=1):
            return Response(status_code=204)  # WHATWG HTML, 9.2.2: 204 stops an EventSource from reconnecting
        return StreamingResponse(self._sse(key, after), media_type="text/event-stream", headers=_LIVE)

    async def _sse(self, key: AttemptKey, after: int) -> AsyncIterator[str]:
        yield f"retry: {RETRY // timedelta(milliseconds=1)}\n\n"

        async def sealed() -> bool:
            return await self._sealed(key)

        spoke = self._now()
        async for page in pages(self.store, key, after, done=sealed, poll=self.poll, max_bytes=CHUNK_BYTES):
            if page or self._now() - spoke >= self.keep_alive.total_seconds():
                yield "".join(f"id: {line.sequence}\ndata: {as_json(line)}\n\n" for line in page) or ALIVE
                spoke = self._now()
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

    def _attempt_asked(self, request: Request) -> AttemptKey:
        run_id = self.access.run(request)
        return key_of(run_id, number(request.query_params.get("attempt", "1"), "attempt", least=1))

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


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


async def _ndjson(stored: AsyncIterator[list[Line]], limit: int) -> AsyncIterator[str]:
    async for page in stored:
        yield "".join(f"{as_json(line)}\n" for line in page[:limit])
        limit -= len(page)
        if limit <= 0:
            return


async def _now() -> bool:
    return True


def key_of(run_id: str, attempt: int) -> AttemptKey:
    """A reader knows no more than the run's id, and the store looks at no more when it reads."""
    return AttemptKey(run=RunKey(agent_id="", company_id="", run_id=run_id), attempt=attempt)


def number(text: str, name: str, *, least: int) -> int:
    """A whole number from a request; 400 with the field's name when it is none, or none that a store can hold."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(_HIGHEST)) and least <= int(text) <= _HIGHEST):
        raise HTTPException(400, f"{name}: give a whole number from {least} on")
    return int(text)


def refused(_request: Request, error: Exception) -> Response:
    """A request that is not answered, as JSON."""
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse(
        {"detail": error.detail}, status_code=error.status_code, headers={**(error.headers or {}), **_HOSTILE}
    )


def _file_name(key: AttemptKey) -> str:
    return f"{re.sub('[^A-Za-z0-9-]', '_', key.run.run_id)[:64]}-{key.attempt}.ndjson"


async def _unavailable(_request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, status_code=503, headers={"Retry-After": "1"} | _HOSTILE)
