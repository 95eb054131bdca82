"""What the loss of a pod has interrupted is read from the stored output, bounded and without secrets."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.parse_transcript import ParseTranscriptActivity, without_secrets
from agent_runs.contracts.errors import AgentSilent, PodLost, RunError
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import Ended, ParseTranscript
from agent_runs.contracts.outcome import Interruption, Report
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.redaction import Redaction
from agent_runs.transcript.lines import Line
from agent_runs.transcript.store import TranscriptStore
from tests.activities.fake_preparations import FakePreparations
from tests.support.lines import log_line
from tests.support.sqlite import sqlite_store
from tests.transcript.event_lines import line, step_finish, step_start
from tests.transcript.log_lines import call, created, loop

KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=1)


def begins(call: str, tool: str = "bash", **given: object) -> bytes:
    return line("tool_running", tool=tool, callID=call, input=json.dumps(given), title="titled")


def ends(call: str) -> bytes:
    return line("tool_use", tool="bash", callID=call, state={"status": "completed"})


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    async with sqlite_store(tmp_path) as opened:
        yield opened


async def interruption(
    store: TranscriptStore, stdout: Sequence[bytes], log: Sequence[str] = (), failure: type[RunError] | None = PodLost
) -> Interruption | None:
    texts = [("stderr", text.encode()) for text in log] + [("stdout", data) for data in stdout]
    lines: list[Line] = [log_line(number, stream, data) for number, (stream, data) in enumerate(texts, 1)]
    await store.append(KEY, lines)
    parsing = ParseTranscriptActivity(store, Redactions(cast("Cluster", None), FakePreparations()))
    stopped = failure.as_failure("why") if failure else None
    input = ParseTranscript(attempt=KEY, end=Ended(), stopped=stopped, model="m/m")
    report = await ActivityEnvironment().run(parsing.parse_transcript, input)
    return report.interruption


async def test_the_steps_that_ended_and_the_calls_at_work_are_named(store: TranscriptStore) -> None:
    sub_agents = line("subagent_step", reason="stop")
    output = [step_start(), begins("1"), ends("1"), sub_agents, step_finish(), step_start()]
    output += [begins("2", command="make all"), begins("3", command="npm test"), ends("3"), begins("4", "odd")]
    found = await interruption(store, output)
    assert found is not None
    assert (found.steps, found.tools) == (1, ("bash: make all", "odd: titled"))
    assert found.at is not None


async def test_of_the_command_line_the_log_names_the_tool(store: TranscriptStore) -> None:
    log = [created("ses_main"), loop("ses_main", 0), call("bash", "make all")]
    found = await interruption(store, [step_start()], log)
    assert found is not None
    assert found.tools == ("bash",)


@pytest.mark.parametrize("failure", [None, AgentSilent])
async def test_an_agent_whose_pod_is_not_lost_is_not_interrupted(
    store: TranscriptStore, failure: type[RunError] | None
) -> None:
    assert await interruption(store, [step_start(), begins("1")], failure=failure) is None


async def test_an_agent_without_output_is_not_interrupted(store: TranscriptStore) -> None:
    assert await interruption(store, []) is None


async def test_a_call_is_one_bounded_line_whatever_the_agent_writes(store: TranscriptStore) -> None:
    hostile = "\x1b[2Ja\nb\u202e\ud800" + "x" * 10_000
    output = [begins(str(number), "t" * 500, command=hostile) for number in range(100)]
    found = await interruption(store, output)
    assert found is not None
    assert len(found.tools) == 8
    assert all(len(tool) < 210 and tool.isprintable() for tool in found.tools)


def test_secrets_are_hidden_in_calls() -> None:
    report = Report(interruption=Interruption(tools=("bash: use s3cr3t-token-1",)))
    hidden = without_secrets(report, Redaction.of([("token", "s3cr3t-token-1")])).interruption
    assert hidden is not None
    assert "s3cr3t" not in hidden.tools[0]
