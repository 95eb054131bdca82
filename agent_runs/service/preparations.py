"""Opens the sealed text of an activity's own run.

The sealed text is in the first event of the run's history. As an input of every activity it would be repeated there; an
activity that needs it reads the first event instead. See docs/adr/0004.
"""

import asyncio
from dataclasses import dataclass

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client

from agent_runs.contracts.start import Binding, RunStart, SealedRun
from agent_runs.paperclip.preparation import Preparation, prepare
from agent_runs.paperclip.sealing import Opener


@dataclass(frozen=True)
class HistoryPreparations:
    """Reads the start from Temporal, opens what is sealed in it for this very workflow, and prepares it."""

    client: Client
    opener: Opener

    async def current(self) -> Preparation:
        """As `Preparations.current`; an error of the RPC fails the activity attempt, which Temporal retries."""
        info = activity.info()
        workflow_id = info.workflow_id or ""
        start = await self._start(workflow_id, info.workflow_run_id or "")
        use = Binding(
            purpose="run", workflow_id=workflow_id, company_id=start.company_id, run_id=start.run_id, task=start.task
        )
        return await asyncio.to_thread(self._prepared, start.sealed, use)

    def _prepared(self, sealed: str, use: Binding) -> Preparation:
        opened = self.opener.open(sealed, SealedRun, use)
        return prepare(opened.context, opened.host)

    async def _start(self, workflow_id: str, workflow_run_id: str) -> RunStart:
        """Reads one event in one RPC."""
        response = await self.client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=self.client.namespace,
                execution=WorkflowExecution(workflow_id=workflow_id, run_id=workflow_run_id),
                maximum_page_size=1,
            )
        )
        started = response.history.events[0].workflow_execution_started_event_attributes
        (start,) = await self.client.data_converter.decode(started.input.payloads, [RunStart])
        return RunStart.model_validate(start)
