"""Runs outlive their workers, and end by name when their pod or their time does."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from agent_runs.kube.ownership import job_ref
from agent_runs.transcript.store import PAGE_BYTES
from dev_stack.cluster.kinds import SECRETS
from tests.runs.system import System, attempt_key, open_system, replay_script
from tests.support.ends import assert_verified

LINES = 60
MEBI = 1024 * 1024


NEVER = Path("/nonexistent/continue")


def assert_whole(lines: list[bytes], outcome: Outcome) -> None:
    assert lines == [b"line %d" % number for number in range(LINES)]
    assert_verified(outcome)


def pausing_agent(files: list[Path]) -> str:
    """An agent that writes a share of its lines, waits for the next file, and so on."""
    share = LINES // (len(files) + 1)
    steps = [
        f"until [ -e {file} ]; do sleep 0.05; done; {write_lines(share * number, share)}"
        for number, file in enumerate(files, 1)
    ]
    return "; ".join(["cat > /dev/null", write_lines(0, share), *steps])


def write_lines(first: int, count: int) -> str:
    """Lines with numbers, so that all of them differ."""
    return f"i={first}; while [ $i -lt {first + count} ]; do echo line $i; i=$((i+1)); done"


async def test_a_run_outlives_five_rolls_of_its_worker(temporal: Client, tmp_path: Path) -> None:
    files = [tmp_path / f"continue-{number}" for number in range(5)]
    async with open_system(temporal, tmp_path) as system:
        raw = system.agent(pausing_agent(files))
        ticket = await system.start(raw)
        for number, file in enumerate(files, 1):
            async with system.worker():
                await system.until_stored(raw, LINES // 6 * number)
            file.touch()
        async with system.worker():
            outcome = await outcome_at_close(ticket.handle(temporal))
        stdout = await system.stdout(raw)
    assert_whole(stdout, outcome)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_200_mb_of_output_cost_little_memory_no_history_and_are_stored_in_pages(
    temporal: Client, tmp_path: Path
) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker_process() as process:
        small, _ = await finished(system, system.agent("cat > /dev/null; echo warm"))
        before = peak_memory(process.pid)
        line = "head -c 100000 /dev/zero | tr '\\0' x"
        raw = system.agent(f"cat > /dev/null; l=$({line}); i=0; while [ $i -lt 2000 ]; do echo $l; i=$((i+1)); done")
        large, outcome = await finished(system, raw)
        grown = peak_memory(process.pid) - before
        pages = await page_sizes(system, raw)
    assert outcome.receipt is not None
    assert (outcome.receipt.state, outcome.receipt.lines, outcome.receipt.bytes) == ("verified", 2000, 2000 * 100_001)
    # Two steps that end together share a workflow task or not, by chance: three events of some hundred bytes.
    assert abs(large.history_length - small.history_length) <= 6
    assert abs(large.history_size_bytes - small.history_size_bytes) < 3 * 1024
    assert grown < 100 * MEBI
    assert len(pages) > 40
    assert max(pages) <= PAGE_BYTES
    assert sum(pages) == 2000 * 100_000


async def finished(system: System, raw: dict[str, Any]) -> tuple[WorkflowExecutionInfo, Outcome]:
    """Temporal's information about a run that has ended, and its outcome."""
    handle = (await system.start(raw)).handle(system.temporal)
    outcome = await outcome_at_close(handle)
    return (await handle.describe()).raw_description.workflow_execution_info, outcome


async def page_sizes(system: System, raw: dict[str, Any]) -> list[int]:
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


async def test_a_cancel_ends_the_agent_and_keeps_its_output(temporal: Client, tmp_path: Path) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        raw = system.agent(pausing_agent([NEVER]))
        ticket = await system.start(raw)
        await system.until_stored(raw, LINES // 2)
        await ticket.handle(temporal).cancel(reason="enough")
        outcome = await outcome_at_close(ticket.handle(temporal))
        assert await system.kubernetes.read_job("default", attempt_key(raw).job_name) is None
        stdout = await system.stdout(raw)
    assert outcome.error_code == "cancelled"
    assert stdout == [b"line %d" % number for number in range(LINES // 2)]


async def test_a_deleted_pod_is_a_named_failure_and_its_output_is_kept(temporal: Client, tmp_path: Path) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        raw = system.agent(pausing_agent([NEVER]))
        raw["config"]["infrastructureRetries"] = 0
        ticket = await system.start(raw)
        await system.until_stored(raw, LINES // 2)
        job = await system.kubernetes.read_job("default", attempt_key(raw).job_name)
        assert job is not None
        (pod,) = await system.kubernetes.pods_of(job_ref(job))
        await system.kubernetes.delete_pod("default", pod.metadata.name, pod.metadata.uid, timedelta(seconds=2))
        outcome = await outcome_at_close(ticket.handle(temporal))
        stdout = await system.stdout(raw)
    assert outcome.error_code == "k8s_pod_lost"
    assert outcome.failure is not None
    assert outcome.failure.budget == "infrastructure"
    assert outcome.receipt is not None
    assert outcome.receipt.lines == LINES // 2
    assert len(stdout) == LINES // 2


async def test_a_clean_up_for_which_the_workers_identity_is_refused_is_tried_again(
    temporal: Client, tmp_path: Path
) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        raw = system.agent(replay_script("text-stdin"))
        refused = system.embedded.faults.http(method="DELETE", path="/jobs/", status=401, message="no", times=2)
        outcome = await system.outcome(raw)
        assert await system.kubernetes.read_job("default", attempt_key(raw).job_name) is None
        left = [body["metadata"]["name"] for body in system.embedded.store.every(SECRETS, "default")]
    assert (outcome.error_code, refused.hits, left) == (None, 2, [])
    assert_verified(outcome)
