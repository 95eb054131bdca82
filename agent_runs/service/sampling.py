"""Samples what no event shows: how many runs are in each phase, and whether the worker's checks are ok."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import structlog
from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.service import RPCError

from agent_runs.background import in_background
from agent_runs.contracts.identity import WORKFLOW_TYPE
from agent_runs.metrics.definitions import CHECK_OK, OPEN_RUNS
from agent_runs.metrics.recorder import Recorder
from agent_runs.service.health import Health
from workflows.current_details import FINAL_PHASES, Phase

INTERVAL: Final = timedelta(seconds=10)
"""Between two samples; each is four counts by Temporal. Prometheus' usual interval of scrapes is not shorter."""
REQUEST_TIMEOUT: Final = timedelta(seconds=5)

_OPEN: Final = f"WorkflowType = '{WORKFLOW_TYPE}' AND ExecutionStatus = 'Running'"
_ENDED: Final = ", ".join(f"'{phase}'" for phase in sorted(FINAL_PHASES))
QUERIES: Final = {
    "preparing": f"{_OPEN} AND RunPhase IS NULL",
    "scheduling": f"{_OPEN} AND RunPhase = '{Phase.SCHEDULING}'",
    "running": f"{_OPEN} AND RunPhase IN ('{Phase.RUNNING}', '{Phase.ASKING}')",
    "ended": f"{_OPEN} AND RunPhase IN ({_ENDED})",
}
"""The search attribute has no value before `scheduling`, and keeps `running` while a run is finishing."""

log: Final[Any] = structlog.get_logger()


@asynccontextmanager
async def sampling(
    client: Client, health: Health, metrics: Recorder, interval: timedelta = INTERVAL
) -> AsyncIterator[None]:
    """Sample until the end of the context."""
    async with in_background(_sample_all(client, health, metrics, interval), "sample metrics"):
        yield


async def _sample_all(client: Client, health: Health, metrics: Recorder, interval: timedelta) -> None:
    while True:
        try:
            await sample(client, health, metrics)
        except Exception:  # metrics never end a worker
            log.exception("metrics.sampling_failed")
        await asyncio.sleep(interval.total_seconds())


async def sample(client: Client, health: Health, metrics: Recorder) -> None:
    """Sample once. What Temporal does not answer is NaN: an old number would look like a true one."""
    for check in (await health.report()).checks:
        metrics.set(CHECK_OK, float(check.state == "ok"), check=check.name)
    counts = await asyncio.gather(*(_count(client, query) for query in QUERIES.values()))
    for phase, count in zip(QUERIES, counts, strict=True):
        metrics.set(OPEN_RUNS, count, phase=phase)


async def _count(client: Client, query: str) -> float:
    """Without the client's retries, which log each try while Temporal is away."""
    request = CountWorkflowExecutionsRequest(namespace=client.namespace, query=query)
    try:
        response = await client.workflow_service.count_workflow_executions(request, timeout=REQUEST_TIMEOUT)
    except RPCError:
        return math.nan
    return float(response.count)
