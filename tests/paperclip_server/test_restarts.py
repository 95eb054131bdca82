"""Paperclip is killed, or restarted, in the middle of runs: each goes on, and its task's next run has all of it."""

import asyncio
import json
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Final

from tests.paperclip_server.agents import Plan
from tests.paperclip_server.stage import Act, story
from tests.paperclip_server.system import MORTAL, Employee, Office, System, output, statuses, texts

RUNS: Final = 5
OLDEST: Final = 9.0
"""Seconds: the age of the oldest run when Paperclip goes."""
LEASE: Final = 62.0
"""Seconds that Paperclip stays away: it then counts its runs as lost while it starts, else after 5 minutes."""
LINES: Final = 60


@dataclass
class Affected:
    """A run that lost its Paperclip."""

    ada: Employee
    issue: str
    run: str
    held: bool
    phase: str = ""

    def __str__(self) -> str:
        return f"run {self.run}, {self.phase} when Paperclip went, {'held' if self.held else 'not held'}"


async def begun(office: Office, random: Random, name: str) -> list[Affected]:
    """Runs of ages drawn by the seed. Some wait in the middle until they are released, some end meanwhile."""
    ages = sorted((random.uniform(0.2, OLDEST) for _ in range(RUNS)), reverse=True)

    async def one(number: int, age: float) -> Affected:
        held = number % 2 == 0
        plan = Plan(lines=LINES, pace=0.1, hold=random.randrange(5, LINES) if held else None)
        ada = await office.scripted(f"{name}{number}", plan)
        await asyncio.sleep(OLDEST - age)
        issue = await office.issue(ada.agent, f"{name} {number}")
        return Affected(ada, issue, await office.run(issue), held)

    return list(await asyncio.gather(*(one(number, age) for number, age in enumerate(ages))))


async def phases(whole: System, affected: list[Affected]) -> None:
    """Where each run stands now, for the messages."""
    for one in affected:
        query = f"PaperclipRunId = '{one.run}'"
        found = [each async for each in whole.stack.client.list_workflows(query)]
        phase = found[0].search_attributes.get("RunPhase") if found else None
        one.phase = str(phase[0]) if phase else "not yet started"


async def joined(whole: System, one: Affected, after: int = 1) -> float:
    """The task's next run has all of it; returns when it had joined, on the monotonic clock."""
    office, api = one.ada.office, one.ada.office.api
    second = await office.run(one.issue, after)
    log = await api.logged(second, '"joined"') if one.phase != "not yet started" else await api.log(second)
    at = monotonic()
    one.ada.program.release()
    ended = await api.ended(second)
    log = await api.log(second)
    assert ended["status"] == "succeeded", (str(one), ended["error"], statuses(log))
    assert texts(output(log))[:LINES] == Plan(lines=LINES).said, str(one)
    holder = one.run if whole.witness.jobs(one.run) else second
    stored = await whole.transcript(holder, one.ada.agent, office.company)
    assert output(log) == [line.data.decode() for line in stored if line.stream == "stdout"], str(one)
    starts = [start for start in one.ada.program.starts() if start["run"] in {one.run, second}]
    assert len(starts) == 1, str(one)
    assert len(whole.witness.jobs(one.run) | whole.witness.jobs(second)) == 1, str(one)
    if one.held:  # it reported after the new run had taken the issue over
        assert "told status: 200" in texts(output(log)), str(one)
        assert (await api.read_issue(one.issue))["status"] == "done", str(one)
    return at


async def lost(office: Office, one: Affected) -> None:
    """Paperclip has given the run up."""
    assert (await office.api.ended(one.run))["status"] in {"failed", "interrupted"}, str(one)


@story(Act.MORTAL)
async def test_runs_outlive_a_killed_paperclip_and_a_comment_joins_them(whole: System) -> None:
    office = await whole.office(MORTAL)
    affected = await begun(office, Random(20260916), "Killed")
    await phases(whole, affected)
    await office.server.kill()
    # from here on runs are reported as what they are, so that the next restart shows the reconciler
    office.server.environment["AGENT_RUNS_REPORT_AS"] = "opencode_k8s"
    await asyncio.sleep(LEASE)
    began = monotonic()
    await office.server.start()
    ready = monotonic()

    async def story_of(one: Affected) -> float:
        await lost(office, one)
        await office.api.comment(one.issue, "What has become of it?")
        return await joined(whole, one)

    times = await asyncio.gather(*(story_of(one) for one in affected))
    whole.figures["SIGKILL, 62 s away: start to ready"] = f"{ready - began:.1f} s"
    whole.figures["SIGKILL: ready to joined, by a comment"] = spread(times, ready)
    whole.figures["SIGKILL: phases"] = ", ".join(one.phase for one in affected)


@story(Act.MORTAL)
async def test_runs_outlive_a_restarted_paperclip_and_are_joined_by_themselves(whole: System) -> None:
    office = await whole.office(MORTAL)
    if "AGENT_RUNS_REPORT_AS" not in office.server.environment:  # this test alone
        office.server.environment["AGENT_RUNS_REPORT_AS"] = "opencode_k8s"
        await office.server.terminate()
        await office.server.start()
    affected = await begun(office, Random(20261122), "Restarted")
    await phases(whole, affected)
    await office.server.terminate()
    began = monotonic()
    await office.server.start()
    ready = monotonic()
    times = await asyncio.gather(*(joined(whole, one) for one in affected))
    whole.figures["SIGTERM: start to ready"] = f"{ready - began:.1f} s"
    whole.figures["SIGTERM: ready to joined, by the reconciler"] = spread(times, ready)
    whole.figures["SIGTERM: phases"] = ", ".join(one.phase for one in affected)


def spread(times: list[float], since: float) -> str:
    after = sorted(time - since for time in times)
    return json.dumps([round(each, 1) for each in after]) + " s"
