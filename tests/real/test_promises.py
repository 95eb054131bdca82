"""Guard and cancel on a real cluster, with the real OpenCode. Needs KUBECONFIG and TEST_AGENT_IMAGE."""

import uuid
from datetime import timedelta
from pathlib import Path

import pytest

from client.attach import attach
from client.outcome import cancel
from contracts.identity import AttemptKey
from tests.real.stack import Real, real
from tests.runs.attaching import at_once

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(300)]
SLOW = "slow-steps:30:1"


async def spoken(system: Real, key: AttemptKey, count: int) -> None:
    """Returns once so many lines of the agent are stored, by a worker in another process."""
    news = system.store.news(key)
    while len(await system.said(key)) < count:
        assert await system.store.receipt(key) is None, "the agent has ended before it said so much"
        await news.beyond(news.count, timedelta(milliseconds=200))


async def test_fifty_callers_start_one_agent_once(tmp_path: Path) -> None:
    async with real(tmp_path) as system:
        agent = str(uuid.uuid4())
        request = system.request("slow-steps:5:1", agent)
        share = [request] * 13 + [request.model_copy(update={"run_id": str(uuid.uuid4())}) for _ in range(12)]
        tickets = await at_once(system.stack.client, system.stack.settings.task_queue, [share, share])
        winner = next(ticket for ticket in tickets if ticket["kind"] == "started")
        handle = system.stack.client.get_workflow_handle(winner["workflow_id"], run_id=winner["workflow_run_id"])
        jobs: set[str] = set()
        while not jobs:
            jobs = {job.metadata.name for job in await system.cluster.jobs_of_agent("default", agent)}
        await handle.result()
    assert {ticket["workflow_run_id"] for ticket in tickets} == {winner["workflow_run_id"]}
    assert [ticket["kind"] for ticket in tickets].count("started") == 1
    assert len(jobs) == 1


async def test_a_cancelled_agent_stops_and_keeps_its_session(tmp_path: Path) -> None:
    async with real(tmp_path) as system:
        request = system.request(SLOW, str(uuid.uuid4()), graceSec=20)
        ticket = await attach(system.stack.client, system.stack.settings, request)
        key = AttemptKey(run=request.key)
        await spoken(system, key, 3)
        answer = await cancel(ticket.handle(system.stack.client), "wrong branch")
        outcome = await ticket.handle(system.stack.client).result()
        left = await system.cluster.read_job("default", key.job_name)
    assert answer.outcome == "cancelled"
    assert answer.stop.agent_stopped
    assert not answer.stop.forced
    assert answer.session_id
    assert outcome.error_code == "cancelled"
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"
    assert left is None
