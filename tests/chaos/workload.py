"""A container whose output is known to the last byte, and the activity that stores it, on any cluster."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.stream_logs import StreamLogsActivity
from agent_runs.contracts.errors import ClusterUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import Ended, JobRef, PodRef, StreamEnd, StreamLogs
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.contracts.pod import AGENT_CONTAINER, SIDECAR_CONTAINER
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Metadata
from agent_runs.transcript.store import Line, TranscriptStore
from tests.activities.fake_preparations import FakePreparations
from tests.support.agent_pods import agent_pod
from tests.support.ends import ended

NAMESPACE = "default"
BIG = 100 * 1024
PROGRAM = """
awk -v last=%d -v hold=%d -v pause=%s 'BEGIN {
  big = "0123456789"
  while (length(big) < 102400) big = big big
  big = substr(big, 1, 102400)
  for (i = 1; i <= last; i++) {
    print i
    if (i %% 3 == 0) print "same"
    if (i %% 500 == 0) print i big
    if (i %% 50 == 0) print "err " i > "/dev/stderr"
    if (i %% 100 == 0) { fflush(); system("sleep " pause) }
    if (i == hold) { fflush(); while (system("test -e /agent-run/output/more") != 0) system("sleep 0.05") }
  }
}'
exit 7
"""


@dataclass(frozen=True)
class Workload:
    """`lines` numbers, an equal line after every third, a long one after every 500th, some on stderr; exit code 7.

    It prints nine tenths, a hundred lines per `pause`, and the rest after `release`. Its sidecar waits for `hold`.
    """

    lines: int
    pause: timedelta = timedelta(seconds=0.1)
    hold: timedelta = timedelta(seconds=60)

    @property
    def program(self) -> str:
        return PROGRAM % (self.lines, self.lines * 9 // 10, f"{self.pause.total_seconds():.3f}")

    @property
    def stdout(self) -> list[bytes]:
        big = (b"0123456789" * BIG)[:BIG]
        lines: list[bytes] = []
        for number in range(1, self.lines + 1):
            lines.append(b"%d" % number)
            if number % 3 == 0:
                lines.append(b"same")
            if number % 500 == 0:
                lines.append(b"%d" % number + big)
        return lines

    @property
    def stderr(self) -> list[bytes]:
        return [b"err %d" % number for number in range(50, self.lines + 1, 50)]

    def manifests(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Secret and Job, laid out as those of agent runs."""
        command = ["sh", "-c", self.program]
        hold = int(self.hold.total_seconds())
        return agent_pod(name, NAMESPACE, command, max_unread=hold, env={"HOME": "/tmp"})


@dataclass
class StoredOutput:
    """What the store has at the end."""

    lines: list[Line]
    end: Ended

    def text(self, stream: str) -> list[bytes]:
        return [line.data for line in self.lines if line.stream == stream]

    @property
    def receipt(self) -> OutputReceipt:
        return self.end.receipt


@dataclass
class FollowedRun:
    """One container and the activity that follows it, in one worker after the other."""

    cluster: Cluster
    store: TranscriptStore
    job: JobRef
    pod: PodRef
    key: AttemptKey = field(
        default_factory=lambda: AttemptKey(run=RunKey(agent_id="a", company_id="c", run_id=str(uuid.uuid4())))
    )
    activity_attempts: int = 0
    _worker: ActivityEnvironment | None = None
    _following: asyncio.Future[StreamEnd] | None = None

    async def follow(self) -> StoredOutput:
        """Follow to the end, with a new activity attempt after each end of a worker."""
        while True:
            self.activity_attempts += 1
            self._worker = ActivityEnvironment()
            now = datetime.now(UTC)
            self._worker.info = replace(self._worker.info, attempt=self.activity_attempts, scheduled_time=now)
            step = StreamLogsActivity(
                self.cluster, self.store, Redactions(self.cluster, FakePreparations())
            ).stream_logs
            order = StreamLogs(attempt=self.key, job=self.job, pod=self.pod)
            self._following = asyncio.ensure_future(self._worker.run(step, order))
            try:
                await asyncio.wait([self._following])
            finally:
                self._following.cancel()
            if self._following.cancelled():
                continue
            try:
                end = ended(self._following.result())
            except ApplicationError as error:
                if error.type != "WorkerShutdown":
                    raise
                continue
            return StoredOutput(await self.store.read(self.key, limit=1_000_000), end)

    def shut_down_worker(self) -> None:
        """Shut the worker down; the next activity attempt continues."""
        if self._worker is not None:
            self._worker.worker_shutdown()

    def kill_worker(self) -> None:
        """Kill the worker, whatever it does; the next activity attempt continues."""
        if self._following is not None:
            self._following.cancel()

    async def last_sequence(self) -> int:
        """Sequence of the last stored line."""
        return await self.store.last(self.key) or 0

    async def until_stored(self, sequence: int) -> None:
        """Returns once a line with this sequence or a later one is stored."""
        notifier = self.store.notifier(self.key)
        while await self.last_sequence() < sequence:
            await notifier.wait_for_change(notifier.changes, timedelta(seconds=1))

    async def execute(self, *argv: str, container: str = AGENT_CONTAINER) -> bytes:
        """The output of a command in a container; failures of exec are retried."""
        while True:
            with suppress(ExecFailed):
                opened = self.cluster.exec_output(
                    NAMESPACE, self.pod.name, container, argv, limit=10_000, idle_timeout=timedelta(seconds=10)
                )
                async with opened as pieces:
                    return b"".join([piece async for piece in pieces])
            await asyncio.sleep(0.05)

    async def release(self) -> None:
        """Let the agent print the rest; by the sidecar, which is there for a repetition, too."""
        touch = ("python3", "-I", "-c", "open('/agent-run/output/more', 'w')")
        await self.execute(*touch, container=SIDECAR_CONTAINER)


@asynccontextmanager
async def running_workload(
    cluster: Cluster, store: TranscriptStore, workload: Workload, start_timeout: timedelta
) -> AsyncIterator[FollowedRun]:
    """The workload in a running container; Job and Secret are deleted at the end."""
    name = f"chaos-{uuid.uuid4().hex[:10]}"
    secret, job = workload.manifests(name)
    await cluster._create(secret)
    created = await cluster.create_job(job)
    ref = JobRef(namespace=NAMESPACE, name=created.metadata.name, uid=created.metadata.uid)
    try:
        async with asyncio.timeout(start_timeout.total_seconds()):
            pod = await started_pod(cluster, ref)
        yield FollowedRun(cluster, store, ref, PodRef(namespace=NAMESPACE, name=pod.name, uid=pod.uid))
    finally:
        await delete_all(cluster, ref, name)


async def started_pod(cluster: Cluster, job: JobRef) -> Metadata:
    """The Job's pod, once its container runs."""
    async with cluster.watch_pods(job) as states:
        async for pods in states:
            if pods and pods[0].status.phase in {"Running", "Failed", "Succeeded"}:
                return pods[0].metadata
    raise AssertionError("a watch never ends")


async def delete_all(cluster: Cluster, job: JobRef, name: str) -> None:
    """Delete Job and Secret, also from a cluster whose API server is just restarting."""
    async with asyncio.timeout(60):
        while True:
            with suppress(ClusterUnavailable):
                await cluster.delete_job(NAMESPACE, name, job.uid)
                await cluster._call("DELETE", "delete", "secrets", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
                return
            await asyncio.sleep(0.5)


def assert_complete(stored: StoredOutput, workload: Workload) -> None:
    """Every line exactly once, in order, and the runner agrees."""
    assert stored.text("gap") == []
    assert stored.text("stderr") == workload.stderr
    stdout, expected = stored.text("stdout"), workload.stdout
    assert len(stdout) == len(expected)
    assert [index for index, line in enumerate(stdout) if line != expected[index]][:5] == []
    assert [line.sequence for line in stored.lines] == sorted({line.sequence for line in stored.lines})
    assert stored.receipt.state == "verified"
    assert stored.receipt.gaps == ()
    assert stored.end.container.exit_code == 7
