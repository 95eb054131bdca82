"""An operator stops a run, at each of its phases; nothing is held back afterwards."""

import asyncio
from time import monotonic
from typing import Final

from tests.paperclip_server.agents import Plan
from tests.paperclip_server.stage import Act, story
from tests.paperclip_server.system import STEADY, Employee, System, output, texts

ANSWERED: Final = 60.0
"""Seconds after which Paperclip itself gives a cancel up."""


async def stopped(whole: System, ada: Employee, issue: str, run: str, *, ended_before: bool = False) -> None:
    """Cancels the run; the answer comes in time, no hold is laid, and the next comment wakes the agent."""
    office = ada.office
    began = monotonic()
    answer = await office.api.cancel(run)
    took = monotonic() - began
    assert took < ANSWERED
    ended = await office.api.ended(run)
    assert ended["status"] == "cancelled" or (ended_before and ended["status"] == "succeeded"), (answer, ended["error"])
    if ended["status"] == "cancelled":
        assert ended["resultJson"]["executionCancellation"]["state"] == "acknowledged"
    await office.api.until(lambda: nothing_runs(whole, run), f"the pods of {run} to go")
    assert len(whole.witness.jobs(run)) <= 1
    found = await office.api.read_issue(issue)
    assert found.get("executionBlocker") is None, found["executionBlocker"]
    assert found["status"] != "blocked"
    ada.program.change(Plan(lines=2))
    ada.program.release()
    before = len(await office.api.runs(office.company, issue))
    await office.api.comment(issue, "Go on, please.", reopen=True)
    again = await office.api.ended(await office.run(issue, before))
    assert again["status"] == "succeeded", again["error"]


async def nothing_runs(whole: System, run: str) -> bool:
    return not whole.witness.running(run)


@story(Act.TOGETHER)
async def test_a_run_that_waits_for_its_agent_is_cancelled(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Queue", Plan(lines=6, hold=3))
    one = await office.issue(ada.agent, "Holds the agent")
    first = await office.run(one)
    await office.api.logged(first, "line 3")
    other = await office.issue(ada.agent, "Waits")
    second = await office.run(other)
    await office.api.logged(second, '"busy"')
    began = monotonic()
    await office.api.cancel(second)
    assert monotonic() - began < ANSWERED
    assert (await office.api.ended(second))["status"] == "cancelled"
    assert (await office.api.run(first))["status"] == "running"
    assert (await office.api.read_issue(other)).get("executionBlocker") is None
    ada.program.release()
    assert (await office.api.ended(first))["status"] == "succeeded"
    assert [start["run"] for start in ada.program.starts()] == [first]
    assert whole.witness.jobs(second) == set()


@story(Act.TOGETHER)
async def test_a_run_that_is_prepared_is_cancelled(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Prepare", Plan())
    # looks for what earlier runs of this agent left behind take so long
    await whole.witness.order("http", method="GET", path=ada.agent, delay=6.0, times=None)
    issue = await office.issue(ada.agent, "Prepared")
    run = await office.run(issue)
    await office.api.logged(run, '"started"')
    await stopped(whole, ada, issue, run)
    assert ada.program.starts()[0]["run"] != run


@story(Act.TOGETHER)
async def test_a_run_whose_pod_cannot_start_is_cancelled(whole: System) -> None:
    office = await whole.office(STEADY)
    await whole.witness.order("refuse_image", image="registry.example/none:1")
    ada = await office.scripted("Pending", Plan(), image="registry.example/none:1")
    issue = await office.issue(ada.agent, "Pending")
    run = await office.run(issue)
    await whole.witness.pod(run, "Pending")
    began = monotonic()
    await office.api.cancel(run)
    assert monotonic() - began < ANSWERED
    assert (await office.api.ended(run))["status"] == "cancelled"
    assert (await office.api.read_issue(issue)).get("executionBlocker") is None
    await office.api.until(lambda: nothing_runs(whole, run), "the pod to go")
    assert ada.program.starts() == []


@story(Act.TOGETHER)
async def test_a_run_whose_agent_works_is_cancelled(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Works", Plan(lines=10, hold=5))
    issue = await office.issue(ada.agent, "Works")
    run = await office.run(issue)
    await office.api.logged(run, "line 5")
    await stopped(whole, ada, issue, run)
    assert texts(output(await office.api.log(run))) == Plan(lines=5).said
    assert ada.program.starts()[1]["resumed"] == "ses_scripted"


@story(Act.TOGETHER)
async def test_a_run_that_is_just_ending_is_cancelled_or_has_ended(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Ends", Plan(lines=4, hold=4))
    issue = await office.issue(ada.agent, "Ends")
    run = await office.run(issue)
    await office.api.logged(run, "line 4")
    [job] = whole.witness.names(run)
    await whole.witness.order("http", method="DELETE", path=job, delay=5.0, times=None)
    ada.program.release()
    await office.api.logged(run, "step_finish")
    await stopped(whole, ada, issue, run, ended_before=True)


@story(Act.TOGETHER)
async def test_a_comment_that_interrupts_goes_on_in_the_session_with_all_comments(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Interrupt", Plan(lines=10, hold=5))
    issue = await office.issue(ada.agent, "Interrupted")
    first = await office.run(issue)
    await office.api.logged(first, "line 5")
    ada.program.change(Plan(lines=2))
    await office.api.comment(issue, "First of all, think of peonies.")
    await office.api.comment(issue, "Stop: think of dahlias.", interrupt=True)
    assert (await office.api.ended(first))["status"] == "cancelled"
    second = await office.api.ended(await office.run(issue, 1))
    assert second["status"] == "succeeded", second["error"]
    start = ada.program.starts()[1]
    assert start["resumed"] == "ses_scripted"
    assert "peonies" in start["prompt"]
    assert "dahlias" in start["prompt"]


@story(Act.TOGETHER)
async def test_cancels_at_once_are_all_answered(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Twice", Plan(lines=10, hold=5))
    issue = await office.issue(ada.agent, "Twice")
    run = await office.run(issue)
    await office.api.logged(run, "line 5")
    began = monotonic()
    answers = await asyncio.gather(*(office.api.cancel(run) for _ in range(2)), return_exceptions=True)
    assert monotonic() - began < ANSWERED
    assert any(isinstance(answer, dict) for answer in answers), answers
    assert (await office.api.ended(run))["status"] == "cancelled"
    assert (await office.api.read_issue(issue)).get("executionBlocker") is None
