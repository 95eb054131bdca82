"""Runs that outlive what runs them."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import Client

from activities.create_job import reference
from contracts.outcome import Outcome
from tests.runs.ground import Ground, attempt_key, ground
from transcripts.store import PAGE_BYTES

LINES = 60
MEBI = 1024 * 1024


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


def gated(gates: list[Path]) -> str:
    """An agent that says a share of its lines, then waits for the next gate file, and so on."""
    share = LINES // (len(gates) + 1)
    steps = [
        f"until [ -e {gate} ]; do sleep 0.05; done; {say(share * number, share)}"
        for number, gate in enumerate(gates, 1)
    ]
    return "; ".join(["cat > /dev/null", say(0, share), *steps])


def say(first: int, count: int) -> str:
    """Lines with numbers; equal ones would be told apart by nothing but their order."""
    return f"i={first}; while [ $i -lt {first + count} ]; do echo line $i; i=$((i+1)); done"


async def test_a_run_outlives_five_rolls_of_its_worker(temporal: Client, tmp_path: Path) -> None:
    gates = [tmp_path / f"gate-{number}" for number in range(5)]
    async with ground(temporal, tmp_path) as system:
        raw = system.agent(gated(gates))
        ticket = await system.start(raw)
        for number, gate in enumerate(gates, 1):
            async with system.worker():
                await written(system, raw, LINES // 6 * number)
            gate.touch()
        async with system.worker():
            outcome = await ticket.handle(temporal).result()
        stdout = [line.data for line in await system.lines(raw) if line.stream == "stdout"]
    assert_whole(stdout, outcome)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_200_mb_of_output_cost_little_memory_no_history_and_are_stored_in_pages(
    temporal: Client, tmp_path: Path
) -> None:
    async with ground(temporal, tmp_path) as system, system.worker_process() as process:
        small, _ = await told(system, system.agent("cat > /dev/null; echo warm"))
        before = peak_memory(process.pid)
        line = "head -c 100000 /dev/zero | tr '\\0' x"
        raw = system.agent(f"cat > /dev/null; l=$({line}); i=0; while [ $i -lt 2000 ]; do echo $l; i=$((i+1)); done")
        large, outcome = await told(system, raw)
        grown = peak_memory(process.pid) - before
        pages = await paged(system, raw)
    assert outcome.receipt is not None
    assert (outcome.receipt.state, outcome.receipt.lines, outcome.receipt.bytes) == ("verified", 2000, 2000 * 100_001)
    # Two steps that end together share a workflow task or not, by chance: three events of some hundred bytes.
    assert abs(large.history_length - small.history_length) <= 6
    assert abs(large.history_size_bytes - small.history_size_bytes) < 3 * 1024
    assert grown < 100 * MEBI
    assert len(pages) > 40
    assert max(pages) <= PAGE_BYTES
    assert sum(pages) == 2000 * 100_000


async def told(system: Ground, raw: dict[str, Any]) -> tuple[WorkflowExecutionInfo, Outcome]:
    """What Temporal knows of a finished run, and what came of it."""
    handle = (await system.start(raw)).handle(system.temporal)
    outcome = await handle.result()
    return (await handle.describe()).raw_description.workflow_execution_info, outcome


async def paged(system: Ground, raw: dict[str, Any]) -> list[int]:
    """Bytes of each page that a reader gets who asks for no size."""
    pages: list[int] = []
    after = 0
    while page := await system.store.read(attempt_key(raw), after):
        pages.append(sum(len(line.data) for line in page if line.stream == "stdout"))
        after = page[-1].sequence
    return pages


def peak_memory(pid: int) -> int:
    """The process's highest resident memory so far, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


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


async def test_a_deleted_pod_is_named_and_its_output_kept(temporal: Client, tmp_path: Path) -> None:
    async with ground(temporal, tmp_path) as system, system.worker():
        raw = system.agent(talkative(tmp_path / "never"))
        raw["config"]["infrastructureRetries"] = 0
        ticket = await system.start(raw)
        await written(system, raw, LINES // 2)
        job = await system.kubernetes.read_job("default", attempt_key(raw).job_name)
        assert job is not None
        (pod,) = await system.kubernetes.pods_of(reference(job))
        await system.kubernetes.delete_pod("default", pod.metadata.name, pod.metadata.uid, timedelta(seconds=2))
        outcome = await ticket.handle(temporal).result()
        stdout = [line.data for line in await system.lines(raw) if line.stream == "stdout"]
    assert outcome.error_code == "k8s_pod_lost"
    assert outcome.failure is not None
    assert outcome.failure.budget == "infrastructure"
    assert outcome.receipt is not None
    assert outcome.receipt.lines == LINES // 2
    assert len(stdout) == LINES // 2


async def test_a_run_over_its_time_is_ended_by_name(temporal: Client, tmp_path: Path) -> None:
    async with ground(temporal, tmp_path) as system, system.worker():
        raw = system.agent(talkative(tmp_path / "never"))
        raw["config"]["timeoutSec"] = 2
        outcome = await system.outcome(raw)
        assert await system.kubernetes.read_job("default", attempt_key(raw).job_name) is None
    assert outcome.timed_out
    assert outcome.error_code == "timeout"
