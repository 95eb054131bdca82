"""Open runs are counted by phase, as Temporal lists them."""

import asyncio

from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.service import startup
from agent_runs.service.health import Health
from agent_runs.service.sampling import QUERIES, sample
from agent_runs.service.settings import WorkerSettings
from tests.metrics.scrape import Scrape, free_address, scrape
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import FakeActivities, FakeAgent
from tests.workflows.fake_worker import running_worker


async def test_a_run_is_counted_in_its_phase_until_it_closes(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings = WorkerSettings(task_queue=queue, metrics_listen=free_address())
    runtime = startup.temporal_runtime(settings)
    recorder, agent = startup.metrics_recorder(settings, runtime), FakeAgent()

    async def counted() -> Scrape:
        await sample(temporal, Health(), recorder)
        return await scrape(str(settings.metrics_listen))

    def running(seen: Scrape) -> float:
        return seen.value("agent_runs_open_runs", phase="running")

    before = await counted()
    assert all(before.has("agent_runs_open_runs", phase=phase) for phase in QUERIES)
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(request_of_a_run)
        await agent.started.wait()
        while running(await counted()) != running(before) + 1:  # noqa: ASYNC110 - Temporal sends no event
            await asyncio.sleep(0.1)
        await agent.end()
        await outcome_at_close(handle)
        while running(await counted()) != running(before):  # noqa: ASYNC110 - Temporal sends no event
            await asyncio.sleep(0.1)
