"""The outcome of a run comes through, whatever Temporal does meanwhile."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.client import outcome as outcomes
from agent_runs.contracts.outcome import Outcome

OUTCOME = Outcome(exit_code=0)
RUNNING, COMPLETED = WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.COMPLETED


def away(status: RPCStatusCode = RPCStatusCode.UNAVAILABLE) -> RPCError:
    return RPCError("away", status, b"")


@dataclass
class FakeHandle:
    """A run that accepts no more updates. Each description is a status, or an error of Temporal.

    Attributes:
        refusal: of every update.
    """

    descriptions: Iterator[WorkflowExecutionStatus | RPCError]
    results: Iterator[Outcome | RPCError] = field(default_factory=lambda: iter([OUTCOME]))
    signals: list[str] = field(default_factory=list)
    refusal: Exception = field(default_factory=lambda: away(RPCStatusCode.FAILED_PRECONDITION))

    async def execute_update(self, *_: Any, **__: Any) -> None:
        raise self.refusal

    async def describe(self) -> SimpleNamespace:
        described = next(self.descriptions)
        if isinstance(described, RPCError):
            raise described
        return SimpleNamespace(status=described)

    async def query(self, *_: Any, **__: Any) -> dict[str, Any]:
        return OUTCOME.model_dump(mode="json")

    async def result(self) -> Outcome:
        result = next(self.results)
        if isinstance(result, RPCError):
            raise result
        return result

    async def signal(self, name: str) -> None:
        self.signals.append(name)


@pytest.mark.parametrize("status", [RUNNING, COMPLETED])
async def test_the_outcome_of_a_run_without_updates_is_awaited_through_an_outage(
    status: WorkflowExecutionStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcomes, "RPC_RETRY_INTERVAL", timedelta())
    handle = FakeHandle(iter([away(), away(), status]))
    run = cast("WorkflowHandle[Any, Outcome]", handle)
    assert await outcomes.fetch_outcome(run, collect=True) == OUTCOME
    assert handle.signals == (["collected"] if status is RUNNING else [])


async def test_the_close_of_a_run_is_awaited_through_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy server may end a wait with an error."""
    monkeypatch.setattr(outcomes, "RPC_RETRY_INTERVAL", timedelta())
    handle = FakeHandle(iter([]), iter([away(RPCStatusCode.DEADLINE_EXCEEDED), away(), OUTCOME]))
    assert await outcomes.outcome_at_close(cast("WorkflowHandle[Any, Outcome]", handle)) == OUTCOME


@pytest.mark.parametrize("status", [RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED])
async def test_the_close_of_a_run_that_temporal_does_not_give_is_not_awaited(status: RPCStatusCode) -> None:
    handle = FakeHandle(iter([]), iter([away(status)]))
    with pytest.raises(RPCError, match="away"):
        await outcomes.outcome_at_close(cast("WorkflowHandle[Any, Outcome]", handle))


async def test_a_refusal_of_temporal_ends_the_wait_for_an_outcome() -> None:
    run = cast("WorkflowHandle[Any, Outcome]", FakeHandle(iter([away(RPCStatusCode.PERMISSION_DENIED)])))
    with pytest.raises(RPCError, match="away"):
        await outcomes.fetch_outcome(run, collect=False)


async def test_a_run_that_closes_before_it_has_answered_gives_the_outcome_of_its_close() -> None:
    closed = ApplicationError("the workflow closed", type="AcceptedUpdateCompletedWorkflow")
    handle = FakeHandle(iter([]), refusal=WorkflowUpdateFailedError(closed))
    assert await outcomes.fetch_outcome(cast("WorkflowHandle[Any, Outcome]", handle), collect=True) == OUTCOME
    assert handle.signals == []


async def test_an_update_that_a_run_refuses_is_no_close_of_it() -> None:
    refused = WorkflowUpdateFailedError(ApplicationError("no", type="invalid_request"))
    run = cast("WorkflowHandle[Any, Outcome]", FakeHandle(iter([]), refusal=refused))
    with pytest.raises(WorkflowUpdateFailedError):
        await outcomes.fetch_outcome(run, collect=True)
