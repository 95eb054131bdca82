"""Paperclip is killed, or restarted, in the middle of runs: each goes on, and its task's next run has all of it."""

import asyncio
import json
from dataclasses import dataclass, replace
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


async def begun(
    whole: System, office: Office, random: Random, name: str, count: int = RUNS, tells: dict[str, str] | None = None
) -> list[Affected]:
    """Runs of ages drawn by the seed, the youngest just started. Some wait in the middle until they are released."""
    ages = [0.0, *(random.uniform(0.5, OLDEST) for _ in range(count - 1))]

    async def one(number: int, age: float) -> Affected:
        held = number % 2 == 0
        plan = Plan(lines=LINES, pace=0.1, hold=random.randrange(5, LINES) if held else None)
        plan = plan if tells is None else replace(plan, tells=tells)
        ada = await office.scripted(f"{name}{number}", plan)
        await asyncio.sleep(OLDEST - age)
        issue = await office.issue(ada.agent, f"{name} {number}")
        made = Affected(ada, issue, await office.run(issue), held)
        await office.api.logged(made.run, '"started"')
        return made

    affected = list(await asyncio.gather(*(one(number, age) for number, age in enumerate(ages))))
    await phases(whole, affected)
    return affected


async def phases(whole: System, affected: list[Affected]) -> None:
    """Where each run stands now, for the messages."""
    for one in affected:
        found = [each async for each in whole.stack.client.list_workflows(f"PaperclipRunId = '{one.run}'")]
        phase = found[0].search_attributes.get("RunPhase") if found else None
        one.phase = str(phase[0]) if phase else "queued"


async def joined(whole: System, one: Affected, *, reports: bool = True) -> float:
    """The task's next run joins and has all of it; returns when it had joined, on the monotonic clock."""
    office, api = one.ada.office, one.ada.office.api
    second = await office.run(one.issue, 1)
    await api.logged(second, '"joined"')
    at = monotonic()
    one.ada.program.release()
    ended = await api.ended(second)
    log = await api.log(second)
    assert ended["status"] == "succeeded", (str(one), ended["error"], statuses(log))
    assert texts(output(log))[:LINES] == Plan(lines=LINES).said, str(one)
    stored = await whole.transcript(one.run, one.ada.agent, office.company)
    assert output(log) == [line.data.decode() for line in stored if line.stream == "stdout"], str(one)
    assert ended["usageJson"]["inputTokens"] == 11, str(one)
    starts = [start for start in one.ada.program.starts() if start["run"] in {one.run, second}]
    assert len(starts) == 1, str(one)
    assert len(whole.witness.jobs(one.run)) == 1, str(one)
    assert whole.witness.jobs(second) == set(), str(one)
    if one.held and reports:  # it reported after the new run had taken the issue over
        assert texts(output(log))[LINES:] == ["told status: 200"], str(one)
        assert (await api.read_issue(one.issue))["status"] == "done", str(one)
    return at


@story(Act.MORTAL)
async def test_runs_outlive_a_killed_paperclip_and_a_comment_joins_them(whole: System) -> None:
    office = await whole.office(MORTAL)
    affected = await begun(whole, office, Random(20260916), "Killed")
    await office.server.kill()
    await asyncio.sleep(LEASE)
    began = monotonic()
    await office.server.start()
    ready = monotonic()

    async def story_of(one: Affected) -> float:
        assert (await office.api.ended(one.run))["errorCode"] == "process_lost", str(one)
        await office.api.comment(one.issue, "What has become of it?")
        return await joined(whole, one)

    times = await asyncio.gather(*(story_of(one) for one in affected))
    whole.figures["SIGKILL, 62 s away: start to ready"] = f"{ready - began:.1f} s"
    whole.figures["SIGKILL, 62 s away: ready to joined, by comments"] = spread(times, ready)
    whole.figures["SIGKILL, 62 s away: phases"] = ", ".join(one.phase for one in affected)


@story(Act.MORTAL)
async def test_runs_outlive_a_restarted_paperclip_and_the_reconciler_joins_them(whole: System) -> None:
    office = await whole.office(MORTAL)
    affected = await begun(whole, office, Random(20261122), "Restarted")
    await office.server.terminate()
    office.server.environment |= {"AGENT_RUNS_RECONCILE": "true", "AGENT_RUNS_REPORT_AS": "opencode_k8s"}
    began = monotonic()
    await office.server.start()
    ready = monotonic()
    times = await asyncio.gather(*(joined(whole, one) for one in affected))
    whole.figures["SIGTERM: start to ready"] = f"{ready - began:.1f} s"
    whole.figures["SIGTERM: ready to joined, by the reconciler"] = spread(times, ready)
    whole.figures["SIGTERM: phases"] = ", ".join(one.phase for one in affected)


@story(Act.MORTAL)
async def test_a_hold_on_a_lost_run_is_released_with_its_outcome(whole: System) -> None:
    """Reported as what it is, a lost run's task is held until there is true evidence: its end."""
    office = await whole.office(MORTAL)
    honest = {"AGENT_RUNS_RECONCILE": "true", "AGENT_RUNS_REPORT_AS": "opencode_k8s"}
    if not honest.items() <= office.server.environment.items():
        office.server.environment |= honest
        await office.server.terminate()
        await office.server.start()
    affected = await begun(whole, office, Random(1), "Held", count=3, tells={})
    await office.server.terminate()
    await office.server.start()
    ready = monotonic()
    for one in affected:
        one.ada.program.release()
    times = await asyncio.gather(*(joined(whole, one, reports=False) for one in affected))
    whole.figures["SIGTERM, held: ready to joined, by the reconciler"] = spread(times, ready)


def spread(times: list[float], since: float) -> str:
    after = sorted(time - since for time in times)
    return json.dumps([round(each, 1) for each in after]) + " s"
