"""Runs that outlive what runs them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client

from contracts.outcome import Outcome
from tests.runs.ground import Ground, attempt_key, ground

LINES = 60


def talkative(gate: Path) -> str:
    """An agent that says half, waits until the gate file is there, and says the other half."""
    half = f"i=0; while [ $i -lt {LINES // 2} ]; do echo line $i; i=$((i+1)); done"
    rest = f"while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done"
    return f"cat > /dev/null; {half}; until [ -e {gate} ]; do sleep 0.05; done; {rest}"


async def written(system: Ground, raw: dict[str, Any], count: int) -> None:
    """Returns once so many lines of the run are stored."""
    news = system.store.news(attempt_key(raw))
    while True:
        seen = news.count
        if len(await system.lines(raw)) >= count:
            return
        await news.beyond(seen, timedelta(seconds=1))


def assert_whole(lines: list[bytes], outcome: Outcome) -> None:
    assert lines == [b"line %d" % number for number in range(LINES)]
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"


async def test_a_run_goes_on_with_another_worker_when_its_own_is_stopped(temporal: Client, tmp_path: Path) -> None:
    async with ground(temporal, tmp_path) as system:
        gate = tmp_path / "gate"
        raw = system.agent(talkative(gate))
        async with system.worker():
            ticket = await system.start(raw)
            await written(system, raw, LINES // 2)
        gate.touch()
        async with system.worker():
            outcome = await ticket.handle(temporal).result()
        stdout = [line.data for line in await system.lines(raw) if line.stream == "stdout"]
    assert_whole(stdout, outcome)


async def test_a_run_whose_worker_is_killed_is_followed_by_the_next(temporal: Client, tmp_path: Path) -> None:
    async with ground(temporal, tmp_path) as system:
        gate = tmp_path / "gate"
        raw = system.agent(talkative(gate))
        async with system.worker_process() as first:
            ticket = await system.start(raw)
            await written(system, raw, LINES // 2)
            first.kill()
            await first.wait()
        gate.touch()
        async with system.worker_process():
            outcome = await ticket.handle(temporal).result()
        stdout = [line.data for line in await system.lines(raw) if line.stream == "stdout"]
    assert_whole(stdout, outcome)


async def test_a_cancel_ends_the_agent_and_keeps_what_it_said(temporal: Client, tmp_path: Path) -> None:
    async with ground(temporal, tmp_path) as system, system.worker():
        raw = system.agent(talkative(tmp_path / "never"))
        ticket = await system.start(raw)
        await written(system, raw, LINES // 2)
        await ticket.handle(temporal).cancel(reason="enough")
        outcome = await ticket.handle(temporal).result()
        assert await system.kubernetes.read_job("default", attempt_key(raw).job_name) is None
        stdout = [line.data for line in await system.lines(raw) if line.stream == "stdout"]
    assert outcome.error_code == "cancelled"
    assert stdout == [b"line %d" % number for number in range(LINES // 2)]


async def test_a_run_over_its_time_is_ended_by_name(temporal: Client, tmp_path: Path) -> None:
    async with ground(temporal, tmp_path) as system, system.worker():
        raw = system.agent(talkative(tmp_path / "never"))
        raw["config"]["timeoutSec"] = 2
        outcome = await system.outcome(raw)
        assert await system.kubernetes.read_job("default", attempt_key(raw).job_name) is None
    assert outcome.timed_out
    assert outcome.error_code == "timeout"
