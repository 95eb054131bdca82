"""A worker like the one in production that kills itself at a given moment, or whose transcript store has a full disk.

`FAULT_STEP` and `FAULT_MOMENT` name the moment: `before` an activity has done anything, or `after` it has done all and
reported nothing. `FAULT_FULL` names a file: while it exists, SQLite may not use any further page. `FAULT_CHECKPOINTS`
is how many seconds pass between two checkpoints of a carried workspace.
"""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import Connection, Engine, event
from temporalio.client import Client
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

import worker
from agent_runs.contracts.messages import CreateJob
from agent_runs.job.carried import Carried, CarriedWorkspaces

UNLIMITED_PAGES = 1 << 30


class KillAtStep(Interceptor):
    """Kills the process as the kernel would: nothing is reported or released."""

    def __init__(self, step: str, moment: str) -> None:
        self.step, self.moment = step, moment

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - Temporal's name
        return _KillInbound(next, self)


class _KillInbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, kill: KillAtStep) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self.kill = kill

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        matches = getattr(input.fn, "__name__", "") == self.kill.step
        if matches and self.kill.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await super().execute_activity(input)
        if matches:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def limit_store(full: Path) -> None:
    """Give the transcript store a full disk for as long as the file `full` exists."""

    def limit(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {1 if full.exists() else UNLIMITED_PAGES}")

    event.listen(Engine, "begin", limit)


def take_checkpoints(interval: float) -> None:
    """Have pods take at most one checkpoint of a carried workspace in so many seconds."""
    begin = CarriedWorkspaces.begin

    async def begin_so(self: CarriedWorkspaces, input: CreateJob) -> Carried:
        carried = await begin(self, input)
        return replace(carried, config=json.dumps({**json.loads(carried.config), "interval": interval}).encode())

    CarriedWorkspaces.begin = begin_so  # type: ignore[method-assign]


def main() -> None:
    """Run the worker until the moment that the environment names."""
    if full := os.environ.get("FAULT_FULL"):
        limit_store(Path(full))
    if checkpoints := os.environ.get("FAULT_CHECKPOINTS"):
        take_checkpoints(float(checkpoints))
    step = os.environ.get("FAULT_STEP")
    if not step:
        worker.main()
        return
    kill = KillAtStep(step, os.environ["FAULT_MOMENT"])

    def worker_with_kill(client: Client, **options: Any) -> Worker:
        return Worker(client, **{**options, "interceptors": [*options.get("interceptors", ()), kill]})

    with mock.patch.object(worker, "Worker", worker_with_kill):
        worker.main()
