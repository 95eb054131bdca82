"""Guard and cancel on a real cluster, with the real OpenCode. Needs KUBECONFIG and TEST_AGENT_IMAGE."""

import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from agent_runs.client.outcome import cancel, outcome_at_close
from agent_runs.contracts.identity import AttemptKey
from tests.real_cluster.stack import RealSystem, open_real_system
from tests.runs.concurrent_attach import attach_all
from tests.support.ends import assert_verified

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(900)]
SLOW = "slow-steps:30:1"


async def until_stored(system: RealSystem, key: AttemptKey, count: int) -> None:
    """Returns once so many lines of the agent are stored, by a worker in another process."""
    notifier = system.store.notifier(key)
    while len(await system.stdout(key)) < count:
        assert await system.store.receipt(key) is None, "the agent has ended before it wrote so much"
        await notifier.wait_for_change(notifier.changes, timedelta(milliseconds=200))


async def test_fifty_callers_start_one_agent_once(tmp_path: Path) -> None:
    async with open_real_system(tmp_path) as system:
        agent = str(uuid.uuid4())
        wakes = [system.wake("slow-steps:5:1", agent, run_id=str(uuid.uuid4())) for _ in range(13)]
        share = [wakes[0]] * 12 + wakes
        tickets = await attach_all(system.stack.client, system.stack.settings.task_queue, [share, share])
        winner = next(ticket for ticket in tickets if ticket["kind"] == "started")
        handle = system.stack.client.get_workflow_handle(winner["workflow_id"], run_id=winner["workflow_run_id"])
        jobs: set[str] = set()
        while not jobs:
            jobs = {job.metadata.name for job in await system.cluster.jobs_of_agent("default", agent)}
        await outcome_at_close(handle)
    assert {ticket["workflow_run_id"] for ticket in tickets} == {winner["workflow_run_id"]}
    assert [ticket["kind"] for ticket in tickets].count("started") == 1
    assert len(jobs) == 1


async def test_a_cancelled_agent_stops_and_keeps_its_session(tmp_path: Path) -> None:
    async with open_real_system(tmp_path) as system:
        wake = system.wake(SLOW, str(uuid.uuid4()), graceSec=20)
        ticket = await system.start(wake)
        key = AttemptKey(run=wake.key)
        await until_stored(system, key, 3)
        answer = await cancel(ticket.handle(system.stack.client), "wrong branch")
        outcome = await outcome_at_close(ticket.handle(system.stack.client))
        job = await system.cluster.read_job("default", key.job_name)
    assert answer.outcome == "cancelled"
    assert answer.stop.agent_stopped
    assert not answer.stop.killed
    assert answer.session_id
    assert outcome.error_code == "cancelled"
    assert_verified(outcome)
    assert job is None
