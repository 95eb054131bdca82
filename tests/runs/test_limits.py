"""An agent that meets a limit of memory or disk: what is recorded, what is advised, and that it is not repeated."""

import asyncio
from pathlib import Path
from typing import Any

from rich.console import Console
from temporalio.client import Client

from agent_runs.cli.display import TextDisplay
from agent_runs.client.attach import Ticket
from agent_runs.client.explanation import explain
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome, Peaks
from dev_stack.cluster.kinds import JOBS, PODS
from tests.runs.system import System, open_system, replay_script

MIB = 1024 * 1024
WAITS = "cat > /dev/null; echo begun; sleep 600"


async def started(system: System, **config: Any) -> tuple[Ticket, str]:
    """A run whose agent works, and its pod."""
    raw = system.agent(WAITS)
    raw["config"] |= config
    ticket = await system.start(raw)
    await system.until_stored(raw)
    [pod] = system.embedded.store.every(PODS)
    return ticket, pod["metadata"]["name"]


def shown(outcome: Outcome) -> str:
    """What `agent-runs show` prints of an outcome."""
    console = Console(record=True, width=400)
    TextDisplay(console=console).outcome("run", outcome)
    return console.export_text()


async def test_an_agent_out_of_memory_is_advised_a_limit_and_not_repeated(temporal: Client, tmp_path: Path) -> None:
    limits = {"limits": {"memory": "512Mi"}}
    async with open_system(temporal, tmp_path) as system, system.worker():
        ticket, pod = await started(system, resources=limits, infrastructureRetries=3)
        await system.embedded.faults.kill_container(pod, "opencode", oom=True)
        outcome = await outcome_at_close(ticket.handle(temporal))
        assert not outcome.may_repeat
        assert [one.failure_code for one in outcome.attempts] == ["oom_killed"]
        assert system.embedded.store.every(JOBS) == []
    advice = "limit 512 MiB, peak at least 512 MiB: set resources.limits.memory to at least 768Mi"
    assert outcome.error_message is not None
    assert advice in outcome.error_message
    peaks = outcome.attempts[0].peaks
    assert (peaks.memory, peaks.memory_reached_limit, peaks.memory_limit) == (512 * MIB, True, 512 * MIB)
    assert advice in shown(outcome)
    assert "memory at least 512 MiB of 512 MiB" in shown(outcome)
    assert "peaks: memory at least 512 MiB of 512 MiB" in explain(outcome)["evidence"]


async def test_a_pod_that_fills_a_volume_is_named_with_it_and_not_repeated(temporal: Client, tmp_path: Path) -> None:
    message = 'Usage of EmptyDir volume "runtime-cache" exceeds the limit "2Gi". '
    async with open_system(temporal, tmp_path) as system, system.worker():
        ticket, pod = await started(system, infrastructureRetries=3)
        await system.embedded.faults.evict(pod, message=message)
        outcome = await asyncio.wait_for(outcome_at_close(ticket.handle(temporal)), 60)
    assert [one.failure_code for one in outcome.attempts] == ["disk_limit_exceeded"]
    assert not outcome.may_repeat
    assert outcome.error_message is not None
    assert 'volume "runtime-cache" used more disk than its limit of 2Gi (2147483648 bytes)' in outcome.error_message


async def test_peaks_of_a_run_are_in_its_outcome(temporal: Client, tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.peak").write_text(f"{300 * MIB}\n")
    (cgroup / "memory.max").write_text(f"{512 * MIB}\n")
    async with open_system(temporal, tmp_path) as system, system.worker():
        raw = system.agent(replay_script("text-stdin"))
        raw["config"]["env"]["RUNNER_CGROUP"] = str(cgroup)
        raw["config"]["resources"] = {"limits": {"memory": "512Mi"}}  # the status has it, if it is read in time
        outcome = await asyncio.wait_for(system.outcome(raw), 60)
    [attempt] = outcome.attempts
    assert attempt.peaks.output_disk is not None
    assert attempt.peaks == Peaks(memory=300 * MIB, memory_limit=512 * MIB, output_disk=attempt.peaks.output_disk)
    assert "memory 300 MiB of 512 MiB, output on disk" in shown(outcome)
