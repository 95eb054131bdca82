"""Attach: the one way into a run.

Temporal's StartWorkflow is atomic and needs no worker. With `request_id` = Paperclip's run id and conflict policy
FAIL the server answers one of three things: started, the same run again (open or closed), or refused with the
holder's request id. Source: measured with server 1.32; documented upstream for retries only, hence pinned by an
integration test.
"""

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from temporalio.api.common.v1 import Memo, Payload, Payloads, SearchAttributes, WorkflowType
from temporalio.api.enums.v1 import WorkflowExecutionStatus, WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest, StartWorkflowExecutionResponse
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.client import WorkflowExecutionStatus as ExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.converter import encode_search_attributes
from temporalio.service import RPCError, RPCStatusCode

from client.checks import check
from client.outcome import Closed, ask
from client.runs import run_joined_by
from client.settings import ClientSettings
from contracts import talk
from contracts.identity import workflow_id
from contracts.outcome import Outcome
from contracts.request import RunRequest
from workflows import attributes
from workflows.agent_run import AgentRunWorkflow
from workflows.card import FINAL, Phase

RUNNING: Final = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
CALLER: Final = "caller"
"""Memo key: who really started a run. The server's answer is the same for the first start and for every repeat."""
TASK: Final = "task"
"""Memo key: what a run is about. A later wake with the same task may join it."""
PATIENCE: Final = timedelta(seconds=10)
"""For a worker to say whether a run may be joined, and for a released run to close."""
CLOSING: Final = timedelta(milliseconds=50)
LOOK: Final = timedelta(seconds=10)
"""Between attempts to get an agent that is held; when its run closes that is noticed at once."""


@dataclass(frozen=True)
class Holder:
    """Who holds an agent.

    Attributes:
        run_id: Paperclip's id of the run.
        task: what it is about; None when it has none.
        note: why it could not be joined, if something was in the way.
    """

    run_id: str
    task: str | None
    phase: str
    since: datetime
    note: str | None = None


@dataclass(frozen=True)
class Ticket:
    """What a caller holds after attaching.

    Attributes:
        kind: `started` now; `joined`: this very run was started before, or the same task's earlier run goes on or
            waits with its outcome; `busy`: another task has the agent, see `holder`.
        workflow_run_id: always address a run by (workflow id, this), never by the bare id: a late cancel must not
            hit the next run of the agent. Of a busy agent: the holder's.
        run_id: Paperclip's id that output and outcome of this workflow carry; of a joined run the first one's.
        closed: the run has ended; its outcome can be fetched.
    """

    kind: Literal["started", "joined", "busy"]
    workflow_id: str
    workflow_run_id: str
    run_id: str
    closed: bool = False
    holder: Holder | None = None

    def handle(self, client: Client) -> WorkflowHandle[AgentRunWorkflow, Outcome]:
        """The run itself, exactly this one."""
        return client.get_workflow_handle_for(AgentRunWorkflow.run, self.workflow_id, run_id=self.workflow_run_id)


async def attach(client: Client, settings: ClientSettings, request: RunRequest) -> Ticket:
    """Starts the run, joins it, or says who holds the agent; idempotent by Paperclip's run id.

    Raises:
        InvalidRequest: a field that the worker could not use; nothing has been started.
    """
    check(request)
    if (taken := await _taken_over(client, request)) is not None:
        return taken
    caller = str(uuid.uuid4())
    start = await _start_request(client, settings, request, caller)
    until = asyncio.get_running_loop().time() + PATIENCE.total_seconds()
    while True:
        try:
            answer = await client.workflow_service.start_workflow_execution(start)
        except RPCError as error:
            if (held := _held(error)) is None:
                raise
        else:
            return await _own(client, request, start.workflow_id, answer, caller)
        last_try = asyncio.get_running_loop().time() >= until
        if (ticket := await _held_by_another(client, request, held, last_try=last_try)) is not None:
            return ticket
        await asyncio.sleep(CLOSING.total_seconds())


async def attach_when_free(
    client: Client, settings: ClientSettings, request: RunRequest, told: Callable[[Ticket], None]
) -> Ticket:
    """As `attach`, but waits while another task has the agent; cancel it to give up. `told` hears of each holder."""
    holder = ""
    while (ticket := await attach(client, settings, request)).kind == "busy":
        if ticket.workflow_run_id != holder:
            holder = ticket.workflow_run_id
            told(ticket)
        with suppress(TimeoutError, WorkflowFailureError):
            async with asyncio.timeout(LOOK.total_seconds()):
                await ticket.handle(client).result()
    return ticket


async def _own(
    client: Client, request: RunRequest, workflow_id: str, answer: StartWorkflowExecutionResponse, caller: str
) -> Ticket:
    handle = client.get_workflow_handle(workflow_id, run_id=answer.run_id)
    starter = await (await handle.describe()).memo_value(CALLER, default=None, type_hint=str)
    return Ticket(
        "started" if starter == caller else "joined",
        workflow_id,
        answer.run_id,
        request.run_id,
        closed=answer.status != RUNNING,
    )


async def _taken_over(client: Client, request: RunRequest) -> Ticket | None:
    """The run that this wake has joined before: once that is closed the server would start another one."""
    try:
        run = await run_joined_by(client, request.agent.id, request.run_id)
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:  # no worker has registered the attribute: nothing was joined
            return None
        raise
    if run is None:
        return None
    return Ticket("joined", run.workflow_id, run.workflow_run_id, run.key.run_id, closed=not run.open)


async def _held_by_another(
    client: Client, request: RunRequest, held: WorkflowExecutionAlreadyStartedFailure, *, last_try: bool
) -> Ticket | None:
    """The ticket for an agent that another run holds; None when that run is just going: try again."""
    handle = client.get_workflow_handle(workflow_id(request.agent.id), run_id=held.run_id)
    found = await handle.describe()
    task = await found.memo_value(TASK, default="", type_hint=str) or None
    phase = found.typed_search_attributes.get(attributes.RUN_PHASE) or Phase.QUEUED.value
    holder = Holder(held.start_request_id, task, phase, found.start_time)
    busy = Ticket("busy", handle.id, held.run_id, held.start_request_id, holder=holder)
    if found.status is not ExecutionStatus.RUNNING:
        return None
    if not (task and task == request.task) and phase not in FINAL:
        return busy
    order = talk.Join(run_id=request.run_id, task=request.task, sealed_secrets=request.sealed_secrets)
    try:
        answer = await ask(handle, talk.JOIN, order, talk.Joined, name=f"join:{request.run_id}", patience=PATIENCE)
    except Closed:
        return None
    except WorkflowUpdateFailedError:
        return busy
    except TimeoutError:
        return replace(busy, holder=replace(holder, note="no worker answered whether it may be joined"))
    if answer.kind == "joined":
        return Ticket("joined", handle.id, held.run_id, answer.run_id)
    return busy if last_try else None


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
        memo=Memo(fields={CALLER: await _payload(client, caller), TASK: await _payload(client, request.task or "")}),
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


def _held(error: RPCError) -> WorkflowExecutionAlreadyStartedFailure | None:
    """The holder, when the server refused because another request id holds the workflow id."""
    held = WorkflowExecutionAlreadyStartedFailure()
    if error.status is RPCStatusCode.ALREADY_EXISTS and any(d.Unpack(held) for d in error.grpc_status.details):
        return held
    return None
