"""Reads the run request from the first event of the run's own history.

The request has two sealed fields of some kilobytes. As an input of every activity they would be repeated in the
history; an activity that needs them reads the first event instead. See docs/adr/0004.
"""

from dataclasses import dataclass
from typing import Protocol

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client

from agent_runs.contracts.request import RunRequest


class Requests(Protocol):
    """Gives an activity the request of its run."""

    async def current(self) -> RunRequest:
        """Returns the request of the run that scheduled the calling activity."""
        ...


@dataclass(frozen=True)
class HistoryRequests:
    """Reads the request from Temporal."""

    client: Client

    async def current(self) -> RunRequest:
        """Reads one event in one RPC; an error of the RPC fails the activity attempt, which Temporal retries."""
        info = activity.info()
        response = await self.client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=self.client.namespace,
                execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""),
                maximum_page_size=1,
            )
        )
        started = response.history.events[0].workflow_execution_started_event_attributes
        (request,) = await self.client.data_converter.decode(started.input.payloads, [RunRequest])
        return RunRequest.model_validate(request)
