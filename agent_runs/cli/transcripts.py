"""What commands read of runs' output: from the transcript service where its URL is set, else from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from agent_runs.cli.lazy import lazy
from agent_runs.cli.program import Refused
from agent_runs.client.explanation import StoredLines
from agent_runs.client.runs import check_unambiguous
from agent_runs.client.settings import DEFAULT_STORE, ClientSettings
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey

if TYPE_CHECKING:
    from agent_runs.client import transcripts as remote
    from agent_runs.transcript import database
    from agent_runs.transcript import follow as transcript_follow
    from agent_runs.transcript import store as storage
    from agent_runs.transcript.lines import Line
    from agent_runs.transcript.usage import RunUsage

    Transcripts = storage.TranscriptStore | remote.ServiceTranscripts
else:  # SQLAlchemy: a second that commands without output do without
    storage, remote = lazy("agent_runs.transcript.store"), lazy("agent_runs.client.transcripts")
    database, transcript_follow = map(lazy, ("agent_runs.transcript.database", "agent_runs.transcript.follow"))

OUTPUT_POLL_INTERVAL: Final = timedelta(milliseconds=200)
"""Between queries for new lines of another process."""
STORE_TIMEOUT: Final = timedelta(seconds=5)
"""What is also shown without the store waits no longer for it."""
TAIL: Final = 200
"""Lines of the newest attempt that are looked through for the agent's own log."""

Item = TypeVar("Item")


@asynccontextmanager
async def open_transcripts(settings: ClientSettings) -> AsyncIterator[Transcripts]:
    """Open the transcript service if AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL is set, else the store.

    Raises:
        Refused: the store's URL is unusable, or nothing says where transcripts are.
        UnusableKey: there is no key for the service's tokens.
        TranscriptsUnavailable: it does not answer.
    """
    if settings.transcripts_public_url is not None:
        async with remote.ServiceTranscripts.at(settings.transcripts_public_url, settings) as service:
            yield service
        return
    check_store(settings)
    async with open_store(settings) as store:
        yield store


@asynccontextmanager
async def open_store(settings: ClientSettings) -> AsyncIterator[storage.TranscriptStore]:
    """Open the store, and create one in a file that does not exist.

    Raises:
        Refused: its URL is unusable.
        TranscriptsUnavailable: it does not answer.
    """
    connections = settings.transcripts_connections
    try:
        store = await storage.TranscriptStore.open(settings.transcripts, connections=connections)
    except ValueError as error:
        raise Refused(f"AGENT_RUNS_TRANSCRIPTS_URL: {error}") from None
    try:
        yield store
    finally:
        await store.close()


def check_store(settings: ClientSettings) -> None:
    """Refuse a store in a file that does not exist: reading must not create it.

    Raises:
        Refused: there is no such file, and no transcript service is named.
    """
    if settings.transcripts_public_url is not None or (file := _missing_file(settings)) is None:
        return
    raise Refused(
        f"there is no transcript store {file}: set AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL to the URL of the transcript "
        "service and AGENT_RUNS_TRANSCRIPTS_KEY_FILE to its key, or AGENT_RUNS_TRANSCRIPTS_URL to the worker's store",
        code=1,
    )


def _missing_file(settings: ClientSettings) -> Path | None:
    if settings.transcripts_url is None:
        default = settings.sealing_key_file.with_name(DEFAULT_STORE)
        return None if default.exists() else default
    try:
        url = database.parse_url(settings.transcripts)
    except ValueError:
        return None  # opening it names the fault
    file = Path(url.database or "") if url.get_backend_name() == "sqlite" else None
    return file if file is not None and not file.exists() else None


async def read_in_time(
    settings: ClientSettings, read: Callable[[Transcripts], Awaitable[Item]], missing: str
) -> tuple[Item | None, str]:
    """What `read` returns of the transcripts, and an empty note.

    Where they are not found, or do not answer within `STORE_TIMEOUT`: None, and a note with `missing` and the reason.

    Raises:
        UnusableKey: there is no key for the service's tokens.
    """

    async def opened() -> Item:
        async with open_transcripts(settings) as transcripts:
            return await read(transcripts)

    reading = asyncio.create_task(opened())
    reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved, also after the wait
    await asyncio.wait([reading], timeout=STORE_TIMEOUT.total_seconds())
    if not reading.done():  # not cancelled: closing a store waits for the connection that is being made
        return None, f"{missing}: the transcript store did not answer within {STORE_TIMEOUT.total_seconds():g} s"
    try:
        return reading.result(), ""
    except TranscriptsUnavailable as error:
        return None, f"{missing}: {error.message}"
    except Refused as error:
        return None, f"{missing}: {error}"


async def usage_of(transcripts: Transcripts, runs: Sequence[str]) -> Mapping[str, RunUsage]:
    """The usage of those of the runs with these names that the store knows.

    Raises:
        TranscriptsUnavailable: the store does not answer.
    """
    if isinstance(transcripts, remote.ServiceTranscripts):
        return await transcripts.usage(runs)
    return await transcripts.fleet.usage(runs)


async def stored_run(transcripts: Transcripts, name: str) -> RunKey | None:
    """The run with this id or this `RunKey.name` that the store has output of.

    Raises:
        UnknownRun: runs of several agents have this id.
    """
    wanted = RunKey.named(name)
    if not wanted.agent_id:
        found = [each.key for each in (await usage_of(transcripts, [name])).values()]
        check_unambiguous(name, found)
        wanted = found[0] if found else wanted
    return wanted if await transcripts.attempts(wanted) else None


@dataclass(frozen=True)
class RunOutput:
    """The lines of a run, attempt by attempt. `ended` returns whether the run has ended."""

    store: Transcripts
    run: RunKey
    ended: Callable[[], bool]

    async def lines(self, after: int = 0) -> AsyncGenerator[tuple[int, Line]]:
        """Yield all lines in order with their attempt, from the first attempt's `after` on, until the run has ended."""
        attempt = 1
        while True:
            async with aclosing(self.attempt(attempt, after)) as lines:
                async for line in lines:
                    yield attempt, line
            if self.ended() and attempt >= await self._newest():
                return
            attempt, after = attempt + 1, 0

    def attempt(self, number: int, after: int = 0) -> AsyncGenerator[Line]:
        """The lines of one attempt, until nothing more will be written."""
        key, done = AttemptKey(run=self.run, attempt=number), partial(self._complete, number)
        if isinstance(self.store, remote.ServiceTranscripts):
            return self.store.follow(key, after, done=done)
        return transcript_follow.follow(self.store, key, after, done=done, poll=OUTPUT_POLL_INTERVAL)

    async def _complete(self, attempt: int) -> bool:
        """Whether nothing more will be written: the run has ended, or the attempt has a receipt or a successor."""
        if self.ended():
            return True
        receipt = await self.store.receipt(AttemptKey(run=self.run, attempt=attempt))
        return receipt is not None or await self._newest() > attempt

    async def _newest(self) -> int:
        return max(await self.store.attempts(self.run), default=0)


async def stored_output(transcripts: Transcripts, run: RunKey) -> StoredLines:
    """What an explanation of the run's outcome needs of its output.

    Raises:
        TranscriptsUnavailable: the store does not answer.
    """
    attempts = await transcripts.attempts(run)
    last = {number: await transcripts.last(AttemptKey(run=run, attempt=number)) or 0 for number in attempts}
    if not last:
        return StoredLines()
    newest = max(last)
    tail = RunOutput(transcripts, run, ended=lambda: True).attempt(newest, max(last[newest] - TAIL, 0))
    async with aclosing(tail) as lines:
        return StoredLines(last, [line async for line in lines])
