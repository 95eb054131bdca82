"""An operator cancels a run in each of its phases; its task is not held afterwards."""

import asyncio
from time import monotonic
from typing import Final

from tests.paperclip_server.api import ApiError
from tests.paperclip_server.environment import STABLE, Environment, ScriptedAgent, texts
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.scripted_agents import Plan

CONFLICT: Final = 409
ANSWER_LIMIT: Final = 60.0
"""Seconds after which Paperclip itself answers a cancel with an error."""


async def assert_cancelled(
    env: Environment, ada: ScriptedAgent, issue: str, run: str, *, ended_before: bool = False
) -> None:
    """Cancels the run; the answer is in time, the task is not held, and the next comment wakes the agent.

    Args:
        ended_before: the run may succeed before the cancel takes effect. Paperclip refuses one that comes while it
            stores the result: it then asks an operator to look, whatever the plugin has returned, so that only the
            agent's end is checked.
    """
    instance = ada.instance
    began = monotonic()
    refused = False
    try:
        await instance.api.cancel(run)
    except ApiError as refusal:
        refused = refusal.status == CONFLICT
        if not (ended_before and refused):
            raise
    took = monotonic() - began
    assert took < ANSWER_LIMIT
    ended = await instance.api.wait_ended(run)
    assert ended["status"] == "cancelled" or (ended_before and ended["status"] == "succeeded"), ended["error"]
    await instance.api.wait_until(lambda: has_no_running_pod(env, run), f"the pods of {run} to go")
    assert len(env.observer.jobs(run)) <= 1
    if refused:
        return
    if ended["status"] == "cancelled":
        assert ended["resultJson"]["executionCancellation"]["state"] == "acknowledged"
    found = await instance.api.read_issue(issue)
    assert found.get("executionBlocker") is None, found["executionBlocker"]
    assert found["status"] != "blocked"
    ada.program.set_plan(Plan(lines=2))
    ada.program.release()
    before = len(await instance.api.runs(instance.company, issue))
    await instance.api.comment(issue, "Go on, please.", reopen=True)
    next_run = await instance.api.wait_ended(await instance.run(issue, before))
    assert next_run["status"] == "succeeded", next_run["error"]


async def has_no_running_pod(env: Environment, run: str) -> bool:
    return not env.observer.running(run)


@scenario(Schedule.CONCURRENT)
async def test_a_run_that_waits_for_a_busy_agent_can_be_cancelled(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Queue", Plan(lines=6, hold=3))
    one = await instance.issue(ada.agent, "Holds the agent")
    first = await instance.run(one)
    await instance.api.wait_logged(first, "line 3")
    other = await instance.issue(ada.agent, "Waits")
    second = await instance.run(other)
    await instance.api.wait_logged(second, "the agent is held by")
    began = monotonic()
    await instance.api.cancel(second)
    assert monotonic() - began < ANSWER_LIMIT
    assert (await instance.api.wait_ended(second))["status"] == "cancelled"
    assert (await instance.api.run(first))["status"] == "running"
    assert (await instance.api.read_issue(other)).get("executionBlocker") is None
    ada.program.release()
    assert (await instance.api.wait_ended(first))["status"] == "succeeded"
    assert [start["run"] for start in ada.program.starts()] == [first]
    assert env.observer.jobs(second) == set()


@scenario(Schedule.CONCURRENT)
async def test_a_run_that_is_being_prepared_can_be_cancelled(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Prepare", Plan())
    # the cleanup of previous runs of this agent then takes so long
    await env.observer.inject_fault("http", method="GET", path=ada.agent, delay=6.0, times=None)
    issue = await instance.issue(ada.agent, "Prepared")
    run = await instance.run(issue)
    await instance.api.wait_logged(run, f"run {run} started")
    await assert_cancelled(env, ada, issue, run)
    assert ada.program.starts()[0]["run"] != run


@scenario(Schedule.CONCURRENT)
async def test_a_run_whose_pod_cannot_start_can_be_cancelled(env: Environment) -> None:
    instance = await env.instance(STABLE)
    await env.observer.inject_fault("refuse_image", image="registry.example/none:1")
    ada = await instance.create_scripted_agent("Pending", Plan(), image="registry.example/none:1")
    issue = await instance.issue(ada.agent, "Pending")
    run = await instance.run(issue)
    await env.observer.pod(run, "Pending")
    began = monotonic()
    await instance.api.cancel(run)
    assert monotonic() - began < ANSWER_LIMIT
    assert (await instance.api.wait_ended(run))["status"] == "cancelled"
    assert (await instance.api.read_issue(issue)).get("executionBlocker") is None
    await instance.api.wait_until(lambda: has_no_running_pod(env, run), "the pod to go")
    assert ada.program.starts() == []


@scenario(Schedule.CONCURRENT)
async def test_a_run_whose_agent_works_can_be_cancelled(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Works", Plan(lines=10, hold=5))
    issue = await instance.issue(ada.agent, "Works")
    run = await instance.run(issue)
    await instance.api.wait_logged(run, "line 5")
    await assert_cancelled(env, ada, issue, run)
    assert texts(await instance.api.log(run)) == Plan(lines=5).texts
    assert ada.program.starts()[1]["resumed"] == "ses_scripted"


@scenario(Schedule.CONCURRENT)
async def test_a_cancel_at_the_end_of_a_run_gives_a_cancelled_run_or_its_outcome(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Ends", Plan(lines=4, hold=4))
    issue = await instance.issue(ada.agent, "Ends")
    run = await instance.run(issue)
    await instance.api.wait_logged(run, "line 4")
    [job] = env.observer.names(run)
    await env.observer.inject_fault("http", method="DELETE", path=job, delay=5.0, times=None)
    ada.program.release()
    await instance.api.wait_logged(run, "step_finish")
    await assert_cancelled(env, ada, issue, run, ended_before=True)


@scenario(Schedule.CONCURRENT)
async def test_an_interrupting_comment_starts_a_run_in_the_same_session_with_all_comments(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Interrupt", Plan(lines=10, hold=5))
    issue = await instance.issue(ada.agent, "Interrupted")
    first = await instance.run(issue)
    await instance.api.wait_logged(first, "line 5")
    ada.program.set_plan(Plan(lines=2))
    await instance.api.comment(issue, "First of all, think of peonies.")
    await instance.api.comment(issue, "Stop: think of dahlias.", interrupt=True)
    assert (await instance.api.wait_ended(first))["status"] == "cancelled"
    second = await instance.api.wait_ended(await instance.run(issue, 1))
    assert second["status"] == "succeeded", second["error"]
    start = ada.program.starts()[1]
    assert start["resumed"] == "ses_scripted"
    assert "peonies" in start["prompt"]
    assert "dahlias" in start["prompt"]


@scenario(Schedule.CONCURRENT)
async def test_concurrent_cancels_are_answered_in_time(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Twice", Plan(lines=10, hold=5))
    issue = await instance.issue(ada.agent, "Twice")
    run = await instance.run(issue)
    await instance.api.wait_logged(run, "line 5")
    began = monotonic()
    answers = await asyncio.gather(*(instance.api.cancel(run) for _ in range(2)), return_exceptions=True)
    assert monotonic() - began < ANSWER_LIMIT
    assert any(isinstance(answer, dict) for answer in answers), answers
    assert (await instance.api.wait_ended(run))["status"] == "cancelled"
    assert (await instance.api.read_issue(issue)).get("executionBlocker") is None
