"""The wait for the agent's pod: few requests, and failures in Kubernetes' own words."""

import asyncio
import fcntl
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.testing import ActivityEnvironment

import activities.await_schedule as waiting
from activities.await_schedule import AwaitScheduleActivity
from activities.finish import FinishActivity
from agent_runs.contracts.errors import ImagePullFailed, JobDeletedExternally, PodLost, PodScheduleFailed, RunError
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import AwaitSchedule, EndJob, JobRef, PodRef, StartProgress
from agent_runs.job.redactions import Redactions
from agent_runs.job.resting_pods import release_resting_pod
from agent_runs.job.secrets import prompt_secret
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Job
from agent_runs.kube.ownership import CLAIMED_BY, RESTS_SINCE, owner_labels
from dev_stack.cluster import EmbeddedCluster
from dev_stack.cluster.kinds import JOBS
from tests.activities.fake_preparations import SECRETS, FakePreparations

NAMESPACE = "default"
SECRET = SECRETS.env["GITHUB_TOKEN"]


@dataclass
class Wait:
    """One attempt's Job and the step that waits for it."""

    embedded: EmbeddedCluster
    kubernetes: Cluster
    attempt: AttemptKey
    heartbeats: list[str] = field(default_factory=list)
    new_heartbeat: asyncio.Event = field(default_factory=asyncio.Event)

    async def job(self, script: str = "sleep 60", image: str = "busybox:1.36", **spec: object) -> JobRef:
        container = {"name": "opencode", "image": image, "command": ["sh", "-c", script]}
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
        template = {"metadata": {"labels": owner_labels(self.attempt)}, "spec": pod}
        job = await self.kubernetes.create_job(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    "name": self.attempt.job_name,
                    "namespace": NAMESPACE,
                    "labels": owner_labels(self.attempt),
                },
                "spec": {"backoffLimit": 0, "template": template, **spec},
            }
        )
        return JobRef(namespace=NAMESPACE, name=job.metadata.name, uid=job.metadata.uid)

    def other_agent(self) -> "Wait":
        """The same for a run of another agent."""
        run = RunKey(agent_id=str(uuid.uuid4()), company_id="c", run_id=str(uuid.uuid4()))
        return Wait(self.embedded, self.kubernetes, AttemptKey(run=run, attempt=1))

    async def resting(self, since: str) -> JobRef:
        """The Job of another agent whose pod rests."""
        job = await self.other_agent().job()
        now = await self.kubernetes.read_job(NAMESPACE, job.name)
        assert now is not None
        marks = {RESTS_SINCE: since}
        assert await self.kubernetes.annotate_job(NAMESPACE, job.name, job.uid, now.metadata.resource_version, marks)
        return job

    async def pod(self, job: JobRef, schedule_timeout: timedelta = timedelta(minutes=1)) -> PodRef:
        """What the step returns; its heartbeats are in `heartbeats`."""
        environment = ActivityEnvironment()
        environment.on_heartbeat = self.add_heartbeat
        order = AwaitSchedule(attempt=self.attempt, job=job, schedule_timeout=schedule_timeout)
        waits = AwaitScheduleActivity(self.kubernetes, Redactions(self.kubernetes, FakePreparations()))
        pod: PodRef = await environment.run(waits.await_schedule, order)
        return pod

    def add_heartbeat(self, progress: StartProgress) -> None:
        self.heartbeats.append(progress.reason)
        self.new_heartbeat.set()

    async def until_heartbeat(self, text: str) -> None:
        """Returns once a heartbeat contains `text`."""
        async with asyncio.timeout(60):
            while not any(text in heartbeat for heartbeat in self.heartbeats):
                self.new_heartbeat.clear()
                await self.new_heartbeat.wait()

    @property
    def requests_about_job(self) -> list[str]:
        return [
            path
            for method, path in self.embedded.requests
            if method == "GET" and ("events" in path or "/jobs/" in path or "job-name" in path)
        ]


@pytest.fixture
async def wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wait]:
    """A cluster of its own, since its faults are for all, and a step that polls often."""
    monkeypatch.setattr(waiting, "SNAPSHOT_INTERVAL", timedelta(seconds=0.05))
    attempt = AttemptKey(run=RunKey(agent_id=str(uuid.uuid4()), company_id="c", run_id=str(uuid.uuid4())), attempt=1)
    async with EmbeddedCluster(tmp_path / "cluster") as embedded:
        kubernetes = await Cluster.connect(str(embedded.kubeconfig_path), environ={})
        async with kubernetes:
            yield Wait(embedded, kubernetes, attempt)


async def test_a_pod_that_runs_is_found_and_its_prompt_deleted(wait: Wait) -> None:
    await wait.kubernetes.put_secret(prompt_secret(wait.attempt, NAMESPACE, b"hello"))
    job = await wait.job()
    pod = await wait.pod(job)
    assert pod.name.startswith(job.name)
    assert pod.started_at is not None
    assert await wait.kubernetes.read_secret_metadata(NAMESPACE, wait.attempt.prompt_secret_name) is None


async def test_a_pod_that_ended_before_anybody_looked_is_found(wait: Wait) -> None:
    job = await wait.job("exit 3")
    async with wait.kubernetes.watch_pods(job) as states:
        async for pods in states:
            if pods and pods[0].status.phase == "Failed":
                break
    found = await wait.pod(job)
    assert found.uid == pods[0].metadata.uid
    assert found.started_at is not None


async def test_an_image_that_cannot_be_pulled_fails_with_the_registrys_message(wait: Wait) -> None:
    wait.embedded.faults.refuse_image("nobody/knows:1", "manifest unknown")
    with pytest.raises(ImagePullFailed, match="manifest unknown"):
        await wait.pod(await wait.job(image="nobody/knows:1"))


async def test_a_secret_in_the_message_of_a_failure_is_hidden(wait: Wait) -> None:
    wait.embedded.faults.refuse_image("nobody/knows:2", f"manifest unknown to {SECRET}")
    with pytest.raises(ImagePullFailed, match=r"manifest unknown to \[\[secret:GITHUB_TOKEN\]\]"):
        await wait.pod(await wait.job(image="nobody/knows:2"))
    assert not any(SECRET in heartbeat for heartbeat in wait.heartbeats)


async def test_a_secret_in_the_reason_for_waiting_is_hidden(wait: Wait) -> None:
    wait.embedded.faults.fill_node(f"no room for {SECRET}")
    step = asyncio.create_task(wait.pod(await wait.job()))
    await wait.until_heartbeat("no room for [[secret:GITHUB_TOKEN]]")
    wait.embedded.faults.clear()
    await step
    assert not any(SECRET in heartbeat for heartbeat in wait.heartbeats)


async def test_a_pod_without_a_node_is_waited_for_with_the_schedulers_message_and_without_events(wait: Wait) -> None:
    wait.embedded.faults.fill_node("1 Insufficient memory.")
    job = await wait.job()
    step = asyncio.create_task(wait.pod(job))
    await wait.until_heartbeat("1 Insufficient memory")
    wait.embedded.faults.clear()
    await step
    assert [path for path in wait.requests_about_job if "events" in path] == []


async def test_a_pod_without_a_place_gets_that_of_the_pod_that_rests_longest(wait: Wait) -> None:
    resting = [await wait.resting(f"2026-11-2{day}T08:00:00+00:00") for day in (3, 2, 4)]
    working = await wait.other_agent().job()
    wait.embedded.faults.fill_node("0/1 nodes are available: 1 Insufficient cpu.")
    step = asyncio.create_task(wait.pod(await wait.job()))
    async with asyncio.timeout(60):
        while await wait.kubernetes.read_job(NAMESPACE, resting[1].name):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.05)
    wait.embedded.faults.clear()
    await step
    left = [job for job in resting if await wait.kubernetes.read_job(NAMESPACE, job.name)]
    assert (left, await wait.kubernetes.read_job(NAMESPACE, working.name) is not None) == (
        [resting[0], resting[2]],
        True,
    )


async def test_a_pod_that_a_run_has_claimed_meanwhile_keeps_its_place(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting = await wait.resting("2026-11-22T08:00:00+00:00")
    (seen,) = await wait.kubernetes.jobs_of_all_agents(NAMESPACE)

    async def as_it_was(_namespace: str) -> list[Job]:
        return [seen]

    claim = {RESTS_SINCE: None, CLAIMED_BY: "a-run/1"}
    meta = seen.metadata
    assert await wait.kubernetes.annotate_job(NAMESPACE, meta.name, meta.uid, meta.resource_version, claim)
    monkeypatch.setattr(wait.kubernetes, "jobs_of_all_agents", as_it_was)
    assert await release_resting_pod(wait.kubernetes, NAMESPACE, wait.attempt.transcript) is None
    assert await wait.kubernetes.read_job(NAMESPACE, resting.name) is not None


async def test_a_pod_whose_node_is_wrong_takes_no_place(wait: Wait) -> None:
    resting = await wait.resting("2026-11-22T08:00:00+00:00")
    wait.embedded.faults.fill_node("1 node(s) didn't match Pod's node affinity/selector.")
    with pytest.raises(PodScheduleFailed):
        await wait.pod(await wait.job(), schedule_timeout=timedelta(seconds=1))
    assert await wait.kubernetes.read_job(NAMESPACE, resting.name) is not None


async def test_a_pod_without_a_node_fails_at_the_timeout(wait: Wait) -> None:
    wait.embedded.faults.fill_node()
    with pytest.raises(PodScheduleFailed, match="Timed out waiting for pod to be scheduled"):
        await wait.pod(await wait.job(), schedule_timeout=timedelta(seconds=1))


async def test_a_job_that_makes_no_pod_is_read_once_it_is_stuck(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_POLL_DELAY", timedelta())
    monkeypatch.setattr(waiting, "SAME_REASON_POLL_INTERVAL", timedelta())
    job = await wait.job(suspend=True)
    step = asyncio.create_task(wait.pod(job))
    await wait.until_heartbeat("the Job is suspended")
    await wait.kubernetes.delete_job(NAMESPACE, job.name, job.uid)
    with pytest.raises(JobDeletedExternally):
        await step


async def test_a_job_that_a_queue_suspends_is_named_and_starts_once_it_is_admitted(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FIRST_POLL_DELAY", timedelta())
    monkeypatch.setattr(waiting, "SAME_REASON_POLL_INTERVAL", timedelta())
    job = await wait.job(suspend=True)
    step = asyncio.create_task(wait.pod(job))
    await wait.until_heartbeat("the Job is suspended until an admission controller, such as a queue, admits it")
    wait.embedded.store.change(JOBS, NAMESPACE, job.name, lambda body: body["spec"].update(suspend=False), job.uid)
    assert (await step).name.startswith(job.name)


async def test_what_the_first_look_at_a_job_finds_is_said_at_once(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_POLL_DELAY", timedelta())
    job = await wait.job(suspend=True)
    step = asyncio.create_task(wait.pod(job))
    await wait.until_heartbeat("the Job is suspended")
    step.cancel()
    assert not [each for each in wait.heartbeats if "Job controller" in each]


async def test_the_same_reason_is_requested_only_once(wait: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_POLL_DELAY", timedelta())
    wait.embedded.faults.fill_node()
    job = await wait.job()
    step = asyncio.create_task(wait.pod(job))
    async with asyncio.timeout(60):
        while len(wait.heartbeats) < 20:
            wait.new_heartbeat.clear()
            await wait.new_heartbeat.wait()
    step.cancel()
    assert [path for path in wait.requests_about_job if "/jobs/" in path] == [
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job.name}"
    ]


@pytest.mark.parametrize(("whole_job", "error"), [(False, PodLost), (True, JobDeletedExternally)])
async def test_a_deletion_before_the_start_is_a_named_failure(
    wait: Wait, whole_job: bool, error: type[RunError]
) -> None:
    wait.embedded.faults.fill_node()
    job = await wait.job()
    step = asyncio.create_task(wait.pod(job))
    await wait.until_heartbeat("unschedulable")
    if whole_job:
        await wait.kubernetes.delete_job(NAMESPACE, job.name, job.uid)
    else:
        (pod,) = await wait.kubernetes.pods_of(job)
        await wait.kubernetes.delete_pod(NAMESPACE, pod.metadata.name, pod.metadata.uid, timedelta())
    with pytest.raises(error):
        await step


async def test_a_running_agent_is_ended_and_waited_for(wait: Wait) -> None:
    job = await wait.job("trap 'exit 0' TERM; while :; do sleep 0.05; done")
    await wait.pod(job)
    assert await ActivityEnvironment().run(
        FinishActivity(wait.kubernetes).finish, EndJob(attempt=wait.attempt, job=job, grace=timedelta(seconds=1))
    )
    assert await wait.kubernetes.pods_of(job) == []
    assert await wait.kubernetes.read_job(NAMESPACE, job.name) is None


async def test_an_agent_without_grace_has_ended_when_it_is_reported_deleted(wait: Wait, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    job = await wait.job(f"exec 9>{alive}; flock 9; trap '' TERM; echo on > {alive}.on; while :; do sleep 0.05; done")
    await wait.pod(job)
    async with asyncio.timeout(60):
        while not alive.with_suffix(".on").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.05)
    cleanup = FinishActivity(wait.kubernetes).finish
    assert await ActivityEnvironment().run(cleanup, EndJob(attempt=wait.attempt, job=job, grace=timedelta()))
    with alive.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while a process of the agent holds it
