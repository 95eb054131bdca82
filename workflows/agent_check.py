"""The workflow that checks an agent's configuration before a run, with the code that a run uses."""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import activities
    from agent_runs.contracts.errors import InvalidRequest
    from agent_runs.contracts.identity import CHECK_WORKFLOW_TYPE
    from agent_runs.contracts.start import CheckReport, CheckStart
    from workflows.boundary import Unreadable, decode, one_argument


MAX_CHECK: Final = timedelta(seconds=40)
"""Of the check of a configuration; a caller with a shorter time-out gets two thirds of that."""


@workflow.defn(name=CHECK_WORKFLOW_TYPE)
class AgentCheckWorkflow:
    """One check. Its caller waits for seconds and sets the workflow's own time-out; it creates nothing that lasts."""

    @workflow.run
    @one_argument
    async def run(self, input: RawValue) -> CheckReport:
        """Asks one worker, then a pod if the caller wants one and nothing is wrong so far."""
        try:
            start = decode(input, CheckStart)
        except Unreadable as error:
            raise InvalidRequest(f"the check's input {error}") from None
        longest = workflow.info().execution_timeout or 2 * MAX_CHECK
        report = await workflow.execute_activity(
            activities.check_configuration,
            start,
            summary="check the agent's configuration",
            start_to_close_timeout=min(longest * 2 / 3, MAX_CHECK),
            schedule_to_close_timeout=timedelta(minutes=1),
        )
        if not start.pod or any(finding.level == "error" for finding in report.findings):
            return report
        tried = await workflow.execute_activity(
            activities.try_pod,
            start,
            summary="run a pod of the agent",
            start_to_close_timeout=timedelta(minutes=3),
            schedule_to_close_timeout=timedelta(minutes=4),
            heartbeat_timeout=timedelta(seconds=20),
        )
        return CheckReport(findings=(*report.findings, *tried.findings))
