"""Reads transcripts from the transcript service, for callers that do not reach the store itself.

A stream that is cut is taken up again after the last line seen, so every line comes once and in order.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar

import aiohttp

from client.links import run_url, tokens
from client.settings import ClientSettings
from contracts.errors import TranscriptsUnavailable
from contracts.identity import AttemptKey
from contracts.outcome import OutputReceipt
from transcripts.access import headers
from transcripts.store import Line
from transcripts.tokens import Tokens

SHORT: Final = timedelta(minutes=5)
"""A program's tokens: it makes a new one for each request."""
AGAIN: Final = timedelta(milliseconds=500)
LOOK: Final = timedelta(milliseconds=500)
"""How often a silent stream's end is looked for elsewhere."""
TRIES: Final = 60
"""Connections in a row that bring nothing before the service counts as gone: half a minute."""
SILENCE: Final = timedelta(seconds=60)
"""The service shows a sign of life every 15 s."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class ServiceTranscripts:
    """Transcripts behind one service."""

    base: str
    tokens: Tokens
    http: aiohttp.ClientSession

    @classmethod
    @asynccontextmanager
    async def at(cls, base: str, settings: ClientSettings) -> AsyncIterator[Self]:
        """The service at this URL.

        Raises:
            UnusableTokenKey: the key file holds no key.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=SILENCE.total_seconds())
        async with aiohttp.ClientSession(timeout=timeout) as http:
            yield cls(base, tokens(settings), http)

    async def attempts(self, run_id: str) -> list[int]:
        """The attempts that wrote or were sealed, ascending."""
        return [attempt["attempt"] for attempt in await self._attempts(run_id)]

    async def receipt(self, key: AttemptKey) -> OutputReceipt | None:
        """The receipt, or None while the attempt is not sealed."""
        for attempt in await self._attempts(key.run.run_id):
            if attempt["attempt"] == key.attempt and attempt["receipt"] is not None:
                return OutputReceipt.model_validate(attempt["receipt"])
        return None

    async def follow(self, key: AttemptKey, after: int, *, done: Callable[[], Awaitable[bool]]) -> AsyncGenerator[Line]:
        """Every line beyond `after`, in order, once, until the attempt is sealed or `done` says it is over.

        Raises:
            TranscriptsUnavailable: the service is gone, or refuses us.
        """
        fruitless = 0
        while not await done():
            before = after
            try:
                async with aclosing(self._live(key, after)) as live, aclosing(until(done, live)) as told:
                    async for line in told:
                        if line is None:
                            return
                        after = line.sequence
                        yield line
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                fruitless = 0 if after > before else fruitless + 1
                if fruitless >= TRIES:
                    raise self._gone(error) from None
            await asyncio.sleep(AGAIN.total_seconds())
        async with aclosing(self._stored(key, after)) as stored:
            async for line in stored:
                yield line

    async def _live(self, key: AttemptKey, after: int) -> AsyncGenerator[Line | None]:
        """Lines as they come; None once there will be no more. Ends without it when the service lets us go."""
        query = {"attempt": str(key.attempt), "after": str(after)}
        name = ""
        async with self._asked(key.run.run_id, "events", query) as answer:
            async for raw in split(answer):
                field, _, value = raw.partition(b": ")
                if field == b"event":
                    name = value.decode()
                elif field == b"data":
                    yield None if name == "end" else line_of(json.loads(value))
                elif not field:
                    name = ""

    async def _stored(self, key: AttemptKey, after: int) -> AsyncGenerator[Line]:
        query = {"attempt": str(key.attempt), "after": str(after)}
        try:
            async with self._asked(key.run.run_id, "transcript", query) as answer:
                if answer.status != 404:
                    async for raw in split(answer):
                        yield line_of(json.loads(raw))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._gone(error) from None

    async def _attempts(self, run_id: str) -> list[dict[str, Any]]:
        try:
            async with self._asked(run_id, "attempts", {}) as answer:
                return [] if answer.status == 404 else list(await answer.json())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._gone(error) from None

    @asynccontextmanager
    async def _asked(self, run_id: str, what: str, query: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{run_url(self.base, run_id)}/{what}"
        admitted = headers(self.tokens.mint(run_id, SHORT))
        async with self.http.get(url, params=query, headers=admitted) as answer:
            if answer.status in {401, 403}:
                raise TranscriptsUnavailable(
                    f"the transcript service at {self.base} refuses our token: "
                    "AGENT_RUNS_TRANSCRIPTS_KEY_FILE must be the file that it uses"
                )
            if answer.status != 404:
                answer.raise_for_status()
            yield answer

    def _gone(self, error: Exception) -> TranscriptsUnavailable:
        return TranscriptsUnavailable(
            f"the transcript service does not answer at {self.base} (AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL): "
            f"{type(error).__name__}"
        )


async def until(done: Callable[[], Awaitable[bool]], source: AsyncGenerator[Item]) -> AsyncGenerator[Item]:
    """What `source` gives, until it ends or, in a silence, `done` says that it may as well."""
    while True:
        upcoming = asyncio.ensure_future(anext(source))
        try:
            while not (await asyncio.wait([upcoming], timeout=LOOK.total_seconds()))[0]:
                if await done():
                    return
            yield upcoming.result()
        except StopAsyncIteration:
            return
        finally:
            upcoming.cancel()
            await asyncio.wait([upcoming])


async def split(answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The lines of a body, of any length, without their LF; what a cut leaves of the last one is dropped."""
    pieces: list[bytes] = []
    async for chunk in answer.content.iter_any():
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join([*pieces, end])
            pieces.clear()
        if rest:
            pieces.append(rest)


def line_of(told: dict[str, Any]) -> Line:
    """The line that the service told as JSON; undoes `transcripts.service.as_json`."""
    data = base64.b64decode(told["data"]) if told["encoding"] == "base64" else told["data"].encode()
    at = datetime.fromisoformat(told["at"])
    return Line(told["sequence"], told["stream"], data, told["terminated"], at=at)
