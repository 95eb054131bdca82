"""Agents that must end: by a deadline, by silence, by a cancel, or because they are left over from an earlier run."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_runs.client.outcome import cancel, outcome_at_close
from agent_runs.contracts.outcome import Outcome
from agent_runs.kube.ownership import job_ref
from tests.runs.system import System, answer_script, attempt_key
from tests.support.ends import assert_verified

EXITS_ON_SIGTERM = "cat > /dev/null; trap 'echo goodbye; exit 143' TERM; echo hello; while :; do sleep 0.1; done"
IGNORES_SIGTERM = "cat > /dev/null; trap '' TERM; echo hello; while :; do sleep 0.1; done"


async def until_pod_exists(system: System, raw: dict[str, Any]) -> None:
    async with asyncio.timeout(60):
        name = attempt_key(raw).job_name
        while (job := await system.kubernetes.read_job("default", name)) is None:  # noqa: ASYNC110  # not watchable yet
            await asyncio.sleep(0.05)
        async with system.kubernetes.watch_pods(job_ref(job)) as states:
            await anext(states)


async def assert_nothing_left(system: System, raw: dict[str, Any], attempt: int = 1) -> None:
    key, kubernetes = attempt_key(raw, attempt), system.kubernetes
    assert await kubernetes.read_job("default", key.job_name) is None
    assert await system.pods(raw) == []
    for name in (key.prompt_secret_name, key.run_secret_name):
        assert await kubernetes.read_secret_metadata("default", name) is None


def assert_stopped(outcome: Outcome, code: str) -> None:
    assert outcome.error_code == code
    assert outcome.stop is not None
    assert outcome.stop.agent_started
    assert outcome.stop.agent_stopped
    assert not outcome.stop.killed  # the kubelet has killed it, if at all


async def test_an_agent_out_of_time_gets_sigterm_and_its_last_output_is_kept(system: System) -> None:
    raw = system.agent(EXITS_ON_SIGTERM)
    raw["config"]["timeoutSec"] = 1
    outcome = await system.outcome(raw)
    assert_stopped(outcome, "timeout")
    assert outcome.timed_out
    assert await system.stdout(raw) == [b"hello", b"goodbye"]
    assert_verified(outcome)
    await assert_nothing_left(system, raw)


async def test_an_agent_that_ignores_sigterm_is_killed(system: System) -> None:
    raw = system.agent(IGNORES_SIGTERM)
    raw["config"] |= {"timeoutSec": 1, "graceSec": 1}
    outcome = await system.outcome(raw)
    assert_stopped(outcome, "timeout")
    assert await system.stdout(raw) == [b"hello"]
    await assert_nothing_left(system, raw)


async def test_a_cancelled_agent_stops_at_once(system: System) -> None:
    raw = system.agent(EXITS_ON_SIGTERM)
    ticket = await system.start(raw)
    await system.until_stored(raw)
    answer = await cancel(ticket.handle(system.temporal), "wrong branch")
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert answer.outcome == "cancelled"
    assert answer.stop == outcome.stop
    assert_stopped(outcome, "cancelled")
    assert await system.stdout(raw) == [b"hello", b"goodbye"]
    await assert_nothing_left(system, raw)


async def test_a_cancelled_agent_that_is_retained_stops_and_keeps_its_log(system: System) -> None:
    raw = system.agent(EXITS_ON_SIGTERM)
    raw["config"]["retainJobs"] = True
    ticket = await system.start(raw)
    await system.until_stored(raw)
    await cancel(ticket.handle(system.temporal), "wrong branch")
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert_stopped(outcome, "cancelled")
    (pod,) = await system.pods(raw)
    status = pod.container("opencode")
    assert status is not None
    assert status.state.terminated is not None
    async with system.kubernetes.open_log("default", pod.metadata.name, "sidecar", follow=False) as pieces:
        assert b"goodbye" in b"".join([piece async for piece in pieces])


async def test_a_silent_agent_is_stopped_and_its_processes_are_named(system: System) -> None:
    raw = system.agent('cat > /dev/null; echo \'{"type":"x"}\'; echo compiling >&2; sleep 600')
    raw["config"] |= {"firstOutputTimeoutSec": 1, "silenceTimeoutSec": 2}
    outcome = await system.outcome(raw)
    assert_stopped(outcome, "agent_silent")
    assert "no progress for 2s" in (outcome.error_message or "")
    assert "sleep" in (outcome.error_message or "")
    await assert_nothing_left(system, raw)


async def test_opencode_that_does_not_exit_after_its_last_step_has_succeeded(system: System) -> None:
    raw = system.agent(f"cat > /dev/null; {answer_script('The work is finished.')}; sleep 600")
    raw["config"] |= {"silenceTimeoutSec": 2}
    outcome = await system.outcome(raw)
    assert (outcome.failure, outcome.summary) == (None, "The work is finished.")
    assert "OpenCode did not exit after its last step, and was stopped" in outcome.warnings
    assert_verified(outcome)
    await assert_nothing_left(system, raw)


@pytest.mark.slow
async def test_opencode_that_hangs_at_its_start_gets_a_second_attempt(system: System, tmp_path: Path) -> None:
    flag = tmp_path / "hung"
    raw = system.agent(f"cat > /dev/null; if [ ! -e {flag} ]; then touch {flag}; sleep 600; fi; echo hello")
    raw["config"]["firstOutputTimeoutSec"] = 1
    outcome = await system.outcome(raw)
    assert outcome.attempts[0].failure_code == "opencode_start_hung"
    assert len(outcome.attempts) == 2
    assert await system.stdout(raw, attempt=2) == [b"hello"]
    await assert_nothing_left(system, raw, attempt=2)


async def test_a_run_ends_what_an_earlier_run_of_its_agent_left(system: System, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    left = system.agent(
        f"cat > /dev/null; trap 'rm {alive}; exit 143' TERM; touch {alive}; echo hello; while :; do sleep 0.1; done"
    )
    ticket = await system.start(left)
    await system.until_stored(left)
    await ticket.handle(system.temporal).terminate("an operator's mistake")
    assert alive.exists()
    raw = system.agent(f"cat > /dev/null; if [ -e {alive} ]; then echo twice; else echo alone; fi")
    raw |= {name: left[name] for name in ("agent", "context")}
    await system.outcome(raw)
    assert await system.stdout(raw) == [b"alone"]
    await assert_nothing_left(system, raw)
    for name in (attempt_key(left).prompt_secret_name, attempt_key(left).run_secret_name):
        assert await system.kubernetes.read_secret_metadata("default", name) is None


@pytest.mark.parametrize("moment", ["started", "waiting"])
async def test_a_cancel_before_the_agent_runs_starts_none(system: System, moment: str) -> None:
    raw = system.agent("cat > /dev/null; echo hello; sleep 600")
    raw["config"]["nodeSelector"] = {"no-such-node": "yes"}
    ticket = await system.start(raw)
    if moment == "waiting":
        await until_pod_exists(system, raw)
    answer = await cancel(ticket.handle(system.temporal), "changed my mind")
    assert not answer.stop.agent_started
    assert answer.stop.agent_stopped
    await outcome_at_close(ticket.handle(system.temporal))
    assert await system.lines(raw) == []
    await assert_nothing_left(system, raw)
