"""Attach: the one way into a run.

Temporal's StartWorkflow is atomic and needs no worker. With `request_id` = Paperclip's run id and conflict policy
FAIL the server answers one of three things: started, already started by this request id (open or closed), or refused
with the holder's request id. Source: measured with server 1.32; documented upstream for retries only, hence pinned by
an integration test.
"""

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from temporalio.api.common.v1 import Memo, Payload, Payloads, SearchAttributes, WorkflowType
from temporalio.api.enums.v1 import WorkflowExecutionStatus, WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.errordetails.v1 import WorkflowExecutionAlreadyStartedFailure
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import StartWorkflowExecutionRequest, StartWorkflowExecutionResponse
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.client import WorkflowExecutionStatus as ExecutionStatus
from temporalio.common import TypedSearchAttributes
from temporalio.converter import encode_search_attributes
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.client.names import Names
from agent_runs.client.outcome import RunClosed, UpdatesSpent, execute_update, result_at_close
from agent_runs.client.runs import find_joined_run
from agent_runs.client.settings import ClientSettings
from agent_runs.client.tracing import start_header
from agent_runs.client.wake import Wake
from agent_runs.contracts import updates
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import WORKFLOW_TYPE, workflow_id
from agent_runs.contracts.outcome import Outcome
from workflows import attributes
from workflows.current_details import FINAL_PHASES, Phase

RUNNING: Final = WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
CALLER: Final = "caller"
"""Memo key: a random id of the call that started the run. The server answers a repeated start like the first one."""
TASK: Final = "task"
"""Memo key: the task of a run. A later wake with the same task may join it."""
JOIN_TIMEOUT: Final = timedelta(seconds=10)
"""From the beginning of `attach` on: for a worker to decide whether a run may be joined, and for one to close."""
ENDED_NOTE: Final = "it has ended, and the agent is free when nothing of it is left in the cluster"
"""What is said of a released run that does not close in time."""
START_RETRY_INTERVAL: Final = timedelta(milliseconds=50)
BUSY_RETRY_INTERVAL: Final = timedelta(seconds=10)
"""Between attempts to attach to a busy agent; an end of its run is noticed at once."""


@dataclass(frozen=True)
class Holder:
    """The run that holds an agent.

    Attributes:
        run_id: Paperclip's id of the run.
        task: None when the run has none.
        note: why the run could not be joined, or the agent is not free yet; None when it works on another task.
    """

    run_id: str
    task: str | None
    phase: str
    since: datetime
    note: str | None = None


@dataclass(frozen=True)
class Ticket:
    """The result of attaching.

    Attributes:
        kind: `started` now; `joined`: this run was started before, or an earlier run of the same task is open or
            retains its outcome; `busy`: another task has the agent, see `holder`.
        workflow_run_id: always address a run by (workflow id, this), never by the workflow id alone: a late cancel must
            not hit the next run of the agent. Of a busy agent: the holder's.
        run_id: Paperclip's id that output and outcome of this workflow carry; of a joined run that of its first caller.
        closed: the run is closed; its outcome can be fetched.
    """

    kind: Literal["started", "joined", "busy"]
    workflow_id: str
    workflow_run_id: str
    run_id: str
    closed: bool = False
    holder: Holder | None = None

    def handle(self, client: Client) -> WorkflowHandle[Any, Outcome]:
        """A handle of exactly this run, not of a later one of its agent."""
        return client.get_workflow_handle(self.workflow_id, run_id=self.workflow_run_id, result_type=Outcome)


async def attach(client: Client, settings: ClientSettings, wake: Wake) -> Ticket:
    """Start the run, join it, or report who holds the agent. Idempotent by Paperclip's run id.

    Raises:
        InvalidRequest: another company has had a run of this id and agent.
    """
    if (joined := await _ticket_of_joined_run(client, wake)) is not None:
        return joined
    caller = str(uuid.uuid4())
    start = await _start_request(client, settings, wake, caller)
    deadline = asyncio.get_running_loop().time() + JOIN_TIMEOUT.total_seconds()
    while True:
        try:
            started = await client.workflow_service.start_workflow_execution(start, retry=True)
        except RPCError as error:
            if (held := _already_started(error)) is None:
                raise
        else:
            return await _own_ticket(client, wake, start.workflow_id, started, caller)
        if (ticket := await _join_or_busy(client, wake, held, deadline)) is not None:
            return ticket
        await asyncio.sleep(START_RETRY_INTERVAL.total_seconds())


async def attach_when_free(
    client: Client, settings: ClientSettings, wake: Wake, on_busy: Callable[[Ticket], None]
) -> Ticket:
    """As `attach`, but wait while another task has the agent; `on_busy` is called once per holder."""
    holder = ""
    while (ticket := await attach(client, settings, wake)).kind == "busy":
        if ticket.workflow_run_id != holder:
            holder = ticket.workflow_run_id
            on_busy(ticket)
        with suppress(TimeoutError, WorkflowFailureError):
            async with asyncio.timeout(BUSY_RETRY_INTERVAL.total_seconds()):
                await result_at_close(ticket.handle(client))
    return ticket


async def _own_ticket(
    client: Client, wake: Wake, workflow_id: str, answer: StartWorkflowExecutionResponse, caller: str
) -> Ticket:
    described = await client.get_workflow_handle(workflow_id, run_id=answer.run_id).describe()
    if described.typed_search_attributes.get(attributes.COMPANY_ID) != wake.start.company_id:
        raise InvalidRequest(f"run {wake.start.run_id} of this agent belongs to another company")
    starter = await described.memo_value(CALLER, default=None, type_hint=str)
    return Ticket(
        "started" if starter == caller else "joined",
        workflow_id,
        answer.run_id,
        wake.start.run_id,
        closed=answer.status != RUNNING,
    )


async def _ticket_of_joined_run(client: Client, wake: Wake) -> Ticket | None:
    """The ticket of the run that this wake has joined before: the server would start a new one once that is closed."""
    try:
        run = await find_joined_run(client, wake.key)
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:  # no worker has registered the attribute: nothing was joined
            return None
        raise
    if run is None:
        return None
    status = (await run.handle(client).describe()).status  # the list is a moment behind
    closed = status is not ExecutionStatus.RUNNING
    return Ticket("joined", run.workflow_id, run.workflow_run_id, run.key.run_id, closed=closed)


async def _join_or_busy(
    client: Client, wake: Wake, held: WorkflowExecutionAlreadyStartedFailure, deadline: float
) -> Ticket | None:
    """Join the run that holds the agent, or return a busy ticket; None when that run has closed: retry the start.

    A run that has ended may still clean up. Its close is waited for until the deadline, by the event loop's time.
    """
    handle = client.get_workflow_handle(workflow_id(wake.start.agent_id), run_id=held.run_id)
    execution = await handle.describe()
    task = await execution.memo_value(TASK, default="", type_hint=str) or None
    phase = execution.typed_search_attributes.get(attributes.RUN_PHASE) or Phase.QUEUED.value
    holder = Holder(held.start_request_id, task, phase, execution.start_time)
    busy = Ticket("busy", handle.id, held.run_id, held.start_request_id, holder=holder)
    if execution.status is not ExecutionStatus.RUNNING:
        return None
    company, start = execution.typed_search_attributes.get(attributes.COMPANY_ID), wake.start
    if not (task and (task, company) == (start.task, start.company_id)) and phase not in FINAL_PHASES:
        return busy
    join = updates.Join(run_id=start.run_id, company_id=start.company_id, task=start.task, sealed=wake.join)
    update_id = f"join:{start.company_id}:{start.run_id}"
    try:
        async with asyncio.timeout_at(deadline):
            joined = await execute_update(handle, updates.JOIN, join, updates.Joined, update_id=update_id)
    except RunClosed:
        return None
    except UpdatesSpent:
        return replace(busy, holder=replace(holder, note="Temporal accepts no more requests of it"))
    except WorkflowUpdateFailedError as error:
        return replace(busy, holder=replace(holder, note=_refusal(error)))
    except TimeoutError:
        return replace(busy, holder=replace(holder, note="no worker answered whether it may be joined"))
    if joined.kind == "joined":
        return Ticket("joined", handle.id, held.run_id, joined.run_id)
    if await _closes(handle, deadline):
        return None
    return replace(busy, holder=replace(holder, phase=joined.phase, note=ENDED_NOTE))


def _refusal(error: WorkflowUpdateFailedError) -> str | None:
    """Why a run cannot be joined although it has this wake's task; None: it has another one."""
    details = error.cause.details if isinstance(error.cause, ApplicationError) else ()
    return details[0].get("note") if details and isinstance(details[0], dict) else None


async def _closes(handle: WorkflowHandle[Any, Any], deadline: float) -> bool:
    """Whether the run closes in time, in whatever way."""
    try:
        async with asyncio.timeout_at(deadline):
            await result_at_close(handle)
    except WorkflowFailureError:
        return True
    except TimeoutError:
        return False
    return True


async def _start_request(
    client: Client, settings: ClientSettings, wake: Wake, caller: str
) -> StartWorkflowExecutionRequest:
    converter = client.data_converter
    search_attributes = SearchAttributes()
    encode_search_attributes(_search_attributes(wake), search_attributes)
    names = wake.names if settings.names else Names()
    memo = {CALLER: caller, TASK: wake.start.task or "", **names.memo}
    summary = attributes.cut(names.title(wake.start.agent_id, wake.start.task))
    return StartWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_id=workflow_id(wake.start.agent_id),
        workflow_type=WorkflowType(name=WORKFLOW_TYPE),
        task_queue=TaskQueue(name=settings.task_queue),
        input=Payloads(payloads=await converter.encode([wake.start])),
        identity=client.identity,
        request_id=wake.start.run_id,
        header=start_header(client),
        workflow_id_reuse_policy=WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
        workflow_id_conflict_policy=WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
        search_attributes=search_attributes,
        memo=Memo(fields={key: await _payload(client, text) for key, text in memo.items()}),
        user_metadata=UserMetadata(summary=await _payload(client, summary)),
    )


async def _payload(client: Client, value: str) -> Payload:
    return (await client.data_converter.encode([value]))[0]


def _search_attributes(wake: Wake) -> TypedSearchAttributes:
    return attributes.typed(
        {
            attributes.AGENT_ID: wake.start.agent_id,
            attributes.COMPANY_ID: wake.start.company_id,
            attributes.PAPERCLIP_RUN_ID: wake.start.run_id,
            attributes.TASK_KEY: wake.task_key,
            attributes.RUN_PHASE: Phase.QUEUED.value,
        }
    )


def _already_started(error: RPCError) -> WorkflowExecutionAlreadyStartedFailure | None:
    """The server's details of the holder, when it refused because another request id holds the workflow id."""
    held = WorkflowExecutionAlreadyStartedFailure()
    if error.status is RPCStatusCode.ALREADY_EXISTS and any(d.Unpack(held) for d in error.grpc_status.details):
        return held
    return None
