"""The worker is killed, Temporal is restarted: Paperclip notices nothing but a pause."""

import asyncio

from tests.paperclip_server.agents import Plan
from tests.paperclip_server.stage import Act, story
from tests.paperclip_server.system import STEADY, System, output, texts

LINES = 120


@story(Act.ALONE)
async def test_paperclip_notices_nothing_of_a_killed_worker_and_a_restarted_temporal(whole: System) -> None:
    office = await whole.office(STEADY)
    plan = Plan(lines=LINES, pace=0.1, hold=LINES - 10)
    adas = [await office.scripted(f"Steady{number}", plan) for number in range(3)]
    issues = [await office.issue(ada.agent, f"Go on, {number}") for number, ada in enumerate(adas)]
    runs = [await office.run(issue) for issue in issues]
    for run in runs:
        await office.api.logged(run, "line 5")
    await whole.kill_worker()
    await asyncio.sleep(3)
    await whole.start_worker()
    await whole.restart_temporal(pause=5)
    for ada, issue, run in zip(adas, issues, runs, strict=True):
        ada.program.release()
        ended = await office.api.ended(run)
        log = await office.api.log(run)
        assert ended["status"] == "succeeded", (ended["error"], log[-3:])
        assert texts(output(log))[:LINES] == plan.said
        stored = await whole.transcript(run, ada.agent, office.company)
        assert output(log) == [line.data.decode() for line in stored if line.stream == "stdout"]
        assert len(ada.program.starts()) == 1
        assert len(whole.witness.jobs(run)) == 1
        assert [found["id"] for found in await office.api.runs(office.company, issue)] == [run]
        assert (await office.api.read_issue(issue))["status"] == "done"
