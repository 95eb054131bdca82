"""A container whose output is known to the last byte, and the step that stores it, on any cluster."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.stream_logs import LogStreaming
from cluster.client import KubernetesCluster
from cluster.objects import Metadata
from cluster.port import ExecFailed
from contracts.errors import ClusterUnavailable
from contracts.identity import AttemptKey, RunKey
from contracts.messages import JobRef, PodRef, StreamEnd, StreamLogs
from contracts.outcome import OutputReceipt
from tests.activities.secretive import Secretive
from transcripts.store import Line, SqlTranscripts

NAMESPACE = "default"
RUNNER = Path(__file__).parents[2] / "cluster" / "runner.sh"
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

    It prints nine tenths, a hundred lines per `pause`, and the rest once it is released. Its log may be rotated at any
    size, so the runner waits for its reader whatever the size.
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
        made: list[bytes] = []
        for number in range(1, self.lines + 1):
            made.append(b"%d" % number)
            if number % 3 == 0:
                made.append(b"same")
            if number % 500 == 0:
                made.append(b"%d" % number + big)
        return made

    @property
    def stderr(self) -> list[bytes]:
        return [b"err %d" % number for number in range(50, self.lines + 1, 50)]

    def manifests(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Secret and Job, laid out as the runs of this program are."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "stringData": {"runner.sh": RUNNER.read_text()},
        }
        arguments = "--stdin /dev/null --out /agent-run/output --dir /tmp --grace 2 --hold-above 0"
        hold = ["--hold", f"{self.hold.total_seconds():.0f}"]
        container = {
            "name": "opencode",
            "image": "busybox:1.36",
            "command": ["sh", "/agent-run/secret/runner.sh", *arguments.split(), *hold, "--", "sh", "-c", self.program],
            "env": [{"name": "HOME", "value": "/tmp"}],
            "volumeMounts": [
                {"name": "secret", "mountPath": "/agent-run/secret", "readOnly": True},
                {"name": "output", "mountPath": "/agent-run/output"},
            ],
        }
        volumes = [{"name": "secret", "secret": {"secretName": name}}, {"name": "output", "emptyDir": {}}]
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "volumes": volumes}
        template = {"metadata": {}, "spec": {**pod, "containers": [container]}}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"backoffLimit": 0, "template": template},
        }
        return secret, job


@dataclass
class Stored:
    """What the store holds at the end."""

    lines: list[Line]
    end: StreamEnd

    def text(self, stream: str) -> list[bytes]:
        return [line.data for line in self.lines if line.stream == stream]

    @property
    def receipt(self) -> OutputReceipt:
        return self.end.receipt


@dataclass
class Run:
    """One container and the step that follows it, which may be handed over between workers."""

    cluster: KubernetesCluster
    store: SqlTranscripts
    workload: Workload
    job: JobRef
    pod: PodRef
    key: AttemptKey = field(
        default_factory=lambda: AttemptKey(run=RunKey(agent_id="a", company_id="c", run_id=str(uuid.uuid4())))
    )
    tries: int = 0
    _worker: ActivityEnvironment | None = None
    _following: asyncio.Future[StreamEnd] | None = None

    async def stored(self) -> Stored:
        """Follow to the end, again after each hand-over and each death of a worker."""
        while True:
            self.tries += 1
            self._worker = ActivityEnvironment()
            now = datetime.now(UTC)
            self._worker.info = replace(self._worker.info, attempt=self.tries, scheduled_time=now)
            step = LogStreaming(self.cluster, self.store, Secretive()).stream_logs
            order = StreamLogs(attempt=self.key, job=self.job, pod=self.pod)
            self._following = asyncio.ensure_future(self._worker.run(step, order))
            try:
                await asyncio.wait([self._following])
            finally:
                self._following.cancel()
            if self._following.cancelled():
                continue
            try:
                end = self._following.result()
            except ApplicationError as error:
                if error.type != "WorkerShutdown":
                    raise
                continue
            return Stored(await self.store.read(self.key, limit=1_000_000), end)

    def hand_over(self) -> None:
        """The worker goes; another takes the step up."""
        if self._worker is not None:
            self._worker.worker_shutdown()

    def kill(self) -> None:
        """The worker vanishes in the middle of whatever it does; another takes the step up."""
        if self._following is not None:
            self._following.cancel()

    async def progress(self) -> int:
        """Sequence of the last stored line."""
        return await self.store.last(self.key) or 0

    async def reached(self, sequence: int) -> None:
        """Wait until this much is stored."""
        news = self.store.news(self.key)
        while await self.progress() < sequence:
            await news.beyond(news.count, timedelta(seconds=1))

    async def execute(self, *argv: str) -> bytes:
        """What a command in the container prints, however many tries it takes."""
        while True:
            with suppress(ExecFailed):
                opened = self.cluster.exec_output(
                    NAMESPACE, self.pod.name, self.pod.container, argv, limit=10_000, idle=timedelta(seconds=10)
                )
                async with opened as pieces:
                    return b"".join([piece async for piece in pieces])
            await asyncio.sleep(0.05)

    async def release(self) -> None:
        """Let the rest be printed."""
        await self.execute("touch", "/agent-run/output/more")


@asynccontextmanager
async def running(
    cluster: KubernetesCluster, store: SqlTranscripts, workload: Workload, patience: timedelta
) -> AsyncIterator[Run]:
    """The workload in a running container; Job and Secret are deleted at the end."""
    name = f"chaos-{uuid.uuid4().hex[:10]}"
    secret, job = workload.manifests(name)
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    await cluster._create("secrets", path, secret)
    made = await cluster.create_job(job)
    ref = JobRef(namespace=NAMESPACE, name=made.metadata.name, uid=made.metadata.uid)
    try:
        async with asyncio.timeout(patience.total_seconds()):
            pod = await begun(cluster, ref)
        yield Run(cluster, store, workload, ref, PodRef(namespace=NAMESPACE, name=pod.name, uid=pod.uid))
    finally:
        await insist(cluster, ref, name)


async def begun(cluster: KubernetesCluster, job: JobRef) -> Metadata:
    """The Job's pod, once its container runs."""
    async with cluster.watch_pods(job) as states:
        async for pods in states:
            if pods and pods[0].status.phase in {"Running", "Failed", "Succeeded"}:
                return pods[0].metadata
    raise AssertionError("a watch never ends")


async def insist(cluster: KubernetesCluster, job: JobRef, name: str) -> None:
    """Delete what was made, also from a cluster that is just coming back."""
    async with asyncio.timeout(60):
        while True:
            with suppress(ClusterUnavailable):
                await cluster.delete_job(NAMESPACE, name, job.uid)
                await cluster._call("DELETE", "delete", "secrets", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")
                return
            await asyncio.sleep(0.5)


def assert_complete(stored: Stored, workload: Workload) -> None:
    """Every line exactly once, in order, and the runner agrees."""
    assert stored.text("gap") == []
    assert stored.text("stderr") == workload.stderr
    found, wanted = stored.text("stdout"), workload.stdout
    assert len(found) == len(wanted)
    assert [index for index, line in enumerate(found) if line != wanted[index]][:5] == []
    assert [line.sequence for line in stored.lines] == sorted({line.sequence for line in stored.lines})
    assert stored.receipt.state == "verified"
    assert stored.receipt.gaps == ()
    assert stored.end.container.exit_code == 7
