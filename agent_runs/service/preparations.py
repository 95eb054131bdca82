"""Opens the sealed text of an activity's own run.

The sealed text is in the first event of the run's history. As an input of every activity it would be repeated there; an
activity that needs it reads the first event instead. See docs/adr/0004.
"""

import asyncio
from collections import OrderedDict
from typing import Final

from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client

from agent_runs.contracts.start import Binding, RunStart, SealedRun
from agent_runs.paperclip.preparation import Preparation, prepare
from agent_runs.paperclip.sealing import Opener

KEPT: Final = 64
"""Opened contexts, of some 300 KB each: most runs of a worker need theirs five times within a few seconds."""


class HistoryPreparations:
    """Reads the start from Temporal, opens what is sealed in it for this very workflow, and prepares it: once for each
    of the newest `KEPT` runs of this worker."""

    def __init__(self, client: Client, opener: Opener) -> None:
        self._client = client
        self._opener = opener
        self._kept: OrderedDict[str, Preparation] = OrderedDict()

    async def current(self) -> Preparation:
        """As `Preparations.current`; an error of the RPC fails the activity attempt, which Temporal retries."""
        info = activity.info()
        workflow_id, run_id = info.workflow_id or "", info.workflow_run_id or ""
        prepared = self._kept.get(run_id)
        if prepared is None:
            start = await self._start(workflow_id, run_id)
            prepared = await asyncio.to_thread(self._prepared, start, workflow_id)
        self._kept[run_id] = prepared
        self._kept.move_to_end(run_id)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return prepared

    def _prepared(self, start: RunStart, workflow_id: str) -> Preparation:
        use = Binding(
            purpose="run", workflow_id=workflow_id, company_id=start.company_id, run_id=start.run_id, task=start.task
        )
        opened = self._opener.open(start.sealed, SealedRun, use)
        return prepare(opened.context, opened.host)

    async def _start(self, workflow_id: str, workflow_run_id: str) -> RunStart:
        """Reads one event in one RPC."""
        response = await self._client.workflow_service.get_workflow_execution_history(
            GetWorkflowExecutionHistoryRequest(
                namespace=self._client.namespace,
                execution=WorkflowExecution(workflow_id=workflow_id, run_id=workflow_run_id),
                maximum_page_size=1,
            )
        )
        started = response.history.events[0].workflow_execution_started_event_attributes
        (start,) = await self._client.data_converter.decode(started.input.payloads, [RunStart])
        return RunStart.model_validate(start)
