"""Records a history of each shape of run that has none yet, with stand-ins for the steps on a real dev server."""

import asyncio
import sys
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from client.attach import attach
from client.connection import run_to_end
from client.settings import ClientSettings
from contracts.errors import PodScheduleFailed, SessionUnavailable
from contracts.outcome import Outcome, Report
from contracts.request import AgentRef, RunConfig, RunRequest, Runtime, SessionParams
from tests.workflows.steps import GOOD, THROTTLE, Steps, until_cancelled
from workflows.agent_run import AgentRunWorkflow
from workflows.attributes import ALL

HERE = Path(__file__).parent
Handle = WorkflowHandle[AgentRunWorkflow, Outcome]
Shape = tuple[RunRequest, Steps, Callable[[Handle], Awaitable[Any]]]


def request(**changes: Any) -> RunRequest:
    """A valid request; nobody opens its sealed fields."""
    made = RunRequest(
        run_id=str(uuid.uuid4()),
        agent=AgentRef(id=str(uuid.uuid4()), company_id="acme", name="Ada"),
        config=RunConfig(model="fake/scenario/text"),
        sealed_secrets="sealed",
        sealed_prompt="sealed",
        linger_sec=0,
    )
    return made.model_copy(update=changes)


async def ended(handle: Handle) -> Outcome:
    """Wait for the end."""
    return await handle.result()


def shapes() -> dict[str, Callable[[], Shape]]:
    """Every shape of run so far, by the name of its file."""
    return {
        "normal": lambda: (request(), Steps(), ended),
        "unschedulable": _unschedulable,
        "fresh-restart": _fresh_restart,
        "timeout": _timeout,
        "cancel-while-running": _cancelled,
    }


def _unschedulable() -> Shape:
    async def refuse(_order: object) -> None:
        raise PodScheduleFailed("0/3 nodes are available")

    return request(), Steps({"await_schedule": refuse}), ended


def _fresh_restart() -> Shape:
    async def parse(order: Any) -> Report:
        refused = SessionUnavailable.as_failure("Session not found")
        return Report(failure=refused, unknown_session=True, exit_code=1) if order.resumed_session else GOOD

    resumed = Runtime(session_params=SessionParams(session_id="ses_old"))
    return request(runtime=resumed), Steps({"parse_transcript": parse}), ended


def _timeout() -> Shape:
    config = RunConfig(model="fake/scenario/text", timeout_sec=1)
    return request(config=config), Steps({"stream_logs": until_cancelled}), ended


def _cancelled() -> Shape:
    streaming = asyncio.Event()

    async def stream(order: object) -> None:
        streaming.set()
        await until_cancelled(order)

    async def cancel(handle: Handle) -> None:
        await streaming.wait()
        await handle.cancel(reason="operator said so")
        await handle.result()

    return request(), Steps({"stream_logs": stream}), cancel


async def record(client: Client, name: str, shape: Shape) -> None:
    """Runs one shape and writes its history."""
    asked, steps, drive = shape
    queue = f"record-{name}"
    async with Worker(
        client,
        task_queue=queue,
        workflows=[AgentRunWorkflow],
        activities=steps.activities,
        max_heartbeat_throttle_interval=THROTTLE,
    ):
        handle = (await attach(client, ClientSettings(task_queue=queue), asked)).handle(client)
        await drive(handle)
        (HERE / f"{name}.json").write_text((await handle.fetch_history()).to_json() + "\n")


async def main() -> None:
    """Records what is missing."""
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
        data_converter=pydantic_data_converter,
        search_attributes=list(ALL),
        dev_server_log_level="error",
    ) as environment:
        for name, shape in shapes().items():
            if not (HERE / f"{name}.json").exists():
                await record(environment.client, name, shape())


if __name__ == "__main__":
    run_to_end(main)
