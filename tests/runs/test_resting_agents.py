"""Pods of the real Claude Code, Codex, Gemini CLI, Qwen Code and pi that rest between two runs of an agent."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from agent_runs.kube.objects import Job
from agent_runs.kube.ownership import RESTS_SINCE
from agent_runs.pod.sidecar.drivers.acp import DEAD_SECONDS
from dev_stack.agent_programs import PROGRAMS
from dev_stack.demo import later_context
from tests.pod.driving import bash
from tests.pod.paperclip import FakePaperclip, serving
from tests.runs.claiming import next_run_in_its_own_pod, one_claim_wins
from tests.runs.real_agents import AgentSystem, command_line, key_of, processes_of, programs, real_agents
from tests.runs.real_opencode import later
from tests.runs.test_api_proxy import ASK, PYTHON
from tests.support.ends import assert_whole

pytestmark = [pytest.mark.slow, pytest.mark.real_agents, pytest.mark.timeout(900)]

QUICK = "codex"
"""The agent of what is the same for all: the one that starts fastest."""
KEEP_WARM_SEC = 300
"""Longer than a test takes: a pod that nobody claims ends by itself."""
TOOL = """
import json, os, pathlib, time
here = pathlib.Path({folder!r})
status = ask("/api/issues/1")
note = here / (os.environ["PAPERCLIP_RUN_ID"] + ".json")
note.with_suffix(".new").write_text(json.dumps({{"status": status, "variables": dict(os.environ)}}))
note.with_suffix(".new").rename(note)
while not (here / "go").exists():
    time.sleep(0.05)
"""
"""Asks Paperclip, notes its variables, and waits until it may go on."""


@pytest.fixture(scope="module")
async def agents(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentSystem]:
    async with real_agents(temporal, tmp_path_factory.mktemp("warm")) as opened:
        yield opened


@pytest.fixture(params=PROGRAMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def paperclip() -> Iterator[FakePaperclip]:
    with serving() as served:
        yield served


async def rested(
    agents: AgentSystem, name: str, *steps: dict[str, Any], **config: Any
) -> tuple[dict[str, Any], Outcome, Job]:
    """An agent after its first run, whose pod rests."""
    raw = await agents.plays(name, *(steps or ({"text": "One."},)), **{"keepWarmSec": KEEP_WARM_SEC, **config})
    outcome = await agents.system.outcome(raw)
    assert_whole(outcome, "One.")
    (job,) = await agents.system.jobs(raw)
    assert RESTS_SINCE in job.metadata.annotations
    return raw, outcome, job


async def own_programs(raw: dict[str, Any], name: str, folder: Path, before: str) -> None:
    """Give the agent a program that first does this in a shell."""
    raw["config"]["env"]["PATH"] = await programs(name, folder)
    for program in (folder / name).iterdir():
        shell, text = program.read_text().split("\n", 1)
        if PROGRAMS[name].entry in text:  # pi itself is beside its adapter
            program.write_text(f"{shell}\n{before}\n{text}")


def waiting_of(raw: dict[str, Any]) -> list[int]:
    """The shells that wait for the next run, in the pod of this one."""
    return [pid for pid in processes_of(raw) if "serve.sh" in command_line(pid)]


def program_of(raw: dict[str, Any]) -> list[int]:
    """The processes of this run's pod that are neither the runner nor what waits."""
    lines = {pid: command_line(pid) for pid in processes_of(raw)}
    known = ("runner.sh", "serve.sh", f"sleep {KEEP_WARM_SEC + DEAD_SECONDS}", "supervisor.main")
    return [pid for pid, line in lines.items() if line and not any(each in line for each in known)]


async def until_nothing_works(raw: dict[str, Any]) -> None:
    """Returns once only what waits for the next run is left in the pod."""
    async with asyncio.timeout(60):
        while program_of(raw) or not waiting_of(raw):  # noqa: ASYNC110 - nobody reports it
            await asyncio.sleep(0.05)


def places_with(agents: AgentSystem, canary: str) -> list[str]:
    """Environments of processes, and files of pods, that have this text."""
    found = []
    for place in [*Path("/proc").glob("[0-9]*/environ"), *(agents.folder.parent / "cluster").rglob("*")]:
        with suppress(OSError):
            if place.is_file() and not place.is_symlink() and canary.encode() in place.read_bytes():
                found.append(str(place))
    return found


async def test_the_next_run_has_the_pod_the_session_and_nothing_of_the_run_before(
    agents: AgentSystem, name: str, tmp_path: Path, paperclip: FakePaperclip
) -> None:
    tool, go = tmp_path / "tool.py", tmp_path / "go"
    tool.write_text(ASK + TOOL.format(folder=str(tmp_path)))
    works = bash(f"{PYTHON} {tool}")
    first = await agents.plays(
        name, works, {"text": "The word is heron."}, keepWarmSec=KEEP_WARM_SEC, paperclipApiUrl=paperclip.url
    )
    first["authToken"], paperclip.owner = "canary-token-a", ("canary-token-a", first["runId"])
    first["context"]["paperclipWake"] = {**(first["context"].get("paperclipWake") or {}), "reason": "canary-wake-a"}
    go.touch()
    one = await agents.system.outcome(first)
    assert_whole(one, "The word is heron.")
    (resting,) = await agents.system.jobs(first)
    await until_nothing_works(first)
    assert [place for place in places_with(agents, "canary-token-a") if "/volumes/token/" not in place] == []
    (pod,) = await agents.system.pods(first)
    meta = pod.metadata  # a change of it makes the kubelet renew the sidecar's volume at once
    await agents.system.kubernetes.annotate_pod(meta.namespace, meta.name, meta.uid, {"example.com/renew": "now"})
    async with asyncio.timeout(60):
        while places_with(agents, "canary-token-a"):  # noqa: ASYNC110 - nobody reports it
            await asyncio.sleep(0.2)
    go.unlink()

    second = later(first, one, works, {"text": "Two."})
    second["authToken"], paperclip.owner = "canary-token-b", ("canary-token-b", second["runId"])
    ticket = await agents.system.start(second)
    note = tmp_path / f"{second['runId']}.json"
    async with asyncio.timeout(60):
        while not note.exists():  # noqa: ASYNC110 - a file of another process
            await asyncio.sleep(0.05)
    assert places_with(agents, "canary-token-a") == []
    go.touch()
    two = await outcome_at_close(ticket.handle(agents.system.temporal))
    assert_whole(two, "Two.")
    assert two.session_id == one.session_id
    assert [attempt.job_name for attempt in two.attempts] == [resting.metadata.name]
    assert "The word is heron." in str(agents.model.requests[-1])
    seen = json.loads(note.read_text())
    assert seen["status"] == 200
    assert seen["variables"]["PAPERCLIP_RUN_ID"] == second["runId"]
    assert [value for value in seen["variables"].values() if first["runId"] in value] == []
    sent = [(each.headers["Authorization"], each.headers["X-Paperclip-Run-Id"]) for each in paperclip.requests]
    assert sent == [("Bearer canary-token-a", first["runId"]), ("Bearer canary-token-b", second["runId"])]
    assert {each["sessionID"] for each in await agents.system.events(second)} - {""} == {two.session_id}

    third = later(first, one.model_copy(update={"session_params": None}), {"text": "Three."})
    third["authToken"], paperclip.owner = "canary-token-c", ("canary-token-c", third["runId"])
    three = await agents.system.outcome(third)
    assert_whole(three, "Three.")
    assert three.session_id != one.session_id
    assert [attempt.job_name for attempt in three.attempts] == [resting.metadata.name]
    assert "heron" not in str(agents.model.requests[-1])


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
async def test_what_waits_in_the_agents_container_and_is_gone_costs_the_next_run_only_a_start(
    agents: AgentSystem, name: str, sent: signal.Signals
) -> None:
    first, one, resting = await rested(agents, name, graceSec=1)
    await until_nothing_works(first)
    for pid in waiting_of(first):
        with suppress(ProcessLookupError):  # it ended with the one before
            os.kill(pid, sent)
    two = await next_run_in_its_own_pod(agents.system, first, one, resting)
    assert two.session_id == one.session_id
    assert processes_of(first) == []


async def test_a_resting_pod_whose_sidecar_is_killed_costs_the_next_run_only_a_start(
    agents: AgentSystem, name: str
) -> None:
    first, one, resting = await rested(agents, name)
    (pod,) = await agents.system.pods(first)
    await agents.system.embedded.faults.kill_container(pod.metadata.name, "sidecar")
    await next_run_in_its_own_pod(agents.system, first, one, resting)
    assert processes_of(first) == []


async def test_a_pod_that_nobody_claims_ends_by_itself(agents: AgentSystem, name: str) -> None:
    raw, *_ = await rested(agents, name, keepWarmSec=1)
    async with asyncio.timeout(60):
        while await agents.system.jobs(raw):  # noqa: ASYNC110 - this test watches no Jobs
            await asyncio.sleep(0.1)
    assert processes_of(raw) == []


async def test_what_a_run_leaves_running_ends_when_its_pod_rests(agents: AgentSystem, name: str) -> None:
    raw, _, _ = await rested(agents, name, bash("setsid sleep 601 >/dev/null 2>&1 & echo left"), {"text": "One."})
    await until_nothing_works(raw)
    assert [pid for pid in processes_of(raw) if "sleep 601" in command_line(pid)] == []


async def test_a_key_that_has_changed_is_that_of_a_new_pod(agents: AgentSystem) -> None:
    first, one, resting = await rested(agents, QUICK)
    second = later(first, one, {"text": "Two."})
    second["config"] = {**second["config"], "env": {**second["config"]["env"], key_of(QUICK): "another-key"}}
    two = await agents.system.outcome(second)
    assert_whole(two, "Two.")
    assert two.attempts[0].job_name != resting.metadata.name
    assert resting.metadata.uid not in [job.metadata.uid for job in await agents.system.jobs(first)]


async def test_a_model_that_has_changed_is_that_of_a_new_pod(agents: AgentSystem) -> None:
    first, one, resting = await rested(agents, "gemini")
    second = later_context(first, one.session_params)
    second["config"] = {**second["config"], "model": "fake/scenario/echo"}
    two = await agents.system.outcome(second)
    assert two.failure is None, two.failure
    assert two.attempts[0].job_name != resting.metadata.name


async def test_an_agent_that_does_not_start_in_a_claimed_pod_costs_one_attempt(
    agents: AgentSystem, tmp_path: Path
) -> None:
    fails = tmp_path / "fails"
    first = await agents.plays(QUICK, {"text": "One."}, keepWarmSec=KEEP_WARM_SEC)
    await own_programs(first, QUICK, tmp_path, f"rm {fails} 2>/dev/null && exit 3")
    one = await agents.system.outcome(first)
    assert_whole(one, "One.")
    fails.touch()
    two = await agents.system.outcome(later(first, one, {"text": "Two."}))
    assert_whole(two, "Two.")
    assert [attempt.failure_code for attempt in two.attempts] == ["k8s_pod_lost", None]


async def test_of_several_claims_one_wins_and_a_repeated_one_is_answered_as_before(agents: AgentSystem) -> None:
    _, _, job = await rested(agents, QUICK)
    await one_claim_wins(agents.system, job)


async def test_thirty_wakes_of_one_pod_keep_their_lines_apart(agents: AgentSystem) -> None:
    raw, outcome, resting = await rested(agents, QUICK)
    for number in range(30):
        raw = later(raw, outcome, bash(f"echo number {number}"), {"text": f"Wake {number}."})
        outcome = await agents.system.outcome(raw)
        assert_whole(outcome, f"Wake {number}.")
        assert outcome.attempts[0].job_name == resting.metadata.name
        (command,) = [each for each in await agents.system.events(raw) if each["type"] == "tool_use"]
        assert command["part"]["state"]["output"].strip() == f"number {number}"
