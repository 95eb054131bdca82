"""A worker of the real workflow with fake activities; every run that a test starts on it is replayed at its end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from agent_runs.client.attach import attach
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.request import WakeContext
from agent_runs.service.activity_context import ActivityContext, Slots
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import THROTTLE, FakeActivities
from workflows.agent_run import AgentRunWorkflow

Handle = WorkflowHandle[AgentRunWorkflow, Outcome]
Start = Callable[[FakeRequest], Awaitable[Handle]]


@asynccontextmanager
async def running_worker(
    temporal: Client, queue: str, steps: FakeActivities, *, sandboxed: bool = True, replays: bool = True
) -> AsyncIterator[Start]:
    """Starts runs; they must have ended when the block ends, because they are replayed then.

    Args:
        sandboxed: as in production; a test that shortens a constant of the workflow needs False.
        replays: False for a worker that cannot read its runs.
    """
    runner = SandboxedWorkflowRunner() if sandboxed else UnsandboxedWorkflowRunner()
    handles: list[Handle] = []

    async def start(request: FakeRequest) -> Handle:
        ticket = await attach(temporal, ClientSettings(task_queue=queue), request.wake)
        handles.append(ticket.handle(temporal))
        return handles[-1]

    async with Worker(
        temporal,
        task_queue=queue,
        workflows=[AgentRunWorkflow],
        activities=steps.activities,
        workflow_runner=runner,
        max_heartbeat_throttle_interval=THROTTLE,
        interceptors=[ActivityContext(Slots(1000))],
    ):
        yield start
        replayer = Replayer(workflows=[AgentRunWorkflow], data_converter=pydantic_data_converter, debug_mode=True)
        for handle in handles if replays else []:
            await replayer.replay_workflow(await handle.fetch_history())


def configured(request: FakeRequest, **changes: Any) -> FakeRequest:
    """The request with another configuration."""
    return request.model_copy(update={"config": request.config.model_copy(update=changes)})


def wake(task: str | None, request: FakeRequest, run_id: str | None = None) -> FakeRequest:
    """A wake of a task, whose outcome is kept for a day."""
    changes = {"context": WakeContext(task_id=task), "outcome_retention_sec": 24 * 3600}
    return request.model_copy(update=changes | ({"run_id": run_id} if run_id else {}))


async def details_of(handle: Handle) -> str:
    """What the Web UI shows of the run."""
    metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    return str(metadata.current_details)


async def reached(event: asyncio.Event) -> None:
    """Waits for something that must happen, without waiting for ever."""
    async with asyncio.timeout(60):
        await event.wait()
