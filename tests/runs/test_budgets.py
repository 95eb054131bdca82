"""A run that uses up its budget is stopped while it works, whoever follows it, and its session is kept."""

import asyncio
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.attach import attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.identity import workflow_id
from agent_runs.contracts.start import Binding, SealedRun
from dev_stack.demo import later_context
from tests.pod.driving import bash, task
from tests.runs.real_opencode import opencode_agent, playing, real_system
from tests.runs.system import System, attempt_key, open_system
from tests.runs.test_warnings import details, header, shown
from tests.transcript.event_lines import step_finish, step_start, text, tool_use


def stepping_agent(system: System, pauses: dict[int, Path], steps: int, *, answers: bool = False) -> dict[str, Any]:
    """An agent that makes so many steps, then answers, or works on without output.

    Args:
        pauses: the files that it waits for, by the number of steps that it has made by then.
    """
    raw = system.agent("")
    folder = Path(raw["config"]["env"]["PATH"].partition(":")[0])
    script = ["cat > /dev/null"]
    for number in range(steps + 1):
        if number in pauses:
            script.append(f"until [ -e {shlex.quote(str(pauses[number]))} ]; do sleep 0.05; done")
        if number == steps:
            break
        lines = [step_start(), tool_use(command=f"make {number}"), step_finish(cost=0.01)]
        (folder / f"step-{number}").write_bytes(b"".join(each + b"\n" for each in lines))
        script.append(f"cat {folder}/step-{number}")
    (folder / "answer").write_bytes(b"".join(each + b"\n" for each in (step_start(), text(), step_finish("stop"))))
    script.append(f"cat {folder}/answer" if answers else "while :; do sleep 0.1; done")
    (folder / "opencode").write_text("#!/bin/sh\n" + "\n".join(script) + "\n")
    return raw


@pytest.mark.slow
async def test_a_killed_worker_changes_nothing_in_what_a_run_may_use(temporal: Client, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with open_system(temporal, tmp_path) as system:
        raw = stepping_agent(system, {3: go}, steps=5)
        raw["config"]["maxSteps"] = 5
        async with system.worker_process() as killed:
            ticket = await system.start(raw)
            await system.until_stored(raw, 9)
            killed.kill()
            await killed.wait()
        go.touch()
        async with system.worker_process():
            outcome = await outcome_at_close(ticket.handle(temporal))
        stdout = await system.stdout(raw)
    assert outcome.error_code == "budget_exceeded"
    assert (outcome.error_message or "").startswith(
        "maxSteps: 5 of 5 steps; used by this run: 5 steps, 500 tokens, $0.0500"
    )
    assert len(stdout) == 15
    assert len(outcome.attempts) == 1
    assert outcome.stop is not None
    assert (outcome.stop.agent_stopped, outcome.stop.killed) == (True, False)


async def test_a_budget_that_is_nearly_used_is_a_warning_wherever_people_look_while_the_agent_works(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    raw = stepping_agent(system, {5: go}, steps=5, answers=True)
    raw["config"]["maxSteps"] = 6
    ticket = await system.start(raw)
    async with asyncio.timeout(60):
        while "maxSteps" not in (current := await details(system, ticket)):  # noqa: ASYNC110  # nobody announces them
            await asyncio.sleep(0.05)
    seen = {
        "current details": current,
        "page": await header(system, attempt_key(raw).run),
        "show": await shown(system, raw["runId"], monkeypatch),
    }
    go.touch()
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    seen["outcome"] = "\n".join(outcome.warnings)
    warning = "maxSteps: 5 of 6 steps; at all of it the agent is stopped"
    assert [place for place, words in seen.items() if words.count(warning) != 1] == []
    assert outcome.failure is None  # the last step was the answer


async def test_what_was_used_and_the_limit_are_named_wherever_people_look(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = stepping_agent(system, {}, steps=3)
    raw["config"] |= {"maxSteps": 3, "maxCostUsd": 0.5}
    ticket = await system.start(raw)
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    seen = {
        "current details": await details(system, ticket),
        "page": await header(system, attempt_key(raw).run),
        "show": await shown(system, raw["runId"], monkeypatch),
        "outcome": outcome.error_message or "",
        "Paperclip": outcome.person_action or "",
    }
    used = "maxSteps: 3 of 3 steps; used by this run: 3 steps, 300 tokens, $0.0300"
    assert [place for place, words in seen.items() if used not in words] == []


async def test_a_run_costs_no_more_than_is_left_of_the_agents_budget_in_paperclip(system: System) -> None:
    raw = stepping_agent(system, {}, steps=3)
    raw["agent"] |= {"budgetMonthlyCents": 503, "spentMonthlyCents": 500}
    outcome = await system.outcome(raw)
    assert outcome.error_code == "paperclip_budget_exceeded"
    assert "the agent's monthly budget in Paperclip is used up: maxCostUsd: $0.0300" in (outcome.error_message or "")


async def test_a_run_without_any_budget_left_in_paperclip_is_refused_before_anything_is_created(system: System) -> None:
    raw = system.agent("echo never")
    wake = system.wake(raw)
    ids = wake.start.key
    used_up = {**raw, "agent": {**raw["agent"], "budgetMonthlyCents": 500, "spentMonthlyCents": 503}}
    binding = Binding(
        purpose="run",
        workflow_id=workflow_id(ids.agent_id),
        company_id=ids.company_id,
        run_id=ids.run_id,
        task=wake.start.task,
    )
    # as the plugin seals it, which judges nothing
    sealed = system.sealer.seal(SealedRun(binding=binding, context=used_up))
    start = replace(wake, start=wake.start.model_copy(update={"sealed": sealed}))
    ticket = await attach(system.temporal, system.settings, start)
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert (outcome.error_code, outcome.never_started) == ("paperclip_budget_exceeded", True)
    assert "the agent has spent $5.03 of $5.00" in (outcome.person_action or "")


# the real OpenCode


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_opencode_that_exceeds_its_steps_is_stopped_and_a_later_run_resumes_its_session(
    temporal: Client, tmp_path: Path
) -> None:
    async with real_system(temporal, tmp_path) as system:
        raw = await opencode_agent(system, "slow-steps:30:1", maxSteps=3)
        outcome = await system.outcome(raw)
        assert outcome.error_code == "budget_exceeded"
        assert (outcome.error_message or "").startswith("maxSteps: 3 of 3 steps; used by this run: 3 steps, 360 tokens")
        assert outcome.result_json["steps"] <= 4
        assert outcome.session_params is not None
        assert outcome.stop is not None
        assert outcome.stop.session_preserved
        following = later_context(raw, outcome.session_params)
        following["config"] = {**raw["config"], "model": "fake/scenario/text", "maxSteps": 3}
        resumed = await system.outcome(following)
    assert resumed.failure is None
    assert resumed.session_id == outcome.session_id


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_opencode_that_repeats_one_call_is_stopped(temporal: Client, tmp_path: Path) -> None:
    async with real_system(temporal, tmp_path) as system:
        raw = await opencode_agent(system, "loop", maxRepeatedCalls=5)
        outcome = await system.outcome(raw)
        stdout = await system.stdout(raw)
    assert outcome.error_code == "budget_exceeded"
    assert "calls of bash in a row with the same input; used by this run: " in (outcome.error_message or "")
    assert sum(b'"tool_use"' in line for line in stdout) >= 5  # how many more depends on the machine's speed


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_what_sub_agents_use_counts_and_a_run_whose_sub_agent_goes_on_for_ever_is_stopped(
    temporal: Client, tmp_path: Path
) -> None:
    used = {"usage": {"prompt": 1000, "completion": 100}}
    steps = [{**bash(f"seq {number}"), **used} for number in range(60)]
    async with real_system(temporal, tmp_path) as system:
        agent = await opencode_agent(system, "script", transport="serve", maxTokens=100_000)
        outcome = await system.outcome(playing(agent, task(*steps[:3]), {"text": "Done."}))
        agent = await opencode_agent(system, "script", transport="serve", maxSteps=4)
        stopped = await system.outcome(playing(agent, task(*steps), {"text": "Never."}))
    assert outcome.failure is None
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (3 * 1000 + 3 * 100, 3 * 100 + 3 * 20)
    assert stopped.error_code == "budget_exceeded"
    assert "of 4 steps; used by this run: " in (stopped.error_message or "")
