"""Whole runs on the embedded cluster: what callers, operators and the cluster see of them."""

import shlex
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.finish import Cleanup
from client.attach import Ticket
from contracts.messages import Finish
from tests.conftest import FIXTURES
from tests.runs.ground import Ground, attempt_key


def replay(capture: str) -> str:
    """A script that writes what the real OpenCode wrote in this capture."""
    folder = FIXTURES / "opencode" / capture
    return f"cat > /dev/null\ncat {shlex.quote(str(folder / 'events.jsonl'))}"


async def test_a_run_ends_with_session_usage_cost_and_summary(system: Ground) -> None:
    raw = system.agent(replay("tool-bash"))
    outcome = await system.outcome(raw)
    assert outcome.failure is None, outcome.failure
    assert outcome.exit_code == 0
    assert outcome.session_id is not None
    assert outcome.usage is not None
    assert outcome.usage.input_tokens > 0
    assert outcome.cost_usd is not None
    assert outcome.summary == "The command printed its greeting."
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"


async def test_every_line_is_stored_once_and_in_order(system: Ground) -> None:
    raw = system.agent("cat > /dev/null; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done")
    await system.outcome(raw)
    lines = [line.data for line in await system.lines(raw) if line.stream == "stdout"]
    assert lines == [b"line %d" % number for number in range(2000)]


async def test_a_finished_run_leaves_nothing_in_the_cluster(system: Ground) -> None:
    raw = system.agent(replay("text-stdin"))
    await system.outcome(raw)
    key = attempt_key(raw)
    kubernetes, namespace = system.kubernetes, system.embedded.namespace
    assert await kubernetes.read_job(namespace, key.job_name) is None
    assert await kubernetes.read_secret_metadata(namespace, key.prompt_secret_name) is None
    assert await kubernetes.read_secret_metadata(namespace, key.run_secret_name) is None


async def test_the_agent_gets_its_prompt_on_standard_input(system: Ground) -> None:
    raw = system.agent("cat")
    await system.outcome(raw)
    said = b"\n".join(line.data for line in await system.lines(raw) if line.stream == "stdout").decode()
    assert "Issue description" in said


async def test_an_agent_that_cannot_start_is_named_with_its_own_words(system: Ground) -> None:
    raw = system.agent("echo 'Config file at /x is not valid JSON' >&2; exit 1")
    outcome = await system.outcome(raw)
    assert outcome.error_code == "opencode_start_failed"
    assert "not valid JSON" in (outcome.error_message or "")
    assert outcome.exit_code == 1


async def test_a_missing_program_is_a_named_failure(system: Ground, tmp_path: Path) -> None:
    raw = system.agent("exit 0")
    raw["config"]["env"]["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    outcome = await system.outcome(raw)
    assert outcome.error_code == "opencode_start_failed"
    assert "command_not_found" in (outcome.error_message or "")


async def recorded(ticket: Ticket, system: Ground) -> bytes:
    """A run's history as it is stored: in its JSON payloads are base64, where nothing is ever found."""
    events = (await ticket.handle(system.temporal).fetch_history()).events
    whole = b"".join(event.SerializeToString() for event in events)
    assert ticket.run_id.encode() in whole
    return whole


@pytest.mark.parametrize("canary", ["canary-of-the-environment-1", "canary-of-the-token-2"])
async def test_no_secret_enters_history_or_transcript(system: Ground, canary: str) -> None:
    raw = system.agent(replay("text-stdin"))
    raw["config"]["env"]["SECRET_OF_A_USER"] = canary
    raw["authToken"] = canary
    ticket = await system.start(raw)
    await ticket.handle(system.temporal).result()
    assert canary.encode() not in await recorded(ticket, system)
    assert all(canary.encode() not in line.data for line in await system.lines(raw))


async def test_the_prompt_does_not_enter_the_history(system: Ground) -> None:
    raw = system.agent(replay("text-stdin"))
    ticket = await system.start(raw)
    await ticket.handle(system.temporal).result()
    assert raw["context"]["paperclipIssue"]["title"].encode() not in await recorded(ticket, system)


async def test_a_job_that_its_creation_could_not_report_is_cleaned_up(system: Ground) -> None:
    raw = system.agent(replay("text-stdin"))
    raw["config"]["retainJobs"] = True
    await system.outcome(raw)
    key, kubernetes = attempt_key(raw), system.kubernetes
    assert await kubernetes.read_job("default", key.job_name) is not None
    assert (await ActivityEnvironment().run(Cleanup(kubernetes).finish, Finish(attempt=key))).deleted
    assert await kubernetes.read_job("default", key.job_name) is None
