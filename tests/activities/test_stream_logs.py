"""A restarted activity continues from the store and the last heartbeat; an end is early only when all is proven."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.parse_transcript import OUTPUT_DIFFERS, ParseTranscriptActivity, where_output_is_missing
from activities.stream_logs import (
    MIN_HEARTBEAT_INTERVAL,
    HeartbeatThrottle,
    StreamLogsActivity,
    last_heartbeat,
    unprompted,
)
from agent_runs.contracts.errors import InvalidRequest, PodLost, SealedFieldUnreadable, TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import Claimed, Ended, ParseTranscript, StreamLogs, StreamProgress
from agent_runs.contracts.outcome import ContainerEnd, Gap, OutputReceipt
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Pod
from agent_runs.logs.buffer import Batch
from agent_runs.logs.follower import Follower
from agent_runs.logs.log_resume import Cursor
from agent_runs.logs.silence import LastOutput, SilenceClock, SilenceLimits
from agent_runs.logs.stored_output import OutputMetrics, StoredOutput, Tally
from agent_runs.metrics.definitions import FIRST_LINE, OUTPUT_BYTES, OUTPUT_GAPS, OUTPUT_LINES, Metric
from agent_runs.metrics.recorder import Recorder
from agent_runs.paperclip.preparation import Preparation
from agent_runs.transcript.store import Line, TranscriptStore, Writer
from tests.activities.fake_preparations import FakePreparations
from tests.kube.pods import container, pod, terminated
from tests.logs.kubelet import Log, checksum, framed
from tests.logs.scripted_log import ENDED, JOB, POD, RUNNING, SIDECAR_RUNS, ScriptedLog
from tests.support.cases import case
from tests.support.ends import ended, over_quota
from tests.support.lines import log_line
from tests.support.sqlite import sqlite_store
from workflows.activity_calls import SHORT_HEARTBEAT_TIMEOUT

SECOND = datetime(2026, 11, 22, 1, 2, 3, tzinfo=UTC)
KEY = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=1)
INPUT = StreamLogs(attempt=KEY, job=JOB, pod=POD)
REDACTIONS = Redactions(cast("Cluster", None), FakePreparations())


class Refusing:
    """Preparations of a worker that cannot open, or will not take, what another one has taken."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def current(self) -> Preparation:
        raise self.error


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[TranscriptStore]:
    async with sqlite_store(tmp_path) as opened:
        yield opened


async def test_a_worker_that_was_killed_after_it_found_the_run_over_its_quota_is_replaced_by_one_that_says_so(
    store: TranscriptStore,
) -> None:
    await store.append(KEY, [Line(1, "stdout", b"x" * 100, at=datetime.now(UTC))])
    streaming = StreamLogsActivity(cast("Cluster", None), store, REDACTIONS, quota=99)
    killed, next_one = [over_quota(await ActivityEnvironment().run(streaming.stream_logs, INPUT)) for _ in range(2)]
    assert killed.limit == 99
    assert (next_one.limit, next_one.receipt) == (killed.limit, killed.receipt)
    assert [gap.after_sequence for gap in killed.receipt.gaps] == [1]
    assert [line.stream for line in await store.read(KEY)] == ["stdout", "gap"]


async def test_the_quota_counts_what_a_line_takes_besides_its_text(store: TranscriptStore) -> None:
    await store.append(KEY, [Line(number, "stdout", b"", at=datetime.now(UTC)) for number in range(1, 5001)])
    streaming = StreamLogsActivity(cast("Cluster", None), store, REDACTIONS, quota=999_999)
    over_quota(await ActivityEnvironment().run(streaming.stream_logs, INPUT))


@pytest.mark.parametrize("error", [SealedFieldUnreadable("another key"), InvalidRequest("config.image is not allowed")])
async def test_without_the_runs_secrets_nothing_is_stored_and_another_worker_tries(
    error: Exception, store: TranscriptStore
) -> None:
    cluster = cast("Cluster", None)
    streaming = StreamLogsActivity(cluster, store, Redactions(cluster, Refusing(error)))
    with pytest.raises(TranscriptsUnavailable) as refused:
        await ActivityEnvironment().run(streaming.stream_logs, INPUT)
    assert not refused.value.non_retryable
    assert await store.last(KEY) is None


def state(*sequences: int, gaps: tuple[Gap, ...] = (), cursor: Cursor | None = None) -> StoredOutput:
    stored = StoredOutput(cursor=cursor or Cursor())
    lines = [log_line(sequence, "stdout", b"x", terminated=True) for sequence in sequences]
    stored.add(stored.counted(lines), gaps)
    return stored


async def test_the_heartbeat_hides_a_secret_that_only_reading_json_reveals() -> None:
    disguised = b"\\u0067hp_0123456789abcdef"
    line = (
        b'{"type":"text","timestamp":1,"sessionID":"ses_1","part":{"messageID":"m","text":"it is ' + disguised + b'"}}'
    )
    stored = StoredOutput(await REDACTIONS.current())
    stored.add([log_line(1, "stdout", line, terminated=True)])
    assert stored.progress.last_output == "it is [[secret:GITHUB_TOKEN]]"


async def test_a_secret_in_a_line_that_repeats_is_hidden() -> None:
    stored = StoredOutput(await REDACTIONS.current())
    repeated = log_line(1, "stderr", b"retry with ghp_0123456789abcdef", terminated=True)
    stored.agent_state.add([repeated] * 3)
    cluster = ScriptedLog(Log([]), [(None, None)], [RUNNING])
    follower = Follower(cluster, JOB, POD)
    follower.silence.chatters = True
    clock = SilenceClock(SilenceLimits(silence=timedelta(hours=1)), LastOutput(0), 0)
    streaming = StreamLogsActivity(cast("Cluster", NoProcesses()), cast("TranscriptStore", None), REDACTIONS)
    silence = await streaming._silence(INPUT, follower, clock, stored)
    assert (silence.cause, silence.detail) == ("chatter", "retry with [[secret:GITHUB_TOKEN]]")


class NoProcesses:
    """A cluster whose containers cannot be entered."""

    def exec_output(self, *_: object, **_options: object) -> object:
        raise ExecFailed("refused")


def test_the_heartbeat_names_where_in_the_log_to_continue() -> None:
    progress = state(5, 9, cursor=Cursor(after=9, first=7, second=SECOND)).progress
    assert (progress.sequence, progress.needed_from, progress.second) == (9, 7, SECOND)
    received = StreamProgress.model_validate(json.loads(progress.model_dump_json()))
    cursor = state(5, 9).resumed_at(received)
    assert (cursor.after, cursor.first, cursor.second) == (9, 7, SECOND)


def test_the_heartbeat_names_the_place_that_an_earlier_one_has_named_until_more_is_stored() -> None:
    cursor = state(5, 9, 12).resumed_at(StreamProgress(sequence=9, needed_from=7, second=SECOND))
    progress = state(5, 9, 12, cursor=cursor).progress
    assert (progress.sequence, progress.needed_from, progress.second) == (12, 7, SECOND)
    assert state(5, 9, 12).resumed_at(progress) == cursor


@pytest.mark.parametrize(
    "cursor",
    [
        pytest.param(Cursor(after=5), id="a cursor of the store alone"),
        pytest.param(Cursor(after=9, first=7, second=SECOND), id="not stored yet"),
    ],
)
def test_a_heartbeat_without_a_reliable_place_names_none(cursor: Cursor) -> None:
    assert state(5, cursor=cursor).progress.needed_from is None


def test_an_older_heartbeat_is_used_although_more_is_stored() -> None:
    cursor = state(5, 9, 12).resumed_at(StreamProgress(sequence=9, needed_from=7, second=SECOND))
    assert (cursor.after, cursor.first, cursor.second) == (12, 7, SECOND)


@pytest.mark.parametrize(
    "hint",
    [
        StreamProgress(),
        StreamProgress(sequence=9),
        StreamProgress(sequence=20, needed_from=15, second=SECOND),
        StreamProgress(sequence=9, needed_from=11, second=SECOND),
        StreamProgress(sequence=9, needed_from=0),
        StreamProgress(sequence=-3, needed_from=-5),
    ],
)
def test_a_heartbeat_that_contradicts_the_store_is_ignored(hint: StreamProgress) -> None:
    assert state(5, 9).resumed_at(hint) == Cursor(after=9)


def test_more_streams_send_fewer_heartbeats_each_well_within_the_time_out() -> None:
    assert HeartbeatThrottle(1).interval == HeartbeatThrottle(100).interval == MIN_HEARTBEAT_INTERVAL
    assert HeartbeatThrottle(150).interval == timedelta(seconds=3)
    assert HeartbeatThrottle(100_000).interval + timedelta(seconds=1) <= SHORT_HEARTBEAT_TIMEOUT / 2


@pytest.mark.parametrize("details", [[], ["nonsense"], [{"sequence": "x"}], [None], [7]])
async def test_an_unreadable_heartbeat_is_ignored(details: list[object]) -> None:
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_details=details)
    assert environment.run(last_heartbeat) is None


def test_a_stored_gap_is_not_requested_a_second_time() -> None:
    known = state(4, gaps=(Gap(after_sequence=4, frames=6),))
    assert known.resumed_at(StreamProgress()) == Cursor(after=4, covered=10)
    unsized = state(4, gaps=(Gap(after_sequence=9),))
    assert unsized.resumed_at(StreamProgress()) == Cursor(after=4, covered=9)


def test_a_gap_before_the_last_stored_line_is_in_the_receipt_only() -> None:
    before, after = Gap(after_sequence=2), Gap(after_sequence=9, frames=3)
    batch = Batch(gaps=[before, after])
    assert [row.sequence for row in state(9).rows(batch, SECOND)] == [10]


# the final fold


GOOD = (
    b'{"type":"step_start","timestamp":1,"sessionID":"ses_1","part":{"type":"step-start"}}',
    b'{"type":"text","timestamp":2,"sessionID":"ses_1","part":{"id":"p","type":"text","text":"done","time":{"end":2}}}',
    b'{"type":"step_finish","timestamp":3,"sessionID":"ses_1","part":{"reason":"stop","tokens":{"input":1,"output":1}}}',
)


@pytest.mark.parametrize(
    ("receipt", "warnings"),
    [
        pytest.param(OutputReceipt(state="verified"), (), id="verified"),
        pytest.param(OutputReceipt(state="differs"), (OUTPUT_DIFFERS,), id="differs at an unknown place"),
        pytest.param(
            OutputReceipt(state="differs", gaps=(Gap(after_sequence=1, frames=1),)),
            ("Some output in the middle could not be read: usage and cost may be too low",),
            id="differs by a gap",
        ),
    ],
)
async def test_the_report_warns_of_what_is_wrong_with_the_output(
    receipt: OutputReceipt, warnings: tuple[str, ...], store: TranscriptStore
) -> None:
    at = datetime.now(UTC) - timedelta(seconds=1)
    await store.append(KEY, [Line(number + 2, "stdout", line, at=at) for number, line in enumerate(GOOD)])
    end = Ended(container=ContainerEnd(exit_code=0), receipt=receipt)
    input = ParseTranscript(attempt=KEY, end=end, model="m/m")
    report = await ActivityEnvironment().run(ParseTranscriptActivity(store, REDACTIONS).parse_transcript, input)
    assert report.failure is None
    assert tuple(warning for warning in report.warnings if "output" in warning) == warnings


def test_missing_output_is_located_at_the_end_or_in_the_middle() -> None:
    receipt = OutputReceipt(state="differs", gaps=(Gap(after_sequence=10, frames=None),))
    assert (
        where_output_is_missing(receipt, 10),
        where_output_is_missing(receipt, 30),
        where_output_is_missing(OutputReceipt(), 3),
    ) == ("end", "middle", "nothing")


# how a stream ends

ANSWER = b"".join(line + b"\n" for line in GOOD)


class DeletableLog(ScriptedLog):
    """A cluster with one pod, whose Job can be deleted."""

    deleted = False

    async def delete_job(self, *_: str) -> bool:
        self.deleted = True
        return True


def sidecars_log(output: bytes, **last: object) -> Log:
    """A log with this output and a last frame that fits it, but for the changes."""
    totals = {"lines": output.count(b"\n"), "bytes": len(output), "checksum": checksum(output)}
    nothing = {"lines": 0, "bytes": 0, "checksum": checksum(b"")}
    values = {"exit_code": 0, "stdout": totals, "stderr": nothing, **last}
    return Log(framed([("stdout", output)], json.dumps(values).encode()))


def one_read_of(*pods: Pod, log: Log) -> DeletableLog:
    scripted = DeletableLog(log, [(None, None)], pods)
    scripted.watched = [[state] for state in pods]
    return scripted


async def streamed(store: TranscriptStore, cluster: ScriptedLog) -> Ended:
    kubernetes = cast("Cluster", cluster)
    streaming = StreamLogsActivity(kubernetes, store, Redactions(kubernetes, FakePreparations()))
    return ended(await ActivityEnvironment().run(streaming.stream_logs, INPUT))


async def test_a_success_of_which_all_is_stored_ends_without_the_containers_status(store: TranscriptStore) -> None:
    cluster = one_read_of(RUNNING, log=sidecars_log(ANSWER))
    end = await streamed(store, cluster)
    assert (end.early, end.container, end.failure) == (True, ContainerEnd(exit_code=0), None)
    assert (end.receipt.state, end.receipt.lines, cluster.status_reads) == ("verified", 3, 0)
    assert await store.receipt(KEY) == end.receipt


async def test_an_activity_that_is_repeated_after_an_early_end_ends_early_again(store: TranscriptStore) -> None:
    first, second = [await streamed(store, one_read_of(RUNNING, log=sidecars_log(ANSWER))) for _ in range(2)]
    assert second == first
    assert second.early


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(sidecars_log(ANSWER, exit_code=1), id="another exit code"),
        pytest.param(sidecars_log(ANSWER, exit_code=None), id="no exit code"),
        pytest.param(sidecars_log(ANSWER, stopped_by="TERM"), id="stopped"),
        pytest.param(sidecars_log(ANSWER, error="output_truncated"), id="an error of the runner"),
        pytest.param(sidecars_log(ANSWER, stdout={"lines": 4, "bytes": 500}), id="more output than is stored"),
        pytest.param(sidecars_log(ANSWER, stdout={"lines": 3, "bytes": len(ANSWER)}), id="no checksum"),
        pytest.param(sidecars_log(b""), id="no output"),
        pytest.param(sidecars_log(b"\n".join(GOOD[:2]) + b"\n"), id="no whole answer"),
        pytest.param(sidecars_log(ANSWER + GOOD[0] + b"\n"), id="a further step that is not finished"),
    ],
)
async def test_whatever_else_the_last_frame_says_the_containers_status_counts(log: Log, store: TranscriptStore) -> None:
    cluster = one_read_of(pod(SIDECAR_RUNS, terminated(3), phase="Running"), log=log)
    end = await streamed(store, cluster)
    assert (end.early, end.container.exit_code, cluster.status_reads) == (False, 3, 1)


async def test_after_a_sealed_receipt_that_is_not_verified_the_status_is_read(store: TranscriptStore) -> None:
    sealed = OutputReceipt(state="unverified")
    earlier = Writer(datetime.fromtimestamp(0, UTC), 0, "")
    await store.claim(KEY, earlier)
    await store.seal(KEY, sealed, earlier)
    end = await streamed(store, one_read_of(ENDED, log=sidecars_log(ANSWER)))
    assert (end.early, end.receipt, end.container.reason) == (False, sealed, "Completed")


async def test_the_loss_of_the_sidecar_is_a_lost_pod_and_its_job_is_deleted(store: TranscriptStore) -> None:
    lost = pod(terminated(137, "OOMKilled", name="sidecar"), container(running={}), phase="Running")
    cluster = one_read_of(lost, log=Log(framed([("stdout", ANSWER)], last=None)))
    end = await streamed(store, cluster)
    assert end.failure is not None
    assert (end.failure.code, end.receipt.lines, end.receipt.state) == (PodLost.code, 3, "unverified")
    assert "OOMKilled (exit 137)" in end.failure.message
    assert cluster.deleted


CUT: Final = Log(framed([("stdout", ANSWER)], last=None))


@pytest.mark.parametrize(
    ("agent", "sidecar", "log", "code"),
    [
        pytest.param(255, 255, CUT, "k8s_pod_lost", id="the runtime's shim was killed"),
        pytest.param(255, 255, sidecars_log(ANSWER, exit_code=255), None, id="the sidecar has recorded the exit code"),
        pytest.param(255, 0, CUT, None, id="the sidecar's end is known"),
        pytest.param(1, 255, CUT, None, id="the agent's end is known"),
    ],
)
async def test_containers_whose_end_nobody_recorded_are_lost_infrastructure(
    agent: int, sidecar: int, log: Log, code: str | None, store: TranscriptStore
) -> None:
    state = pod(terminated(sidecar, name="sidecar"), terminated(agent), phase="Failed")
    cluster = one_read_of(state, log=log)
    end = await streamed(store, cluster)
    assert (end.failure and end.failure.code, cluster.deleted) == (code, code is not None)
    assert end.failure is None or end.failure.budget == "infrastructure"


async def test_people_are_warned_of_what_is_not_in_a_carried_workspace(store: TranscriptStore) -> None:
    said = {"number": 7, "steps": 3, "bytes": 10, "warnings": ["workspace/\x1b[31ma\u202e: left out: it is no file"]}
    left_out = "workspace/a: left out: it is no file"
    failed = {"error": {"code": "unavailable", "message": "HTTP 503"}}
    lost = "is not kept: the last checkpoint failed (unavailable: HTTP 503)"
    for kept, warnings in (
        (said | failed, (f"what the agent did after step 3 {lost}", left_out)),
        (said | failed | {"number": 0}, (f"what the agent did {lost}", left_out)),
        (said, (left_out,)),
        (None, ()),
    ):
        about = {} if kept is None else {"workspace": kept}
        with case(kept):
            assert (await streamed(store, one_read_of(ENDED, log=sidecars_log(ANSWER, **about)))).warnings == warnings


# errors of the runner


@pytest.mark.parametrize("claimed", ["", "runner: disk_full", "runner: api (--api)"])
async def test_only_the_last_frame_names_an_error_of_the_runner(claimed: str, store: TranscriptStore) -> None:
    ended = pod(SIDECAR_RUNS, terminated(125, message=claimed), phase="Running")
    end = await streamed(store, one_read_of(ended, log=sidecars_log(b"x\n", exit_code=125)))
    assert (end.container.runner_error, end.container.message) == (None, claimed or None)


async def test_an_error_of_the_runner_has_a_field_and_a_text_for_people(store: TranscriptStore) -> None:
    ended = pod(SIDECAR_RUNS, terminated(125, message="words"), phase="Running")
    log = sidecars_log(b"", exit_code=125, error="sidecar", detail="--out")
    end = await streamed(store, one_read_of(ended, log=log))
    assert (end.container.runner_error, end.container.message) == ("sidecar", "words; runner: sidecar (--out)")


@pytest.mark.parametrize(("exit_code", "error"), [(125, "sidecar"), (1, None), (126, None)])
async def test_a_runner_that_never_had_its_sidecar_has_started_nothing(
    exit_code: int, error: str | None, store: TranscriptStore
) -> None:
    waits = container("sidecar", waiting={"reason": "ImagePullBackOff"})
    ended = pod(waits, terminated(exit_code), phase="Running")
    end = await streamed(store, one_read_of(ended, log=Log([])))
    assert (end.container.exit_code, end.container.runner_error) == (exit_code, error)


async def test_a_sidecar_whose_output_is_stored_has_run_although_its_log_is_gone(store: TranscriptStore) -> None:
    lines, tally = [Line(2, "stdout", b"stored before", at=datetime.now(UTC))], Tally()
    tally.add(lines)
    await store.append(KEY, lines, tally=str(tally))
    ended = pod(terminated(0, name="sidecar"), terminated(125), phase="Failed")
    end = await streamed(store, one_read_of(ended, log=Log([])))
    assert (end.container.exit_code, end.container.runner_error) == (125, None)
    assert (end.receipt.state, end.receipt.lines) == ("unverified", 1)


def test_a_server_that_had_rested_and_got_no_prompt_is_a_lost_pod() -> None:
    reasons = ("server_not_answering", "server_lost", None)
    found = [unprompted(ContainerEnd(exit_code=1, runner_error=reason)) for reason in reasons]
    assert [failure and failure.error for failure in found] == [PodLost, None, None]


def test_the_log_of_a_pod_that_had_rested_is_read_from_a_little_before_its_claim() -> None:
    claimed = Claimed(first=12, at=SECOND + timedelta(milliseconds=600))
    fresh = state().resumed_at(StreamProgress(), claimed)
    assert fresh == Cursor(after=11, first=12, second=SECOND - timedelta(seconds=2), covered=11)
    assert state(14).resumed_at(StreamProgress(), claimed) == replace(fresh, after=14)


class Recorded:
    """Names of the metrics that were recorded."""

    def __init__(self) -> None:
        self.observed: list[Metric] = []
        self.counted: list[Metric] = []

    def observe(self, metric: Metric, _amount: float) -> None:
        self.observed.append(metric)

    def count(self, metric: Metric, _number: int) -> None:
        self.counted.append(metric)


@pytest.mark.parametrize("has_stdout", [False, True])
def test_the_first_line_of_an_agent_is_measured_once_also_over_restarts(has_stdout: bool) -> None:
    recorder, began = Recorded(), POD.model_copy(update={"started_at": SECOND})
    metrics = OutputMetrics(cast("Recorder", recorder), began, has_stdout=has_stdout)
    for stream in ("stderr", "stdout", "stdout"):
        metrics.stored(Batch(lines=[log_line(1, stream, b"x")]))
    assert recorder.observed == ([] if has_stdout else [FIRST_LINE])
    assert recorder.counted == [OUTPUT_LINES, OUTPUT_BYTES, OUTPUT_GAPS] * 3
