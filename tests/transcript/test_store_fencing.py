"""Two copies of `stream_logs` follow one container: the later one continues as if it were alone."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.stream_logs import StreamLogsActivity
from agent_runs.contracts.errors import TranscriptFenced
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import JobRef, PodRef, StreamEnd, StreamLogs
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Job, Pod
from agent_runs.transcript.store import TranscriptStore, Writer
from tests.activities.fake_preparations import FakePreparations
from tests.kube.pods import container, job, pod, terminated
from tests.logs.kubelet import Log, framed
from tests.support.ends import ended

INPUT = StreamLogs(
    attempt=AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=1),
    job=JobRef(namespace="n", name="agent-opencode-x", uid="job-uid"),
    pod=PodRef(namespace="n", name="agent-opencode-x-1", uid="pod-uid"),
)
LINES = [b"%d" % number for number in range(100)]
HALF = 40
SCHEDULED = datetime(2026, 1, 2, 12, tzinfo=UTC)


class OneContainer:
    """A container that writes a part of its output and the rest when released; every follower gets all of it."""

    def __init__(self) -> None:
        totals = {"lines": len(LINES), "bytes": sum(len(line) + 1 for line in LINES)}
        last = json.dumps({"exit_code": 0, "stdout": totals}).encode()
        self._log = Log(framed([("stdout", line + b"\n") for line in LINES], last))
        self.go_on = asyncio.Event()

    @asynccontextmanager
    async def open_log(self, *_: Any, since: datetime | None, **__: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            first = self._log.text(since, HALF)
            yield first
            await self.go_on.wait()
            yield self._log.text(since)[len(first) :]

        yield pieces()

    async def read_pod(self, *_: Any) -> Pod:
        over = self.go_on.is_set()
        return (
            pod(terminated(0, "Completed"), phase="Succeeded") if over else pod(container(running={}), phase="Running")
        )

    def watch_refusal(self, _namespace: str) -> str | None:
        return None

    @asynccontextmanager
    async def watch_pods(self, *_: Any) -> AsyncIterator[AsyncIterator[list[Pod]]]:
        async def states() -> AsyncIterator[list[Pod]]:
            yield [await self.read_pod()]
            await self.go_on.wait()
            yield [await self.read_pod()]

        yield states()

    async def read_job(self, *_: Any) -> Job:
        return job()


def copy(number: int, store: TranscriptStore, kubelet: OneContainer) -> asyncio.Task[StreamEnd]:
    """The activity attempt of this number, as a worker runs it."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, attempt=number, scheduled_time=SCHEDULED)
    cluster = cast("Cluster", kubelet)
    streaming = StreamLogsActivity(cluster, store, Redactions(cluster, FakePreparations()))
    return asyncio.create_task(environment.run(streaming.stream_logs, INPUT))


async def stored(store: TranscriptStore, count: int) -> list[bytes]:
    notifier = store.notifier(INPUT.attempt)
    async with asyncio.timeout(60):
        while True:
            seen = notifier.changes
            lines = [line.data for line in await store.read(INPUT.attempt) if line.stream == "stdout"]
            if len(lines) >= count:
                return lines
            await notifier.wait_for_change(seen, timedelta(seconds=1))


@pytest.fixture
async def elsewhere(store_url: str, any_store: TranscriptStore) -> AsyncIterator[TranscriptStore]:
    """The same store, as another worker has it open."""
    assert any_store is not None
    other = await TranscriptStore.open(store_url)
    yield other
    await other.close()


async def test_an_earlier_copy_stops_and_the_later_one_stores_the_whole_output(
    any_store: TranscriptStore, elsewhere: TranscriptStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubelet = OneContainer()
    first = copy(1, any_store, kubelet)
    await stored(any_store, HALF - 1)
    later = asyncio.Event()
    claim = elsewhere.claim

    async def noted(key: AttemptKey, writer: Writer) -> None:
        await claim(key, writer)
        later.set()

    monkeypatch.setattr(elsewhere, "claim", noted)
    second = copy(2, elsewhere, kubelet)
    await later.wait()
    kubelet.go_on.set()
    with pytest.raises(TranscriptFenced, match="activity attempt 2 of"):
        await first
    end = ended(await second)
    assert await stored(any_store, len(LINES)) == LINES
    assert (end.container.exit_code, end.receipt.lines, end.receipt.gaps) == (0, len(LINES), ())
    assert await any_store.receipt(INPUT.attempt) == end.receipt


async def test_a_copy_that_starts_late_is_stopped_before_it_does_anything(
    any_store: TranscriptStore, elsewhere: TranscriptStore
) -> None:
    kubelet = OneContainer()
    second = copy(2, any_store, kubelet)
    await stored(any_store, HALF - 1)
    with pytest.raises(TranscriptFenced):
        await copy(1, elsewhere, kubelet)
    kubelet.go_on.set()
    assert ended(await second).receipt.lines == len(LINES)
    assert await stored(any_store, len(LINES)) == LINES


async def test_an_attempt_after_the_seal_gets_the_end_and_the_recorded_receipt(any_store: TranscriptStore) -> None:
    kubelet = OneContainer()
    first = copy(1, any_store, kubelet)
    await stored(any_store, HALF - 1)
    first.cancel()
    await asyncio.wait([first])
    early = OutputReceipt(state="unverified", lines=HALF - 1)
    assert await any_store.seal(INPUT.attempt, early, Writer(SCHEDULED, 1, "")) == early
    kubelet.go_on.set()
    end = ended(await copy(2, any_store, kubelet))
    assert (end.container.exit_code, end.receipt) == (0, early)
    assert len(await stored(any_store, 1)) == HALF - 1
