"""The store has the usage of an agent at work, and of a finished attempt exactly that of its report."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.parse_transcript import ParseTranscriptActivity
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import Ended, ParseTranscript
from agent_runs.contracts.outcome import ContainerEnd, OutputReceipt
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.logs import usage as recording
from agent_runs.logs.stored_output import StoredOutput
from agent_runs.logs.usage import RECORD_INTERVAL, UsageRecorder
from agent_runs.transcript.store import UNCLAIMED, Line, TranscriptStore
from agent_runs.transcript.usage import StoredUsage
from tests.activities.fake_preparations import FakePreparations
from tests.support.sqlite import sqlite_store

KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=1)
STEP = (
    b'{"type":"step_finish","sessionID":"s","part":{"id":"p%d","reason":"tool-calls","cost":%s,'
    b'"tokens":{"input":100,"output":7,"reasoning":3,"cache":{"read":50,"write":0}}}}'
)
SECRET = b'{"type":"text","sessionID":"s","part":{"messageID":"m","text":"it is ghp_0123456789abcdef"}}'


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def step(number: int, cost: str = "0.125") -> Line:
    return Line(number, "stdout", STEP % (number, cost.encode()), at=datetime.now(UTC))


def test_usage_is_written_once_after_a_change_and_not_more_often_than_the_interval() -> None:
    stored, clock = StoredOutput(), FakeClock()
    usage = UsageRecorder("fake/model", stored, clock)
    assert usage.due() is None
    stored.add([step(1)])
    first = usage.due()
    assert first is not None
    assert (first.input_tokens, first.cached_tokens, first.output_tokens, first.cost_usd) == (
        100,
        50,
        10,
        Decimal("0.125"),
    )
    stored.add([step(2)])
    assert usage.due() is None
    clock.now += RECORD_INTERVAL.total_seconds()
    second = usage.due()
    assert second is not None
    assert (second.steps, second.cost_usd) == (2, Decimal("0.25"))
    clock.now += RECORD_INTERVAL.total_seconds()
    assert usage.due() is None


@pytest.mark.parametrize(("model", "cost"), [("fake/model", None), ("openai/gpt-5.5", Decimal("0.000435"))])
def test_a_cost_of_nothing_is_estimated_by_the_table_or_unknown(model: str, cost: Decimal | None) -> None:
    stored = StoredOutput()
    stored.add([step(1, "0")])
    usage = UsageRecorder(model, stored, FakeClock()).due()
    assert usage is not None
    assert usage.cost_usd == cost


def test_tokens_that_were_written_to_the_cache_count_as_input_as_their_price_does() -> None:
    stored = StoredOutput()
    stored.add([Line(1, "stdout", (STEP % (1, b"0")).replace(b'"write":0', b'"write":900'), at=datetime.now(UTC))])
    usage = UsageRecorder("fake/model", stored, FakeClock()).due()
    assert usage is not None
    assert usage.input_tokens == 1000


class WaitingStore:
    """A store that fails once."""

    def __init__(self) -> None:
        self.received: asyncio.Queue[tuple[Sequence[Line], StoredUsage | None]] = asyncio.Queue()
        self.down = True

    async def append(self, _key: AttemptKey, lines: Sequence[Line], _writer: object, usage: StoredUsage | None) -> int:
        if self.down:
            self.down = False
            raise TranscriptsUnavailable("away")
        self.received.put_nowait((lines, usage))
        return 0


async def test_what_the_last_lines_before_a_silence_changed_is_written_also_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "RECORD_INTERVAL", timedelta(0))
    stored, store = StoredOutput(), WaitingStore()
    stored.add([step(1)])
    async with UsageRecorder("fake/model", stored, FakeClock()).recording(
        cast("TranscriptStore", store), KEY, UNCLAIMED
    ):
        lines, usage = await store.received.get()
    assert usage is not None
    assert (list(lines), usage.steps) == ([], 1)


# the report


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    async with sqlite_store(tmp_path) as opened:
        yield opened


INPUT = ParseTranscript(
    attempt=KEY, end=Ended(container=ContainerEnd(exit_code=0), receipt=OutputReceipt()), model="fake/model"
)


async def test_a_finished_attempt_has_the_usage_of_its_report_without_secrets(store: TranscriptStore) -> None:
    lines = [step(1), step(2), Line(3, "stdout", SECRET, at=datetime.now(UTC))]
    await store.append(KEY, lines)
    parse = ParseTranscriptActivity(store, Redactions(cast("Cluster", None), FakePreparations()))
    report = await ActivityEnvironment().run(parse.parse_transcript, INPUT)
    known = (await store.fleet.usage([KEY.run.name]))[KEY.run.name]
    assert (known.input_tokens, known.cached_tokens, known.output_tokens, known.steps) == (200, 100, 20, 2)
    assert (known.cost_usd, known.model) == (report.cost_usd, "fake/model")
    assert known.last_output == report.last_output == "it is [[secret:GITHUB_TOKEN]]"


async def test_a_store_that_cannot_be_written_holds_up_no_report(store: TranscriptStore) -> None:
    class Full(TranscriptStore):
        async def record_usage(self, key: AttemptKey, usage: StoredUsage) -> None:
            raise TranscriptsUnavailable(f"disk full: {key}, {usage}")

    await store.append(KEY, [step(1)])
    parse = ParseTranscriptActivity(Full(store._database), Redactions(cast("Cluster", None), FakePreparations()))
    assert (await ActivityEnvironment().run(parse.parse_transcript, INPUT)).steps == 1
