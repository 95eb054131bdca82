"""Whole runs on the embedded cluster: what callers, operators and the cluster see of them."""

from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

from activities.finish import FinishActivity
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.messages import EndUnreportedJob
from tests.runs.system import System, attempt_key, replay_script
from tests.support.ends import assert_verified


async def test_a_run_ends_with_session_usage_cost_and_summary(system: System) -> None:
    raw = system.agent(replay_script("tool-bash"))
    outcome = await system.outcome(raw)
    assert outcome.failure is None, outcome.failure
    assert outcome.exit_code == 0
    assert outcome.session_id is not None
    assert outcome.usage is not None
    assert outcome.usage.input_tokens > 0
    assert outcome.cost_usd is not None
    assert outcome.summary == "The command printed its greeting."
    assert_verified(outcome)


async def test_every_line_is_stored_once_and_in_order(system: System) -> None:
    raw = system.agent("cat > /dev/null; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done")
    await system.outcome(raw)
    assert await system.stdout(raw) == [b"line %d" % number for number in range(2000)]


async def test_a_finished_run_leaves_nothing_in_the_cluster(system: System) -> None:
    raw = system.agent(replay_script("text-stdin"))
    await system.outcome(raw)
    key = attempt_key(raw)
    kubernetes, namespace = system.kubernetes, system.embedded.namespace
    assert await kubernetes.read_job(namespace, key.job_name) is None
    assert await kubernetes.read_secret_metadata(namespace, key.prompt_secret_name) is None
    assert await kubernetes.read_secret_metadata(namespace, key.run_secret_name) is None


async def test_the_agent_gets_its_prompt_on_standard_input(system: System) -> None:
    raw = system.agent("cat")
    await system.outcome(raw)
    assert b"Issue description" in b"\n".join(await system.stdout(raw))


async def test_a_missing_program_is_a_named_failure(system: System, tmp_path: Path) -> None:
    raw = system.agent("exit 0")
    raw["config"]["env"]["PATH"] = f"{tmp_path}:/usr/bin:/bin"
    outcome = await system.outcome(raw)
    assert outcome.error_code == "opencode_start_failed"
    assert "command_not_found" in (outcome.error_message or "")


@pytest.mark.parametrize("names", [True, False], ids=["named", "without names"])
async def test_the_prompt_does_not_enter_the_history_and_the_tasks_title_only_as_the_runs_name(
    system: System, names: bool
) -> None:
    changed = system.changed(names=names)
    async with changed.worker():
        raw = changed.agent(replay_script("text-stdin"))
        raw["context"]["paperclipIssue"]["description"] = "The heron is secret."
        raw["context"]["paperclipTaskMarkdown"] += "The heron is secret."
        ticket = await changed.start(raw)
        await outcome_at_close(ticket.handle(changed.temporal))
    history = await changed.history_bytes(ticket)
    assert b"heron" not in history
    assert (raw["context"]["paperclipIssue"]["title"].encode() in history) is names


async def test_a_job_that_its_creation_could_not_report_is_cleaned_up(system: System) -> None:
    raw = system.agent(replay_script("text-stdin"))
    raw["config"]["retainJobs"] = True
    await system.outcome(raw)
    key, kubernetes = attempt_key(raw), system.kubernetes
    assert await kubernetes.read_job("default", key.job_name) is not None
    assert (await ActivityEnvironment().run(FinishActivity(kubernetes).finish, EndUnreportedJob(attempt=key))).deleted
    assert await kubernetes.read_job("default", key.job_name) is None
