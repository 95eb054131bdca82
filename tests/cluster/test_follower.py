"""Following a container to its end: every line once, in order, through what clusters do to connections."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.client import KubernetesCluster
from cluster.diagnosis import DELETED, JOB_DELETED, Failing
from cluster.follower import AGAIN, READ, Batch, Cursor, Follower, LogLine, Pace, Tally
from cluster.objects import Job, Pod
from cluster.port import ExecFailed, LogCut, LogGone, LogNotReady, LogUnavailable
from contracts.errors import ClusterForbidden, ClusterUnavailable, PodLost
from contracts.messages import JobRef, PodRef
from contracts.outcome import Gap
from local.cluster import EmbeddedCluster
from tests.cluster.kubelet import Log, framed
from tests.cluster.pods import container, ended, job, pod
from tests.cluster.test_client import NAMESPACE, job_manifest, pod_when, started

JOB = JobRef(namespace="n", name="agent-opencode-x", uid="job-uid")
POD = PodRef(namespace="n", name="agent-opencode-x-1", uid="pod-uid")
QUICK = Pace(
    first=timedelta(milliseconds=1),
    longest=timedelta(milliseconds=2),
    idle=timedelta(seconds=5),
    poll=timedelta(milliseconds=1),
    giving_up=timedelta(milliseconds=20),
    mending=timedelta(milliseconds=20),
    patience=timedelta(milliseconds=1),
)
RUNNING = pod(container(running={}), phase="Running")
OVER = pod(ended(0, "Completed"), phase="Succeeded")
LEAVING = pod(container(running={}), phase="Running", deleted="2999-01-01T00:00:00Z")
LEFT = pod(ended(143), phase="Failed", deleted="2999-01-01T00:00:00Z")
AWAY = LogUnavailable(500, "", "dial tcp 10.0.0.1:10250: connect: connection refused")
GONE = LogGone(404, "NotFound", "pods not found")
DRAINING = pod(container(running={}), phase="Failed", reason="DeadlineExceeded")


class ScriptedLog:
    """A log and a pod that do as told: each entry of `connections` is one connection, the last one repeats.

    An entry is (upto, end): what of the log is there by then, and the error that ends the connection, if any.
    """

    def __init__(
        self, log: Log, connections: Sequence[tuple[int | None, Exception | None]], pods: Sequence[Any]
    ) -> None:
        self._log = log
        self._connections = list(connections)
        self._pods = list(pods)
        self.opened: list[tuple[bool, datetime | None]] = []
        self.asked: list[tuple[int, int]] = []
        self.told = 0
        self.looked = 0
        self.job: Job | None = job()
        self.shown: list[list[Pod]] = []
        self.answers: list[bytes | Exception] = [ExecFailed("no container", status=500)]

    @asynccontextmanager
    async def open_log(
        self, namespace: str, pod: str, container: str, *, follow: bool, since: datetime | None, idle: timedelta | None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod, container) == ("n", POD.name, "opencode")
        assert idle is not None
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
        self, namespace: str, pod: str, container: str, argv: Sequence[str], *, limit: int, idle: timedelta
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert (namespace, pod, container, limit > 0, idle > timedelta()) == ("n", POD.name, "opencode", True, True)
        if tuple(argv) == READ:
            self.told += 1
            yield self._pieces(b"", None)
            return
        *command, first, last = argv
        assert command == list(AGAIN)
        self.asked.append((int(first), int(last)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        text, error = (b"", answer) if isinstance(answer, Exception) else (answer, None)
        yield self._pieces(text, error)

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        assert (namespace, name) == ("n", POD.name)
        self.looked += 1
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
        while self.shown:
            yield self.shown.pop(0)
        await asyncio.Event().wait()


async def followed(
    scripted: ScriptedLog, cursor: Cursor | None = None, pace: Pace = QUICK
) -> tuple[list[LogLine], list[Batch], Follower]:
    follower = Follower(scripted, JOB, POD, cursor, pace=pace)
    batches = []
    async with asyncio.timeout(20), follower:
        async for batch in follower:
            batches.append(batch)  # noqa: PERF401 - an error must not lose what came before it
    return [line for batch in batches for line in batch.lines], batches, follower


OUTPUT = [("stdout", b"".join(b"%d\n" % number for number in range(60))), ("stderr", b"x" * 30_000 + b"\n")]
FRAMES = framed(OUTPUT, b'{"exit_code":0}')
WANTED = [b"%d" % number for number in range(60)] + [b"x" * 30_000]


@pytest.mark.parametrize(
    ("connections", "pods"),
    [
        pytest.param([(None, None)], [OVER], id="all at once"),
        pytest.param([(10, None), (30, None), (None, None)], [RUNNING, RUNNING, OVER], id="clean ends while it runs"),
        pytest.param([(10, LogCut("reset")), (12, LogCut("idle")), (None, None)], [RUNNING, RUNNING, OVER], id="cuts"),
        pytest.param(
            [(10, LogCut("TimeoutError")), (10, LogCut("TimeoutError")), (None, None)],
            [RUNNING, RUNNING, OVER],
            id="connections that are idle for too long",
        ),
        pytest.param(
            [(40, None), (40, LogCut("ClientPayloadError")), (None, None)],
            [RUNNING, RUNNING, OVER],
            id="the kubelet's limit of 4 h, as a clean end and as a broken one",
        ),
        pytest.param(
            [(20, None), (None, LogUnavailable(503, "", "")), (None, LogUnavailable(0, "refused", "")), (None, None)],
            [RUNNING, ClusterUnavailable("refused"), ClusterUnavailable("refused"), OVER],
            id="a restart of the API server",
        ),
        pytest.param(
            [(20, None), (None, LogUnavailable(500, "", "dial tcp: refused")), (20, None), (None, None)],
            [RUNNING, RUNNING, RUNNING, OVER],
            id="a restart of the kubelet",
        ),
        pytest.param(
            [(5, None), (None, LogUnavailable(500, "", "")), (None, LogUnavailable(429, "", "")), (None, None)],
            [RUNNING, ClusterUnavailable("down"), RUNNING, OVER],
            id="refusals and an unavailable API server",
        ),
        pytest.param(
            [(None, LogNotReady(400, "BadRequest", "waiting to start")), (None, None)],
            [pod(container(waiting={"reason": "ContainerCreating"})), OVER],
            id="before the start",
        ),
        pytest.param(
            [(5, None), (None, ClusterForbidden("RBAC not loaded")), (None, None)],
            [RUNNING, RUNNING, OVER],
            id="403 once",
        ),
        pytest.param([(20, None), (40, None), (None, None)], [OVER], id="the tail comes after the end"),
        pytest.param([(20, None), (40, LogCut("reset")), (50, None), (None, None)], [DRAINING], id="ended too early"),
        pytest.param(
            [(20, None), (20, None), (5, None), (5, None), (5, None), (None, None)],
            [OVER],
            id="reads that end cleanly before what is known, after the end",
        ),
        pytest.param(
            [(20, None), (None, None)], [RUNNING, pod(*[container(running={})], phase="Running"), OVER], id="late"
        ),
    ],
)
async def test_every_line_comes_once(connections: list[tuple[int | None, Exception | None]], pods: list[Any]) -> None:
    lines, batches, follower = await followed(ScriptedLog(Log(FRAMES, [40]), connections, pods))
    assert [line.data for line in lines] == WANTED
    assert [gap for batch in batches for gap in batch.gaps] == []
    assert follower.last is not None
    assert follower.end is not None
    assert follower.end.exit_code == 0


async def test_the_cursor_of_each_batch_is_a_place_to_go_on_from() -> None:
    log = Log(FRAMES, [40])
    lines, batches, _ = await followed(
        ScriptedLog(log, [(10, None), (33, None), (None, None)], [RUNNING, RUNNING, OVER])
    )
    for number, batch in enumerate(batches):
        rest, _, _ = await followed(ScriptedLog(log, [(None, None)], [OVER]), batch.cursor)
        before = sum(len(each.lines) for each in batches[: number + 1])
        assert rest == lines[before:]


async def test_nothing_more_is_asked_once_the_last_frame_is_in() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [RUNNING, RUNNING, RUNNING, OVER])
    await followed(scripted)
    assert scripted.opened == [(True, None)]


async def test_the_status_is_asked_for_when_the_watch_shows_the_end() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [OVER])
    scripted.shown = [[RUNNING], [RUNNING], [OVER]]
    follower = Follower(scripted, JOB, POD, pace=replace(QUICK, longest=timedelta(seconds=10)))
    async with asyncio.timeout(20), follower:
        lines = [line.data async for batch in follower for line in batch.lines]
    assert lines == WANTED
    assert (scripted.looked, scripted.told, scripted.shown) == (1, 0, [])


async def test_a_watch_that_shows_an_end_too_early_is_not_believed() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, None)], [RUNNING, OVER])
    scripted.shown = [[], [pod(ended(137, "OOMKilled"))]]
    _, _, follower = await followed(scripted)
    assert follower.end is not None
    assert (follower.end.exit_code, scripted.looked) == (0, 2)


async def test_a_pod_that_went_with_its_job_is_told_from_one_that_was_deleted_alone() -> None:
    frames = framed(OUTPUT, b'{"exit_code":143,"stopped_by":"TERM"}')
    deleted = pod(ended(143), phase="Failed", deleted="2026-11-21T23:00:00Z")
    scripted = ScriptedLog(Log(frames), [(None, None)], [deleted])
    _, _, alone = await followed(scripted)
    assert alone.end is not None
    assert alone.end.reason == DELETED
    scripted.job = None
    _, _, with_job = await followed(scripted)
    assert with_job.end is not None
    assert (with_job.end.exit_code, with_job.end.reason) == (143, JOB_DELETED)


async def test_a_killed_runner_is_given_up_after_two_reads_without_news() -> None:
    scripted = ScriptedLog(Log(framed(OUTPUT, last=None), [40]), [(None, None)], [pod(ended(137, "OOMKilled"))])
    lines, _, follower = await followed(scripted)
    assert [line.data for line in lines] == WANTED
    assert follower.last is None
    assert follower.end is not None
    assert follower.end.reason == "OOMKilled"
    assert [follow for follow, _ in scripted.opened] == [True, True, False, False]
    assert scripted.opened[-1][1] is None


async def test_the_log_of_a_dead_node_is_given_up() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(20, None), (None, LogUnavailable(500, "", "kubelet"))], [pod(ended(137))])
    lines, _, follower = await followed(scripted)
    assert lines
    assert follower.last is None
    assert follower.end is not None


NEVER = timedelta(hours=1)
PATIENT = replace(QUICK, first=NEVER, longest=NEVER, giving_up=NEVER)
"""Whatever comes in a test's time comes because of something else."""


async def test_the_log_of_an_ended_pod_that_is_gone_is_given_up_at_once() -> None:
    unanswered = ClusterUnavailable("refused")
    scripted = ScriptedLog(
        Log(FRAMES), [(20, None), (None, GONE)], [pod(ended(137)), RUNNING, unanswered, pod(ended(137)), None]
    )
    pace = replace(QUICK, giving_up=NEVER)
    lines, _, follower = await followed(scripted, pace=pace)
    assert lines
    assert (len(scripted.opened), scripted.looked) == (5, 5)
    assert follower.end is not None
    assert follower.end.exit_code == 137


@pytest.mark.parametrize(
    ("pods", "shown"),
    [
        pytest.param([LEAVING, LEAVING, LEAVING, LEFT], [], id="as read"),
        pytest.param([RUNNING, LEAVING, LEAVING, LEFT], [[RUNNING], [LEAVING]], id="as the watch shows"),
        pytest.param([LEAVING, LEFT], [], id="ended meanwhile"),
    ],
)
async def test_a_pod_that_is_being_deleted_is_read_before_its_node_forgets_it(
    pods: list[Any], shown: list[list[Pod]]
) -> None:
    pace = replace(PATIENT, leaving=timedelta(milliseconds=1))
    log = Log(framed(OUTPUT, last=None))
    scripted = ScriptedLog(log, [(10, LogCut("reset")), (None, AWAY), (None, AWAY), (None, None)], pods)
    scripted.shown = shown
    lines, _, _ = await followed(scripted, pace=pace)
    assert [line.data for line in lines] == WANTED


async def test_a_pod_that_vanished_is_lost_unless_the_runner_had_its_last_word() -> None:
    lines, _, lost = await followed(ScriptedLog(Log(FRAMES), [(20, LogCut("")), (None, GONE)], [None]))
    assert lines
    assert isinstance(lost.fate, Failing)
    assert lost.fate.error is PodLost
    assert lost.end is None
    _, _, finished = await followed(ScriptedLog(Log(FRAMES), [(None, None)], [None]))
    assert finished.end is not None
    assert finished.end.exit_code == 0


async def test_a_pod_stopped_from_outside_is_lost_even_after_the_runners_last_word() -> None:
    frames = framed(OUTPUT, b'{"exit_code":143,"stopped_by":"TERM"}')
    _, _, follower = await followed(ScriptedLog(Log(frames), [(None, None)], [None]))
    assert isinstance(follower.fate, Failing)


async def test_the_runner_tells_the_exit_code_that_the_status_lacks() -> None:
    frames = framed(OUTPUT, b'{"exit_code":143,"stopped_by":"TERM"}')
    _, _, follower = await followed(ScriptedLog(Log(frames), [(10, None), (None, None)], [DRAINING]))
    assert follower.end is not None
    assert (follower.end.exit_code, follower.end.reason) == (143, "DeadlineExceeded")


async def test_a_second_instance_of_the_container_is_not_read_on() -> None:
    second = pod({**container(running={}), "containerID": "containerd://2"}, phase="Running")
    scripted = ScriptedLog(Log(FRAMES), [(10, None)], [RUNNING, second])
    _, _, follower = await followed(scripted)
    assert isinstance(follower.fate, Failing)
    assert "second time" in follower.fate.message


async def test_a_worker_without_rights_says_so_in_the_end() -> None:
    scripted = ScriptedLog(Log(FRAMES), [(None, ClusterForbidden("cannot get pods/log"))], [RUNNING])
    with pytest.raises(ClusterForbidden, match="pods/log"):
        await followed(scripted)


NUMBERS = framed([("stdout", b"".join(b"%d\n" % n for n in range(100)))], b"{}")


def again(first: int, last: int) -> bytes:
    """What the runner repeats: frame n holds the number n - 2."""
    return b"".join(NUMBERS[first - 1 : last])


async def rotated(
    answers: Sequence[bytes | Exception], pods: Sequence[Any] = (RUNNING,), cursor: Cursor | None = None
) -> tuple[list[int], list[Gap], Follower, ScriptedLog]:
    """Ten frames come, then the log lacks those up to 50."""
    log = Log(NUMBERS, [40])
    scripted = ScriptedLog(log, [(10, LogCut("reset")), (None, None)], [RUNNING, *pods, OVER])
    scripted.answers = list(answers)
    follower = Follower(scripted, JOB, POD, cursor, pace=QUICK)
    gaps, numbers = list[Gap](), list[int]()
    async with asyncio.timeout(20), follower:
        async for batch in follower:
            log.rotate(50)
            gaps += batch.gaps
            numbers += [int(line.data) for line in batch.lines if line.whole]
    return numbers, gaps, follower, scripted


async def test_what_a_rotation_took_is_fetched_from_the_container() -> None:
    numbers, gaps, follower, scripted = await rotated([again(11, 50)])
    assert numbers == [*range(100)]
    assert gaps == []
    assert (follower.mended, scripted.asked) == (40, [(11, 50)])


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([ExecFailed("", status=500), again(11, 50)], id="unreachable at first"),
        pytest.param([again(11, 20), b"", again(21, 50)], id="not all at once"),
        pytest.param([again(11, 20) + again(21, 22)[:-3], again(22, 50)], id="cut in a frame"),
        pytest.param([b"sh: what?\n" + again(1, 60)], id="too much"),
        pytest.param([again(13, 50), again(11, 12), again(13, 50)], id="in the wrong order"),
        pytest.param([again(11, 30).replace(b"\n", b"\r\n", 1), again(11, 50)], id="one of them spoiled"),
    ],
)
async def test_a_repair_survives_answers_that_are_no_good(answers: list[bytes | Exception]) -> None:
    numbers, gaps, follower, _ = await rotated(answers, [RUNNING] * 10)
    assert numbers == [*range(100)]
    assert (gaps, follower.mended) == ([], 40)


@pytest.mark.parametrize(
    ("answers", "pods", "size"),
    [
        pytest.param([ExecFailed("", status=500)], [RUNNING] * 100, 40, id="unreachable"),
        pytest.param([ExecFailed("", exit_code=1)], [RUNNING] * 100, 40, id="no runner"),
        pytest.param([ClusterForbidden("no exec")], [RUNNING] * 100, 40, id="forbidden"),
        pytest.param([ExecFailed("", status=500)], [OVER], 40, id="the container has ended"),
        pytest.param([again(11, 20), b""], [RUNNING] * 100, 30, id="the runner has only some"),
        pytest.param([b'11x. {"exit_code":0}\n' + again(12, 50)], [RUNNING] * 100, 40, id="a forged end"),
    ],
)
async def test_what_cannot_be_repaired_is_a_gap_of_exact_size(
    answers: list[bytes | Exception], pods: list[Any], size: int
) -> None:
    numbers, gaps, follower, _ = await rotated(answers, pods)
    assert [(gap.after_sequence, gap.frames) for gap in gaps] == [(50 - size, size)]
    assert numbers == [*range(9 + 40 - size), *range(50, 100)]  # nobody knows whose part the first line beyond it is
    assert follower.mended == 40 - size
    assert Tally().receipt(follower.last, gaps).state == "differs"


async def test_what_a_rotation_took_before_a_silence_is_fetched_while_the_agent_lives() -> None:
    log = Log(NUMBERS, [40])
    scripted = ScriptedLog(log, [(10, None), (50, None), (None, None)], [RUNNING, RUNNING, OVER])
    scripted.answers = [again(11, 50)]
    follower = Follower(scripted, JOB, POD, pace=QUICK)
    numbers, gaps = list[int](), list[Gap]()
    async with asyncio.timeout(20), follower:
        async for batch in follower:
            log.rotate(50)
            gaps += batch.gaps
            numbers += [int(line.data) for line in batch.lines]
    assert numbers == [*range(100)]
    assert (gaps, follower.mended) == ([], 40)
    assert [first for first, _ in scripted.asked] == [11]


async def test_a_log_that_repeats_what_is_known_asks_nobody() -> None:
    scripted = ScriptedLog(
        Log(NUMBERS, [40]), [(10, None), (10, None), (10, None), (None, None)], [RUNNING] * 3 + [OVER]
    )
    follower = Follower(scripted, JOB, POD, pace=QUICK)
    async with asyncio.timeout(20), follower:
        numbers = [int(line.data) async for batch in follower for line in batch.lines]
    assert (numbers, scripted.asked) == ([*range(100)], [])


class Held(ScriptedLog):
    """A container that ends when it is told that it is read."""

    async def read_pod(self, namespace: str, name: str) -> Pod | None:
        assert (namespace, name) == ("n", POD.name)
        return OVER if self.told else RUNNING


async def test_a_runner_that_waits_for_its_reader_is_told_once_all_is_stored() -> None:
    scripted = Held(Log(FRAMES), [(None, None)], [])
    follower = Follower(scripted, JOB, POD, pace=QUICK)
    async with asyncio.timeout(20), follower:
        batch = await follower.next_batch()
        assert batch is not None
        for _ in range(1000):
            await asyncio.sleep(0)  # nobody is told while the lines are on their way to the store
        assert follower.last is not None
        assert scripted.told == 0
        lines = len(batch.lines) + sum([len(more.lines) async for more in follower])
    assert (lines, scripted.told) == (len(WANTED), 1)
    assert follower.end is not None


class Spoken(ScriptedLog):
    """The first connection ends with the kubelet's words in the middle of a frame."""

    async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
        if len(self.opened) == 1 and text.startswith(b"2026"):  # a log, no repeated frames
            text = text[:-1] + b"rpc error: code = Unknown desc = no such container\n"
        async for piece in super()._pieces(text, error):
            yield piece


@pytest.mark.parametrize("reachable", [True, False])
async def test_words_of_the_kubelet_in_the_middle_of_a_line_are_no_output(reachable: bool) -> None:
    scripted = Spoken(Log(NUMBERS, [40]), [(10, None), (None, None)], [RUNNING] * 30 + [OVER])
    scripted.answers = [again(10, 10) if reachable else ClusterForbidden("no exec")]
    follower = Follower(scripted, JOB, POD, pace=QUICK)
    gaps, numbers = list[Gap](), list[int]()
    async with asyncio.timeout(20), follower:
        async for batch in follower:
            gaps += batch.gaps
            numbers += [int(line.data) for line in batch.lines]
    assert (numbers, gaps) == ([*range(100)], [])
    assert scripted.asked == [(10, 10)]


async def test_a_node_without_inotify_instances_is_polled_though_its_words_lack_a_line_end() -> None:
    class Starved(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            async for piece in super()._pieces(text, error):
                yield piece
            if self.opened[-1][0]:
                yield b"failed to create fsnotify watcher: too many open files"

    scripted = Starved(Log(FRAMES, [40]), [(10, None), (20, None), (None, None)], [RUNNING, RUNNING, OVER])
    lines, _, _ = await followed(scripted)
    assert [line.data for line in lines] == WANTED
    assert scripted.opened[1][0] is False


async def test_without_a_runner_nobody_is_asked() -> None:
    log = Log(NUMBERS, [40])
    log.rotate(50)
    scripted = ScriptedLog(log, [(None, None)], [OVER])
    follower = Follower(scripted, JOB, POD, pace=QUICK, again=None)
    async with asyncio.timeout(20), follower:
        gaps = [gap async for batch in follower for gap in batch.gaps]
    assert [gap.frames for gap in gaps] == [50]
    assert scripted.asked == []


async def test_a_starved_node_is_polled() -> None:
    class Starved(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            async for piece in super()._pieces(text, error):
                yield piece
            if self.opened[-1][0]:
                yield b"failed to create fsnotify watcher: too many open files"
                yield b"\n"

    scripted = Starved(Log(FRAMES, [40]), [(10, None), (20, None), (None, None)], [RUNNING, RUNNING, OVER])
    lines, _, _ = await followed(scripted)
    assert [line.data for line in lines] == WANTED
    assert False in [follow for follow, _ in scripted.opened]


async def test_reading_goes_on_while_the_consumer_is_busy_and_stops_at_the_bound() -> None:
    class Counted(ScriptedLog):
        pieces = 0

        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            async for piece in super()._pieces(text, error):
                self.pieces += 1
                yield piece

    large = [("stdout", (b"y" * 8000 + b"\n") * 3000)]  # 24 MB
    scripted = Counted(Log(framed(large, b"{}")), [(None, None)], [OVER])
    follower = Follower(scripted, JOB, POD, pace=QUICK)
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


async def test_waiting_for_output_can_be_given_up_without_losing_any() -> None:
    gate = asyncio.Event()

    class Gated(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            await gate.wait()
            async for piece in super()._pieces(text, error):
                yield piece

    follower = Follower(Gated(Log(FRAMES), [(None, None)], [OVER]), JOB, POD, pace=QUICK)
    async with asyncio.timeout(20), follower:
        nothing = await follower.next_batch(timedelta(milliseconds=10))
        assert nothing is not None
        assert nothing.lines == []
        gate.set()
        assert sum([len(batch.lines) async for batch in follower]) == len(WANTED)


async def test_whoever_waits_for_output_can_be_woken_without_losing_any() -> None:
    gate = asyncio.Event()

    class Gated(ScriptedLog):
        async def _pieces(self, text: bytes, error: Exception | None) -> AsyncIterator[bytes]:
            await gate.wait()
            async for piece in super()._pieces(text, error):
                yield piece

    follower = Follower(Gated(Log(FRAMES), [(None, None)], [OVER]), JOB, POD, pace=QUICK)
    async with asyncio.timeout(20), follower:
        waiting = asyncio.create_task(follower.next_batch())
        await asyncio.sleep(0)
        follower.wake()
        nothing = await waiting
        assert nothing is not None
        assert nothing.lines == []
        gate.set()
        assert sum([len(batch.lines) async for batch in follower]) == len(WANTED)


# on the embedded cluster, with our runner


SCRIPT = """
i=0
while [ $i -lt 300 ]; do
  echo "line $i"; echo same; [ $((i % 50)) -ne 0 ] || { echo "err $i" >&2; sleep 0.1; }
  i=$((i + 1))
done
exit 5
"""


def runner_job(name: str, tmp_path: Path) -> dict[str, Any]:
    manifest = job_manifest(name, "exit 0")
    runner = Path(__file__).parents[2] / "cluster" / "runner.sh"
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
    job_ref = await started(cluster, runner_job(name, tmp_path))
    there = (await pod_when(cluster, job_ref, "Running", "Failed")).metadata
    pod_ref = PodRef(namespace=NAMESPACE, name=there.name, uid=there.uid)
    log = f"pods/{there.name}/log"
    faults: list[dict[str, Any]] = [
        {"path": log, "cut_after": 700},
        {"path": log, "cut_after": 3001, "clean": True},
        {"path": log, "status": 500, "times": 2},
        {"path": log, "cut_after": 900, "clean": True, "text": "rpc error: code = Unknown\n"},
        {"path": f"pods/{there.name}$", "status": 503, "times": 2},
    ]
    tally, lines, gaps = Tally(), list[LogLine](), list[Gap]()
    follower = Follower(cluster, job_ref, pod_ref, pace=Pace(first=timedelta(milliseconds=20)))
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            tally.add(batch.lines)
            lines += batch.lines
            gaps += batch.gaps
            if faults and len(lines) > 300 - 50 * len(faults):
                embedded.faults.http(**faults.pop())
                embedded.faults.end_follows()
                if len(faults) == 2:
                    await embedded.faults.restart_kubelet()
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
    job_ref = await started(cluster, job_manifest(name, script.replace("$", "$$")))
    there = (await pod_when(cluster, job_ref, "Running", "Succeeded")).metadata
    embedded.faults.http(path=f"pods/{there.name}/log", cut_after=1500)
    embedded.faults.http(path=f"pods/{there.name}/log", cut_after=2500, clean=True)
    tally = Tally()
    follower = Follower(cluster, job_ref, PodRef(namespace=NAMESPACE, name=there.name, uid=there.uid))
    found = []
    async with asyncio.timeout(60), follower:
        async for batch in follower:
            tally.add(batch.lines)
            found += batch.lines
    wanted = b"".join(b"%d\nsame\n" % number for number in range(100)) + b"end"
    assert b"".join(line.raw for line in found) == wanted
    assert tally.receipt(follower.last, framed=follower.framed).state == "best effort"
    await cluster.delete_job(NAMESPACE, name, job_ref.uid)
