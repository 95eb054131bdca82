"""The run request, fetched from where it already is: the first event of the run's own history.

The request carries two sealed fields of some kilobytes. Handing it to every activity would repeat them in the
history at each step; an activity that needs them reads the first event instead. See docs/adr/0004.
"""

from dataclasses import dataclass
from typing import Protocol

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client

from contracts.request import RunRequest


class Requests(Protocol):
    """Where an activity gets the request of the run it works for."""

    async def current(self) -> RunRequest:
        """The request of the run that scheduled the calling activity."""
        ...


@dataclass(frozen=True)
class HistoryRequests:
    """Reads the request from Temporal."""

    client: Client

    async def current(self) -> RunRequest:
        """One RPC, one event; a failure of Temporal is retried by Temporal."""
        info = activity.info()
        answer = await self.client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=self.client.namespace,
                execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""),
                maximum_page_size=1,
            )
        )
        started = answer.history.events[0].workflow_execution_started_event_attributes
        (request,) = await self.client.data_converter.decode(started.input.payloads, [RunRequest])
        return RunRequest.model_validate(request)
