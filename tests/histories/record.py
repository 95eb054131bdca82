"""Records a history of each scenario with fake activities on a real dev server; `python -m tests.histories.record`.

Replaces all recorded histories, or those of the scenarios that are named after it. Takes some two minutes, because the
workflow's timers are not shortened.
"""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Worker

from agent_runs.client.attach import attach
from agent_runs.client.connection import run_to_end
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.service.build_id import build_id
from tests.histories.scenarios import Handle, RecordedRun, Scenario, request_cancel, scenarios
from tests.support.requests import FakeRequest
from tests.support.temporal import start_temporal
from tests.workflows.fake_activities import THROTTLE
from workflows.agent_run import AgentRunWorkflow

HERE: Final = Path(__file__).parent
LIMIT: Final = timedelta(minutes=2)
"""Of one scenario; all of them take half a minute."""


def history_file(name: str) -> Path:
    return HERE / f"{name}.json"


async def record(client: Client, name: str, scenario: Scenario) -> None:
    """Runs one scenario and writes its history."""
    queue = f"record-{name}"

    async def attach_wake(request: FakeRequest) -> Handle:
        return (await attach(client, ClientSettings(task_queue=queue), request.wake)).handle(client)

    run = RecordedRun(await attach_wake(scenario.request), scenario.request, attach_wake)
    queued = asyncio.create_task(_while_queued(scenario, run))
    if scenario.while_queued is request_cancel:  # every other call needs a worker to be answered
        await queued
    async with Worker(
        client,
        task_queue=queue,
        workflows=[AgentRunWorkflow],
        activities=scenario.steps.activities,
        build_id=build_id(),
        max_heartbeat_throttle_interval=THROTTLE,
    ):
        await queued
        try:
            async with asyncio.timeout(LIMIT.total_seconds()):
                await scenario.callers(run)
                await outcome_at_close(run.handle)
        except TimeoutError:
            raise TimeoutError(f"{name} does not end: the workflow no longer does what it is to show") from None
    history_file(name).write_text(as_text(await run.handle.fetch_history()))


async def _while_queued(scenario: Scenario, run: RecordedRun) -> None:
    if scenario.while_queued is not None:
        await scenario.while_queued(run)


def as_text(history: WorkflowHistory) -> str:
    """One event per line; without stack traces, which name files of this machine and mean nothing to a replay."""
    events = json.loads(
        history.to_json(), object_hook=lambda values: {k: v for k, v in values.items() if k != "stackTrace"}
    )
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events["events"])
    return f'{{"events":[\n{lines}\n]}}\n'


async def main() -> None:
    wanted = {name: make() for name, make in scenarios().items() if name in sys.argv[1:] or not sys.argv[1:]}
    for file in HERE.glob("*.json"):
        if file.stem in wanted or not sys.argv[1:]:
            file.unlink()
    async with await start_temporal() as environment:
        await asyncio.gather(*(record(environment.client, name, scenario) for name, scenario in wanted.items()))


if __name__ == "__main__":
    run_to_end(main)
