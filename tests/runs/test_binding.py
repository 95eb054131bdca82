"""What was sealed for one run is of no use for anything else, on a real Temporal server and with a real worker."""

import uuid
from pathlib import Path
from typing import Any, Final

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ActivityError, ApplicationError

from agent_runs.client.attach import attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.wake import Wake, build_wake
from agent_runs.contracts import updates
from agent_runs.contracts.identity import (
    CHECK_WORKFLOW_TYPE,
    WORKFLOW_TYPE,
    check_workflow_id,
    workflow_id,
)
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.start import Binding, CheckReport, CheckStart, RunStart, SealedCheck
from agent_runs.paperclip.sealing import Sealer, SealingKey, load_or_create
from tests.runs.system import System, answer_script, open_system

DONE: Final = f"cat > /dev/null\n{answer_script('done')}\n"
CANARY: Final = "canary-of-the-victim"


async def victim(system: System) -> Wake:
    """A run with a secret, which has ended; everybody who may read histories has its sealed text."""
    raw = system.agent(DONE)
    raw["config"]["env"]["SECRET_OF_A_USER"] = CANARY
    wake = system.wake(raw)
    outcome = await outcome_at_close((await attach(system.temporal, system.settings, wake)).handle(system.temporal))
    assert outcome.failure is None, outcome.failure
    return wake


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"agentId": "mallory"}, "sealed for another agent's workflow"),
        ({"companyId": "mallory"}, "sealed for another company"),
        ({"runId": "mallory"}, "sealed for another run"),
        ({"task": "mallory"}, "sealed for another task"),
        ({"task": None}, "sealed for another task"),
    ],
    ids=["another agent", "another company", "another run", "another task", "no task"],
)
async def test_a_copied_sealed_text_starts_nothing_for_anybody_else(
    system: System, changes: dict[str, Any], named: str
) -> None:
    stolen = (await victim(system)).start.model_dump(mode="json")
    start = RunStart.model_validate(stolen | changes)
    before = system.changes
    handle = await system.temporal.start_workflow(
        WORKFLOW_TYPE,
        start,
        id=workflow_id(start.agent_id),
        task_queue=system.settings.task_queue,
        result_type=Outcome,
    )
    outcome = await outcome_at_close(handle)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.attempts) == ("sealed_field_unreadable", ())
    assert named in outcome.failure.message
    assert system.changes == before
    history = b"".join(event.SerializeToString() for event in (await handle.fetch_history()).events)
    assert CANARY.encode() not in history


async def test_a_copied_sealed_text_in_a_workflow_of_another_name_starts_nothing(system: System) -> None:
    stolen, before = (await victim(system)).start, system.changes
    handle = await system.temporal.start_workflow(
        WORKFLOW_TYPE, stolen, id=f"mallory-{uuid.uuid4()}", task_queue=system.settings.task_queue, result_type=Outcome
    )
    outcome = await outcome_at_close(handle)
    assert outcome.failure is not None
    assert "sealed for another agent's workflow" in outcome.failure.message
    assert system.changes[len(before) :] == []


async def test_the_token_of_a_wake_joins_no_run_that_it_was_not_sealed_for(system: System) -> None:
    """A run takes a joining wake on trust, because only its task counts; but no agent gets a token of another's."""
    gate = system.programs / str(uuid.uuid4())
    raw = system.agent(f"until [ -e {gate} ]; do sleep 0.05; done\n{DONE}")
    other = system.wake(system.agent(DONE))
    assert other.join is not None
    ticket = await system.start(raw)
    await system.until_stored(raw, 0)
    start = system.wake(raw).start
    join = updates.Join(run_id="later", company_id=start.company_id, task=start.task, sealed=other.join)
    joined = await ticket.handle(system.temporal).execute_update(updates.JOIN, join, result_type=updates.Joined)
    gate.touch()
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert joined.kind == "joined"
    assert outcome.failure is None
    notes = " ".join(outcome.result_json["notes"])
    assert "run later joined, but" in notes
    assert other.join not in notes


async def test_the_sealed_text_of_a_run_is_no_check(system: System) -> None:
    stolen = (await victim(system)).start
    check = CheckStart(check_id=str(uuid.uuid4()), company_id=stolen.company_id, sealed=stolen.sealed)
    with pytest.raises(WorkflowFailureError) as refused:
        await execute_check(system, check)
    cause = refused.value.cause
    assert cause is not None
    assert isinstance(cause.__cause__, ApplicationError)
    assert cause.__cause__.type == "sealed_field_unreadable"


def sealed_check(system: System, config: dict[str, Any]) -> CheckStart:
    """A check of this configuration, as a caller sends it."""
    check_id, sealer = str(uuid.uuid4()), Sealer(load_or_create(system.settings.sealing_key_file)[0].public)
    binding = Binding(purpose="check", workflow_id=check_workflow_id(check_id), company_id="acme", run_id=check_id)
    sealed = sealer.seal(SealedCheck(binding=binding, config=config))
    return CheckStart(check_id=check_id, company_id="acme", sealed=sealed)


async def execute_check(system: System, check: CheckStart, workflow: str | None = None) -> CheckReport:
    report: CheckReport = await system.temporal.execute_workflow(
        CHECK_WORKFLOW_TYPE,
        check,
        id=workflow or check_workflow_id(check.check_id),
        task_queue=system.settings.task_queue,
        result_type=CheckReport,
    )
    return report


async def test_a_copied_check_is_refused_in_a_workflow_of_another_name(system: System) -> None:
    with pytest.raises(WorkflowFailureError) as refused:
        await execute_check(system, sealed_check(system, {"model": "fake/x"}), "mallory")
    assert isinstance(refused.value.cause, ActivityError)
    assert isinstance(refused.value.cause.cause, ApplicationError)
    assert "another agent's workflow" in refused.value.cause.cause.message


ALONE = {"model": "fake/x", "workspace": "ephemeral"}
"""A configuration that needs no data volume; this system has none."""


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (ALONE, {("paperclip_url", "info")}),  # a loopback address, which pods share with a worker outside of one
        ({**ALONE, "paperclipApiUrl": "https://paperclip.example"}, {("paperclip_url", "info")}),
        ({"model": "fake/x"}, {("workspace_not_shared", "error")}),
        ({"model": "nameless", "timeoutSec": "soon"}, {("agent_configuration", "error")}),
        ({"model": "fake/x", "extraArgs": ["--format", "x"]}, {("agent_configuration", "error")}),
    ],
)
async def test_a_check_finds_what_a_run_would_be_refused_for(
    system: System, config: dict[str, Any], found: set[tuple[str, str]]
) -> None:
    before = system.changes
    report = await execute_check(system, sealed_check(system, config))
    surroundings = {(code, "info") for code in ("kubernetes", "permissions", "transcript_store")}
    if not any(level == "error" for _, level in found):
        surroundings |= {("agent_capabilities", "info"), ("run_objects", "info")}
    assert {(finding.code, finding.level) for finding in report.findings} == found | surroundings
    assert system.changes == before


async def test_a_rotated_key_opens_what_was_sealed_before_as_long_as_it_is_configured(
    temporal: Client, tmp_path: Path
) -> None:
    async with open_system(temporal, tmp_path) as system:
        file = system.settings.sealing_key_file
        old = load_or_create(file)[0]
        wakes = [build_wake(system.agent(DONE), Sealer(old.public), outcome_retention_sec=0) for _ in range(2)]
        handles = [(await attach(temporal, system.settings, wake)).handle(temporal) for wake in wakes[:1]]
        new = SealingKey.generate()
        file.write_text(f'{{"keys": [{new.to_jwk()}, {old.to_jwk()}]}}')
        async with system.worker():
            assert (await outcome_at_close(handles[0])).failure is None
        file.write_text(new.to_jwk())
        handle = (await attach(temporal, system.settings, wakes[1])).handle(temporal)
        async with system.worker():
            refused = (await outcome_at_close(handle)).failure
    assert refused is not None
    assert (refused.code, refused.message) == (
        "sealed_field_unreadable",
        "sealed with a key that this worker does not hold",
    )
