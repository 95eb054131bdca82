"""Following a container to its end: every line once and in order, whatever happens to connections."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable, PodLost
from agent_runs.contracts.messages import JobRef, PodRef, Restored
from agent_runs.contracts.outcome import ContainerEnd, Gap
from agent_runs.kube.client import Cluster
from agent_runs.kube.diagnosis import DELETED, JOB_DELETED, Failing
from agent_runs.kube.failures import ExecFailed, LogCut, LogGone, LogNotReady, LogUnavailable
from agent_runs.kube.objects import Pod
from agent_runs.logs.buffer import Batch
from agent_runs.logs.follower import ROTATION_BYTES, SIDECAR_LOST, Follower, FollowTiming
from agent_runs.logs.log_resume import Cursor
from agent_runs.logs.source import Source
from agent_runs.logs.stored_output import Tally
from agent_runs.transcript.lines import Line
from dev_stack.cluster import EmbeddedCluster
from tests.kube.pods import container, pod, terminated
from tests.kube.test_client import NAMESPACE, job_manifest, start_job, wait_for_phase
from tests.logs.kubelet import Log, framed
from tests.logs.scripted_log import BOTH_ENDED, ENDED, JOB, OPEN, POD, QUICK, RUNNING, SIDECAR_RUNS, ScriptedLog
from tests.logs.timed_container import TimedContainer
from tests.support.agent_pods import agent_pod
from tests.support.virtual_time import run_in_virtual_time

UNHURRIED = replace(QUICK, unreadable_timeout=timedelta(seconds=10), backfill_timeout=timedelta(seconds=10))
"""For what is backfilled in the end, however busy the machine is."""
ENDING = pod(SIDECAR_RUNS, container(running={}), phase="Running", deleted="2999-01-01T00:00:00Z")
ENDED_DELETED = pod(terminated(0, name="sidecar"), terminated(143), phase="Failed", deleted="2999-01-01T00:00:00Z")
UNREACHABLE = LogUnavailable(500, "", "dial tcp 10.0.0.1:10250: connect: connection refused")
NOT_FOUND = LogGone(404, "NotFound", "pods not found")
ENDING_AT_DEADLINE = pod(SIDECAR_RUNS, container(running={}), phase="Failed", reason="DeadlineExceeded")


def both_ended(code: int, reason: str = "Error") -> Pod:
    return pod(terminated(0, "Completed", name="sidecar"), terminated(code, reason), phase="Failed")


async def follow(
    scripted: ScriptedLog, cursor: Cursor | None = None, timing: FollowTiming = QUICK
) -> tuple[list[Line], list[Batch], Follower]:
    follower = Follower(scripted, JOB, POD, cursor, timing=timing)
    batches = []
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            batches.append(batch)  # noqa: PERF401 - an error must not lose what came before it
    return [line for batch in batches for line in batch.lines], batches, follower


OUTPUT = [("stdout", b"".join(b"%d\n" % number for number in range(60))), ("stderr", b"x" * 30_000 + b"\n")]
FRAMES = framed(OUTPUT, b'{"exit_code":0}')
EXPECTED = [b"%d" % number for number in range(60)] + [b"x" * 30_000]


@pytest.mark.parametrize(
    ("connections", "pods"),
    [
        pytest.param([(None, None)], [ENDED], id="all at once"),
        pytest.param([(10, None), (30, None), (None, None)], [RUNNING, RUNNING, ENDED], id="clean ends while it runs"),
        pytest.param([(10, LogCut("reset")), (12, LogCut("idle")), (None, None)], [RUNNING, RUNNING, ENDED], id="cuts"),
        pytest.param(
            [(10, LogCut("TimeoutError")), (10, LogCut("TimeoutError")), (None, None)],
            [RUNNING, RUNNING, ENDED],
            id="connections that are idle for too long",
        ),
        pytest.param(
            [(40, None), (40, LogCut("ClientPayloadError")), (None, None)],
            [RUNNING, RUNNING, ENDED],
            id="the kubelet's limit of 4 h, as a clean end and as a broken one",
        ),
        pytest.param(
            [(20, None), (None, LogUnavailable(503, "", "")), (None, LogUnavailable(0, "refused", "")), (None, None)],
            [RUNNING, ClusterUnavailable("refused"), ClusterUnavailable("refused"), ENDED],
            id="a restart of the API server",
        ),
        pytest.param(
            [(20, None), (None, LogUnavailable(500, "", "dial tcp: refused")), (20, None), (None, None)],
            [RUNNING, RUNNING, RUNNING, ENDED],
            id="a restart of the kubelet",
        ),
        pytest.param(
            [(5, None), (None, LogUnavailable(500, "", "")), (None, LogUnavailable(429, "", "")), (None, None)],
            [RUNNING, ClusterUnavailable("down"), RUNNING, ENDED],
            id="refusals and an unavailable API server",
        ),
        pytest.param(
            [(None, LogNotReady(400, "BadRequest", "waiting to start")), (None, None)],
            [pod(container(waiting={"reason": "ContainerCreating"})), ENDED],
            id="before the start",
        ),
        pytest.param(
            [(5, None), (None, ClusterForbidden("RBAC not loaded")), (None, None)],
            [RUNNING, RUNNING, ENDED],
            id="403 once",
        ),
        pytest.param([(20, None), (40, None), (None, None)], [ENDED], id="the tail comes after the end"),
        pytest.param(
            [(20, None), (40, LogCut("reset")), (50, None), (None, None)], [ENDING_AT_DEADLINE], id="ended too early"
        ),
        pytest.param(
            [(20, None), (20, None), (5, None), (5, None), (5, None), (None, None)],
            [ENDED],
            id="reads that end cleanly before what is known, after the end",
        ),
        pytest.param([(20, None), (None, None)], [RUNNING, RUNNING, ENDED], id="late"),
    ],
)
@pytest.mark.parametrize("sidecar_lives_on", [True, False])
async def test_every_line_comes_once(
    connections: list[tuple[int | None, Exception | None]], pods: list[Any], sidecar_lives_on: bool
) -> None:
    pods = [BOTH_ENDED if state is ENDED and not sidecar_lives_on else state for state in pods]
    timing = replace(QUICK, unreadable_timeout=timedelta(seconds=10))
    lines, batches, follower = await follow(ScriptedLog(Log(FRAMES, [40]), connections, pods), timing=timing)
    assert [line.data for line in lines] == EXPECTED
    assert [gap for batch in batches for gap in batch.gaps] == []
    assert follower.last_frame is not None
    assert follower.end is not None
    assert follower.end.exit_code == 0


async def test_reading_can_continue_from_the_cursor_of_each_batch() -> None:
    log = Log(FRAMES, [40])
    lines, batches, _ = await follow(
        ScriptedLog(log, [(10, None), (33, None), (None, None)], [RUNNING, RUNNING, ENDED])
    )
    for number, batch in enumerate(batches):
        rest, _, _ = await follow(ScriptedLog(log, [(None, None)], [ENDED]), batch.cursor)
        before = sum(len(each.lines) for each in batches[: number + 1])
        assert rest == lines[before:]


async def test_the_log_is_not_opened_again_once_the_last_frame_is_in() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [RUNNING, RUNNING, RUNNING, ENDED])
    await follow(scripted)
    assert scripted.opened == [(True, None)]


async def test_the_status_is_read_when_the_watch_shows_the_end() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [ENDED])
    scripted.watched = [[RUNNING], [RUNNING], [ENDED]]
    follower = Follower(scripted, JOB, POD, timing=replace(QUICK, max_pause=timedelta(seconds=10)))
    async with asyncio.timeout(60), follower:
        lines = [line.data async for batch in follower for line in batch.lines]
    assert lines == EXPECTED
    assert (scripted.status_reads, scripted.watched) == (1, [])


async def test_an_end_that_only_the_watch_shows_is_not_believed() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [RUNNING, ENDED])
    scripted.watched = [[], [pod(terminated(137, "OOMKilled"))]]
    _, _, follower = await follow(scripted)
    assert follower.end is not None
    assert (follower.end.exit_code, scripted.status_reads) == (0, 2)


async def test_a_pod_deleted_with_its_job_is_distinguished_from_one_deleted_alone() -> None:
    frames = framed(OUTPUT, b'{"exit_code":143,"stopped_by":"TERM"}')
    deleted = pod(SIDECAR_RUNS, terminated(143), phase="Running", deleted="2026-11-21T23:00:00Z")
    scripted = ScriptedLog(Log(frames), [(None, None)], [deleted])
    _, _, alone = await follow(scripted)
    assert alone.end is not None
    assert alone.end.reason == DELETED
    scripted.job = None
    _, _, with_job = await follow(scripted)
    assert with_job.end is not None
    assert (with_job.end.exit_code, with_job.end.reason) == (143, JOB_DELETED)


async def test_the_log_of_a_killed_runner_ends_after_two_reads_without_new_lines() -> None:
    scripted = ScriptedLog(Log(framed(OUTPUT, last=None), [40]), [(None, None)], [both_ended(137, "OOMKilled")])
    lines, _, follower = await follow(scripted)
    assert [line.data for line in lines] == EXPECTED
    assert follower.last_frame is None
    assert follower.end is not None
    assert follower.end.reason == "OOMKilled"
    assert [follow for follow, _ in scripted.opened] == [True, True, False, False]
    assert scripted.opened[-1][1] is None


@pytest.mark.parametrize("agent", [both_ended(137), pod(SIDECAR_RUNS, terminated(137), phase="Running")])
async def test_the_log_of_a_dead_node_counts_as_lost_after_a_timeout(agent: Pod) -> None:
    scripted = ScriptedLog(Log(FRAMES), [(20, None), (None, LogUnavailable(500, "", "kubelet"))], [agent])
    lines, _, follower = await follow(scripted)
    assert lines
    assert follower.last_frame is None
    assert follower.end is not None


NEVER = timedelta(hours=1)
NO_PAUSES = replace(QUICK, first_pause=NEVER, max_pause=NEVER, unreadable_timeout=NEVER)
"""Pauses longer than a test, so that nothing happens because of them."""


async def test_the_log_of_a_deleted_pod_counts_as_lost_at_once() -> None:
    unanswered = ClusterUnavailable("refused")
    scripted = ScriptedLog(
        Log(FRAMES),
        [(20, None), (None, NOT_FOUND)],
        [both_ended(137), RUNNING, unanswered, both_ended(137), None],
    )
    timing = replace(QUICK, unreadable_timeout=NEVER)
    lines, _, follower = await follow(scripted, timing=timing)
    assert lines
    assert (len(scripted.opened), scripted.status_reads) == (5, 5)
    assert follower.end is not None
    assert follower.end.exit_code == 137


@pytest.mark.parametrize(
    ("pods", "watched"),
    [
        pytest.param([ENDING, ENDING, ENDING, ENDED_DELETED], [], id="as read"),
        pytest.param([RUNNING, ENDING, ENDING, ENDED_DELETED], [[RUNNING], [ENDING]], id="as the watch shows"),
        pytest.param([ENDING, ENDED_DELETED], [], id="ended meanwhile"),
    ],
)
async def test_a_pod_that_is_being_deleted_is_read_before_its_log_is_removed(
    pods: list[Any], watched: list[list[Pod]]
) -> None:
    timing = replace(NO_PAUSES, ending_pause=timedelta(milliseconds=1))
    log = Log(framed(OUTPUT, last=None))
    scripted = ScriptedLog(log, [(10, LogCut("reset")), (None, UNREACHABLE), (None, UNREACHABLE), (None, None)], pods)
    scripted.watched = [*watched]
    lines, _, _ = await follow(scripted, timing=timing)
    assert [line.data for line in lines] == EXPECTED


async def test_a_pod_that_was_deleted_is_lost_unless_the_last_frame_was_read() -> None:
    lines, _, lost = await follow(ScriptedLog(Log(FRAMES), [(20, LogCut("")), (None, NOT_FOUND)], [None]))
    assert lines
    assert isinstance(lost.termination, Failing)
    assert lost.termination.error is PodLost
    assert lost.end is None
    _, _, finished = await follow(ScriptedLog(Log(FRAMES), [(None, None)], [None]))
    assert finished.end is not None
    assert finished.end.exit_code == 0


async def test_a_pod_stopped_from_outside_is_lost_even_after_the_last_frame() -> None:
    frames = framed(OUTPUT, b'{"exit_code":143,"stopped_by":"TERM"}')
    _, _, follower = await follow(ScriptedLog(Log(frames), [(None, None)], [None]))
    assert isinstance(follower.termination, Failing)


async def test_the_last_frame_has_the_exit_code_that_the_status_lacks() -> None:
    frames = framed(OUTPUT, b'{"exit_code":143,"stopped_by":"TERM"}')
    _, _, follower = await follow(ScriptedLog(Log(frames), [(10, None), (None, None)], [ENDING_AT_DEADLINE]))
    assert follower.end is not None
    assert (follower.end.exit_code, follower.end.reason) == (143, "DeadlineExceeded")


async def test_a_restarted_container_is_not_read() -> None:
    second = pod({**container(running={}), "containerID": "containerd://2"}, phase="Running")
    scripted = ScriptedLog(Log(FRAMES), [(10, None)], [RUNNING, second])
    _, _, follower = await follow(scripted)
    assert isinstance(follower.termination, Failing)
    assert "second time" in follower.termination.message


async def test_a_worker_without_rights_says_so_in_the_end() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, ClusterForbidden("cannot get pods/log"))], [RUNNING])
    with pytest.raises(ClusterForbidden, match="pods/log"):
        await follow(scripted)


async def test_output_that_came_without_the_right_to_read_logs_is_complete_and_the_right_is_named() -> None:
    cannot = "cannot get pods/log: 403 Forbidden"
    scripted = ScriptedLog(Log(FRAMES), [(None, ClusterForbidden(cannot))], [RUNNING, ENDED])
    scripted.answers = [b"".join(FRAMES)]
    lines, batches, follower = await follow(scripted, timing=replace(QUICK, unreadable_timeout=timedelta(seconds=10)))
    assert [line.data for line in lines] == EXPECTED
    assert [batch.gaps for batch in batches if batch.gaps] == []
    [warning] = follower.warnings
    assert cannot in warning


async def test_a_refusal_that_has_passed_is_no_warning() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, ClusterForbidden("cannot get pods/log")), (None, None)], [ENDED])
    _, _, follower = await follow(scripted)
    assert follower.warnings == ()


NUMBERS = framed([("stdout", b"".join(b"%d\n" % n for n in range(100)))], b"{}")


def replayed(first: int, last: int) -> bytes:
    """The frames that the runner repeats: frame n holds the number n - 2."""
    return b"".join(NUMBERS[first - 1 : last])


async def follow_rotated(
    answers: Sequence[bytes | Exception],
    pods: Sequence[Any] = (RUNNING,),
    cursor: Cursor | None = None,
    timing: FollowTiming = UNHURRIED,
) -> tuple[list[int], list[Gap], Follower, ScriptedLog]:
    """Ten frames come, then the log lacks those up to 50."""
    log = Log(NUMBERS, [40])
    scripted = ScriptedLog(log, [(10, LogCut("reset")), (None, None)], [RUNNING, *pods, ENDED])
    scripted.answers = list(answers)
    follower = Follower(scripted, JOB, POD, cursor, timing=timing)
    gaps, numbers = list[Gap](), list[int]()
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            log.rotate(50)
            gaps += batch.gaps
            numbers += [int(line.data) for line in batch.lines if line.whole]
    return numbers, gaps, follower, scripted


async def test_what_a_rotation_removed_is_backfilled_from_the_sidecar() -> None:
    numbers, gaps, follower, scripted = await follow_rotated([replayed(11, 50)])
    assert numbers == [*range(100)]
    assert gaps == []
    assert (follower.backfilled, scripted.replays) == (40, [(11, 50)])


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([ExecFailed("", status=500), replayed(11, 50)], id="unreachable at first"),
        pytest.param([replayed(11, 20), b"", replayed(21, 50)], id="not all at once"),
        pytest.param([replayed(11, 20) + replayed(21, 22)[:-3], replayed(22, 50)], id="cut in a frame"),
        pytest.param([b"sh: what?\n" + replayed(1, 60)], id="too much"),
        pytest.param([replayed(13, 50), replayed(11, 12), replayed(13, 50)], id="in the wrong order"),
        pytest.param([replayed(11, 30).replace(b"\n", b"\r\n", 1), replayed(11, 50)], id="one of them spoiled"),
    ],
)
async def test_a_backfill_survives_unusable_answers(answers: list[bytes | Exception]) -> None:
    numbers, gaps, follower, _ = await follow_rotated(answers, [RUNNING] * 10)
    assert numbers == [*range(100)]
    assert (gaps, follower.backfilled) == ([], 40)


@pytest.mark.parametrize(
    ("answers", "pods", "size"),
    [
        pytest.param([ExecFailed("", status=500)], [RUNNING] * 100, 40, id="unreachable"),
        pytest.param([ExecFailed("", exit_code=1)], [RUNNING] * 100, 40, id="the sidecar's process is not reached"),
        pytest.param([ClusterForbidden("no exec")], [RUNNING] * 100, 40, id="forbidden"),
        pytest.param([ExecFailed("", status=500)], [BOTH_ENDED], 40, id="the sidecar has ended"),
        pytest.param([replayed(11, 20), b""], [RUNNING] * 100, 30, id="the sidecar has only some"),
        pytest.param([b'11x. {"exit_code":0}\n' + replayed(12, 50)], [RUNNING] * 100, 40, id="an end in the middle"),
    ],
)
async def test_what_cannot_be_backfilled_is_a_gap_of_exact_size(
    answers: list[bytes | Exception], pods: list[Any], size: int
) -> None:
    numbers, gaps, follower, _ = await follow_rotated(answers, pods, timing=QUICK)
    assert [(gap.after_sequence, gap.frames) for gap in gaps] == [(50 - size, size)]
    assert numbers == [*range(9 + 40 - size), *range(50, 100)]  # nobody knows whose part the first line beyond it is
    assert follower.backfilled == 40 - size
    assert Tally().receipt(follower.last_frame, gaps).state == "differs"


async def test_what_a_rotation_removed_before_a_silence_is_backfilled_while_the_agent_runs() -> None:
    log = Log(NUMBERS, [40])
    scripted = ScriptedLog(log, [(10, None), (50, None), (None, None)], [RUNNING, RUNNING, ENDED])
    scripted.answers = [replayed(11, 50)]
    follower = Follower(scripted, JOB, POD, timing=QUICK)
    numbers, gaps = list[int](), list[Gap]()
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            log.rotate(50)
            gaps += batch.gaps
            numbers += [int(line.data) for line in batch.lines]
    assert numbers == [*range(100)]
    assert (gaps, follower.backfilled) == ([], 40)
    assert [first for first, _ in scripted.replays] == [11]


async def test_what_a_rotation_removed_while_nobody_followed_is_backfilled_while_the_agent_runs() -> None:
    log = Log(NUMBERS, [40])
    log.rotate(50)
    scripted = ScriptedLog(log, [(50, None), (None, None)], [RUNNING, RUNNING, ENDED])
    scripted.answers = [replayed(11, 50)]
    second = log.stamped[9][0].replace(microsecond=0)
    lines, batches, follower = await follow(scripted, Cursor(after=10).with_hint(10, 11, second))
    assert [since for _, since in scripted.opened[:2]] == [second, None]
    assert [int(line.data) for line in lines] == [*range(9, 100)]
    assert [gap for batch in batches for gap in batch.gaps] == []
    assert (follower.backfilled, [first for first, _ in scripted.replays]) == (40, [11])


async def test_a_log_that_repeats_known_frames_needs_no_replay() -> None:
    scripted = ScriptedLog(
        Log(NUMBERS, [40]), [(10, None), (10, None), (10, None), (None, None)], [RUNNING] * 3 + [ENDED]
    )
    follower = Follower(scripted, JOB, POD, timing=QUICK)
    async with asyncio.timeout(60), follower:
        numbers = [int(line.data) async for batch in follower for line in batch.lines]
    assert (numbers, scripted.replays) == ([*range(100)], [])


class KubeletMessage(ScriptedLog):
    """The first connection ends with a message of the kubelet in the middle of a frame."""

    async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
        if len(self.opened) == 1 and text.startswith(b"2026"):  # a log, no repeated frames
            text = text[:-1] + b"rpc error: code = Unknown desc = no such container\n"
        async for piece in super()._pieces(text, error):
            yield piece


@pytest.mark.parametrize("reachable", [True, False])
async def test_a_message_of_the_kubelet_in_the_middle_of_a_line_is_no_output(reachable: bool) -> None:
    scripted = KubeletMessage(Log(NUMBERS, [40]), [(10, None), (None, None)], [RUNNING] * 30 + [ENDED])
    scripted.answers = [replayed(10, 10) if reachable else ClusterForbidden("no exec")]
    follower = Follower(scripted, JOB, POD, timing=QUICK)
    gaps, numbers = list[Gap](), list[int]()
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            gaps += batch.gaps
            numbers += [int(line.data) for line in batch.lines]
    assert (numbers, gaps) == ([*range(100)], [])
    assert scripted.replays == [(10, 10)]


async def test_a_node_without_inotify_instances_is_polled_though_its_message_lacks_a_line_end() -> None:
    class Starved(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            async for piece in super()._pieces(text, error):
                yield piece
            if self.opened[-1][0]:
                yield b"failed to create fsnotify watcher: too many open files"

    scripted = Starved(Log(FRAMES, [40]), [(10, None), (20, None), (None, None)], [RUNNING, RUNNING, ENDED])
    lines, _, _ = await follow(scripted)
    assert [line.data for line in lines] == EXPECTED
    assert scripted.opened[1][0] is False


async def test_reading_continues_while_the_consumer_is_busy_and_stops_at_the_limit() -> None:
    class Counted(ScriptedLog):
        pieces = 0

        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            async for piece in super()._pieces(text, error):
                self.pieces += 1
                yield piece

    large = [("stdout", (b"y" * 8000 + b"\n") * 3000)]  # 24 MB
    scripted = Counted(Log(framed(large, b"{}")), [(None, None)], [ENDED])
    follower = Follower(scripted, JOB, POD, timing=QUICK)
    async with asyncio.timeout(60), follower:
        first = await follower.next_batch()
        assert first is not None
        before = -1
        while scripted.pieces != before:
            before = scripted.pieces
            for _ in range(1000):
                await asyncio.sleep(0)
        assert 5_000 < scripted.pieces < 20_000
        lines = len(first.lines) + sum([len(batch.lines) async for batch in follower])
    assert lines == 3000


async def test_waiting_for_output_can_be_interrupted_without_losing_any() -> None:
    gate = asyncio.Event()

    class Gated(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            await gate.wait()
            async for piece in super()._pieces(text, error):
                yield piece

    follower = Follower(Gated(Log(FRAMES), [(None, None)], [ENDED]), JOB, POD, timing=QUICK)
    async with asyncio.timeout(60), follower:
        waiting = asyncio.create_task(follower.next_batch())
        await asyncio.sleep(0)
        follower.wake()
        nothing = await waiting
        assert nothing is not None
        assert nothing.lines == []
        gate.set()
        assert sum([len(batch.lines) async for batch in follower]) == len(EXPECTED)


# the agent's end, while its sidecar lives on


def timed(scripted: ScriptedLog, job: JobRef = JOB) -> tuple[list[bytes], Follower, float]:
    """The lines, and when following was over, in virtual time."""

    async def run() -> tuple[list[bytes], Follower, float]:
        follower = Follower(scripted, job, POD)
        async with asyncio.timeout(3600), follower:
            lines = [line.data async for batch in follower for line in batch.lines]
        return lines, follower, asyncio.get_running_loop().time()

    return run_in_virtual_time(run())


REST = b"".join(FRAMES[20:])
WITHOUT_LAST = framed(OUTPUT, last=None)
LOST = pod(terminated(137, "OOMKilled", name="sidecar"), container(running={}), phase="Running")
LOST_DELETED = pod(
    terminated(143, name="sidecar"), container(running={}), phase="Running", deleted="2999-01-01T00:00:00Z"
)


def test_what_an_open_connection_lacks_comes_from_the_sidecar_a_second_after_the_agents_end() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(20, OPEN)], [ENDED])
    scripted.watched, scripted.answers = [[RUNNING], 60.0, [ENDED]], [REST]
    lines, follower, at = timed(scripted)
    assert lines == EXPECTED
    assert follower.last_frame is not None
    assert follower.end == ContainerEnd(exit_code=0, reason="Completed")
    assert 61 <= at <= 61.5
    assert (len(scripted.opened), scripted.status_reads, len(scripted.replays)) == (1, 1, 1)


def test_an_open_connection_that_brings_the_last_frame_in_time_needs_no_replay() -> None:
    class Late(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            await asyncio.sleep(60.9)
            async for piece in super()._pieces(text, error):
                yield piece

    scripted = Late(Log(FRAMES), [(None, None)], [ENDED])
    scripted.watched = [[RUNNING], 60.0, [ENDED]]
    lines, _, at = timed(scripted)
    assert (lines, scripted.replays, scripted.status_reads) == (EXPECTED, [], 1)
    assert 60.9 <= at <= 61


def test_the_last_frame_of_an_ended_agent_is_requested_again_after_growing_pauses() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(20, OPEN)], [ENDED])
    scripted.watched = [[ENDED]]
    scripted.answers = [
        b"",
        ExecFailed("", status=500),
        b"",
        ExecFailed("", exit_code=1),
        b"".join(FRAMES[20:30]),
        REST,
    ]
    lines, follower, _ = timed(scripted)
    assert lines == EXPECTED
    assert follower.end is not None
    pauses = [after - before for before, after in pairwise(scripted.replayed_at)]
    assert len(pauses) == 5
    assert all(before < after <= 10.5 for before, after in pairwise(pauses[:4]))


def test_a_last_frame_that_never_comes_is_awaited_for_two_minutes() -> None:
    scripted = ScriptedLog(Log(WITHOUT_LAST), [(None, OPEN)], [ENDED])
    scripted.watched, scripted.answers = [[ENDED]], [b""]
    lines, follower, at = timed(scripted)
    assert lines == EXPECTED
    assert 120 <= at <= 135
    assert follower.last_frame is None
    assert follower.end is not None
    assert follower.end.exit_code == 0


CARRIED = JOB.model_copy(
    update={"restored": Restored(number=1, attempt=0, steps=0, at=datetime(2026, 1, 1, tzinfo=UTC))}
)


def test_a_sidecar_that_sends_the_last_checkpoint_is_awaited_while_it_answers() -> None:
    scripted = ScriptedLog(Log(WITHOUT_LAST), [(None, OPEN)], [ENDED])
    scripted.watched, scripted.answers = [[ENDED]], [*[b""] * 60, REST]
    lines, follower, at = timed(scripted, CARRIED)
    assert lines == EXPECTED
    assert follower.last_frame is not None
    assert 300 <= at <= 900


@pytest.mark.parametrize(("answer", "least", "most"), [(b"", 1000, 1060), (ExecFailed("", status=500), 120, 135)])
def test_a_last_checkpoint_is_not_awaited_for_ever(answer: bytes | ExecFailed, least: int, most: int) -> None:
    scripted = ScriptedLog(Log(WITHOUT_LAST), [(None, OPEN)], [ENDED])
    scripted.watched, scripted.answers = [[ENDED]], [answer]
    lines, follower, at = timed(scripted, CARRIED)
    assert lines == EXPECTED
    assert least <= at <= most
    assert follower.last_frame is None


def test_the_agents_end_is_noticed_after_the_watch_has_failed() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(20, OPEN)], [ENDED])
    scripted.watched = [ClusterUnavailable("refused"), ClusterForbidden("no pods"), [ENDED]]
    scripted.answers = [REST]
    lines, _, at = timed(scripted)
    assert lines == EXPECTED
    assert at <= 10


@pytest.mark.parametrize(("size", "reopened_at"), [(ROTATION_BYTES // 2, 120), (ROTATION_BYTES + 10_000, 15)])
def test_a_connection_that_may_be_at_a_rotated_file_is_replaced_after_a_short_silence(
    size: int, reopened_at: float
) -> None:
    frames = framed([("stdout", (b"x" * 999 + b"\n") * (size // 1040)), ("stdout", b"late\n")], b'{"exit_code":0}')
    scripted = ScriptedLog(Log(frames), [(len(frames) - 2, OPEN), (None, None)], [RUNNING, ENDED])
    lines, _, _ = timed(scripted)
    assert lines[-1] == b"late"
    first, second = scripted.opened_at
    assert reopened_at <= second - first <= reopened_at + 1


async def test_missing_frames_are_backfilled_also_after_the_agents_end() -> None:
    answers: list[bytes | Exception] = [ExecFailed("", status=500), b"", replayed(11, 50)]
    numbers, gaps, follower, _ = await follow_rotated(answers, [ENDED])
    assert numbers == [*range(100)]
    assert (gaps, follower.backfilled) == ([], 40)


# a lost sidecar


async def test_a_sidecar_that_ends_before_its_agent_is_a_loss_after_all_that_it_wrote_is_read() -> None:
    scripted = ScriptedLog(Log(WITHOUT_LAST, [40]), [(10, None), (None, None)], [LOST])
    lines, _, follower = await follow(scripted, timing=UNHURRIED)
    assert [line.data for line in lines] == EXPECTED
    assert follower.end is None
    assert isinstance(follower.termination, Failing)
    assert follower.termination.error is PodLost
    assert follower.termination.message == f"{SIDECAR_LOST}: OOMKilled (exit 137)"


def test_the_loss_of_the_sidecar_is_noticed_although_the_connection_stays_open() -> None:
    scripted = ScriptedLog(Log(WITHOUT_LAST), [(20, OPEN), (None, None)], [LOST])
    scripted.watched = [[RUNNING], 60.0, [LOST]]
    lines, follower, at = timed(scripted)
    assert lines == EXPECTED
    assert isinstance(follower.termination, Failing)
    assert at <= 65


async def test_nothing_is_lost_with_a_sidecar_that_has_written_its_last_frame() -> None:
    scripted = ScriptedLog(Log(FRAMES, [40]), [(10, None), (None, None)], [LOST, LOST, LOST, BOTH_ENDED])
    lines, _, follower = await follow(scripted, timing=UNHURRIED)
    assert [line.data for line in lines] == EXPECTED
    assert follower.end == ContainerEnd(exit_code=0, reason="Completed")


async def test_the_sidecar_of_a_pod_that_is_being_deleted_may_end_first() -> None:
    scripted = ScriptedLog(Log(WITHOUT_LAST, [40]), [(None, None)], [LOST_DELETED, LOST_DELETED, ENDED_DELETED])
    lines, _, follower = await follow(scripted, timing=UNHURRIED)
    assert [line.data for line in lines] == EXPECTED
    assert follower.end is not None
    assert (follower.end.exit_code, follower.end.reason) == (143, DELETED)


async def test_the_log_of_a_sidecar_that_never_ran_is_not_waited_for() -> None:
    waits = container("sidecar", waiting={"reason": "ImagePullBackOff"})
    refused = LogNotReady(400, "BadRequest", "waiting to start")
    agent_ended = pod(waits, terminated(125), phase="Running")
    timing = replace(QUICK, unreadable_timeout=NEVER)
    _, _, follower = await follow(ScriptedLog(Log([]), [(None, refused)], [agent_ended]), timing=timing)
    assert follower.end is not None
    assert (follower.end.exit_code, follower.has_frames) == (125, False)


# the early end


async def end_early(source: Source) -> tuple[list[bytes], Follower]:
    """Follow as a consumer that stores all and ends as early as it may."""
    follower, lines = Follower(source, JOB, POD, timing=QUICK), list[bytes]()
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            lines += [line.data for line in batch.lines]
            if follower.may_end_early:
                follower.end_early()
    return lines, follower


async def test_after_a_good_last_frame_the_status_need_not_be_awaited() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [RUNNING])
    lines, follower = await end_early(scripted)
    assert lines == EXPECTED
    assert (follower.ended_early, follower.termination, scripted.status_reads) == (True, None, 0)
    assert follower.end == ContainerEnd(exit_code=0)


def test_a_last_frame_that_comes_alone_wakes_the_consumer() -> None:
    async def run() -> tuple[int, float]:
        agent = TimedContainer([(0.5, "stdout"), (1, "stdout")], ends_at=50)
        follower, lines = Follower(agent, JOB, POD), 0
        async with asyncio.timeout(100), follower:
            async for batch in follower:
                lines += len(batch.lines)
                if follower.may_end_early:
                    follower.end_early()
        return lines, asyncio.get_running_loop().time()

    assert run_in_virtual_time(run()) == (2, 50)


def test_a_status_that_is_known_counts_for_more_than_the_last_frame() -> None:
    async def run() -> Follower:
        killed = pod(SIDECAR_RUNS, terminated(0, "OOMKilled"), phase="Running")
        follower = Follower(ScriptedLog(Log(FRAMES), [(None, None)], [killed]), JOB, POD)
        async with follower:
            await asyncio.sleep(60)
            assert [follower.may_end_early async for _ in follower] == [False]
        return follower

    end = run_in_virtual_time(run()).end
    assert end is not None
    assert end.reason == "OOMKilled"


@pytest.mark.parametrize(
    "last",
    [
        b'{"exit_code":1}',
        b'{"exit_code":null}',
        b'{"exit_code":0,"stopped_by":"TERM"}',
        b'{"exit_code":0,"error":"disk_full"}',
        b"nonsense",
    ],
)
async def test_after_any_other_last_frame_the_status_is_awaited(last: bytes) -> None:
    scripted = ScriptedLog(Log(framed(OUTPUT, last)), [(None, None)], [RUNNING, ENDED])
    lines, follower = await end_early(scripted)
    assert lines == EXPECTED
    assert not follower.ended_early
    assert scripted.status_reads >= 2
    assert follower.end == ContainerEnd(exit_code=0, reason="Completed")


async def test_no_follower_ends_early_by_itself() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [RUNNING, ENDED])
    follower = Follower(scripted, JOB, POD, timing=QUICK)
    async with follower:
        assert [line.data async for batch in follower for line in batch.lines] == EXPECTED
    assert (follower.ended_early, scripted.status_reads) == (False, 2)


# on the embedded cluster, with a shell in the place of the sidecar


BEGIN_OF_LOG = """printf '1h. {"format":1}\\n2o. first\\n'"""


async def follow_pod(
    cluster: Cluster, name: str, agent: str, sidecar: str, *phases: str
) -> tuple[list[bytes], Follower]:
    manifest = job_manifest(name, agent)
    main = manifest["spec"]["template"]["spec"]["containers"]
    main.insert(0, main[0] | {"name": "sidecar", "command": ["sh", "-c", sidecar]})
    job_ref = await start_job(cluster, manifest)
    metadata = (await wait_for_phase(cluster, job_ref, *phases)).metadata
    follower = Follower(cluster, job_ref, PodRef(namespace=NAMESPACE, name=metadata.name, uid=metadata.uid))
    async with asyncio.timeout(60), follower:
        lines = [line.data async for batch in follower for line in batch.lines]
    await cluster.delete_job(NAMESPACE, name, job_ref.uid)
    return lines, follower


async def test_a_sidecar_may_write_its_last_frame_long_after_the_agents_end(cluster: Cluster, name: str) -> None:
    late = """printf '3o. late\\n4x. {"exit_code":7}\\n'"""
    sidecar = f"{BEGIN_OF_LOG}; sleep 4; {late}; exec sleep 600"
    lines, follower = await follow_pod(cluster, name, "exit 7", sidecar, "Running")
    assert lines == [b"first", b"late"]
    assert follower.end is not None
    assert (follower.end.exit_code, follower.connections > 1) == (7, True)


async def test_an_agent_whose_sidecar_has_ended_is_lost(cluster: Cluster, name: str) -> None:
    lines, follower = await follow_pod(cluster, name, "exec sleep 600", f"{BEGIN_OF_LOG}; exit 3", "Running")
    assert lines == [b"first"]
    assert isinstance(follower.termination, Failing)
    assert follower.termination.message == f"{SIDECAR_LOST}: Error (exit 3)"


# on the embedded cluster, with our runner and sidecar


SCRIPT = """
i=0
while [ $i -lt 300 ]; do
  echo "line $i"; echo same
  if [ $((i % 50)) -eq 0 ]; then
    echo "err $i" >&2
    until [ $i -eq 0 ] || [ -e "$HOME/continue-$i" ]; do sleep 0.02; done
  fi
  i=$((i + 1))
done
exit 5
"""


async def test_a_real_run_is_followed_through_faults_and_its_receipt_verified(
    cluster: Cluster, embedded: EmbeddedCluster, name: str, tmp_path: Path
) -> None:
    secret, job = agent_pod(name, NAMESPACE, ["sh", "-c", SCRIPT], env={"HOME": str(tmp_path)})
    await cluster.create_secret(secret)
    job_ref = await start_job(cluster, job)
    metadata = (await wait_for_phase(cluster, job_ref, "Running", "Failed")).metadata
    pod_ref = PodRef(namespace=NAMESPACE, name=metadata.name, uid=metadata.uid)
    log = f"pods/{metadata.name}/log"
    faults: list[dict[str, Any]] = [
        {"path": log, "cut_after": 700},
        {"path": log, "cut_after": 3001, "clean": True},
        {"path": log, "status": 500, "times": 2},
        {"path": log, "cut_after": 900, "clean": True, "text": "rpc error: code = Unknown\n"},
        {"path": f"pods/{metadata.name}$", "status": 503, "times": 2},
    ]
    tally, lines, gaps = Tally(), list[Line](), list[Gap]()
    follower = Follower(cluster, job_ref, pod_ref, timing=FollowTiming(first_pause=timedelta(milliseconds=20)))
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            tally.add(batch.lines)
            lines += batch.lines
            gaps += batch.gaps
            if faults and len(lines) > 100 * (6 - len(faults)):
                embedded.faults.http(**faults.pop())
                embedded.faults.end_follows()
                if len(faults) == 2:
                    await embedded.faults.restart_kubelet()
                (tmp_path / f"continue-{50 * (5 - len(faults))}").touch()
    assert faults == []
    stdout = [line.data for line in lines if line.stream == "stdout"]
    assert stdout == [text for number in range(300) for text in (b"line %d" % number, b"same")]
    assert [line.data for line in lines if line.stream == "stderr"] == [b"err %d" % n for n in range(0, 300, 50)]
    assert tally.receipt(follower.last_frame, gaps).state == "verified"
    assert follower.end is not None
    assert follower.end.exit_code == 5
    assert follower.connections > 4
    await cluster.delete_job(NAMESPACE, name, job_ref.uid)
