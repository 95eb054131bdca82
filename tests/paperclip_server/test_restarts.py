"""Paperclip is killed, or restarted, in the middle of runs: each goes on, and its task's next run has all of it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from random import Random
from time import monotonic
from typing import Final

from tests.paperclip_server.agents import Plan
from tests.paperclip_server.stage import Act, story
from tests.paperclip_server.system import MORTAL, Employee, Office, System, output, statuses, texts

RUNS: Final = 10
"""At each kind of end: so many seeded moments of a run."""
OLDEST: Final = 9.0
"""Seconds: the age of the oldest run when Paperclip goes."""
ENDING: Final = 1.0
"""Seconds: as long before Paperclip goes, at most, the run that is about to end gets leave to."""
LEASE: Final = 62.0
"""Seconds that Paperclip stays away: it then counts its runs as lost while it starts, else after 5 minutes."""
LINES: Final = 60
PACE: Final = 0.1
WORKS_ON: Final = 15.0
"""Seconds that an agent without a hold works on after its last line, so that its end comes after Paperclip's."""
DEADLOCK: Final = 'insert into "workspace_operations"'
AFTERTHOUGHT: Final = 3.0
"""Seconds between an agent's report and its end, as a model has them: Paperclip's database may deadlock over both."""


class End(Enum):
    """When a run's agent ends."""

    WHEN_JOINED = auto()
    BY_ITSELF = auto()
    JUST_NOW = auto()
    """At the very moment that Paperclip goes, which may have got the result then."""


@dataclass
class Affected:
    """A run that lost its Paperclip."""

    ada: Employee
    issue: str
    run: str
    end: End
    phase: str = ""

    def __str__(self) -> str:
        return f"run {self.run}, {self.phase} when Paperclip went, ends {self.end.name}"


def plan_of(end: End, random: Random, tells: dict[str, str] | None) -> Plan:
    whole = Plan(lines=LINES, pace=PACE)
    match end:
        case End.WHEN_JOINED:
            plan = replace(whole, hold=random.randrange(5, LINES), dawdle=AFTERTHOUGHT)
        case End.BY_ITSELF:  # does not report: who closes its issue itself needs no further run
            plan = replace(whole, dawdle=WORKS_ON, tells={})
        case End.JUST_NOW:
            plan = replace(whole, hold=LINES, tells={})
    return plan if tells is None else replace(plan, tells=tells)


async def begun(
    whole: System, office: Office, random: Random, name: str, ends: list[End], tells: dict[str, str] | None = None
) -> list[Affected]:
    """Runs of ages drawn by the seed, the youngest just started."""
    ages = sorted([0.0, *(random.uniform(0.3, OLDEST) for _ in ends[1:])])

    async def one(number: int, end: End, age: float, plan: Plan) -> Affected:
        ada = await office.scripted(f"{name}{number}", plan)
        await asyncio.sleep(OLDEST - age)
        issue = await office.issue(ada.agent, f"{name} {number}")
        made = Affected(ada, issue, await office.run(issue, agent=ada.agent), end)
        await office.api.logged(made.run, f'"line {LINES}"' if end is End.JUST_NOW else '"started"')
        return made

    plans = [(end, age, plan_of(end, random, tells)) for end, age in zip(ends, ages, strict=True)]
    affected = list(await asyncio.gather(*(one(number, *each) for number, each in enumerate(plans))))
    for each in affected:
        if each.end is End.JUST_NOW:
            each.ada.program.release()
            await asyncio.sleep(random.uniform(0, ENDING))
    await asyncio.gather(*(phase_of(whole, each) for each in affected))
    return affected


async def phase_of(whole: System, one: Affected) -> None:
    """Where the run stands now, for the messages."""
    found = await whole.stack.client.get_workflow_handle(f"agent-run:{one.ada.agent}").describe()
    phase = found.search_attributes.get("RunPhase")
    one.phase = str(phase[0]) if phase else "queued"


ENDS: Final = [
    *(End.WHEN_JOINED, End.WHEN_JOINED, End.BY_ITSELF, End.WHEN_JOINED, End.WHEN_JOINED),
    *(End.WHEN_JOINED, End.BY_ITSELF, End.WHEN_JOINED, End.WHEN_JOINED, End.JUST_NOW),
]
"""The youngest run first."""
assert len(ENDS) == RUNS


async def joined(one: Affected) -> tuple[str, float]:
    """The task's next run, once it has joined, and when that was, on the monotonic clock."""
    office, api = one.ada.office, one.ada.office.api
    try:
        second = await office.run(one.issue, 1, one.ada.agent)
    except AssertionError as error:
        issue = await api.read_issue(one.issue)
        raise AssertionError(f"{error}; {one}: {issue['status']}, {issue['executionBlocker']}") from error
    await api.logged(second, '"joined"')
    return second, monotonic()


async def finished(whole: System, one: Affected, second: str, *, reports: bool = True) -> None:
    """The run that has joined gets all of it. One after the other, because Paperclip's database deadlocks over ends."""
    api = one.ada.office.api
    one.ada.program.release()
    await delivered(whole, one, second)
    if one.end is End.WHEN_JOINED and reports:  # it reported after the new run had taken the issue over
        assert texts(output(await api.log(second)))[LINES:] == ["told status: 200"], str(one)
        assert (await api.read_issue(one.issue))["status"] == "done", str(one)
    await api.close(one.issue)


async def delivered(whole: System, one: Affected, run: str) -> None:
    """This run of Paperclip's has the one outcome of the one Job, and the whole log."""
    office, api = one.ada.office, one.ada.office.api
    ended = await api.ended(run)
    log = await api.log(run)
    if DEADLOCK in str(ended["error"]):  # Paperclip's own, behind our return: it has all but the result's figures
        whole.figures["ends that Paperclip's database deadlocked over"] = str(one)
    else:
        assert ended["status"] == "succeeded", (str(one), ended["error"], statuses(log))
        assert ended["usageJson"]["inputTokens"] == 11, str(one)
    assert [line["code"] for line in statuses(log) if line["event"] == "outcome"] == ["succeeded"], str(one)
    assert texts(output(log))[:LINES] == Plan(lines=LINES).said, str(one)
    stored = await whole.transcript(one.run, one.ada.agent, office.company)
    assert output(log) == [line.data.decode() for line in stored if line.stream == "stdout"], str(one)
    starts = [start for start in one.ada.program.starts() if start["run"] in {one.run, run}]
    assert len(starts) == 1, str(one)
    assert len(whole.witness.jobs(one.run)) == 1, str(one)
    if run != one.run:
        assert whole.witness.jobs(run) == set(), str(one)


async def in_time(whole: System, one: Affected) -> bool:
    """Whether Paperclip had the run's result before it went; only one that was about to end may have been so quick."""
    api = one.ada.office.api
    if (await api.run(one.run))["status"] != "succeeded":
        return False
    assert one.end is End.JUST_NOW, str(one)
    await delivered(whole, one, one.run)
    await api.close(one.issue)
    return True


def told(whole: System, way: str, affected: list[Affected], figures: Mapping[str, Sequence[float]]) -> None:
    """What was measured, for the end of the session."""
    whole.figures[f"{way}: phases when Paperclip went"] = ", ".join(one.phase for one in affected)
    for name, seconds in figures.items():
        whole.figures[f"{way}: {name}"] = json.dumps(sorted(round(each, 1) for each in seconds)) + " s"


@story(Act.MORTAL)
async def test_runs_outlive_a_killed_paperclip_and_a_comment_joins_them(whole: System) -> None:
    office = await whole.office(MORTAL)
    affected = await begun(whole, office, Random(20260916), "Killed", ENDS)
    await office.server.kill()
    await asyncio.sleep(LEASE)
    began = monotonic()
    await office.server.start()
    ready = monotonic()
    times = []
    for one in affected:
        if await in_time(whole, one):
            continue
        assert (await office.api.ended(one.run))["errorCode"] == "process_lost", str(one)
        commented = monotonic()
        await office.api.comment(one.issue, "What has become of it?")
        second, at = await joined(one)
        times.append(at - commented)
        await finished(whole, one, second)
    figures = {"start to ready": [ready - began], "comment to joined": times}
    told(whole, f"SIGKILL, {LEASE:.0f} s away", affected, figures)


@story(Act.MORTAL)
async def test_runs_outlive_a_restarted_paperclip_and_the_reconciler_joins_them(whole: System) -> None:
    office = await whole.office(MORTAL)
    ends: list[End] = [End.WHEN_JOINED if end is End.BY_ITSELF else end for end in ENDS]
    affected = await begun(whole, office, Random(20261122), "Restarted", ends)
    await office.server.terminate()
    office.server.environment |= {"AGENT_RUNS_RECONCILE": "true", "AGENT_RUNS_REPORT_AS": "opencode_k8s"}
    began = monotonic()
    await office.server.start()
    ready = monotonic()
    lost = [one for one in affected if not await in_time(whole, one)]
    for one in lost:
        first = await office.api.ended(one.run)
        assert first["errorCode"] == "server_shutdown_interrupted", (str(one), first["error"])
    seconds = await asyncio.gather(*(joined(one) for one in lost))
    for one, (second, _) in zip(lost, seconds, strict=True):
        await finished(whole, one, second)
    times = [at for _, at in seconds]
    figures = {
        "start to ready": [ready - began],
        "start to joined": [at - began for at in times],
        "ready to joined": [at - ready for at in times],
    }
    told(whole, "SIGTERM, by the reconciler", affected, figures)


@story(Act.MORTAL)
async def test_a_hold_on_a_lost_run_is_released_with_its_outcome(whole: System) -> None:
    """Reported as what it is, a lost run's task is held until there is true evidence: its end."""
    office = await whole.office(MORTAL)
    honest = {"AGENT_RUNS_RECONCILE": "true", "AGENT_RUNS_REPORT_AS": "opencode_k8s"}
    if not honest.items() <= office.server.environment.items():
        office.server.environment |= honest
        await office.server.terminate()
        await office.server.start()
    ends = [End.WHEN_JOINED, End.BY_ITSELF, End.WHEN_JOINED]
    affected = await begun(whole, office, Random(1), "Held", ends, tells={})
    await office.server.terminate()
    await office.server.start()
    times = []
    for one in affected:
        released = monotonic()
        one.ada.program.release()
        second, at = await joined(one)
        times.append(at - released)
        await finished(whole, one, second, reports=False)
    told(whole, "SIGTERM, held, by the reconciler", affected, {"agent's end to joined": times})
