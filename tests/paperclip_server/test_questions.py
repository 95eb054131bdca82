"""What an agent asks is on its task in a real Paperclip, and what a person answers there reaches the agent once."""

import asyncio
import json
import os
from functools import partial

from agent_runs.client.outcome import fetch_outcome
from agent_runs.client.tell import answer, chosen
from tests.paperclip_server.api import Object
from tests.paperclip_server.environment import DISRUPTED, STABLE, Environment, Instance, statuses
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.test_restarts import OUTAGE
from tests.pod.driving import bash, script
from tests.runs.test_questions import asked as asked_in_workflow

ASKS = {"opencode": {"permission": {"bash": "ask"}}}
WORK = script(bash("echo heron"), {"text": "All of it is done."})
ALLOWED = {"answers": [{"questionId": "0", "optionIds": ["0"]}]}
ANSWERS = int(os.environ.get("TEST_ANSWERS", "3"))
REJECTED = {"answers": [{"questionId": "0", "optionIds": ["reject"]}]}


async def asked(instance: Instance, issue: str) -> Object:
    """The interaction with which the agent asks, once it is on the task."""

    async def pending() -> Object | None:
        found = await instance.api.get(f"/issues/{issue}/interactions")
        return next((each for each in found if each["status"] == "pending"), None)

    found: Object = await instance.api.wait_until(pending, f"a question on {issue}")
    return found


async def respond(instance: Instance, issue: str, interaction: Object, answer: Object) -> None:
    await instance.api.post(f"/issues/{issue}/interactions/{interaction['id']}/respond", answer)


async def answered(env: Environment, run: str, agent: str, company: str) -> list[Object]:
    """The answers in the transcript."""
    lines = [json.loads(line.data) for line in await env.transcript(run, agent, company) if line.stream == "stdout"]
    return [line["question"] for line in lines if line["type"] == "question_answered"]


async def said(instance: Instance, issue: str, beginning: str) -> None:
    """Returns once a comment begins so: Paperclip makes it a moment after the run's end."""

    async def found() -> bool:
        return any(text.startswith(beginning) for text in await instance.comment_texts(issue))

    await instance.api.wait_until(found, f"the comment {beginning}")


@scenario(Schedule.CONCURRENT)
async def test_a_question_is_answered_on_the_task_and_its_run_goes_on(env: Environment) -> None:
    instance = await env.instance(STABLE)
    agent = await instance.create_opencode_agent("Asking", "script", **ASKS)
    issue = await instance.issue(agent, "Ask me", WORK)
    run = await instance.run(issue, agent=agent)
    interaction = await asked(instance, issue)
    (question,) = interaction["payload"]["questions"]
    assert "echo heron" in question["prompt"]
    assert [option["label"] for option in question["options"]] == ["Allow once", "Always allow", "Do not permit"]
    log = await instance.api.wait_logged(run, "the agent asks: ")
    assert any("answer on the task" in status for status in statuses(log))
    await respond(instance, issue, interaction, ALLOWED)
    ended = await instance.api.wait_ended(run)
    assert ended["status"] == "succeeded", ended["error"]
    await said(instance, issue, "All of it is done.")
    (answer,) = await answered(env, run, agent, instance.company)
    assert (answer["answers"], answer["by"].endswith(" in Paperclip")) == ([["Allow once"]], True)
    assert len(env.observer.jobs(run)) == 1


@scenario(Schedule.CONCURRENT)
async def test_work_that_a_person_refuses_reads_so_on_the_task(env: Environment) -> None:
    instance = await env.instance(STABLE)
    agent = await instance.create_opencode_agent("Refused", "script", **ASKS)
    issue = await instance.issue(agent, "Refuse me", WORK)
    run = await instance.run(issue, agent=agent)
    await respond(instance, issue, await asked(instance, issue), REJECTED)
    ended = await instance.api.wait_ended(run)
    assert ended["status"] == "succeeded", ended["error"]
    await said(instance, issue, "**Not permitted:**")


@scenario(Schedule.CONCURRENT)
async def test_of_two_questions_at_once_each_is_answered_on_the_task(env: Environment) -> None:
    instance = await env.instance(STABLE)
    agent = await instance.create_opencode_agent("Both", "script", **ASKS)
    both = {"tools": [*bash("echo heron")["tools"], *bash("echo stork")["tools"]]}
    issue = await instance.issue(agent, "Ask me twice", script(both, {"text": "All of it is done."}))
    run = await instance.run(issue, agent=agent)
    for _ in range(2):
        await respond(instance, issue, await asked(instance, issue), ALLOWED)
    ended = await instance.api.wait_ended(run)
    assert ended["status"] == "succeeded", ended["error"]
    assert len(await answered(env, run, agent, instance.company)) == 2
    found = await instance.api.get(f"/issues/{issue}/interactions")
    assert [each["status"] for each in found] == ["answered"] * 2


@scenario(Schedule.CONCURRENT)
async def test_a_question_leaves_the_task_with_its_run(env: Environment) -> None:
    instance = await env.instance(STABLE)
    agent = await instance.create_opencode_agent("Cancelled", "script", **ASKS)
    issue = await instance.issue(agent, "Cancel me", WORK)
    run = await instance.run(issue, agent=agent)
    interaction = await asked(instance, issue)
    await instance.api.cancel(run)
    assert (await instance.api.wait_ended(run))["status"] == "cancelled"

    async def withdrawn() -> bool:
        found = await instance.api.get(f"/issues/{issue}/interactions")
        return all(each["status"] != "pending" for each in found if each["id"] == interaction["id"])

    await instance.api.wait_until(withdrawn, "the question to leave the task")


@scenario(Schedule.DISRUPTING)
async def test_an_answer_reaches_the_agent_once_although_paperclip_was_killed_after_it(env: Environment) -> None:
    instance = await env.instance(DISRUPTED)
    agent = await instance.create_opencode_agent("Killed", "script", **ASKS)
    issue = await instance.issue(agent, "Kill Paperclip", WORK)
    run = await instance.run(issue, agent=agent)
    interaction = await asked(instance, issue)
    await respond(instance, issue, interaction, ALLOWED)
    await instance.server.kill()
    await asyncio.sleep(OUTAGE)
    await instance.server.start()
    assert (await instance.api.wait_ended(run))["errorCode"] == "process_lost"
    await instance.api.comment(issue, "Please continue.")
    await instance.api.wait_until(lambda: answered(env, run, agent, instance.company), "the answer in the transcript")
    assert len(env.observer.jobs(run)) == 1
    await asyncio.gather(
        *[instance.api.wait_ended(each["id"]) for each in await instance.api.runs(instance.company, issue, agent)]
    )
    found = await instance.api.get(f"/issues/{issue}/interactions")
    assert [each["status"] for each in found if each["id"] == interaction["id"]] == ["answered"]
    assert [answer["answers"] for answer in await answered(env, run, agent, instance.company)] == [[["Allow once"]]]


@scenario(Schedule.EXCLUSIVE)
async def test_answers_are_delivered_once_although_worker_temporal_and_paperclip_are_away_in_turn(
    env: Environment,
) -> None:
    instance = await env.instance(DISRUPTED)
    agent = await instance.create_opencode_agent("Outlasting", "script", **ASKS)
    work = script(*(bash(f"echo {number}") for number in range(ANSWERS)), {"text": "All of it is done."})
    issue = await instance.issue(agent, "Outlast all of us", work)
    run = await instance.run(issue, agent=agent)
    handle, key, sealer = env.run_of(instance, agent, run)
    question = None
    for number in range(ANSWERS):
        question = await asked_in_workflow(handle, after=question)
        chosen_first = chosen(question, ["1"])
        giving = partial(answer, handle, key, sealer, question, chosen_first, "ada")
        match number % 3:
            case 0:
                await env.kill_worker()
                given = asyncio.create_task(giving())
                await env.start_worker()
                await given
            case 1:
                restarting = asyncio.create_task(env.restart_temporal(2))
                await giving()
                await restarting
            case _:
                await instance.server.kill()
                await giving()
                await instance.server.start()
    outcome = await fetch_outcome(handle, collect=True)
    answers = [(each["answers"], each["by"]) for each in await answered(env, run, agent, instance.company)]
    assert (outcome.summary, answers) == ("All of it is done.", [([["Allow once"]], "ada")] * ANSWERS)
    assert len(env.observer.jobs(run)) == 1
