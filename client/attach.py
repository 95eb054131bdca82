"""Attach: the one way into a run.

Temporal's StartWorkflow is atomic and needs no worker. With `request_id` = Paperclip's run id and conflict policy
FAIL the server answers one of three things: started, the same run again (open or closed), or refused with the
holder's request id. Source: measured with server 1.32; documented upstream for retries only, hence pinned by an
integration test.
"""

import uuid
from dataclasses import dataclass
from typing import Final, Literal

from temporalio.api.common.v1 import Memo, Payload, Payloads, SearchAttributes, WorkflowType
from temporalio.api.enums.v1 import WorkflowExecutionStatus, WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.converter import encode_search_attributes
from temporalio.service import RPCError, RPCStatusCode

from client.checks import check
from client.settings import ClientSettings
from contracts.errors import AgentBusy
from contracts.identity import workflow_id
from contracts.outcome import Outcome
from contracts.request import RunRequest
from workflows import attributes
from workflows.agent_run import AgentRunWorkflow

RUNNING: Final = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
CALLER: Final = "caller"
"""Memo key: who really started a run. The server's answer is the same for the first start and for every repeat."""


@dataclass(frozen=True)
class Ticket:
    """What a caller holds after attaching.

    Attributes:
        kind: `started` now, or `joined`: this very run was started before and goes on or has ended.
        workflow_run_id: always address a run by (workflow id, this), never by the bare id: a late cancel must not
            hit the next run of the agent.
        closed: the run has ended; its outcome can be fetched.
    """

    kind: Literal["started", "joined"]
    workflow_id: str
    workflow_run_id: str
    closed: bool = False

    def handle(self, client: Client) -> WorkflowHandle[AgentRunWorkflow, Outcome]:
        """The run itself, exactly this one."""
        return client.get_workflow_handle_for(AgentRunWorkflow.run, self.workflow_id, run_id=self.workflow_run_id)


async def attach(client: Client, settings: ClientSettings, request: RunRequest) -> Ticket:
    """Starts the run or joins it; idempotent by Paperclip's run id.

    Raises:
        InvalidRequest: a field that the worker could not use; nothing has been started.
        AgentBusy: another run holds the agent; its facts name the holder (`holder`, `workflow_run_id`).
    """
    check(request)
    caller = str(uuid.uuid4())
    start = await _start_request(client, settings, request, caller)
    try:
        answer = await client.workflow_service.start_workflow_execution(start)
    except RPCError as error:
        raise _refusal(error, request) or error from None
    handle = client.get_workflow_handle(start.workflow_id, run_id=answer.run_id)
    starter = await (await handle.describe()).memo_value(CALLER, default=None, type_hint=str)
    return Ticket(
        "started" if starter == caller else "joined",
        start.workflow_id,
        answer.run_id,
        closed=answer.status != RUNNING,
    )


async def _start_request(
    client: Client, settings: ClientSettings, request: RunRequest, caller: str
) -> StartWorkflowExecutionRequest:
    converter = client.data_converter
    found = SearchAttributes()
    encode_search_attributes(_searchable(request), found)
    return StartWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=workflow_id(request.agent.id),
        workflow_type=WorkflowType(name=AgentRunWorkflow.__name__),
        task_queue=TaskQueue(name=settings.task_queue),
        input=Payloads(payloads=await converter.encode([request])),
        identity=client.identity,
        request_id=request.run_id,
        workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        search_attributes=found,
        memo=Memo(fields={CALLER: await _payload(client, caller)}),
        user_metadata=UserMetadata(summary=await _payload(client, _summary(request))),
    )


async def _payload(client: Client, value: str) -> Payload:
    return (await client.data_converter.encode([value]))[0]


def _summary(request: RunRequest) -> str:
    """One line for the Web UI: identifiers only, because it is shown to everybody who may list runs."""
    task = f" on {request.task_id}" if request.task_id else ""
    return f"{request.agent.name or request.agent.id}{task} with {request.config.model}"[:200]


def _searchable(request: RunRequest) -> TypedSearchAttributes:
    values: list[tuple[SearchAttributeKey[str], str | None]] = [
        (attributes.AGENT_ID, request.agent.id),
        (attributes.COMPANY_ID, request.agent.company_id),
        (attributes.PAPERCLIP_RUN_ID, request.run_id),
        (attributes.TASK_KEY, request.runtime.task_key or request.task_id),
        (attributes.MODEL, request.config.model),
        (attributes.RUN_PHASE, "queued"),
    ]
    return TypedSearchAttributes([SearchAttributePair(key, value[:200]) for key, value in values if value])


def _refusal(error: RPCError, request: RunRequest) -> AgentBusy | None:
    """The holder, when the server refused because another request id holds the workflow id."""
    if error.status is not RPCStatusCode.ALREADY_EXISTS:
        return None
    held = WorkflowExecutionAlreadyStartedFailure()
    if not any(detail.Unpack(held) for detail in error.grpc_status.details):
        return None
    return AgentBusy(
        f"agent {request.agent.id} is held by run {held.start_request_id}",
        holder=held.start_request_id,
        workflow_run_id=held.run_id,
    )
