"""The first step refuses what the start and the sealed context do not agree on, and what no Job could be made of."""

from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.prepare_run import PrepareRunActivity
from agent_runs.contracts.errors import InvalidRequest, PolicyRefused
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import PrepareRun
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.contracts.request import RunRequest
from agent_runs.contracts.start import HostTexts
from agent_runs.job.checks import Checks
from agent_runs.job.policy import Policy
from agent_runs.paperclip.preparation import Preparation, prepare
from agent_runs.transcript.store import TranscriptStore, Writer
from tests.paperclip.contexts import minimal, with_value
from tests.support.cases import case

RUN = RunKey(agent_id="agent-1", company_id="company-1", run_id="run-1")


class Opened:
    """The prepared wake of a run, opened."""

    def __init__(self, context: dict[str, Any]) -> None:
        self.context = context

    async def current(self) -> Preparation:
        return prepare(self.context)


async def open_run(_run: RunKey, by: str) -> str:
    """Nobody has made the run before."""
    return by


async def prepared(context: dict[str, Any], task: str | None = None) -> RunRequest:
    step = PrepareRunActivity(Opened(context), Checks(), open_run).prepare_run
    request: RunRequest = await ActivityEnvironment().run(step, PrepareRun(run=RUN, task=task))
    return request


async def test_a_start_with_the_ids_and_the_task_of_its_context_is_prepared() -> None:
    context = with_value(minimal(), "context.taskId", "task-1")
    assert (await prepared(context, "task-1")).key == RUN


async def test_a_run_gets_the_operators_budget_where_its_agent_has_none() -> None:
    policy = Policy.parse("max: {steps: 50, tokens: 1000}", "policy.yaml")
    context = with_value(minimal(), "config.maxSteps", 20)
    step = PrepareRunActivity(Opened(context), Checks(policy), open_run).prepare_run
    request = await ActivityEnvironment().run(step, PrepareRun(run=RUN))
    assert (request.config.max_steps, request.config.max_tokens) == (20, 1000)
    too_many = Opened(with_value(minimal(), "config.maxSteps", 51))
    above = PrepareRunActivity(too_many, Checks(policy), open_run).prepare_run
    with pytest.raises(PolicyRefused, match=r"maxSteps: '51' is more than 50, by max\.steps of the operator's policy"):
        await ActivityEnvironment().run(above, PrepareRun(run=RUN))


@pytest.mark.parametrize(
    ("configured", "operators", "cap"),
    [(0, 0, 3), (5, 0, 3), (2, 0, 2), (0, 1, 1), (0, 4, 3)],
    ids=["no other limit", "a larger one", "a smaller one", "the operator's is smaller", "the operator's is larger"],
)
async def test_what_is_left_of_the_agents_budget_in_paperclip_caps_the_cost(
    configured: float, operators: float, cap: float
) -> None:
    policy = Policy.parse(f"max: {{costUsd: {operators}}}", "policy.yaml")
    context = with_value(minimal(maxCostUsd=configured), "agent.budgetMonthlyCents", 500)
    opened = Opened(with_value(context, "agent.spentMonthlyCents", 200))
    step = PrepareRunActivity(opened, Checks(policy), open_run).prepare_run
    request = await ActivityEnvironment().run(step, PrepareRun(run=RUN))
    assert request.config.max_cost_usd == cap


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("runId", "runId"),
        ("agent.id", "agent.id"),
        ("agent.companyId", "agent.companyId"),
        ("context.taskId", "task"),
    ],
)
async def test_a_context_of_other_ids_than_its_start_is_refused_by_the_field(path: str, field: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^invalid_request: {field}: "):
        await prepared(with_value(minimal(), path, "another"))


@pytest.mark.parametrize(
    "host", [HostTexts(pods_address="https://paperclip.example"), HostTexts(address="https://paperclip.example")]
)
async def test_the_address_that_paperclips_own_process_names_is_its_operators_choice(host: HostTexts) -> None:
    class Opened:
        async def current(self) -> Preparation:
            return prepare(minimal(), host)

    step = PrepareRunActivity(Opened(), Checks(), open_run).prepare_run
    request: RunRequest = await ActivityEnvironment().run(step, PrepareRun(run=RUN))
    assert request.config.paperclip_api_url == "https://paperclip.example"
    with pytest.raises(PolicyRefused, match=r"^policy_refused: paperclipApiUrl: "):
        await prepared(with_value(minimal(), "config.paperclipApiUrl", "https://elsewhere.example"))


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("extraArgs", {"extraArgs": ["--format", "default"]}),
        ("cpu", {"resources": {"requests": {"cpu": "8"}, "limits": {"cpu": "1"}}}),
    ],
)
async def test_a_configuration_of_which_no_job_could_be_made_is_refused_before_anything_exists(
    field: str, config: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest, match=field):
        await prepared(minimal(**config))


async def test_an_ended_run_that_is_started_again_never_runs_its_agent_again(tmp_path: Path) -> None:
    closes = AsyncExitStack()
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    closes.push_async_callback(store.close)
    step = PrepareRunActivity(Opened(minimal()), Checks(), store.open_run).prepare_run
    async with closes:
        await run_as(step, "first", RUN)
        await run_as(step, "first", RUN)  # a repeated activity
        for state in ("open", "written", "sealed"):
            with case(state), pytest.raises(InvalidRequest, match="started before, as Temporal's run first"):
                await run_as(step, "second", RUN)
            first = AttemptKey(run=RUN)
            if state == "open":
                await store.claim(first, Writer(datetime.now(UTC), 1, "first"))
            else:
                await store.seal(first, OutputReceipt(), Writer(datetime.now(UTC), 2, "first"))


async def run_as(step: Any, temporal_run: str, run: RunKey) -> None:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, workflow_run_id=temporal_run)
    await environment.run(step, PrepareRun(run=run))
