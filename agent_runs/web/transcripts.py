"""Transcripts over HTTP: the attempts of a run, a finished or growing transcript as NDJSON, and live events as SSE.

Everything is paged from the store at the reader's own speed: nothing is queued for a slow reader, and the only
state of a reader is the last sequence it received, so a cut connection resumes where it ended.

    GET /runs/{run}/attempts                          [{"attempt": 1, "last": 57, "receipt": {…} or null}, …]
    GET /runs/{run}/transcript?attempt=1&after=0      NDJSON: what is stored so far; `&limit=N`: N lines at most
    GET /runs/{run}/events?attempt=1&after=0          SSE: one event per line, then `event: end` with the receipt
    GET /runs/{run}/log?format=text&attempt=1         SSE: one event per call of Paperclip's log, then the same end
    GET /healthz                                         200 while the store answers and the service is not stopping

The `id` of an event of a log is `<sequence>.<part>`, which `after` and Last-Event-ID take as well; `format` is `text`
or `events` (`agent_runs.web.paperclip_log`). With `&stored=true` the stream ends with what is stored, sealed or
not, and an attempt without output is 404.

`attempt` defaults to 1, never to the newest: a cursor must not move into another attempt's sequences.
Every request about a run needs its token (`agent_runs.web.access`). Errors are `{"detail": "…"}`.
"""

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from functools import partial
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.transcript.follow import pages
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.tokens import Grant
from agent_runs.web.access import REVOCATION_MAX_AGE, Access, Guard, Revocations
from agent_runs.web.log_events import Cursor, LogEvents
from agent_runs.web.paperclip_log import FORMATS, LogFormat

POLL: Final = timedelta(seconds=1)
"""Between queries for another process's writes, and for the stop of the service in a silent stream."""

KEEP_ALIVE: Final = timedelta(seconds=15)
"""A stream that was silent for this long sends a comment; proxies often cut after 30 or 60 s."""

CHUNK_BYTES: Final = 256 * 1024
"""Of output per write to a reader. This, or one longer line, is a reader's memory."""

PIECE_BYTES: Final = 48 * 1024
"""Of a line that is encoded at a time; a multiple of three, as base64 needs it."""

LINE_COST: Final = 256
"""The work on a line of a log, its bytes aside, in bytes that take as long."""

INLINE_COST: Final = 16 * 1024
"""Lines that cost no more are encoded in the event loop, in some 5 ms: a thread costs more than one line."""

KEEP_ALIVE_COMMENT: Final = ": alive\n\n"
RETRY: Final = timedelta(seconds=1)
UNAVAILABLE: Final = "the transcript store does not answer; no output is lost, try again"
_MAX_NUMBER: Final = 2**63 - 1
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_SSE_HEADERS: Final = _HEADERS | {"X-Accel-Buffering": "no"}


def app(
    store: TranscriptStore,
    access: Access,
    *,
    poll: timedelta = POLL,
    keep_alive: timedelta = KEEP_ALIVE,
    routes: Sequence[BaseRoute] = (),
    errors: Callable[[Request, Exception], Response] | None = None,
    revocation_max_age: timedelta = REVOCATION_MAX_AGE,
) -> Starlette:
    """The ASGI application over one store, which it neither opens nor closes.

    Args:
        routes: additional ones, such as the pages of runs; `draining` is in the application's state.
        errors: creates the response to a refused request; JSON by default.
    """
    refused = errors or error_response

    async def unavailable(request: Request, _error: Exception) -> Response:
        """Without the error's own text, which names the store's address: health checks need no token."""
        return refused(request, HTTPException(503, UNAVAILABLE, {"Retry-After": "1"}))

    guard = Guard(access, Revocations(store, revocation_max_age))
    service = _Service(store, guard, poll, keep_alive)
    application = Starlette(
        routes=[
            Route("/healthz", service.healthz),
            Route("/runs/{run}/attempts", service.attempts),
            Route("/runs/{run}/transcript", service.transcript),
            Route("/runs/{run}/events", service.events),
            Route("/runs/{run}/log", service.log),
            *routes,
        ],
        exception_handlers={TranscriptsUnavailable: unavailable, HTTPException: refused},
    )
    application.router.redirect_slashes = False  # such a redirect takes its host from the request, and the token along
    application.state.draining = service.draining
    return application


@dataclass(frozen=True)
class _Service:
    store: TranscriptStore
    guard: Guard
    poll: timedelta
    keep_alive: timedelta
    draining: asyncio.Event = field(default_factory=asyncio.Event)

    async def healthz(self, _request: Request) -> Response:
        if self.draining.is_set():
            raise HTTPException(503, "stopping")
        await self.store.attempts(RunKey.named(""))
        return JSONResponse({"status": "ok"}, headers=_HEADERS)

    async def attempts(self, request: Request) -> Response:
        run = (await self.guard.grant(request)).run
        attempts = await self.store.attempts(run)
        if not attempts:
            raise HTTPException(404, f"run {run.run_id}: no output is stored yet")
        return JSONResponse(
            [await self._attempt(AttemptKey(run=run, attempt=attempt)) for attempt in attempts], headers=_HEADERS
        )

    async def transcript(self, request: Request) -> Response:
        key = _requested_attempt(request, await self.guard.grant(request))
        after = parse_number(request.query_params.get("after", "0"), "after", least=0)
        limit = parse_number(request.query_params.get("limit", str(_MAX_NUMBER)), "limit", least=1)
        await self._check_stored(key)
        stored = pages(self.store, key, after, done=_done, poll=self.poll, max_bytes=CHUNK_BYTES)
        disposition = {"Content-Disposition": f'attachment; filename="{_file_name(key)}"'}
        return StreamingResponse(
            _ndjson(stored, limit), media_type="application/x-ndjson", headers=_HEADERS | disposition
        )

    async def events(self, request: Request) -> Response:
        """Ends with `event: end` once the attempt is sealed; a reader that reconnects then gets 204."""
        grant = await self.guard.grant(request)
        key = _requested_attempt(request, grant)
        resumed = request.headers.get("last-event-id")
        after = parse_number(resumed or request.query_params.get("after", "0"), "Last-Event-ID or after", least=0)
        if resumed and await self._sealed(key) and not await self.store.read(key, after, limit=1):
            return Response(status_code=204)  # WHATWG HTML, 9.2.2: 204 stops an EventSource from reconnecting
        lines = self._stream(key, after, _events, partial(self._sealed, key))
        body = self.guard.until_revoked(grant, lines)
        return StreamingResponse(body, media_type="text/event-stream", headers=_SSE_HEADERS)

    async def log(self, request: Request) -> Response:
        """Ends with `event: end` once the attempt is sealed, or with `stored` after what is stored."""
        grant = await self.guard.grant(request)
        key = _requested_attempt(request, grant)
        query = request.query_params
        log_format = _parse_format(query.get("format", "text"))
        cursor = parse_cursor(request.headers.get("last-event-id") or query.get("after", "0"))
        stored = query.get("stored") == "true"
        if stored:
            await self._check_stored(key)
        done = _done if stored else partial(self._sealed, key)
        calls = self._stream(key, cursor.first_line, LogEvents(log_format, cursor).encoded, done)
        body = self.guard.until_revoked(grant, calls)
        return StreamingResponse(body, media_type="text/event-stream", headers=_SSE_HEADERS)

    async def _stream(
        self,
        key: AttemptKey,
        after: int,
        encoded: Callable[[Sequence[Line]], Iterator[bytes]],
        done: Callable[[], Awaitable[bool]],
    ) -> AsyncGenerator[str | bytes]:
        """Events of the lines, until `done`, then the end with the receipt; or until the service stops."""
        yield f"retry: {RETRY // timedelta(milliseconds=1)}\n\n"
        sent_at = self._now()
        async for page in pages(self.store, key, after, done=done, poll=self.poll, max_bytes=CHUNK_BYTES):
            async for piece in _pieces(encoded(page), page):
                yield piece
                sent_at = self._now()
                if self.draining.is_set():
                    return
            if self._now() - sent_at >= self.keep_alive.total_seconds():
                yield KEEP_ALIVE_COMMENT
                sent_at = self._now()
            if self.draining.is_set():
                return
        receipt = await self.store.receipt(key)
        yield f"event: end\ndata: {receipt.model_dump_json() if receipt else 'null'}\n\n"

    async def _check_stored(self, key: AttemptKey) -> None:
        if key.attempt not in await self.store.attempts(key.run):
            raise HTTPException(404, f"transcript {key.transcript}: no output is stored yet")

    async def _sealed(self, key: AttemptKey) -> bool:
        return await self.store.receipt(key) is not None

    async def _attempt(self, key: AttemptKey) -> dict[str, Any]:
        receipt = await self.store.receipt(key)
        return {
            "attempt": key.attempt,
            "last": await self.store.last(key),
            "receipt": None if receipt is None else receipt.model_dump(mode="json"),
        }

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _requested_attempt(request: Request, grant: Grant) -> AttemptKey:
    attempt = parse_number(request.query_params.get("attempt", "1"), "attempt", least=1)
    return AttemptKey(run=grant.run, attempt=attempt)


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


def _events(page: Sequence[Line]) -> Iterator[bytes]:
    return _encoded(page, "id: {}\ndata: ", "\n\n")


def _encoded(page: Sequence[Line], head: str, end: str) -> Iterator[bytes]:
    """The lines as JSON, each after its head and before its end, in pieces of about `CHUNK_BYTES`."""
    pending, size = [], 0
    for line in page:
        pending.append(head.format(line.sequence))
        for piece in _json_pieces(line):
            pending.append(piece)
            size += len(piece)
            if size >= CHUNK_BYTES:
                yield "".join(pending).encode()
                pending, size = [], 0
        pending.append(end)
    if pending:
        yield "".join(pending).encode()


def _json_pieces(line: Line) -> Iterator[str]:
    """What `as_json` returns; for a long line in pieces, each of which keeps Python's lock for a short time."""
    if len(line.data) <= PIECE_BYTES:
        yield as_json(line)
        return
    start, end = as_json(msgspec.structs.replace(line, data=b"")).rsplit('""', 1)
    try:
        text: str | None = line.data.decode()
    except UnicodeDecodeError:
        text = None
        start = start.replace('"encoding":"utf-8"', '"encoding":"base64"')
    yield f'{start}"'
    for at in range(0, len(line.data) if text is None else len(text), PIECE_BYTES):
        if text is None:
            yield base64.b64encode(line.data[at : at + PIECE_BYTES]).decode()
        else:
            yield json.dumps(text[at : at + PIECE_BYTES])[1:-1]
    yield f'"{end}'


async def _pieces(encoded: Iterator[bytes], page: Sequence[Line]) -> AsyncIterator[bytes]:
    """What these lines are encoded as; what may take long is done in a thread."""
    if sum(LINE_COST + len(line.data) for line in page) <= INLINE_COST:
        for piece in encoded:
            yield piece
        return
    while piece := await asyncio.to_thread(next, encoded, b""):
        yield piece


async def _ndjson(stored: AsyncIterator[list[Line]], limit: int) -> AsyncIterator[bytes]:
    async for page in stored:
        async for piece in _pieces(_encoded(page[:limit], "", "\n"), page):
            yield piece
        limit -= len(page)
        if limit <= 0:
            return


async def _done() -> bool:
    return True


def parse_number(text: str, name: str, *, least: int) -> int:
    """Parse a whole number of a request. Raises HTTPException 400 with the parameter's name."""
    if not (
        text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_NUMBER)) and least <= int(text) <= _MAX_NUMBER
    ):
        raise HTTPException(400, f"{name}: must be a whole number, at least {least}")
    return int(text)


def parse_cursor(text: str) -> Cursor:
    """Parse `<sequence>.<part>`, or `<sequence>` for a whole line. Raises HTTPException 400."""
    name = "Last-Event-ID or after"
    sequence, dot, part = text.partition(".")
    return Cursor(parse_number(sequence, name, least=0), parse_number(part, name, least=0) if dot else _MAX_NUMBER)


def _parse_format(text: str) -> LogFormat:
    formats: dict[str, LogFormat] = {each: each for each in FORMATS}
    if text not in formats:
        raise HTTPException(400, f"format: must be one of {', '.join(FORMATS)}")
    return formats[text]


def error_response(_request: Request, error: Exception) -> Response:
    """The response to a refused request, as JSON."""
    if not isinstance(error, HTTPException):
        raise error
    return JSONResponse(
        {"detail": error.detail}, status_code=error.status_code, headers={**(error.headers or {}), **_HEADERS}
    )


def _file_name(key: AttemptKey) -> str:
    return f"{re.sub('[^A-Za-z0-9-]', '_', key.run.run_id)[:64]}-{key.attempt}.ndjson"
