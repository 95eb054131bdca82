"""Following a container to its end: every line once and in order, whatever happens to connections."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable, PodLost
from agent_runs.contracts.messages import JobRef, PodRef
from agent_runs.contracts.outcome import Gap
from agent_runs.kube.client import KubernetesCluster
from agent_runs.kube.diagnosis import DELETED, JOB_DELETED, Failing
from agent_runs.kube.objects import Job, Pod
from agent_runs.kube.port import ExecFailed, LogCut, LogGone, LogNotReady, LogUnavailable
from agent_runs.logs.follower import Batch, Follower, FollowTiming
from agent_runs.logs.frames import LogLine
from agent_runs.logs.log_resume import Cursor, Tally
from agent_runs.logs.source import ACKNOWLEDGE_COMMAND, REPLAY_COMMAND
from dev_stack.cluster import EmbeddedCluster
from tests.kube.pods import container, job, pod, terminated
from tests.kube.test_client import NAMESPACE, job_manifest, start_job, wait_for_phase
from tests.logs.kubelet import Log, framed

JOB = JobRef(namespace="n", name="agent-opencode-x", uid="job-uid")
POD = PodRef(namespace="n", name="agent-opencode-x-1", uid="pod-uid")
QUICK = FollowTiming(
    first_pause=timedelta(milliseconds=1),
    max_pause=timedelta(milliseconds=2),
    idle_timeout=timedelta(seconds=5),
    poll_interval=timedelta(milliseconds=1),
    unreadable_timeout=timedelta(milliseconds=20),
    backfill_timeout=timedelta(milliseconds=20),
    acknowledge_delay=timedelta(milliseconds=1),
)
UNHURRIED = replace(QUICK, unreadable_timeout=timedelta(seconds=10), backfill_timeout=timedelta(seconds=10))
"""For what is backfilled in the end, however busy the machine is."""
RUNNING = pod(container(running={}), phase="Running")
ENDED = pod(terminated(0, "Completed"), phase="Succeeded")
ENDING = pod(container(running={}), phase="Running", deleted="2999-01-01T00:00:00Z")
ENDED_DELETED = pod(terminated(143), phase="Failed", deleted="2999-01-01T00:00:00Z")
UNREACHABLE = LogUnavailable(500, "", "dial tcp 10.0.0.1:10250: connect: connection refused")
NOT_FOUND = LogGone(404, "NotFound", "pods not found")
ENDING_AT_DEADLINE = pod(container(running={}), phase="Failed", reason="DeadlineExceeded")


class ScriptedLog:
    """A scripted log and pod. Each entry of `connections` is one connection, the last one repeats.

    An entry is (upto, end): what of the log is there by then, and the error that ends the connection, if any.
    """

    def __init__(
        self, log: Log, connections: Sequence[tuple[int | None, Exception | None]], pods: Sequence[Any]
    ) -> None:
        self._log = log
        self._connections = list(connections)
        self._pods = list(pods)
        self.opened: list[tuple[bool, datetime | None]] = []
        self.replays: list[tuple[int, int]] = []
        self.acknowledgements = 0
        self.status_reads = 0
        self.job: Job | None = job()
        self.watched: list[list[Pod]] = []
        self.answers: list[bytes | Exception] = [ExecFailed("no container", status=500)]

    @asynccontextmanager
    async def open_log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since: datetime | timedelta | None,
        idle_timeout: timedelta | None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod, container) == ("n", POD.name, "opencode")
        assert idle_timeout is not None
        assert not isinstance(since, timedelta)
        self.opened.append((follow, since))
        upto, error = self._connections.pop(0) if len(self._connections) > 1 else self._connections[0]
        if error is not None and not isinstance(error, LogCut):
            raise error
        yield self._pieces(self._log.text(since, upto), error)

    async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
        for at in range(0, len(text), 1000):
            yield text[at : at + 1000]
        if error is not None:
            raise error

    @asynccontextmanager
    async def exec_output(
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle_timeout: timedelta
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod, container, limit > 0, idle_timeout > timedelta()) == (
            "n",
            POD.name,
            "opencode",
            True,
            True,
        )
        if tuple(argv) == ACKNOWLEDGE_COMMAND:
            self.acknowledgements += 1
            yield self._pieces(b"", None)
            return
        *command, first, last = argv
        assert command == list(REPLAY_COMMAND)
        self.replays.append((int(first), int(last)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        text, error = (b"", answer) if isinstance(answer, Exception) else (answer, None)
        yield self._pieces(text, error)

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        assert (namespace, name) == ("n", POD.name)
        self.status_reads += 1
        state = self._pods.pop(0) if len(self._pods) > 1 else self._pods[0]
        if isinstance(state, Exception):
            raise state
        assert state is None or isinstance(state, Pod)
        return state

    async def read_job(self, namespace: str, name: str) -> Job | None:
        assert (namespace, name) == ("n", JOB.name)
        return self.job

    @asynccontextmanager
    async def watch_pods(self, job: JobRef) -> AsyncIterator[AsyncIterator[list[Pod]]]:
        assert job == JOB
        yield self._states()

    async def _states(self) -> AsyncIterator[list[Pod]]:
        while self.watched:
            yield self.watched.pop(0)
        await asyncio.Event().wait()


async def follow(
    scripted: ScriptedLog, cursor: Cursor | None = None, timing: FollowTiming = QUICK
) -> tuple[list[LogLine], list[Batch], Follower]:
    follower = Follower(scripted, JOB, POD, cursor, timing=timing)
    batches = []
    async with asyncio.timeout(20), follower:
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
        pytest.param(
            [(20, None), (None, None)], [RUNNING, pod(*[container(running={})], phase="Running"), ENDED], id="late"
        ),
    ],
)
async def test_every_line_comes_once(connections: list[tuple[int | None, Exception | None]], pods: list[Any]) -> None:
    timing = replace(QUICK, unreadable_timeout=timedelta(seconds=10))
    lines, batches, follower = await follow(ScriptedLog(Log(FRAMES, [40]), connections, pods), timing=timing)
    assert [line.data for line in lines] == EXPECTED
    assert [gap for batch in batches for gap in batch.gaps] == []
    assert follower.last is not None
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
    async with asyncio.timeout(20), follower:
        lines = [line.data async for batch in follower for line in batch.lines]
    assert lines == EXPECTED
    assert (scripted.status_reads, scripted.acknowledgements, scripted.watched) == (1, 0, [])


async def test_an_end_that_only_the_watch_shows_is_not_believed() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [RUNNING, ENDED])
    scripted.watched = [[], [pod(terminated(137, "OOMKilled"))]]
    _, _, follower = await follow(scripted)
    assert follower.end is not None
    assert (follower.end.exit_code, scripted.status_reads) == (0, 2)


async def test_a_pod_deleted_with_its_job_is_distinguished_from_one_deleted_alone() -> None:
    frames = framed(OUTPUT, b'{"exit_code":143,"stopped_by":"TERM"}')
    deleted = pod(terminated(143), phase="Failed", deleted="2026-11-21T23:00:00Z")
    scripted = ScriptedLog(Log(frames), [(None, None)], [deleted])
    _, _, alone = await follow(scripted)
    assert alone.end is not None
    assert alone.end.reason == DELETED
    scripted.job = None
    _, _, with_job = await follow(scripted)
    assert with_job.end is not None
    assert (with_job.end.exit_code, with_job.end.reason) == (143, JOB_DELETED)


async def test_the_log_of_a_killed_runner_ends_after_two_reads_without_new_lines() -> None:
    scripted = ScriptedLog(Log(framed(OUTPUT, last=None), [40]), [(None, None)], [pod(terminated(137, "OOMKilled"))])
    lines, _, follower = await follow(scripted)
    assert [line.data for line in lines] == EXPECTED
    assert follower.last is None
    assert follower.end is not None
    assert follower.end.reason == "OOMKilled"
    assert [follow for follow, _ in scripted.opened] == [True, True, False, False]
    assert scripted.opened[-1][1] is None


async def test_the_log_of_a_dead_node_counts_as_lost_after_a_timeout() -> None:
    scripted = ScriptedLog(
        Log(FRAMES), [(20, None), (None, LogUnavailable(500, "", "kubelet"))], [pod(terminated(137))]
    )
    lines, _, follower = await follow(scripted)
    assert lines
    assert follower.last is None
    assert follower.end is not None


NEVER = timedelta(hours=1)
NO_PAUSES = replace(QUICK, first_pause=NEVER, max_pause=NEVER, unreadable_timeout=NEVER)
"""Pauses longer than a test, so that nothing happens because of them."""


async def test_the_log_of_a_deleted_pod_counts_as_lost_at_once() -> None:
    unanswered = ClusterUnavailable("refused")
    scripted = ScriptedLog(
        Log(FRAMES),
        [(20, None), (None, NOT_FOUND)],
        [pod(terminated(137)), RUNNING, unanswered, pod(terminated(137)), None],
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
    scripted.watched = watched
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
    async with asyncio.timeout(20), follower:
        async for batch in follower:
            log.rotate(50)
            gaps += batch.gaps
            numbers += [int(line.data) for line in batch.lines if line.whole]
    return numbers, gaps, follower, scripted


async def test_what_a_rotation_removed_is_backfilled_from_the_container() -> None:
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
        pytest.param([ExecFailed("", exit_code=1)], [RUNNING] * 100, 40, id="no runner"),
        pytest.param([ClusterForbidden("no exec")], [RUNNING] * 100, 40, id="forbidden"),
        pytest.param([ExecFailed("", status=500)], [ENDED], 40, id="the container has ended"),
        pytest.param([replayed(11, 20), b""], [RUNNING] * 100, 30, id="the runner has only some"),
        pytest.param([b'11x. {"exit_code":0}\n' + replayed(12, 50)], [RUNNING] * 100, 40, id="a forged end"),
    ],
)
async def test_what_cannot_be_backfilled_is_a_gap_of_exact_size(
    answers: list[bytes | Exception], pods: list[Any], size: int
) -> None:
    numbers, gaps, follower, _ = await follow_rotated(answers, pods, timing=QUICK)
    assert [(gap.after_sequence, gap.frames) for gap in gaps] == [(50 - size, size)]
    assert numbers == [*range(9 + 40 - size), *range(50, 100)]  # nobody knows whose part the first line beyond it is
    assert follower.backfilled == 40 - size
    assert Tally().receipt(follower.last, gaps).state == "differs"


async def test_what_a_rotation_removed_before_a_silence_is_backfilled_while_the_agent_runs() -> None:
    log = Log(NUMBERS, [40])
    scripted = ScriptedLog(log, [(10, None), (50, None), (None, None)], [RUNNING, RUNNING, ENDED])
    scripted.answers = [replayed(11, 50)]
    follower = Follower(scripted, JOB, POD, timing=QUICK)
    numbers, gaps = list[int](), list[Gap]()
    async with asyncio.timeout(20), follower:
        async for batch in follower:
            log.rotate(50)
            gaps += batch.gaps
            numbers += [int(line.data) for line in batch.lines]
    assert numbers == [*range(100)]
    assert (gaps, follower.backfilled) == ([], 40)
    assert [first for first, _ in scripted.replays] == [11]


async def test_a_log_that_repeats_known_frames_needs_no_replay() -> None:
    scripted = ScriptedLog(
        Log(NUMBERS, [40]), [(10, None), (10, None), (10, None), (None, None)], [RUNNING] * 3 + [ENDED]
    )
    follower = Follower(scripted, JOB, POD, timing=QUICK)
    async with asyncio.timeout(20), follower:
        numbers = [int(line.data) async for batch in follower for line in batch.lines]
    assert (numbers, scripted.replays) == ([*range(100)], [])


class AwaitsAcknowledgement(ScriptedLog):
    """A container that ends when its log is acknowledged."""

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        assert (namespace, name) == ("n", POD.name)
        return ENDED if self.acknowledgements else RUNNING


async def test_a_waiting_runner_is_acknowledged_once_all_is_stored() -> None:
    scripted = AwaitsAcknowledgement(Log(FRAMES), [(None, None)], [])
    follower = Follower(scripted, JOB, POD, timing=QUICK)
    async with asyncio.timeout(20), follower:
        batch = await follower.next_batch()
        assert batch is not None
        for _ in range(1000):
            await asyncio.sleep(0)  # no acknowledgement while the lines are on their way to the store
        assert follower.last is not None
        assert scripted.acknowledgements == 0
        lines = len(batch.lines) + sum([len(more.lines) async for more in follower])
    assert (lines, scripted.acknowledgements) == (len(EXPECTED), 1)
    assert follower.end is not None


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
    async with asyncio.timeout(20), follower:
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


async def test_without_a_runner_no_replay_is_requested() -> None:
    log = Log(NUMBERS, [40])
    log.rotate(50)
    scripted = ScriptedLog(log, [(None, None)], [ENDED])
    follower = Follower(scripted, JOB, POD, timing=QUICK, replay=None)
    async with asyncio.timeout(20), follower:
        gaps = [gap async for batch in follower for gap in batch.gaps]
    assert [gap.frames for gap in gaps] == [50]
    assert scripted.replays == []


async def test_a_node_without_inotify_instances_is_polled() -> None:
    class Starved(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            async for piece in super()._pieces(text, error):
                yield piece
            if self.opened[-1][0]:
                yield b"failed to create fsnotify watcher: too many open files"
                yield b"\n"

    scripted = Starved(Log(FRAMES, [40]), [(10, None), (20, None), (None, None)], [RUNNING, RUNNING, ENDED])
    lines, _, _ = await follow(scripted)
    assert [line.data for line in lines] == EXPECTED
    assert False in [follow for follow, _ in scripted.opened]


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


async def test_waiting_for_output_can_time_out_without_losing_any() -> None:
    gate = asyncio.Event()

    class Gated(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            await gate.wait()
            async for piece in super()._pieces(text, error):
                yield piece

    follower = Follower(Gated(Log(FRAMES), [(None, None)], [ENDED]), JOB, POD, timing=QUICK)
    async with asyncio.timeout(20), follower:
        nothing = await follower.next_batch(timedelta(milliseconds=10))
        assert nothing is not None
        assert nothing.lines == []
        gate.set()
        assert sum([len(batch.lines) async for batch in follower]) == len(EXPECTED)


async def test_waiting_for_output_can_be_interrupted_without_losing_any() -> None:
    gate = asyncio.Event()

    class Gated(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            await gate.wait()
            async for piece in super()._pieces(text, error):
                yield piece

    follower = Follower(Gated(Log(FRAMES), [(None, None)], [ENDED]), JOB, POD, timing=QUICK)
    async with asyncio.timeout(20), follower:
        waiting = asyncio.create_task(follower.next_batch())
        await asyncio.sleep(0)
        follower.wake()
        nothing = await waiting
        assert nothing is not None
        assert nothing.lines == []
        gate.set()
        assert sum([len(batch.lines) async for batch in follower]) == len(EXPECTED)


# on the embedded cluster, with our runner


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


def runner_job(name: str, tmp_path: Path) -> dict[str, Any]:
    manifest = job_manifest(name, "exit 0")
    runner = Path(__file__).parents[2] / "agent_runs" / "pod" / "runner.sh"
    (tmp_path / "stdin").write_text("")
    args = f"--stdin {tmp_path}/stdin --out {tmp_path}/out --dir {tmp_path} --grace 1 -- sh -c"
    command = f'exec sh {runner} {args} "$SCRIPT"'
    (main,) = manifest["spec"]["template"]["spec"]["containers"]
    main["command"] = ["sh", "-c", command]
    main["env"] = [{"name": "SCRIPT", "value": SCRIPT.replace("$", "$$")}, {"name": "HOME", "value": str(tmp_path)}]
    return manifest


async def test_a_real_run_is_followed_through_faults_and_its_receipt_verified(
    cluster: KubernetesCluster, embedded: EmbeddedCluster, name: str, tmp_path: Path
) -> None:
    job_ref = await start_job(cluster, runner_job(name, tmp_path))
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
    tally, lines, gaps = Tally(), list[LogLine](), list[Gap]()
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
    assert tally.receipt(follower.last, gaps, framed=follower.framed).state == "verified"
    assert follower.end is not None
    assert follower.end.exit_code == 5
    assert follower.connections > 4
    await cluster.delete_job(NAMESPACE, name, job_ref.uid)


async def test_a_foreign_image_is_followed_as_well_as_can_be(
    cluster: KubernetesCluster, embedded: EmbeddedCluster, name: str
) -> None:
    script = "i=0; while [ $i -lt 100 ]; do echo $i; echo same; i=$((i + 1)); done; sleep 0.3; printf end"
    job_ref = await start_job(cluster, job_manifest(name, script.replace("$", "$$")))
    metadata = (await wait_for_phase(cluster, job_ref, "Running", "Succeeded")).metadata
    embedded.faults.http(path=f"pods/{metadata.name}/log", cut_after=1500)
    embedded.faults.http(path=f"pods/{metadata.name}/log", cut_after=2500, clean=True)
    tally = Tally()
    follower = Follower(cluster, job_ref, PodRef(namespace=NAMESPACE, name=metadata.name, uid=metadata.uid))
    lines = []
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            tally.add(batch.lines)
            lines += batch.lines
    wanted = b"".join(b"%d\nsame\n" % number for number in range(100)) + b"end"
    assert b"".join(line.raw for line in lines) == wanted
    assert tally.receipt(follower.last, framed=follower.framed).state == "best effort"
    await cluster.delete_job(NAMESPACE, name, job_ref.uid)
