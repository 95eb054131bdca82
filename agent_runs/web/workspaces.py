"""The workspaces of runs over HTTP, for pods and for the Paperclip plugin: docs/adr/0035 has the requests.

A token is for one run and one attempt, so a pod reads and writes nothing else, and a fenced one moves nothing.
"""

import asyncio
import math
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote

from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from agent_runs.contracts.identity import AttemptKey
from agent_runs.transcript.tokens import TokenRefused, Tokens
from agent_runs.web.operators import CHALLENGE, bearer
from agent_runs.workspace.store import (
    BlocksMissing,
    Kind,
    Record,
    WorkspaceDamaged,
    WorkspaceFenced,
    WorkspaceStore,
    WorkspacesUnavailable,
)
from agent_runs.workspace.tree import BLOCK, File, TreeTooLarge, UnusableTree

MAX_BLOCKS: Final = 16 * (BLOCK + 4)
"""Bytes of the blocks in one request, or in one answer."""
MAX_PACKED, MAX_TREE = 32 * 1024 * 1024, 128 * 1024 * 1024
"""Bytes of a tree, as it is sent and unpacked: 500,000 files have some 100 MB."""
MAX_DIGESTS: Final = 32 * 100_000
AT_ONCE: Final = 8
"""Requests with blocks or trees in memory; the others wait."""
PAPERCLIPS: Final[tuple[Kind, ...]] = ("out", "returned")
PODS: Final[tuple[Kind, ...]] = ("checkpoint", "end")
"""What each side may add to a ledger: a pod cannot change what its work is compared with on the way back."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_STATUS: Final[dict[type[Exception], tuple[int, str]]] = {
    WorkspacesUnavailable: (503, "unavailable"),
    WorkspaceDamaged: (410, "damaged"),
    WorkspaceFenced: (409, "fenced"),
    TreeTooLarge: (413, "too_large"),
    UnusableTree: (400, "unusable"),
    TokenRefused: (401, "token_refused"),
}


class _NoWorkspace(HTTPException):
    def __init__(self) -> None:
        super().__init__(404, "nothing of this kind is stored for this run")


@dataclass(frozen=True)
class Workspaces:
    """Answers the requests."""

    store: WorkspaceStore
    tokens: Tokens = field(repr=False)
    known: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict, repr=False)
    busy: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE), repr=False)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        answers = {"missing": self.missing, "blocks": self.blocks, "tree": self.tree, "read": self.read}
        routes = [
            Route(f"/workspace/{name}", self._named(answer), methods=["POST"]) for name, answer in answers.items()
        ]
        return [Route("/workspace", self.about, methods=["GET"]), *routes]

    @property
    def application(self) -> Starlette:
        """With nothing but these requests."""
        application = Starlette(routes=self.routes)
        application.router.redirect_slashes = False
        application.state.draining = asyncio.Event()
        return application

    def _named(
        self, answer: Callable[[AttemptKey, Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The answer, with a name for each refusal."""

        async def endpoint(request: Request) -> Response:
            try:
                return await answer(self.tokens.open_workspace(bearer(request)), request)
            except HTTPException as error:
                code = "no_workspace" if isinstance(error, _NoWorkspace) else "refused"
                return _refusal(error.status_code, code, error.detail)
            except BlocksMissing as error:
                return _refusal(409, "missing", str(error), {"blocks": error.blocks})
            except Exception as error:
                found = next((value for kind, value in _STATUS.items() if isinstance(error, kind)), None)
                if found is None:
                    raise
                return _refusal(*found, str(error))

        return endpoint

    async def about(self, _request: Request) -> Response:
        """What a caller should know before it sends anything."""
        limits = {name: getattr(self.store.limits, name) for name in ("bytes", "entries")}
        limits = {name: None if math.isinf(limit) else limit for name, limit in limits.items()}
        return JSONResponse({"limits": limits}, headers=_HEADERS)

    async def missing(self, attempt: AttemptKey, request: Request) -> Response:
        wanted = _digests(await _body(request, MAX_DIGESTS))
        lacks = await self.store.missing(attempt.run.company_id, wanted)
        return _bytes(b"".join(map(bytes.fromhex, lacks)))

    async def blocks(self, attempt: AttemptKey, request: Request) -> Response:
        async with self.busy:
            contents = list(_framed(await _body(request, MAX_BLOCKS)))
            await self.store.add_blocks(attempt.run.company_id, contents)
        return Response(status_code=204, headers=_HEADERS)

    async def tree(self, attempt: AttemptKey, request: Request) -> Response:
        kinds = PAPERCLIPS if attempt.attempt == 0 else PODS
        asked = request.headers.get("workspace-kind")
        kind: Kind | None = next((each for each in kinds if each == asked), None)
        if kind is None:
            raise HTTPException(400, f"Workspace-Kind: must be {' or '.join(kinds)}")
        steps, session = request.headers.get("workspace-steps", "0"), request.headers.get("workspace-session", "")
        record = Record(
            attempt=attempt.attempt,
            kind=kind,
            tree="",
            at=datetime.now(UTC),
            steps=_number(steps),
            session=unquote(session)[:200],
        )
        async with self.busy:
            record = await self._with_tree(record, attempt, request)
        return JSONResponse({"number": await self.store.record(attempt.run, record)}, headers=_HEADERS)

    async def _with_tree(self, record: Record, attempt: AttemptKey, request: Request) -> Record:
        """What is returned belongs to the attempt that made it, so that a later one refuses it."""
        ledger = await self.store.ledger(attempt.run)
        if record.kind == "returned":
            known = ledger.get(_number(request.headers.get("workspace-number", "0")))
            if known is None:
                raise _NoWorkspace
            return replace(record, attempt=known.attempt, tree=known.tree)
        raw = await asyncio.to_thread(_unpacked, await _body(request, MAX_PACKED))
        last = ledger[max(ledger)].tree if ledger else None
        return replace(record, tree=await self.store.add_tree(attempt.run.company_id, raw, last))

    async def read(self, attempt: AttemptKey, request: Request) -> Response:
        body = await _body(request, MAX_DIGESTS)
        number, wanted = int.from_bytes(body[:8], "big"), _digests(body[8:])
        kind, ledger = request.headers.get("workspace-kind"), await self.store.ledger(attempt.run)
        if number == 0:
            number = max((each for each, record in ledger.items() if kind in (None, record.kind)), default=0)
        if number not in ledger:
            raise _NoWorkspace
        record, company = ledger[number], attempt.run.company_id
        about = {
            "Workspace-Number": str(number),
            "Workspace-Kind": record.kind,
            "Workspace-Attempt": str(record.attempt),
        }
        async with self.busy:
            if not wanted:
                raw = await self.store.raw_tree(company, record.tree)
                return _bytes(await asyncio.to_thread(zlib.compress, raw, 1), about)
            sizes = await self._sizes(company, record.tree)
            if not sizes.keys() >= set(wanted):
                raise _NoWorkspace
            if sum(4 + sizes[each] for each in wanted) > MAX_BLOCKS:
                raise HTTPException(400, "too many blocks in one request")
            contents = await self.store.blocks(company, wanted)
        return _bytes(b"".join(len(each).to_bytes(4, "big") + each for each in contents), about)

    async def _sizes(self, company: str, tree: str) -> dict[str, int]:
        """The blocks of a tree with their sizes: a restore asks for them in many requests."""
        key = company, tree
        if key not in self.known:
            files = [each for each in (await self.store.tree(company, tree)).entries if isinstance(each, File)]
            sizes = {
                block: min(BLOCK, file.size - place * BLOCK)
                for file in files
                for place, block in enumerate(file.blocks)
            }
            while len(self.known) >= AT_ONCE:
                self.known.pop(next(iter(self.known)))
            self.known[key] = sizes
        return self.known[key]


def _refusal(status: int, code: str, message: str, more: Mapping[str, Sequence[str]] | None = None) -> Response:
    headers = {**_HEADERS, **(CHALLENGE if status == 401 else {})}
    return JSONResponse({"code": code, "message": message, **(more or {})}, status_code=status, headers=headers)


def _bytes(content: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(content, media_type="application/octet-stream", headers={**_HEADERS, **(headers or {})})


async def _body(request: Request, limit: int) -> bytes:
    pieces, size = list[bytes](), 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise HTTPException(413, f"the request has more than {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _digests(body: bytes) -> list[str]:
    if len(body) % 32:
        raise HTTPException(400, "a digest has 32 bytes")
    return [body[at : at + 32].hex() for at in range(0, len(body), 32)]


def _framed(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        content = body[at + 4 : at + 4 + size]
        if len(content) != size:
            raise HTTPException(400, "a block is cut off")
        yield content
        at += 4 + size


def _unpacked(body: bytes) -> bytes:
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(body, MAX_TREE)
    except zlib.error:
        raise UnusableTree("this is no tree: it is not deflated") from None
    if unpacker.unconsumed_tail:
        raise TreeTooLarge(f"the tree has more than {MAX_TREE} bytes")
    return raw


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HTTPException(400, "Workspace-Number and Workspace-Steps are numbers")
    return int(text)
