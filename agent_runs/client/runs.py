"""Finds and lists runs: by their names, by Paperclip's run id or by the agent's id."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import SearchAttributeKey

from agent_runs.client.names import Names
from agent_runs.contracts.identity import WORKFLOW_TYPE, RunKey, workflow_id
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.syntax import IDENTIFIER
from workflows import attributes
from workflows.current_details import FINAL_PHASES, Phase

Value = TypeVar("Value", str, datetime)

SHORT_ID: Final = 8
"""Characters at the beginning of a run's id that name it where there is little room."""
FAILED_PHASES: Final = FINAL_PHASES - {Phase.SUCCEEDED.value} | {"terminated"}
"""Phases of runs that have ended without success."""
_SAME_ID: Final = 20
"""Runs with one id that are looked at: those of an agent are more than one only where a caller has repeated it."""


class UnknownRun(Exception):
    """No run has this id. The text names the command that lists them."""


@dataclass(frozen=True)
class RunSummary:
    """One run as Temporal's visibility store lists it; needs no worker.

    Attributes:
        ended_at: when the run had its outcome, else when the workflow closed; None while the run goes on.
        kept_until: of an open run that has ended: how long its outcome is kept for the next wake of its task.
    """

    key: RunKey
    workflow_id: str
    workflow_run_id: str
    phase: str
    model: str | None
    failure_code: str | None
    task_key: str | None
    open: bool
    started_at: datetime
    ended_at: datetime | None
    kept_until: datetime | None
    events: int
    names: Names = field(default_factory=Names)

    @property
    def title(self) -> str:
        """Agent and task, by their names where they are known."""
        return self.names.title(self.key.agent_id, self.task_key)

    @property
    def decided(self) -> bool:
        """The run has its outcome, or is closed without one; an open run may retain its outcome for its caller."""
        return not self.open or self.phase in FINAL_PHASES

    def elapsed(self, now: datetime) -> timedelta | None:
        """From its start to its end, or until now; None: its end is not known."""
        ended = self.ended_at if self.decided else now
        return None if ended is None else max(ended - self.started_at, timedelta())

    def handle(self, client: Client) -> WorkflowHandle[Any, Outcome]:
        """A handle of exactly this run, not of a later one of its agent."""
        return client.get_workflow_handle(self.workflow_id, run_id=self.workflow_run_id, result_type=Outcome)


async def find_run(client: Client, name: str) -> RunSummary:
    """Find the run with this Paperclip run id or this `RunKey.name`, else the newest run of the agent with this id.

    Else the only run whose id begins so: narrow lists show the first `SHORT_ID` characters.

    Raises:
        UnknownRun: there is none, the name cannot be an id, runs of several agents have it, or several ids begin so.
    """
    if (key := RunKey.named(name)).agent_id:
        if (run := await find_by_key(client, key)) is not None:
            return run
        raise UnknownRun(f"agent {key.agent_id[:128]!r} has no run {key.run_id[:128]!r}; `agent-runs list` lists them")
    for attribute in (attributes.PAPERCLIP_RUN_ID, attributes.JOINED_RUN_IDS, attributes.AGENT_ID):
        if found := await _with(client, attribute, name, limit=_SAME_ID):
            check_unambiguous(name, [run.key for run in found])
            return found[0]
    if len(name) >= SHORT_ID and IDENTIFIER.fullmatch(name):
        condition = f"{attributes.PAPERCLIP_RUN_ID.name} STARTS_WITH '{name}'"
        found = [run async for run in list_runs(client, condition, limit=2)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownRun(f"several runs have an id that begins with {name!r}: give more of it")
    raise UnknownRun(f"no run or agent with the id {name[:128]!r}; `agent-runs list` lists the newest ones")


def check_unambiguous(run_id: str, runs: Sequence[RunKey]) -> None:
    """Raise UnknownRun if these runs with one id are not of one agent: a command is about one of them."""
    names = sorted({run.name for run in {run.agent_id: run for run in runs}.values()})
    if len(names) > 1:
        raise UnknownRun(f"{len(names)} agents have a run {run_id[:128]!r}: name one, such as {names[0]}")


async def find_by_key(client: Client, run: RunKey) -> RunSummary | None:
    """Find a run, whatever its company; None when Temporal does not list it (yet, or any more)."""
    if not IDENTIFIER.fullmatch(run.agent_id):
        return None
    of_agent = f"WorkflowId = '{workflow_id(run.agent_id)}'"
    return next(iter(await _with(client, attributes.PAPERCLIP_RUN_ID, run.run_id, of_agent)), None)


async def find_joined_run(client: Client, wake: RunKey) -> RunSummary | None:
    agent = f"WorkflowId = '{workflow_id(wake.agent_id)}'"
    company = f"{attributes.COMPANY_ID.name} = '{wake.company_id}'"
    return next(iter(await _with(client, attributes.JOINED_RUN_IDS, wake.run_id, agent, company)), None)


async def _with(
    client: Client, attribute: SearchAttributeKey[Any], value: str, *conditions: str, limit: int = 1
) -> list[RunSummary]:
    if not IDENTIFIER.fullmatch(value):
        return []
    condition = " AND ".join([f"{attribute.name} = '{value}'", *conditions])
    return [run async for run in list_runs(client, condition, limit)]


async def list_runs(client: Client, condition: str = "", limit: int = 50) -> AsyncIterator[RunSummary]:
    """List runs, newest first. `condition` is added to Temporal's list filter."""
    async for execution in client.list_workflows(list_query(condition), limit=limit):
        yield await summary_of(execution)


def list_query(condition: str = "") -> str:
    return f"WorkflowType = '{WORKFLOW_TYPE}'" + (f" AND {condition}" if condition else "")


async def summary_of(execution: WorkflowExecution) -> RunSummary:
    def attribute(key: SearchAttributeKey[Value]) -> Value | None:
        return execution.typed_search_attributes.get(key)

    is_open = execution.status is WorkflowExecutionStatus.RUNNING
    return RunSummary(
        key=RunKey(
            agent_id=attribute(attributes.AGENT_ID) or "",
            company_id=attribute(attributes.COMPANY_ID) or "",
            run_id=attribute(attributes.PAPERCLIP_RUN_ID) or "",
        ),
        workflow_id=execution.id,
        workflow_run_id=execution.run_id,
        phase=_phase(execution, attribute(attributes.RUN_PHASE)),
        model=attribute(attributes.MODEL),
        failure_code=attribute(attributes.FAILURE_KIND),
        task_key=attribute(attributes.TASK_KEY),
        open=is_open,
        started_at=execution.start_time,
        ended_at=attribute(attributes.ENDED_AT) or execution.close_time,
        kept_until=attribute(attributes.OUTCOME_KEPT_UNTIL) if is_open else None,
        events=execution.history_length,
        names=await Names.in_memo(execution),
    )


def _phase(execution: WorkflowExecution, phase: str | None) -> str:
    """The run's own phase; of a run that closed without an outcome, such as a terminated one, Temporal's status."""
    status = execution.status
    if status in (None, WorkflowExecutionStatus.RUNNING) or phase in FINAL_PHASES:
        return phase or "queued"
    return "" if status is None else status.name.lower().replace("_", " ")
