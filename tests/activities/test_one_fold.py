"""Streaming, parsing, silence, pages and the command line read a line of output in the same way."""

import json
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.parse_transcript import ParseTranscriptActivity
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import Ended, ParseTranscript
from agent_runs.contracts.outcome import ContainerEnd, OutputReceipt, Report
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.logs.stored_output import StoredOutput
from agent_runs.transcript.fold import Progress
from agent_runs.transcript.lines import LINE_LIMIT
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.web.usage import AttemptUsage
from tests.activities.fake_preparations import FakePreparations
from tests.support.lines import log_line
from tests.support.saved_output import fold_chunks
from tests.support.sqlite import sqlite_store

KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=1)
NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


class Observed(NamedTuple):
    """What every reader of some output should have seen in it."""

    session_id: str | None
    last_output: str
    input_tokens: int

    @classmethod
    def of(cls, progress: Progress | Report) -> "Observed":
        return cls(progress.session_id, progress.last_output, progress.usage.input_tokens)


def event(kind: str, **part: object) -> bytes:
    return json.dumps({"type": kind, "sessionID": "ses_1", "part": part}).encode()


def padded(line: bytes, size: int) -> bytes:
    """The event with white space inside, so that it is `size` bytes long."""
    return line[:-1] + b" " * (size - len(line)) + b"}"


START, TEXT = event("step_start"), event("text", text="the answer")
STOP = event("step_finish", reason="stop", tokens={"input": 7, "output": 1})
CREATED = b"timestamp=1 level=INFO message=created id=ses_2 parentID=undefined"

OUTPUTS = {
    "an event that is exactly as long as the limit": (
        *((START, "stdout", True), (padded(TEXT, LINE_LIMIT), "stdout", True), (STOP, "stdout", True)),
    ),
    "an event that is longer than the limit": (
        *((START, "stdout", True), (padded(TEXT, LINE_LIMIT + 1), "stdout", True), (STOP, "stdout", True)),
    ),
    "a session that only the log names": ((CREATED, "stderr", True),),
    "a whole last line without its newline": (
        *((START, "stdout", True), (TEXT, "stdout", True), (STOP, "stdout", False)),
    ),
    "a long last line that breaks off": (
        *((START, "stdout", True), (TEXT, "stdout", True), (STOP, "stdout", True)),
        (padded(event("summary"), 2_000_000)[:-1], "stdout", False),
    ),
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    async with sqlite_store(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("name", OUTPUTS)
async def test_all_readers_of_a_line_agree(name: str, store: TranscriptStore) -> None:
    lines = [
        log_line(number, "stdout" if stream == "stdout" else "stderr", data[:LINE_LIMIT], end, len(data) <= LINE_LIMIT)
        for number, (data, stream, end) in enumerate(OUTPUTS[name], 1)
    ]
    stored = [Line(line.sequence, line.stream, line.data, line.terminated, at=NOW) for line in lines]
    await store.append(KEY, stored)
    state = StoredOutput()
    state.counted(lines)
    state.add(lines)
    page = (await AttemptUsage(store).progress(KEY)).progress
    parsed, command_line = await parse(store), parse_files(OUTPUTS[name])

    assert Observed.of(state.fold.progress) == Observed.of(parsed)
    assert Observed.of(page) == Observed.of(parsed)
    assert Observed.of(command_line) == Observed.of(parsed)
    assert state.progress.last_output == parsed.last_output
    assert (command_line.failure, command_line.summary) == (parsed.failure, parsed.summary)
    assert command_line.warnings == parsed.warnings


async def parse(store: TranscriptStore) -> Report:
    """What the activity makes of the stored output."""
    end = Ended(container=ContainerEnd(exit_code=0), receipt=OutputReceipt(state="verified"))
    parsing = ParseTranscriptActivity(store, Redactions(cast("Cluster", None), FakePreparations()))
    return await ActivityEnvironment().run(parsing.parse_transcript, ParseTranscript(attempt=KEY, end=end, model="m/m"))


def parse_files(output: Iterable[tuple[bytes, str, bool]]) -> Report:
    """What the same output in two files comes to."""
    files = {"stdout": b"", "stderr": b""}
    for data, stream, terminated in output:
        files[stream] += data + b"\n" * terminated
    return fold_chunks([files["stdout"]], [files["stderr"]]).report(ContainerEnd(exit_code=0))
