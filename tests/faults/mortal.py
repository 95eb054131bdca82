"""A worker like the one in production that kills itself at a moment of its own, or whose store finds its disk full.

`FAULT_STEP` and `FAULT_MOMENT` say when it goes: `before` a step has done anything, or `after` it has done all and
reported nothing. `FAULT_FULL` names a file: while it is there, SQLite may not use another page.
"""

import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

from sqlalchemy import Connection, Engine, event
from temporalio.client import Client
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

import worker

ENOUGH = 1 << 30
"""Pages."""


class Mortality(Interceptor):
    """Kills the process as the kernel would: nothing is said, nothing is handed over."""

    def __init__(self, step: str, moment: str) -> None:
        self.step, self.moment = step, moment

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - theirs
        return Death(next, self)


class Death(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, fate: Mortality) -> None:  # noqa: A002 - theirs
        super().__init__(next)
        self.fate = fate

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - theirs
        meant = getattr(input.fn, "__name__", "") == self.fate.step
        if meant and self.fate.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = await super().execute_activity(input)
        if meant:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def fill(full: Path) -> None:
    """The store's disk is as full as this file is there."""

    def limit(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {1 if full.exists() else ENOUGH}")

    event.listen(Engine, "begin", limit)


def main() -> None:
    """The worker, until its moment."""
    if full := os.environ.get("FAULT_FULL"):
        fill(Path(full))
    step = os.environ.get("FAULT_STEP")
    if not step:
        worker.main()
        return
    fate = Mortality(step, os.environ["FAULT_MOMENT"])

    def doomed(client: Client, **options: Any) -> Worker:
        return Worker(client, **{**options, "interceptors": [*options.get("interceptors", ()), fate]})

    with mock.patch.object(worker, "Worker", doomed):
        worker.main()
