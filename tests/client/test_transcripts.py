"""Reading transcripts through the service, over real HTTP that may be cut."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_runs.client import transcripts as remote
from agent_runs.client.links import load_tokens
from agent_runs.client.settings import ClientSettings
from agent_runs.client.transcripts import ServiceTranscripts
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.web.access import Access
from agent_runs.web.server import serving
from agent_runs.web.transcripts import app

KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"))
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
POLL = timedelta(milliseconds=20)


async def never() -> bool:
    return False


async def always() -> bool:
    return True


@pytest.fixture
def settings(tmp_path: Path) -> ClientSettings:
    return ClientSettings(sealing_key_file=tmp_path / "key.json")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    opened = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    yield opened
    await opened.close()


@pytest.fixture
async def reader(store: TranscriptStore, settings: ClientSettings) -> AsyncIterator[ServiceTranscripts]:
    service = app(store, Access(load_tokens(settings)), poll=POLL, keep_alive=POLL)
    async with serving(service, drain=POLL) as base, ServiceTranscripts.at(base, settings) as opened:
        yield opened


def lines(first: int, last: int) -> list[Line]:
    return [Line(n, "stdout", b"line %d" % n, at=NOON) for n in range(first, last + 1)]


async def test_lines_come_through_as_they_were_written(reader: ServiceTranscripts, store: TranscriptStore) -> None:
    written = [
        Line(1, "stdout", "grün\u2028".encode(), at=NOON),
        Line(2, "stderr", b"\xff\x00", terminated=False, at=NOON),
        Line(3, "stdout", b"x" * 3_000_000, at=NOON),
        Line(4, "stdout", b"", at=NOON),
    ]
    await store.append(KEY, written)
    assert [line async for line in reader.follow(KEY, 0, done=always)] == written
    assert [line async for line in reader.follow(KEY, 3, done=always)] == written[3:]
    await store.seal(KEY, OutputReceipt())
    assert [line async for line in reader.follow(KEY, 0, done=never)] == written


async def test_attempts_and_receipts_are_those_of_the_store(reader: ServiceTranscripts, store: TranscriptStore) -> None:
    assert await reader.attempts(RunKey.named("ada~run-1")) == []
    assert await reader.receipt(KEY) is None
    await store.append(KEY, lines(1, 1))
    sealed = await store.seal(KEY, OutputReceipt(state="verified", lines=1))
    assert await reader.attempts(RunKey.named("ada~run-1")) == [1]
    assert await reader.receipt(KEY) == sealed


async def test_a_run_that_ends_without_a_receipt_is_read_to_its_last_line(
    reader: ServiceTranscripts, store: TranscriptStore
) -> None:
    over = False

    async def done() -> bool:
        return over

    await store.append(KEY, lines(1, 2))
    seen = []
    async for line in reader.follow(KEY, 0, done=done):
        seen.append(line)
        over = True
    assert seen == lines(1, 2)


async def test_a_reader_whose_connections_are_cut_50_times_sees_every_line_once(
    store: TranscriptStore, settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy between reader and service that cuts at any byte."""
    monkeypatch.setattr(remote, "RECONNECT_DELAY", timedelta())
    chance = random.Random(5)
    total, cuts = 2000, 0

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, left: int) -> None:
        with suppress(OSError):
            while left > 0 and (data := await source.read(4096)):
                sink.write(data[:left])
                await sink.drain()
                left -= len(data)
        sink.transport.abort()

    async def relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        nonlocal cuts
        cuts += 1
        upstream = await asyncio.open_connection("127.0.0.1", int(base.rsplit(":", 1)[1]))
        amount = chance.randint(1, 12_000) if cuts <= 50 else 2**40
        await asyncio.gather(pump(source, upstream[1], 2**40), pump(upstream[0], sink, amount))

    async def write() -> None:
        for first in range(1, total + 1, 10):
            await store.append(KEY, lines(first, first + 9))
        await store.seal(KEY, OutputReceipt())

    async with serving(app(store, Access(load_tokens(settings)), poll=POLL), drain=POLL) as base:
        proxy = await asyncio.start_server(relay, "127.0.0.1")
        port = proxy.sockets[0].getsockname()[1]
        writing = asyncio.create_task(write())
        async with (
            ServiceTranscripts.at(f"http://127.0.0.1:{port}", settings) as reader,
            aclosing(reader.follow(KEY, 0, done=never)) as opened,
        ):
            seen = [line async for line in opened]
        await writing
        proxy.close()
        await proxy.wait_closed()
    assert seen == lines(1, total)
    assert cuts > 50


async def test_an_unreachable_service_is_named_with_the_setting(settings: ClientSettings) -> None:
    async with ServiceTranscripts.at("http://127.0.0.1:1", settings) as reader:
        with pytest.raises(TranscriptsUnavailable, match="AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL"):
            await reader.attempts(RunKey.named("ada~run-1"))


async def test_another_key_is_named_with_the_setting(store: TranscriptStore, tmp_path: Path) -> None:
    theirs, ours = (ClientSettings(transcripts_key_file=tmp_path / name) for name in ("theirs", "ours"))
    async with serving(app(store, Access(load_tokens(theirs)))) as base, ServiceTranscripts.at(base, ours) as reader:
        with pytest.raises(TranscriptsUnavailable, match="AGENT_RUNS_TRANSCRIPTS_KEY_FILE"):
            await reader.attempts(RunKey.named("ada~run-1"))
