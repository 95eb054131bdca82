"""Reads transcripts from the transcript service, for callers that do not reach the store itself.

A stream that is cut is resumed after the last line received, so every line comes once and in order.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self, TypeVar

import aiohttp
import msgspec

from agent_runs.client.links import load_tokens, run_url, usage_url
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.lines import Line
from agent_runs.transcript.tokens import Tokens, authorization
from agent_runs.transcript.usage import RunUsage

TOKEN_LIFETIME: Final = timedelta(minutes=5)
"""A new token is created for each request."""
USAGE_RUNS: Final = 100
"""Runs of one request for their usage; the service takes no more."""
RECONNECT_DELAY: Final = timedelta(milliseconds=500)
DONE_POLL_INTERVAL: Final = timedelta(milliseconds=500)
"""While a stream is silent, `done` is called this often."""
MAX_FAILED_CONNECTIONS: Final = 60
"""In a row, without a new line; then the service counts as unavailable, after half a minute."""
READ_TIMEOUT: Final = timedelta(seconds=60)
"""The service sends a keep-alive every 15 s."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class ServiceTranscripts:
    base: str
    tokens: Tokens
    http: aiohttp.ClientSession

    @classmethod
    @asynccontextmanager
    async def at(cls, base: str, settings: ClientSettings) -> AsyncIterator[Self]:
        """Open a session with the service at this URL.

        Raises:
            UnusableKey: the key file holds no key.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=READ_TIMEOUT.total_seconds())
        async with aiohttp.ClientSession(timeout=timeout) as http:
            yield cls(base, load_tokens(settings), http)

    async def attempts(self, run: RunKey) -> list[int]:
        """The attempts that were claimed, wrote or were sealed, ascending."""
        return [attempt["attempt"] for attempt in await self._attempts(run)]

    async def last(self, key: AttemptKey) -> int | None:
        """The highest sequence stored; None before the first line."""
        found = [each["last"] for each in await self._attempts(key.run) if each["attempt"] == key.attempt]
        return found[0] if found else None

    async def receipt(self, key: AttemptKey) -> OutputReceipt | None:
        """The receipt, or None while the attempt is not sealed."""
        for attempt in await self._attempts(key.run):
            if attempt["attempt"] == key.attempt and attempt["receipt"] is not None:
                return OutputReceipt.model_validate(attempt["receipt"])
        return None

    async def follow(self, key: AttemptKey, after: int, *, done: Callable[[], Awaitable[bool]]) -> AsyncGenerator[Line]:
        """Yield every line after `after`, in order, once, until the attempt is sealed or `done` returns True.

        Raises:
            TranscriptsUnavailable: the service does not answer, or refuses the token.
        """
        failed_connections = 0
        while not await done():
            before = after
            try:
                async with (
                    aclosing(self._follow_events(key, after)) as events,
                    aclosing(until_done(done, events)) as followed,
                ):
                    async for line in followed:
                        if line is None:
                            return
                        after = line.sequence
                        yield line
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failed_connections = 0 if after > before else failed_connections + 1
                if failed_connections >= MAX_FAILED_CONNECTIONS:
                    raise self._unavailable(error) from None
            await asyncio.sleep(RECONNECT_DELAY.total_seconds())
        async with aclosing(self._read_stored(key, after)) as stored:
            async for line in stored:
                yield line

    async def usage(self, runs: Sequence[str]) -> dict[str, RunUsage]:
        """The usage of those of the runs with these names (`RunKey.name`) that the store knows."""
        found: dict[str, RunUsage] = {}
        headers = authorization(self.tokens.mint_operator(TOKEN_LIFETIME))
        try:
            for start in range(0, len(runs), USAGE_RUNS):
                wanted = [("run", run) for run in runs[start : start + USAGE_RUNS]]
                async with self.http.get(usage_url(self.base), params=wanted, headers=headers) as response:
                    if response.status == 404:
                        raise TranscriptsUnavailable(f"the transcript service at {self.base} is of an earlier version")
                    self._check(response)
                    found |= {
                        one.key.name: one for one in msgspec.json.decode(await response.read(), type=list[RunUsage])
                    }
        except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError) as error:
            raise self._unavailable(error) from None
        return found

    async def _follow_events(self, key: AttemptKey, after: int) -> AsyncGenerator[Line | None]:
        """Yield lines as they come, and None after the last one; no None when the service cuts the stream."""
        query = {"attempt": str(key.attempt), "after": str(after)}
        name = ""
        async with self._request(key.run, "events", query) as response:
            async for raw in split_lines(response):
                field, _, value = raw.partition(b": ")
                if field == b"event":
                    name = value.decode()
                elif field == b"data":
                    yield None if name == "end" else parse_line(json.loads(value))
                elif not field:
                    name = ""

    async def _read_stored(self, key: AttemptKey, after: int) -> AsyncGenerator[Line]:
        query = {"attempt": str(key.attempt), "after": str(after)}
        try:
            async with self._request(key.run, "transcript", query) as response:
                if response.status != 404:
                    async for raw in split_lines(response):
                        yield parse_line(json.loads(raw))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(error) from None

    async def _attempts(self, run: RunKey) -> list[dict[str, Any]]:
        try:
            async with self._request(run, "attempts", {}) as response:
                return [] if response.status == 404 else list(await response.json())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(error) from None

    @asynccontextmanager
    async def _request(self, run: RunKey, what: str, query: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{run_url(self.base, run)}/{what}"
        headers = authorization(self.tokens.mint(run, TOKEN_LIFETIME))
        async with self.http.get(url, params=query, headers=headers) as response:
            self._check(response)
            yield response

    def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status in {401, 403}:
            raise TranscriptsUnavailable(
                f"the transcript service at {self.base} refuses the token: "
                "set AGENT_RUNS_TRANSCRIPTS_KEY_FILE to the key file that it uses"
            )
        if response.status != 404:
            response.raise_for_status()

    def _unavailable(self, error: Exception) -> TranscriptsUnavailable:
        return TranscriptsUnavailable(
            f"the transcript service does not answer at {self.base} (AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL): "
            f"{type(error).__name__}"
        )


async def until_done(done: Callable[[], Awaitable[bool]], source: AsyncGenerator[Item]) -> AsyncGenerator[Item]:
    """Yield from `source` until it ends or, while it is silent, `done` returns True."""
    while True:
        upcoming = asyncio.ensure_future(anext(source))
        try:
            while not (await asyncio.wait([upcoming], timeout=DONE_POLL_INTERVAL.total_seconds()))[0]:
                if await done():
                    return
            yield upcoming.result()
        except StopAsyncIteration:
            return
        finally:
            upcoming.cancel()
            await asyncio.wait([upcoming])


async def split_lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """Split a body into lines of any length, without their LF; an unterminated last line is dropped."""
    pieces: list[bytes] = []
    async for chunk in response.content.iter_any():
        *line_ends, rest = chunk.split(b"\n")
        for line_end in line_ends:
            yield b"".join([*pieces, line_end])
            pieces.clear()
        if rest:
            pieces.append(rest)


def parse_line(fields: dict[str, Any]) -> Line:
    """Decode a line of the service's JSON; the inverse of `agent_runs.web.transcripts.as_json`."""
    data = base64.b64decode(fields["data"]) if fields["encoding"] == "base64" else fields["data"].encode()
    at = datetime.fromisoformat(fields["at"])
    return Line(fields["sequence"], fields["stream"], data, fields["terminated"], at=at)
