"""Tells a run's workflow that one of its steps keeps failing: a workflow sees only the end of its activities.

A later try of a step asks Temporal how the one before it ended, so a killed worker is named as well as an error. It
signals at the third try, the sixth, the twelfth and so on. So a step that is tried for a month, once a second, adds at
most 20 such signals to the history, and one that fails less than twice adds none.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import structlog
from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from agent_runs.client.obstacles import SETTLED_AFTER, cause_of, is_handed_over
from agent_runs.client.timeline import STEPS
from agent_runs.contracts import updates
from agent_runs.contracts.identity import WORKFLOW_TYPE
from workflows.open_steps import OpenSteps

FIRST_REPORTED: Final = 3
CALL_TIMEOUT: Final = timedelta(seconds=3)
"""Of each of the two calls before a try, which together must be shorter than the shortest heartbeat time-out, 10 s."""

Report = Callable[[WorkflowHandle[Any, Any], activity.Info], Awaitable[None]]

log: Final[Any] = structlog.get_logger()


class FailingSteps(Interceptor):
    """Signals from a worker's activities, and the workflow's list of open steps that the signals are about."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - the SDK's name
        """Watch every activity."""
        return _Reporter(next, self._client)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: ARG002 - the SDK's signature
        """Watch every workflow's activities."""
        return OpenSteps


class _Reporter(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, client: Client) -> None:
        super().__init__(inner)
        self._client = client

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        if info.attempt < FIRST_REPORTED or info.workflow_type != WORKFLOW_TYPE or info.workflow_id is None:
            return await self.next.execute_activity(input)
        run = self._client.get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
        if is_reported(info.attempt):
            await _without_errors(_report, run, info)
        settling = asyncio.create_task(_without_errors(_report_settled, run, info))
        try:
            return await self.next.execute_activity(input)
        finally:
            settling.cancel()
            with suppress(asyncio.CancelledError):
                await settling


def is_reported(attempt: int) -> bool:
    """Whether this try of a step reports the failures before it: 3, 6, 12, 24, … Pure."""
    times, rest = divmod(attempt, FIRST_REPORTED)
    return rest == 0 and times.bit_count() == 1


async def _without_errors(report: Report, run: WorkflowHandle[Any, Any], info: activity.Info) -> None:
    """A report is for people only: whatever is wrong with it, the step goes its way."""
    try:
        await report(run, info)
    except Exception as error:  # noqa: BLE001 - such as a workflow of an older build, which does not know the query
        log.info("report.failed", error=type(error).__name__)


async def _report(run: WorkflowHandle[Any, Any], info: activity.Info) -> None:
    """Signal the error of the last try. One whose worker was stopped has none."""
    description = await run.describe(rpc_timeout=CALL_TIMEOUT)
    pending = description.raw_description.pending_activities
    failure = next((each.last_failure for each in pending if each.activity_id == info.activity_id), None)
    if failure is None or is_handed_over(failure):
        return
    cause, next_step = cause_of(failure)
    step = STEPS.get(info.activity_type, info.activity_type)
    report = updates.FailingStep(
        activity=info.activity_type, step=step, tries=info.attempt - 1, cause=cause, next_step=next_step
    )
    await run.signal(updates.STEP_KEEPS_FAILING, report, rpc_timeout=CALL_TIMEOUT)
    log.warning("failure.reported", activity=info.activity_type, tries=report.tries, cause=cause)


async def _report_settled(run: WorkflowHandle[Any, Any], info: activity.Info) -> None:
    """Signal that a step that was reported goes on, once it has done so for some time."""
    await asyncio.sleep(SETTLED_AFTER.total_seconds())
    failing = await run.query(updates.FAILING_STEPS, result_type=list[str], rpc_timeout=CALL_TIMEOUT)
    if info.activity_type in failing:
        await run.signal(updates.STEP_GOES_ON, info.activity_type, rpc_timeout=CALL_TIMEOUT)
