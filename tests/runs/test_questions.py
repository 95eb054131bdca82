"""A person answers what the real OpenCode asks, whatever restarts in the meantime."""

import asyncio
import contextlib
import os
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError

from agent_runs.client.obstacles import open_questions
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.tell import answer, chosen
from agent_runs.contracts.errors import MessageNotDelivered
from agent_runs.contracts.updates import Question
from tests.faults.environment import Server
from tests.pod.driving import bash
from tests.runs.real_opencode import later, open_real_system, opencode_agent, playing, real_system
from tests.runs.system import System
from tests.support.ends import assert_verified

pytestmark = pytest.mark.slow
ANSWERS = int(os.environ.get("TEST_ANSWERS", "6"))
"""In one run, each with something that goes away."""
SECRET = "ghp_0123456789abcdef"
ASKS = {"permission": {"bash": "ask"}}
COLOUR = {"question": "Which bird?", "header": "Bird", "options": [{"label": "Heron", "description": "a grey one"}]}


@pytest.fixture(scope="module")
async def system(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with real_system(temporal, tmp_path_factory.mktemp("asking")) as opened:
        yield opened


@pytest.fixture(params=[1, 2], ids=["OpenCode 1", "OpenCode 2"])
def opencode(request: pytest.FixtureRequest) -> int:
    """The version, its first number."""
    version: int = request.param
    return version


async def asking(system: System, *steps: dict[str, Any], opencode: int = 1, **config: Any) -> dict[str, Any]:
    agent = await opencode_agent(system, "script", opencode, **config)
    agent["config"]["opencode"] = {**agent["config"].get("opencode", {}), **ASKS}
    return playing(agent, *steps)


async def asked(handle: WorkflowHandle[Any, Any], after: Question | None = None) -> Question:
    """What the agent asks, once it is something else than before."""
    async with asyncio.timeout(180):
        while True:
            with contextlib.suppress(RPCError):  # its worker is away
                for question in await open_questions(handle):
                    if after is None or question.id != after.id:
                        return question
            await asyncio.sleep(0.1)


async def said(system: System, raw: dict[str, Any]) -> list[dict[str, Any]]:
    """What was asked and answered, as the transcript has it."""
    kinds = ("question_asked", "question_answered")
    return [event["question"] for event in await system.events(raw) if event["type"] in kinds]


async def test_an_agent_waits_for_a_permission_and_uses_it(system: System, opencode: int) -> None:
    raw = await asking(system, bash("echo heron"), {"text": "Done."}, opencode=opencode)
    ticket = await system.start(raw)
    handle = ticket.handle(system.temporal)
    question = await asked(handle)
    await system.until_obstacle(ticket, "The agent asks: ")
    answers = chosen(question, ["Allow once"])
    await answer(handle, system.wake(raw).start.key, system.sealer, question, answers, "ada")
    outcome = await outcome_at_close(handle)
    assert (outcome.failure, outcome.summary) == (None, "Done.")
    assert_verified(outcome)
    first, second = await said(system, raw)
    assert "echo heron" in first["fields"][0]["text"]
    assert (second["by"], second["answers"]) == ("ada", [["Allow once"]])


async def test_a_run_whose_work_was_refused_does_not_read_as_plain_success(system: System, opencode: int) -> None:
    raw = await asking(system, bash("echo heron"), {"text": "I go on."}, opencode=opencode)
    ticket = await system.start(raw)
    handle = ticket.handle(system.temporal)
    await answer(handle, system.wake(raw).start.key, system.sealer, await asked(handle), (), "ada")
    outcome = await outcome_at_close(handle)
    assert outcome.failure is None
    summary = str(outcome.summary)
    assert summary.startswith("**Not permitted:** `")
    assert ("echo heron" in summary, "rejected by ada" in summary, summary.endswith("I go on.")) == (True, True, True)


async def test_nobody_who_answers_is_named_and_the_agent_goes_on(system: System, opencode: int) -> None:
    raw = await asking(system, bash("echo heron"), {"text": "I go on."}, opencode=opencode, askTimeoutSec=2)
    outcome = await system.outcome(raw)
    assert outcome.failure is None
    assert "rejected by askTimeoutSec: nobody answered within 2 s" in str(outcome.summary)


async def test_a_question_with_own_words_reaches_the_model_and_no_history(system: System, opencode: int) -> None:
    steps = {"tools": [{"name": "question", "args": {"questions": [COLOUR]}}]}, {"text": "Done."}
    raw = await asking(system, *steps, opencode=opencode, dangerouslySkipPermissions=False)
    ticket = await system.start(raw)
    handle = ticket.handle(system.temporal)
    question = await asked(handle)
    assert question.title == "Which bird?"
    answers = chosen(question, ["a stork"])
    await answer(handle, system.wake(raw).start.key, system.sealer, question, answers, "ada")
    outcome = await outcome_at_close(handle)
    assert (outcome.failure, outcome.summary) == (None, "Done.")
    (tool,) = [event for event in await system.events(raw) if event["type"] == "tool_use"]
    assert "a stork" in tool["part"]["state"]["output"]
    assert b"stork" not in await system.history_bytes(ticket)


async def test_an_answer_that_does_not_fit_puts_no_secret_of_the_question_into_a_history(system: System) -> None:
    raw = await asking(system, bash(f"echo {SECRET}"), {"text": "Done."})
    raw["config"]["env"]["GITHUB_TOKEN"] = SECRET
    ticket = await system.start(raw)
    handle = ticket.handle(system.temporal)
    question = await asked(handle)
    assert "echo [[secret:GITHUB_TOKEN]]" in question.title
    key = system.wake(raw).start.key
    for wrong in (("Perhaps",),), (("Allow once",),) * 2, (("Allow once", "Always allow"),):
        with pytest.raises(MessageNotDelivered, match="part"):
            await answer(handle, key, system.sealer, question, wrong, "ada")
    await answer(handle, key, system.sealer, question, (("Allow once",),), "ada")
    assert (await outcome_at_close(handle)).summary == "Done."
    assert SECRET.encode() not in await system.history_bytes(ticket)


async def test_with_nobody_to_ask_a_permission_is_denied_with_a_warning(system: System) -> None:
    raw = await asking(system, bash("echo heron"), {"text": "I go on."}, askTimeoutSec=0)
    outcome = await system.outcome(raw)
    assert (outcome.failure, outcome.summary) == (None, "I go on.")
    assert "`ask` is read as `deny`" in str(outcome.warnings)
    assert await said(system, raw) == []


async def test_an_agent_that_has_rested_asks_in_its_next_run(system: System) -> None:
    first = await asking(system, {"text": "One."}, keepWarmSec=120)
    outcome = await system.outcome(first)
    raw = later(first, outcome, bash("echo heron"), {"text": "Two."})
    ticket = await system.start(raw)
    handle = ticket.handle(system.temporal)
    question = await asked(handle)
    await answer(handle, system.wake(raw).start.key, system.sealer, question, chosen(question, ["1"]), "ada")
    assert (await outcome_at_close(handle)).summary == "Two."


@pytest.mark.timeout(1800)
async def test_answers_are_delivered_once_although_worker_and_temporal_go_away_in_turn(tmp_path: Path) -> None:
    """In turn: a worker is killed once it has the delivery; one is killed before the answer; Temporal is stopped as the
    answer is given."""
    steps = [bash(f"echo {number}") for number in range(ANSWERS)]
    async with Server.open(tmp_path) as server, open_real_system(server.running.client, tmp_path) as system:
        raw = await asking(system, *steps, {"text": "Done."})
        ticket = await system.start(raw)
        handle = ticket.handle(system.temporal)
        key, question = system.wake(raw).start.key, None
        for number in range(ANSWERS):
            async with system.worker_process() as worker:
                question = await asked(handle, after=question)
                if number % 3 == 1:
                    await end(worker)
                chosen_first = chosen(question, ["1"])
                giving = asyncio.create_task(answer(handle, key, system.sealer, question, chosen_first, "ada"))
                if number % 3 == 0:
                    await until_delivering(handle, question)
                    await end(worker)
                elif number % 3 == 2:
                    await server.stop(1, lambda: None)
                    await giving
            if number % 3 != 2:
                async with system.worker_process():
                    await giving
        async with system.worker():
            outcome = await outcome_at_close(handle)
        lines = await said(system, raw)
    assert (outcome.failure, outcome.summary) == (None, "Done.")
    assert_verified(outcome)
    assert [each["id"] for each in lines if "fields" in each] == [each["id"] for each in lines if "by" in each]
    assert len(lines) == 2 * ANSWERS


async def end(worker: Process) -> None:
    worker.kill()
    await worker.wait()


async def until_delivering(handle: WorkflowHandle[Any, Any], question: Question) -> None:
    async for event in handle.fetch_history_events(wait_new_event=True):
        step = event.activity_task_scheduled_event_attributes
        if question.id.encode() in step.input.SerializeToString():
            return
