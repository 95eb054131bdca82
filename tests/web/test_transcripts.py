"""The transcript service over real HTTP."""

import asyncio
import base64
import itertools
import json
import random
import resource
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from joserfc.jwk import OctKey
from uvicorn.protocols.http import h11_impl
from uvicorn.protocols.http.flow_control import FlowControl

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.tokens import Tokens, authorization
from agent_runs.web import server
from agent_runs.web.access import REVOCATION_MAX_AGE, Access, Revocations
from agent_runs.web.server import serving
from agent_runs.web.transcripts import app, as_json
from tests.support.cases import case
from tests.web.parts import answered

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
POLL = timedelta(milliseconds=20)
RUN = RunKey(agent_id="ada", company_id="", run_id="run-1")
OTHER = RunKey(agent_id="ada", company_id="", run_id="run-2")
TOKENS = Tokens([OctKey.generate_key(256)])
ACCESS = Access(TOKENS)
HEADERS = authorization(TOKENS.mint(RUN))


def key(attempt: int = 1) -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=attempt)


def batch(first: int, last: int, text: bytes = b"line %d") -> list[Line]:
    return [Line(n, "stdout", text % n, at=NOON) for n in range(first, last + 1)]


@dataclass
class Event:
    id: int | None
    name: str
    data: Any


@dataclass
class Service:
    store: TranscriptStore
    http: aiohttp.ClientSession

    def get(self, path: str, **more: Any) -> Any:
        return self.http.get(path, **more)

    async def text(self, path: str, status: int = 200) -> str:
        async with self.get(path) as answer:
            assert answer.status == status, await answer.text()
            return str(await answer.text())


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    async with (
        serving(app(store, ACCESS, poll=POLL, keep_alive=2 * POLL)) as base,
        aiohttp.ClientSession(base, headers=HEADERS) as http,
    ):
        yield Service(store, http)
    await store.close()


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[Event]:
    """A small SSE reader: only the fields the service writes."""
    fields: dict[str, str] = {}
    while raw := await answer.content.readuntil(b"\n"):
        name, _, value = raw.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            sequence = int(fields["id"]) if "id" in fields else None
            yield Event(sequence, fields.get("event", "message"), json.loads(fields["data"]))
        if not name:
            fields = {}


async def test_attempts_are_listed_with_their_receipts(service: Service) -> None:
    await service.store.append(key(1), batch(1, 3))
    receipt = await service.store.seal(key(1), OutputReceipt(state="verified", lines=3))
    await service.store.append(key(2), batch(1, 1))
    assert json.loads(await service.text(f"/runs/{RUN.name}/attempts")) == [
        {"attempt": 1, "last": 3, "receipt": receipt.model_dump(mode="json")},
        {"attempt": 2, "last": 1, "receipt": None},
    ]


async def test_a_transcript_is_served_as_ndjson(service: Service) -> None:
    await service.store.append(
        key(),
        [
            Line(1, "stdout", "grüß\u2028dich \x00".encode(), at=NOON),
            Line(2, "stderr", b"\xff\x00", terminated=False, at=NOON),
        ],
    )
    body = await service.text(f"/runs/{RUN.name}/transcript")
    assert body.isascii()
    assert len(body.splitlines()) == 2
    first, second = map(json.loads, body.splitlines())
    assert first == {
        "sequence": 1,
        "stream": "stdout",
        "at": "2026-01-02T12:00:00.000005+00:00",
        "terminated": True,
        "encoding": "utf-8",
        "data": "grüß\u2028dich \x00",
    }
    assert (second["encoding"], base64.b64decode(second["data"])) == ("base64", b"\xff\x00")
    assert second["terminated"] is False


async def test_a_transcript_continues_after_a_sequence_and_keeps_attempts_apart(service: Service) -> None:
    await service.store.append(key(1), batch(1, 5))
    await service.store.append(key(2), batch(1, 2))

    async def sequences(query: str) -> list[int]:
        body = await service.text(f"/runs/{RUN.name}/transcript{query}")
        return [json.loads(line)["sequence"] for line in body.splitlines()]

    assert await sequences("") == [1, 2, 3, 4, 5]
    assert await sequences("?after=3") == [4, 5]
    assert await sequences("?attempt=2&after=1") == [2]
    assert await sequences("?after=99") == []


async def test_a_transcript_of_many_pages_is_whole(service: Service) -> None:
    written = batch(1, 5000, b"%d " + b"x" * 300)
    written.append(Line(5001, "stdout", b"y" * 5_000_000, at=NOON))
    await service.store.append(key(), written)
    async with service.get(f"/runs/{RUN.name}/transcript") as answer:
        body = await answer.read()
    assert body.decode() == "".join(as_json(line) + "\n" for line in written)


async def test_events_arrive_live_and_end_with_the_receipt(service: Service) -> None:
    await service.store.append(key(), batch(1, 2))
    async with service.get(f"/runs/{RUN.name}/events") as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        stream = events(answer)
        assert [(await anext(stream)).id for _ in range(2)] == [1, 2]
        await service.store.append(key(), batch(3, 3))
        third = await anext(stream)
        assert (third.id, third.data["data"]) == (3, "line 3")
        receipt = await service.store.seal(key(), OutputReceipt(state="verified", lines=3))
        end = await anext(stream)
        assert (end.name, OutputReceipt.model_validate(end.data)) == ("end", receipt)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_events_may_be_awaited_before_the_first_line(service: Service) -> None:
    async with service.get(f"/runs/{RUN.name}/events?attempt=2") as answer:
        await service.store.append(key(2), batch(1, 1))
        assert (await anext(events(answer))).id == 1


async def test_a_silent_stream_sends_keep_alives(service: Service) -> None:
    async with service.get(f"/runs/{RUN.name}/events") as answer:
        assert await answer.content.readuntil(b": alive\n\n")


@pytest.mark.parametrize("seed", [7, 8])
async def test_a_reader_that_is_cut_at_random_50_times_sees_every_line_once(service: Service, seed: int) -> None:
    total = 2400
    chance = random.Random(seed)

    async def write() -> None:
        for first in range(1, total + 1, 20):
            await service.store.append(key(), batch(first, first + 19))
        await service.store.seal(key(), OutputReceipt())

    async def read_some(after: int, most: int) -> AsyncIterator[Event]:
        resumed = {"Last-Event-ID": str(after)} if after else {}
        async with service.get(f"/runs/{RUN.name}/events", headers=resumed) as answer:
            assert answer.status == 200
            found = events(answer)
            for _ in range(most):
                yield await anext(found)

    writing = asyncio.create_task(write())
    seen: list[int] = []
    ended = False
    cuts = 0
    while not ended:
        async for event in read_some(seen[-1] if seen else 0, chance.randint(1, 60)):
            if event.id is None:
                ended = True
                break
            seen.append(event.id)
        cuts += not ended
    await writing
    assert seen == list(range(1, total + 1))
    assert cuts >= 50


async def test_a_reader_that_reconnects_after_the_end_gets_204(service: Service) -> None:
    await service.store.append(key(), batch(1, 2))
    await service.store.seal(key(), OutputReceipt())
    async with service.get(f"/runs/{RUN.name}/events", headers={"Last-Event-ID": "2"}) as answer:
        assert answer.status == 204
    async with service.get(f"/runs/{RUN.name}/events", headers={"Last-Event-ID": "1"}) as answer:
        assert (await anext(events(answer))).id == 2


WITHOUT_A_TOKEN = ["", "Bearer ", "Bearer other", "Basic sesame", "Bearer sésame", "Bearer " + "x" * 5000]
PATHS = ["attempts", "transcript", "events", "log"]


async def test_nobody_reads_without_a_token(service: Service) -> None:
    await service.store.append(key(), batch(1, 1))
    for path, header in itertools.product(PATHS, WITHOUT_A_TOKEN):
        with case(path, header):
            async with service.get(f"/runs/{RUN.name}/{path}", headers={"Authorization": header}) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"] == "Bearer"
                assert "token" in (await answer.json())["detail"]


async def test_a_token_of_another_run_is_refused(service: Service) -> None:
    await service.store.append(key(), batch(1, 1))
    for path in PATHS:
        with case(path):
            async with service.get(f"/runs/{RUN.name}/{path}", headers=authorization(TOKENS.mint(OTHER))) as answer:
                assert answer.status == 403
                assert await answer.json() == {"detail": "this token is for another run"}


async def test_a_token_in_the_address_opens_nothing_but_the_page(service: Service) -> None:
    await service.store.append(key(), batch(1, 1))
    for path in PATHS:
        with case(path):
            query = f"?open={TOKENS.mint(RUN)}"
            async with service.get(f"/runs/{RUN.name}/{path}{query}", headers={"Authorization": ""}) as answer:
                assert answer.status == 401


@pytest.mark.parametrize("path", PATHS)
async def test_a_revoked_token_is_refused_and_a_later_one_opens(service: Service, path: str) -> None:
    await service.store.append(key(), batch(1, 1))
    await service.store.seal(key(), OutputReceipt())
    await service.store.revoke_links(RUN, datetime.now(UTC))
    async with service.get(f"/runs/{RUN.name}/{path}") as answer:
        assert answer.status == 401
        assert await answer.json() == {"detail": "this token was revoked; ask for a new link"}
    later = Tokens(TOKENS.keys, clock=lambda: time.time() + 2)
    async with service.get(f"/runs/{RUN.name}/{path}", headers=authorization(later.mint(RUN))) as answer:
        assert answer.status == 200
    others = authorization(TOKENS.mint(OTHER))
    async with service.get(f"/runs/{OTHER.name}/{path}", headers=others) as answer:
        assert answer.status in {200, 404}


async def test_the_store_is_asked_for_revocations_every_few_seconds_only(tmp_path: Path) -> None:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    now = [0.0]
    revocations = Revocations(store, clock=lambda: now[0])
    grant = TOKENS.open(TOKENS.mint(RUN))
    assert not await revocations.revoked(grant)
    await store.revoke_links(RUN, datetime.now(UTC))
    now[0] += REVOCATION_MAX_AGE.total_seconds() - 0.1
    assert not await revocations.revoked(grant)
    now[0] += 0.2
    assert await revocations.revoked(grant)
    await store.close()


@pytest.mark.parametrize("path", ["events", "log"])
async def test_an_open_stream_ends_when_its_token_is_revoked(tmp_path: Path, path: str) -> None:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    await store.append(key(), batch(1, 1))
    application = app(store, ACCESS, poll=POLL, keep_alive=POLL, revocation_max_age=timedelta(0))
    async with serving(application) as base, aiohttp.ClientSession(base, headers=HEADERS) as http:
        async with http.get(f"/runs/{RUN.name}/{path}") as answer:
            assert await answer.content.readline()
            await store.revoke_links(RUN, datetime.now(UTC))
            await store.append(key(), [Line(2, "stdout", b"secret", at=NOON)])
            async with asyncio.timeout(60):
                rest = await answer.content.read()
        assert b"secret" not in rest
        assert b"event: end" not in rest
    await store.close()


async def test_a_transcript_ends_after_the_requested_number_of_lines(service: Service) -> None:
    await service.store.append(key(), batch(1, 9))
    body = await service.text(f"/runs/{RUN.name}/transcript?after=2&limit=3")
    assert [json.loads(line)["sequence"] for line in body.splitlines()] == [3, 4, 5]


async def test_a_download_has_a_harmless_file_name(service: Service) -> None:
    await service.store.append(key(), batch(1, 1))
    async with service.get(f"/runs/{RUN.name}/transcript") as answer:
        assert answer.headers["Content-Disposition"] == 'attachment; filename="run-1-1.ndjson"'


async def test_the_health_check_needs_no_token(service: Service) -> None:
    async with service.get("/healthz", headers={"Authorization": ""}) as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})


MALFORMED = [
    ("attempt=0", "attempt"),
    ("attempt=one", "attempt"),
    ("attempt=-1", "attempt"),
    ("after=1.5", "after"),
    ("after=-1", "after"),
    ("after=٣", "after"),
    ("after=9223372036854775808", "after"),
    ("after=" + "9" * 5000, "after"),
]


async def test_a_malformed_query_names_its_parameter(service: Service) -> None:
    for path, (query, field) in itertools.product(("transcript", "events"), MALFORMED):
        with case(path, query):
            assert f"{field}: must be a whole number" in await service.text(
                f"/runs/{RUN.name}/{path}?{query}", status=400
            )


@pytest.mark.parametrize("path", ["attempts", "transcript", "transcript?attempt=7"])
async def test_an_unknown_run_or_attempt_is_404(service: Service, path: str) -> None:
    assert "no output is stored yet" in await service.text(f"/runs/{RUN.name}/{path}", status=404)


async def test_an_outage_of_the_store_is_503_and_names_no_address_of_it(tmp_path: Path) -> None:
    class Down(TranscriptStore):
        async def attempts(self, run: RunKey) -> list[int]:
            raise TranscriptsUnavailable(f"postgresql://ada@db.internal/runs: gone while reading {run.run_id}")

    store = await Down.open(f"sqlite:///{tmp_path}/transcripts.db")
    service = app(store, ACCESS)
    async with (
        serving(service) as base,
        aiohttp.ClientSession(base, headers=HEADERS) as http,
        http.get(f"/runs/{RUN.name}/attempts") as answer,
        http.get("/healthz", headers={"Authorization": ""}) as health,
    ):
        assert (answer.status, health.status) == (503, 503)
        assert answer.headers["Retry-After"] == "1"
        for text in (await answer.text(), await health.text()):
            assert "no output is lost, try again" in text
            assert "db.internal" not in text
    await store.close()


async def test_a_stopping_server_closes_its_live_streams(tmp_path: Path) -> None:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    await store.append(key(), batch(1, 1))
    service = app(store, ACCESS, poll=POLL)
    async with aiohttp.ClientSession(headers=HEADERS) as http:
        async with serving(service) as base:
            answer = await http.get(f"{base}/runs/{RUN.name}/events")
            stream = events(answer)
            assert (await anext(stream)).id == 1
        with pytest.raises(StopAsyncIteration):
            await anext(stream)  # the stream ended whole: a cut would be a ClientPayloadError
    await store.close()


async def test_a_stopping_server_ends_its_streams_also_inside_a_long_line(tmp_path: Path) -> None:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    await store.append(key(), [Line(1, "stdout", b"x" * 3_000_000, at=NOON)])
    application = app(store, ACCESS, poll=POLL)
    body = await answered(application, f"/runs/{RUN.name}/events", HEADERS, sent=application.state.draining.set)
    assert 0 < len(body) < 1_000_000
    await store.close()


async def test_a_slow_reader_is_not_read_ahead_of(service: Service) -> None:
    """Only what fits into the socket's buffers is read from the store for a reader that stops reading."""
    await service.store.append(key(), batch(1, 400, b"%d " + b"x" * 100_000))
    asked: list[int] = []
    read = service.store.read

    async def counted(*args: Any, **more: Any) -> list[Line]:
        page = await read(*args, **more)
        asked.append(sum(len(line.data) for line in page))
        return page

    service.store.read = counted  # type: ignore[method-assign]  # a spy on one instance
    async with service.get(f"/runs/{RUN.name}/transcript") as stalled:
        assert stalled.status == 200
        async with service.get(f"/runs/{RUN.name}/transcript") as quick:
            received = len(await quick.read())
        assert received > 40_000_000
    assert max(asked) <= 256 * 1024
    assert sum(asked) < 2 * 400 * 100_000


async def test_a_reader_that_has_stalled_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flows: list[FlowControl] = []

    class Observed(FlowControl):
        def __init__(self, transport: asyncio.Transport) -> None:
            super().__init__(transport)
            flows.append(self)

    monkeypatch.setattr(h11_impl, "FlowControl", Observed)
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    await store.append(key(), [Line(1, "stdout", b"x" * 40_000_000, at=NOON)])  # more than sockets hold
    async with aiohttp.ClientSession(headers=HEADERS) as http:
        async with serving(app(store, ACCESS, poll=POLL), drain=POLL) as base, asyncio.timeout(60):
            stalled = await http.get(f"{base}/runs/{RUN.name}/events")
            looks = 0
            while looks < 50:  # for a second: the sockets take more for a while
                await asyncio.sleep(POLL.total_seconds())
                looks = looks + 1 if any(flow.write_paused for flow in flows) else 0
        with pytest.raises(aiohttp.ClientPayloadError):
            await stalled.read()
    await store.close()


async def test_idle_connections_take_no_descriptors_from_others_and_end(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(server, "FIRST_REQUEST_TIMEOUT", timedelta(seconds=0.2))
    async with serving(app(service.store, ACCESS)) as base, asyncio.timeout(60):
        port = int(base.rpartition(":")[2])
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        idle[0][1].write(b"GET /healthz HTTP/1.1\r\n")  # a request that never gets its end
        ended = await asyncio.gather(*(reader.read() for reader, _ in idle), return_exceptions=True)
        assert all(end == b"" or isinstance(end, ConnectionResetError) for end in ended)
        async with aiohttp.ClientSession() as http, http.get(f"{base}/healthz") as answer:
            assert answer.status == 200
        for _, writer in idle:
            writer.close()


def test_pages_never_take_more_than_a_quarter_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (512, 512))
    assert server.connection_limit() == 128
