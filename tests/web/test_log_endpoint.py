"""The calls of a run's log over real HTTP: each once and in order, however often the connection is cut."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from joserfc.jwk import OctKey

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.tokens import Tokens, authorization
from agent_runs.web.access import Access
from agent_runs.web.log_events import Cursor, LogEvents
from agent_runs.web.paperclip_log import FORMATS, LogFormat, calls
from agent_runs.web.server import serving
from agent_runs.web.transcripts import app

NOON = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
POLL = timedelta(milliseconds=20)
RUN = RunKey(agent_id="ada", company_id="", run_id="run-1")
TOKENS = Tokens([OctKey.generate_key(256)])
INFO = b"timestamp=1 level=INFO run=1"
LONG = json.dumps({"type": "text", "part": {"text": "é漢🦀" * 4000}}).encode()
"""A line of five calls of text."""


def key(attempt: int = 1) -> AttemptKey:
    return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=attempt)


def line(sequence: int, data: bytes, stream: str = "stdout") -> Line:
    return Line(sequence, stream, data, at=NOON)


def text(words: str) -> bytes:
    return json.dumps({"type": "text", "sessionID": "ses_1", "part": {"text": words}}).encode()


@dataclass
class Service:
    store: TranscriptStore
    http: aiohttp.ClientSession

    async def all(self, query: str = "", **headers: str) -> list[dict[str, str]]:
        """Every event until the response ends."""
        async with self.http.get(f"/runs/{RUN.name}/log?{query}", headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            return [event async for event in events(answer)]

    async def status(self, query: str) -> tuple[int, str]:
        async with self.http.get(f"/runs/{RUN.name}/log?{query}") as answer:
            return answer.status, await answer.text() if answer.status != 200 else ""


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    async with (
        serving(app(store, Access(TOKENS), poll=POLL, keep_alive=2 * POLL)) as base,
        aiohttp.ClientSession(base, headers=authorization(TOKENS.mint(RUN))) as http,
    ):
        yield Service(store, http)
    await store.close()


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, str]]:
    """Fields of each event; `id` stays that of the last event that had one, as for an EventSource."""
    fields: dict[str, str] = {}
    last_id = "0"
    while raw := await answer.content.readuntil(b"\n"):
        name, _, value = raw.decode().removesuffix("\n").partition(": ")
        if name:
            fields[name] = value
        elif "data" in fields:
            last_id = fields.get("id", last_id)
            yield {"event": "message", **fields, "id": last_id}
        if not name:
            fields = {}


def data_of(found: list[dict[str, str]]) -> list[Any]:
    return [json.loads(event["data"]) for event in found]


async def test_each_call_is_one_event_and_the_end_carries_the_receipt(service: Service) -> None:
    lines = [line(1, text("a")), line(2, b"oops", "stderr"), line(3, LONG)]
    await service.store.append(key(), lines)
    receipt = await service.store.seal(key(), OutputReceipt(state="verified", lines=3))
    *found, end = await service.all()
    assert [event["id"] for event in found] == ["1.1", "2.1", *(f"3.{part}" for part in range(1, 6))]
    expected = [call._asdict() for each in lines for call in calls(each, "text")]
    expected[0]["session"] = "ses_1"
    assert data_of(found) == expected
    assert (end["event"], OutputReceipt.model_validate_json(end["data"])) == ("end", receipt)


async def test_calls_arrive_as_lines_are_written(service: Service) -> None:
    async with service.http.get(f"/runs/{RUN.name}/log?format=text") as answer:
        assert (answer.headers["X-Accel-Buffering"], answer.headers["Cache-Control"]) == ("no", "no-store")
        stream = events(answer)
        for sequence in (1, 2):
            await service.store.append(key(), [line(sequence, text("a"))])
            assert (await anext(stream))["id"] == f"{sequence}.1"
        await service.store.seal(key(), OutputReceipt())
        assert (await anext(stream))["event"] == "end"


async def test_what_is_stored_ends_although_the_attempt_is_not_sealed(service: Service) -> None:
    assert (await service.status("stored=true"))[0] == 404
    await service.store.append(key(), [line(1, b"a")])
    call, end = await service.all("stored=true")
    assert json.loads(call["data"])["stream"] == "stdout"
    assert (end["event"], end["data"]) == ("end", "null")
    assert [event["event"] for event in await service.all("stored=true&after=1.1")] == ["end"]


async def test_lines_without_a_call_move_the_cursor(service: Service) -> None:
    hidden = [line(n, INFO, "stderr") for n in range(2, 500)]
    await service.store.append(key(), [line(1, text("a")), *hidden])
    await service.store.seal(key(), OutputReceipt())
    found = await service.all("format=text")
    assert [(event["id"], event["data"]) for event in found[:2]] == [
        ("1.1", '{"stream":"stdout","text":"a","session":"ses_1"}'),
        ("499.0", "{}"),
    ]
    assert [event["event"] for event in found] == ["message", "message", "end"]


async def test_the_session_comes_once_also_when_its_event_gives_no_call(service: Service) -> None:
    start = json.dumps({"type": "step_start", "sessionID": "ses_1", "part": {}}).encode()
    await service.store.append(key(), [line(1, start)])
    await service.store.append(key(), [line(2, text("a")), line(3, text("b"))])
    found = data_of(await service.all("format=text&stored=true"))
    assert [event.get("session") for event in found if event] == ["ses_1", None]


MIXED = [
    *(line(n, text(f"{n} ") if n % 2 else INFO, "stdout" if n % 2 else "stderr") for n in range(1, 60)),
    line(60, text("é🦀" * 30_000)),
    line(61, b"\x01" * 40_000),
    *(line(n, INFO, "stderr") for n in range(62, 90)),
    line(90, b"\xff" * 9000, "stderr"),
    line(91, text("line\n" * 900)),
    line(92, LONG),
]


@pytest.mark.parametrize("log_format", FORMATS)
@pytest.mark.parametrize("header", [True, False])
async def test_a_reader_cut_anywhere_gets_every_call_once(
    service: Service, log_format: LogFormat, header: bool
) -> None:
    chance = random.Random(f"{log_format}{header}")

    async def write() -> None:
        for first in range(0, len(MIXED), 5):
            await service.store.append(key(), MIXED[first : first + 5])
            await asyncio.sleep(0.001)
        await service.store.seal(key(), OutputReceipt())

    writing = asyncio.create_task(write())
    seen: list[tuple[str, str]] = []
    after, cuts, ended = "0", 0, False
    while not ended:
        query = f"format={log_format}" + ("" if header else f"&after={after}")
        headers = {"Last-Event-ID": after} if header and after != "0" else {}
        async with service.http.get(f"/runs/{RUN.name}/log?{query}", headers=headers) as answer:
            stream = events(answer)
            for _ in range(chance.randint(1, 8)):
                event = await anext(stream)
                ended = event["event"] == "end"
                if ended:
                    break
                after = event["id"]
                data = json.loads(event["data"])
                seen += [(data["stream"], data["text"])] if "text" in data else []
        cuts += 1
    await writing
    assert seen == [call for each in MIXED for call in calls(each, log_format)]
    assert cuts > 5


async def test_a_whole_line_may_be_the_cursor(service: Service) -> None:
    await service.store.append(key(), [line(1, text("x" * 9000)), line(2, b"b")])
    found = await service.all("stored=true&after=1")
    assert [event["id"] for event in found if event["event"] != "end"] == ["2.1"]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("format=xml", "format: must be one of events, text"),
        ("after=1.x", "after: must be a whole number"),
        ("after=.1", "after: must be a whole number"),
        ("after=1.2.3", "after: must be a whole number"),
        ("attempt=0", "attempt: must be a whole number"),
    ],
)
async def test_a_malformed_query_names_its_parameter(service: Service, query: str, reason: str) -> None:
    status, body = await service.status(query)
    assert (status, reason in body) == (400, True)


def test_the_events_of_many_lines_come_in_small_pieces() -> None:
    pieces = list(LogEvents("text", Cursor(0, 0)).encoded([line(n, LONG) for n in range(1, 60)]))
    assert len(pieces) > 5
    assert max(map(len, pieces)) < 300_000


def test_the_session_comes_with_a_text_also_when_a_line_that_is_not_shown_names_it_first() -> None:
    status = json.dumps({"type": "session_status", "sessionID": "ses_1", "status": "busy"}).encode()
    text = json.dumps({"type": "text", "sessionID": "ses_1", "part": {"type": "text", "text": "Hello."}}).encode()
    log = LogEvents("text", Cursor(0, 0))
    first, second = (b"".join(log.encoded([line(n, data)])) for n, data in enumerate((status, text), 1))
    assert b"ses_1" not in first
    assert b'"session":"ses_1"' in second


@pytest.mark.parametrize("log_format", FORMATS)
def test_the_tool_at_work_is_named_when_it_begins_and_when_it_ends(log_format: LogFormat) -> None:
    begun = b'{"type":"tool_running","part":{"tool":"bash","title":"make\\u001b[31m deploy","input":"{}"}}'
    ended = b'{"type":"tool_use","part":{"tool":"bash","state":{"status":"completed","input":{},"output":"ok"}}}'
    forged = b'{"type":"text","part":{"text":"{\\"type\\":\\"tool_running\\"}"}}'
    broken = b'{"type":"tool_running"'
    page = [line(1, begun), line(2, ended), line(3, forged), line(4, begun, "stderr"), line(5, broken)]
    written = b"".join(LogEvents(log_format, Cursor(0, 0)).encoded(page)).splitlines()
    sent = [json.loads(each.removeprefix(b"data: ")) for each in written if each.startswith(b"data: ")]
    assert [event["tool"] for event in sent if "tool" in event] == ["bash: make deploy", "", ""]
