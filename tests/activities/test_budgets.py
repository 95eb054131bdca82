"""The budget of a run is watched while its output is followed, across attempts and killed workers."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities.stream_logs import StreamLogsActivity
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import Budget, OverBudget, StreamEnd, StreamLogs
from agent_runs.contracts.updates import BUDGET_WARNING, BudgetWarning
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.transcript.store import Line, TranscriptStore
from tests.activities.fake_preparations import FakePreparations
from tests.kube.pods import pod, terminated
from tests.logs.kubelet import Log, checksum, framed
from tests.logs.live_log import LiveLog
from tests.logs.scripted_log import JOB, POD, SIDECAR_RUNS, ScriptedLog
from tests.support.ends import ended, over_budget
from tests.support.sqlite import sqlite_store
from tests.transcript.event_lines import step_finish, step_start, tool_use


@pytest.fixture(scope="module")
async def store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TranscriptStore]:
    async with sqlite_store(tmp_path_factory.mktemp("budgets")) as opened:
        yield opened


@dataclass
class FakeRun:
    """Takes the signals to the run; `away`: how many it does not take first."""

    away: int = 0
    warnings: list[BudgetWarning] = field(default_factory=list)

    def get_workflow_handle(self, _workflow_id: str, *, run_id: str | None) -> "FakeRun":
        assert run_id == ActivityEnvironment().info.workflow_run_id
        return self

    async def signal(self, name: str, warning: BudgetWarning, *, rpc_timeout: timedelta) -> None:
        assert (name, rpc_timeout) == (BUDGET_WARNING, timedelta(seconds=5))
        if self.away:
            self.away -= 1
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        self.warnings.append(warning)


@dataclass
class Workers:
    """Follows the attempts of one run as the workflow asks for it. A worker that is killed is replaced."""

    store: TranscriptStore
    run_id: str
    budget: Budget
    log: LiveLog = field(default_factory=LiveLog)
    attempt: int = 1
    run: FakeRun = field(default_factory=FakeRun)
    activity_attempt: int = 0

    @property
    def key(self) -> AttemptKey:
        return AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id=self.run_id), attempt=self.attempt)

    async def follow(self) -> OverBudget:
        """Follow until the agent is to be stopped."""
        return over_budget(await self._stream())

    async def _stream(self) -> StreamEnd:
        cluster = cast("Cluster", self.log)
        streaming = StreamLogsActivity(cluster, self.store, Redactions(cluster, FakePreparations()))
        environment = ActivityEnvironment(client=cast("Client", self.run))
        self.activity_attempt += 1
        environment.info = replace(environment.info, attempt=self.activity_attempt)
        input = StreamLogs(attempt=self.key, job=JOB, pod=POD, budget=self.budget)
        return await environment.run(streaming.stream_logs, input)

    async def until_stored(self, sequence: int) -> None:
        notifier = self.store.notifier(self.key)
        while True:
            seen = notifier.changes
            if (await self.store.last(self.key) or 0) >= sequence:
                return
            await notifier.wait_for_change(seen, timedelta(seconds=5))


@dataclass
class ScriptedRun:
    """A run by its seed: what each step uses, when its worker is killed, when its pod is lost.

    A step of the model takes longer than the delivery of a line: the agent goes on once its last line is stored.
    """

    seed: int
    store: TranscriptStore
    steps: int = 0
    used: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.kind = self.random.choice(["max_steps", "max_tokens", "max_cost_usd", "max_repeated_calls"])
        self.limit: float = self.random.randint(2, 9)
        if self.kind == "max_tokens":
            self.limit *= 500
        elif self.kind == "max_cost_usd":
            self.limit = self.limit / 10
        budget = Budget.model_validate({"model": "fake/scenario/script", self.kind: self.limit})
        self.workers = Workers(self.store, f"seed-{self.seed}", budget)
        self.repeats_from = self.random.randint(0, 5)

    async def play(self) -> tuple[OverBudget, int]:
        """How the stream ended, and how many steps the agent has begun after the one that reached the limit."""
        following = asyncio.create_task(self.workers.follow())
        while not following.done():
            if self.random.random() < 0.15:
                following = await self._killed(following)
            if self.kind != "max_repeated_calls" and self.random.random() < 0.1:
                following = await self._lost(following)
            await self._step(following)
        return following.result(), self.steps - self.reached_at

    @property
    def reached_at(self) -> int:
        """The first step by which the limit was reached."""
        return next(number for number, used in enumerate(self.used, 1) if used >= self.limit - 1e-9)

    async def _killed(self, following: "asyncio.Task[OverBudget]") -> "asyncio.Task[OverBudget]":
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
            return following  # it had just returned
        return asyncio.create_task(self.workers.follow())

    async def _lost(self, following: "asyncio.Task[OverBudget]") -> "asyncio.Task[OverBudget]":
        """The pod is lost; another attempt continues."""
        following = await self._killed(following)
        if following.done():
            return following
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        self.workers.attempt += 1
        self.workers.log = LiveLog()
        return asyncio.create_task(self.workers.follow())

    async def _step(self, following: "asyncio.Task[OverBudget]") -> None:
        tokens, cost = self.random.randint(1, 900), self.random.randint(0, 300) / 1000
        repeated = self.steps >= self.repeats_from
        call = tool_use("bash", command="make" if repeated else f"make {self.steps}")
        self.steps += 1
        before = self.used[-1] if self.used else 0.0
        used = {"max_steps": 1, "max_tokens": tokens, "max_cost_usd": cost, "max_repeated_calls": float(repeated)}
        self.used.append(before + used[self.kind])
        if await self._write(following, step_start(), call):
            await self._write(following, step_finish(tokens=tokens, cost=cost))

    async def _write(self, following: "asyncio.Task[OverBudget]", *lines: bytes) -> bool:
        """Writes, and works until that is stored; False if it was stopped by then."""
        if following.done():
            return False
        stored = asyncio.create_task(self.workers.until_stored(await self.workers.log.write(*lines)))
        await asyncio.wait([stored, following], return_when=asyncio.FIRST_COMPLETED)
        if stored.done():
            stored.result()
        stored.cancel()
        return not following.done()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "seeds", [pytest.param(range(10), id="10"), pytest.param(range(10, 100), id="90", marks=pytest.mark.slow)]
)
async def test_100_scripted_runs_exceed_their_budget_by_one_step_at_most(seeds: range, store: TranscriptStore) -> None:
    overshoots, attempts, kinds = [], [], set()
    for seed in seeds:
        run = ScriptedRun(seed, store)
        end, overshoot = await run.play()
        assert end.exceeded.code == "budget_exceeded"
        assert run.used[-1] >= run.limit - 1e-9, seed
        overshoots.append(overshoot)
        attempts.append(run.workers.attempt)
        kinds.add(run.kind)
    assert max(overshoots) <= 1
    assert len(kinds) == 4
    assert max(attempts) > 2


async def stored(store: TranscriptStore, key: AttemptKey, *lines: bytes) -> None:
    at = datetime.now(UTC)
    await store.append(key, [Line(number, "stdout", each, at=at) for number, each in enumerate(lines, 2)])


def steps(count: int) -> list[bytes]:
    return [each for number in range(count) for each in (step_start(), tool_use(n=number), step_finish())]


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_worker_that_was_killed_after_the_limit_was_reached_is_replaced_by_one_that_says_so(
    attempt: int, store: TranscriptStore
) -> None:
    workers = Workers(store, f"killed-{attempt}", Budget(max_steps=5))
    await stored(store, workers.key, *steps(5 - (attempt - 1)))
    if attempt == 2:
        workers.attempt = 2
        await stored(store, workers.key, *steps(1))
    async with asyncio.timeout(60):
        first, repeated = await workers.follow(), await workers.follow()
    assert first == repeated
    assert first.exceeded.message.startswith("maxSteps: 5 of 5 steps; used by this run: 5 steps, 500 tokens")
    assert first.exceeded.budget == "agent"  # no attempt follows


@pytest.mark.parametrize("away", [0, 1])
async def test_people_are_warned_once_as_soon_as_temporal_takes_it(away: int, store: TranscriptStore) -> None:
    workers = Workers(store, f"warned-{away}", Budget(max_steps=10), run=FakeRun(away=away))
    await stored(store, workers.key, *steps(8))
    following = asyncio.create_task(workers.follow())
    for count in (8, 1):
        await workers.until_stored(await workers.log.write(*steps(count)))
    await workers.log.write(*steps(1))
    assert (await following).exceeded.message.startswith("maxSteps: 10 of 10 steps")
    known = 8 + away
    text = f"maxSteps: {known} of 10 steps; at all of it the agent is stopped"
    assert workers.run.warnings == [BudgetWarning(limit="maxSteps", text=text)]


async def test_an_agent_that_has_ended_by_itself_is_not_stopped(store: TranscriptStore) -> None:
    output = b"".join(each + b"\n" for each in [*steps(5), step_start()])
    totals = {"lines": output.count(b"\n"), "bytes": len(output), "checksum": checksum(output)}
    last = json.dumps({"exit_code": 1, "stdout": totals}).encode()
    state = pod(SIDECAR_RUNS, terminated(1), phase="Running")
    log = ScriptedLog(Log(framed([("stdout", output)], last)), [(None, None)], [state])
    log.watched = [[state]]
    key = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="ended"), attempt=1)
    cluster = cast("Cluster", log)
    streaming = StreamLogsActivity(cluster, store, Redactions(cluster, FakePreparations()))
    input = StreamLogs(attempt=key, job=JOB, pod=POD, budget=Budget(max_steps=5))
    end = await ActivityEnvironment().run(streaming.stream_logs, input)
    assert ended(end).container.exit_code == 1


async def test_a_secret_in_the_name_of_a_tool_is_hidden(store: TranscriptStore) -> None:
    workers = Workers(store, "secret", Budget(max_repeated_calls=2))
    call = tool_use("ghp_0123456789abcdef", command="make")
    await stored(store, workers.key, call, call.replace(b"call_", b"again_"))
    end = await workers.follow()
    assert "ghp_" not in end.model_dump_json()
    assert "secret:GITHUB_TOKEN" in end.model_dump_json()
