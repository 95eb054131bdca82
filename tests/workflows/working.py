"""A worker for one test, with stand-ins for the steps; every run started by it is replayed at the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from client.attach import attach
from client.settings import ClientSettings
from contracts.outcome import Outcome
from contracts.request import RunRequest
from tests.workflows.steps import THROTTLE, Steps
from workflows.agent_run import AgentRunWorkflow

Handle = WorkflowHandle[AgentRunWorkflow, Outcome]
Start = Callable[[RunRequest], Awaitable[Handle]]


@asynccontextmanager
async def working(temporal: Client, queue: str, steps: Steps, *, sandboxed: bool = True) -> AsyncIterator[Start]:
    """Starts runs, which must have ended when the block ends. In a sandbox no test can shorten a constant."""
    runner = SandboxedWorkflowRunner() if sandboxed else UnsandboxedWorkflowRunner()
    handles: list[Handle] = []

    async def start(request: RunRequest) -> Handle:
        ticket = await attach(temporal, ClientSettings(task_queue=queue), request)
        handles.append(ticket.handle(temporal))
        return handles[-1]

    async with Worker(
        temporal,
        task_queue=queue,
        workflows=[AgentRunWorkflow],
        activities=steps.activities,
        workflow_runner=runner,
        max_heartbeat_throttle_interval=THROTTLE,
        workflow_failure_exception_types=[ValidationError],
    ):
        yield start
        replayer = Replayer(workflows=[AgentRunWorkflow], data_converter=pydantic_data_converter)
        for handle in handles:
            await replayer.replay_workflow(await handle.fetch_history())


def raising(error: Exception) -> Callable[[Any], Awaitable[Any]]:
    """An answer that is an error."""

    async def answer(_order: object) -> None:
        raise error

    return answer


def configured(request: RunRequest, **changes: Any) -> RunRequest:
    """The request with another configuration."""
    return request.model_copy(update={"config": request.config.model_copy(update=changes)})


async def reached(event: asyncio.Event) -> None:
    """Waits for something that must happen, without waiting for ever."""
    async with asyncio.timeout(30):
        await event.wait()
