"""Paperclip is killed or restarted during runs: each continues, and the task's next run gets its log and outcome."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from random import Random
from time import monotonic
from typing import Final

from tests.paperclip_server.environment import (
    DISRUPTED,
    Environment,
    Instance,
    ScriptedAgent,
    logged,
    output,
    statuses,
    texts,
)
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.scripted_agents import Plan

RUNS: Final = 10
"""Number of runs in each scenario, at moments drawn by a seed."""
OLDEST: Final = 9.0
"""Age of the oldest run, in seconds, when Paperclip stops."""
RELEASE_WINDOW: Final = 1.0
"""Seconds before Paperclip stops in which the run that is about to end is released."""
OUTAGE: Final = 62.0
"""Seconds until Paperclip is restarted: it then counts its runs as lost at its start, otherwise after 5 minutes."""
LINES: Final = 60
PACE: Final = 0.1
EXIT_DELAY: Final = 15.0
"""Seconds that an agent without a hold runs after its last line, so that it ends after Paperclip's stop."""
DEADLOCK: Final = 'insert into "workspace_operations"'
REPORT_TO_EXIT: Final = 3.0
"""Seconds between an agent's report and its end, as with a model: Paperclip's database may deadlock over both."""


class End(Enum):
    """When a run's agent ends."""

    WHEN_JOINED = auto()
    BY_ITSELF = auto()
    AT_STOP = auto()
    """At the moment of Paperclip's stop, when Paperclip may have the result already."""


@dataclass
class Affected:
    """A run that lost its Paperclip."""

    ada: ScriptedAgent
    issue: str
    run: str
    end: End
    phase: str = ""

    def __str__(self) -> str:
        return f"run {self.run}, {self.phase} at Paperclip's stop, ends {self.end.name}"


def plan_of(end: End, random: Random, reports: dict[str, str] | None) -> Plan:
    env = Plan(lines=LINES, pace=PACE)
    match end:
        case End.WHEN_JOINED:
            plan = replace(env, hold=random.randrange(5, LINES), exit_delay=REPORT_TO_EXIT)
        case End.BY_ITSELF:  # does not report: an agent that closes its issue needs no further run
            plan = replace(env, exit_delay=EXIT_DELAY, reports={})
        case End.AT_STOP:
            plan = replace(env, hold=LINES, reports={})
    return plan if reports is None else replace(plan, reports=reports)


async def start_runs(
    env: Environment,
    instance: Instance,
    random: Random,
    name: str,
    ends: list[End],
    reports: dict[str, str] | None = None,
) -> list[Affected]:
    """Starts runs with ages drawn by the seed, the youngest just started."""
    ages = sorted([0.0, *(random.uniform(0.3, OLDEST) for _ in ends[1:])])

    async def one(number: int, end: End, age: float, plan: Plan) -> Affected:
        ada = await instance.create_scripted_agent(f"{name}{number}", plan)
        await asyncio.sleep(OLDEST - age)
        issue = await instance.issue(ada.agent, f"{name} {number}")
        affected_run = Affected(ada, issue, await instance.run(issue, agent=ada.agent), end)
        await instance.api.wait_logged(
            affected_run.run, f'"line {LINES}"' if end is End.AT_STOP else f"run {affected_run.run} started"
        )
        return affected_run

    plans = [(end, age, plan_of(end, random, reports)) for end, age in zip(ends, ages, strict=True)]
    affected = list(await asyncio.gather(*(one(number, *each) for number, each in enumerate(plans))))
    for each in affected:
        if each.end is End.AT_STOP:
            each.ada.program.release()
            await asyncio.sleep(random.uniform(0, RELEASE_WINDOW))
    await asyncio.gather(*(record_phase(env, each) for each in affected))
    return affected


async def record_phase(env: Environment, one: Affected) -> None:
    found = await env.stack.client.get_workflow_handle(f"agent-run:{one.ada.agent}").describe()
    phase = found.search_attributes.get("RunPhase")
    one.phase = str(phase[0]) if phase else "queued"


ENDS: Final = [
    *(End.WHEN_JOINED, End.WHEN_JOINED, End.BY_ITSELF, End.WHEN_JOINED, End.WHEN_JOINED),
    *(End.WHEN_JOINED, End.BY_ITSELF, End.WHEN_JOINED, End.WHEN_JOINED, End.AT_STOP),
]
"""The youngest run first."""
assert len(ENDS) == RUNS


LOST: Final = ("process_lost", "server_shutdown_interrupted")
"""Error codes of runs that lost their Paperclip."""


async def wait_joined(one: Affected) -> tuple[str, float]:
    """The task's next run, once it has joined, and when that was, on the monotonic clock.

    A task may have had two runs when Paperclip stopped, and lost both.
    """
    instance, api = one.ada.instance, one.ada.instance.api
    number = 1
    try:
        while (await api.run(second := await instance.run(one.issue, number, one.ada.agent)))["errorCode"] in LOST:
            number += 1
    except AssertionError as error:
        issue = await api.read_issue(one.issue)
        raise AssertionError(f"{error}; {one}: {issue['status']}, {issue['executionBlocker']}") from error
    await api.wait_logged(second, "[agent-runs] joined run ")
    return second, monotonic()


async def assert_finished(env: Environment, one: Affected, second: str, *, reports: bool = True) -> None:
    """The run that joined gets log and outcome. One at a time, because Paperclip's database deadlocks over ends."""
    api = one.ada.instance.api
    one.ada.program.release()
    await assert_delivered(env, one, second)
    if one.end is End.WHEN_JOINED and reports:  # it reported after the new run had taken the issue over
        assert texts(await api.log(second))[LINES:] == ["reported status: 200"], str(one)
        assert (await api.read_issue(one.issue))["status"] == "done", str(one)
    await api.close(one.issue)


async def assert_delivered(env: Environment, one: Affected, run: str) -> None:
    """This run of Paperclip's has the one outcome of the one Job, and the env log."""
    instance, api = one.ada.instance, one.ada.instance.api
    ended = await api.wait_ended(run)
    log = await api.log(run)
    if DEADLOCK in str(
        ended["error"]
    ):  # Paperclip's own failure, after our return: only the result's figures are missing
        env.measurements["ends that Paperclip's database deadlocked over"] = str(one)
    else:
        assert ended["status"] == "succeeded", (str(one), ended["error"], statuses(log))
        assert ended["usageJson"]["inputTokens"] == 11, str(one)
    assert statuses(log).count("succeeded") == 1, str(one)
    assert texts(log)[:LINES] == Plan(lines=LINES).texts, str(one)
    stored = await env.transcript(one.run, one.ada.agent, instance.company)
    assert output(log) == logged(stored), str(one)
    starts = [start for start in one.ada.program.starts() if start["run"] in {one.run, run}]
    assert len(starts) == 1, str(one)
    assert len(env.observer.jobs(one.run)) == 1, str(one)
    if run != one.run:
        assert env.observer.jobs(run) == set(), str(one)


async def ended_before_stop(env: Environment, one: Affected) -> bool:
    """Whether Paperclip had the run's result before it stopped, which only the run that was about to end may have."""
    api = one.ada.instance.api
    if (await api.run(one.run))["status"] != "succeeded":
        return False
    assert one.end is End.AT_STOP, str(one)
    await assert_delivered(env, one, one.run)
    await api.close(one.issue)
    return True


def add_measurements(
    env: Environment, scenario_name: str, affected: list[Affected], measurements: Mapping[str, Sequence[float]]
) -> None:
    """Adds measurements for the end of the session."""
    env.measurements[f"{scenario_name}: phases at Paperclip's stop"] = ", ".join(one.phase for one in affected)
    for name, seconds in measurements.items():
        env.measurements[f"{scenario_name}: {name}"] = json.dumps(sorted(round(each, 1) for each in seconds)) + " s"


@scenario(Schedule.DISRUPTING)
async def test_runs_survive_a_killed_paperclip_and_a_comment_joins_them(env: Environment) -> None:
    instance = await env.instance(DISRUPTED)
    affected = await start_runs(env, instance, Random(20260916), "Killed", ENDS)
    await instance.server.kill()
    await asyncio.sleep(OUTAGE)
    began = monotonic()
    await instance.server.start()
    ready = monotonic()
    times = []
    for one in affected:
        if await ended_before_stop(env, one):
            continue
        assert (await instance.api.wait_ended(one.run))["errorCode"] == "process_lost", str(one)
        commented = monotonic()
        await instance.api.comment(one.issue, "Please continue.")
        second, at = await wait_joined(one)
        times.append(at - commented)
        await assert_finished(env, one, second)
    measurements = {"start to ready": [ready - began], "comment to joined": times}
    add_measurements(env, f"SIGKILL, {OUTAGE:.0f} s down", affected, measurements)


@scenario(Schedule.DISRUPTING)
async def test_runs_survive_a_restarted_paperclip_and_the_reconciler_joins_them(env: Environment) -> None:
    instance = await env.instance(DISRUPTED)
    ends: list[End] = [End.WHEN_JOINED if end is End.BY_ITSELF else end for end in ENDS]
    affected = await start_runs(env, instance, Random(20261122), "Restarted", ends)
    await instance.server.terminate()
    instance.server.environment |= {"AGENT_RUNS_RECONCILE": "true", "AGENT_RUNS_REPORT_AS": "opencode_k8s"}
    began = monotonic()
    await instance.server.start()
    ready = monotonic()
    lost = [one for one in affected if not await ended_before_stop(env, one)]
    for one in lost:
        first = await instance.api.wait_ended(one.run)
        assert first["errorCode"] == "server_shutdown_interrupted", (str(one), first["error"])
    seconds = await asyncio.gather(*(wait_joined(one) for one in lost))
    for one, (second, _) in zip(lost, seconds, strict=True):
        await assert_finished(env, one, second)
    times = [at for _, at in seconds]
    measurements = {
        "start to ready": [ready - began],
        "start to joined": [at - began for at in times],
        "ready to joined": [at - ready for at in times],
    }
    add_measurements(env, "SIGTERM, by the reconciler", affected, measurements)


@scenario(Schedule.DISRUPTING)
async def test_a_hold_on_a_lost_run_is_released_with_its_outcome(env: Environment) -> None:
    """Reported as `opencode_k8s`, a lost run's task is held until its agent has ended, which is the evidence."""
    instance = await env.instance(DISRUPTED)
    reported_as_k8s = {"AGENT_RUNS_RECONCILE": "true", "AGENT_RUNS_REPORT_AS": "opencode_k8s"}
    if not reported_as_k8s.items() <= instance.server.environment.items():
        instance.server.environment |= reported_as_k8s
        await instance.server.terminate()
        await instance.server.start()
    ends = [End.WHEN_JOINED, End.BY_ITSELF, End.WHEN_JOINED]
    affected = await start_runs(env, instance, Random(1), "FileLock", ends, reports={})
    await instance.server.terminate()
    await instance.server.start()
    times = []
    for one in affected:
        released = monotonic()
        one.ada.program.release()
        second, at = await wait_joined(one)
        times.append(at - released)
        await assert_finished(env, one, second, reports=False)
    add_measurements(env, "SIGTERM, held, by the reconciler", affected, {"agent's end to joined": times})
