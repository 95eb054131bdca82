"""The worker is killed and Temporal restarted: runs in Paperclip only pause."""

import asyncio

from tests.paperclip_server.environment import STABLE, Environment, logged, output, texts
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.scripted_agents import Plan

LINES = 120


@scenario(Schedule.EXCLUSIVE)
async def test_runs_continue_after_a_killed_worker_and_a_restarted_temporal(env: Environment) -> None:
    instance = await env.instance(STABLE)
    plan = Plan(lines=LINES, pace=0.1, hold=LINES - 10)
    adas = [await instance.create_scripted_agent(f"Steady{number}", plan) for number in range(3)]
    issues = [await instance.issue(ada.agent, f"Go on, {number}") for number, ada in enumerate(adas)]
    runs = [await instance.run(issue) for issue in issues]
    for run in runs:
        await instance.api.wait_logged(run, "line 5")
    await env.kill_worker()
    await asyncio.sleep(3)
    await env.start_worker()
    await env.restart_temporal(pause=5)
    for ada, issue, run in zip(adas, issues, runs, strict=True):
        ada.program.release()
        ended = await instance.api.wait_ended(run)
        log = await instance.api.log(run)
        assert ended["status"] == "succeeded", (ended["error"], log[-3:])
        assert texts(log)[:LINES] == plan.texts
        stored = await env.transcript(run, ada.agent, instance.company)
        assert output(log) == logged(stored)
        assert len(ada.program.starts()) == 1
        assert len(env.observer.jobs(run)) == 1
        assert [found["id"] for found in await instance.api.runs(instance.company, issue)] == [run]
        assert (await instance.api.read_issue(issue))["status"] == "done"
