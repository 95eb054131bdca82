"""An agent is never run twice for one attempt: what a repeated creation finds, it adopts or refuses by name."""

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle_prompt import BundlePromptActivity
from activities.create_job import CreateJobActivity
from activities.finish import FinishActivity
from agent_runs.contracts.errors import ExitUnknown, ForeignObject, JobCreateFailed, JobDeletedExternally
from agent_runs.contracts.messages import BundlePrompt, CreateJob, EndUnreportedJob, JobRef, PodProfile
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.prompts import Prompts
from agent_runs.job.redactions import Redactions
from agent_runs.job.resting_pods import RestingPods
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Metadata
from agent_runs.paperclip.preparation import Preparation, prepare
from agent_runs.paperclip.sealing import Opener
from dev_stack.demo import context
from tests.runs.system import System, attempt_key


@dataclass(frozen=True)
class FixedPreparation:
    """The prepared wake of a run, without a Temporal that holds it."""

    prepared: Preparation

    async def current(self) -> Preparation:
        return self.prepared


@dataclass(frozen=True)
class Creation:
    """One attempt up to its Job."""

    step: CreateJobActivity
    input: CreateJob

    async def once(self, attempt: int = 1, scheduled: datetime | None = None) -> JobRef:
        """The step as Temporal would call it, as this activity attempt, scheduled first at this time."""
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info, attempt=attempt, scheduled_time=scheduled or environment.info.scheduled_time
        )
        job: JobRef = await environment.run(self.step.create_job, self.input)
        return job


@pytest.fixture
async def creation(system: System) -> Creation:
    """An attempt whose prompt is there and whose Job is not."""
    raw = context(agent_id=str(uuid.uuid4()))
    prepared = prepare(raw)
    config, preparations, attempt = prepared.request.config, FixedPreparation(prepared), attempt_key(raw)
    prompts = Prompts(preparations, Opener([]))
    bundling = BundlePromptActivity(system.kubernetes, prompts)
    prompt = await ActivityEnvironment().run(bundling.bundle_prompt, BundlePrompt(attempt=attempt, config=config))
    profile = PodProfile(namespace="default", image="agent:test")
    input = CreateJob(attempt=attempt, request=prepared.request, profile=profile, prompt=prompt)
    values, resting = (
        Redactions(system.kubernetes, preparations).worker_values,
        RestingPods(system.kubernetes, prompts.of),
    )
    step = CreateJobActivity(system.kubernetes, preparations, Opener([]), AgentPodSettings(), values, resting)
    return Creation(step, input)


@pytest.mark.parametrize("attempt", [pytest.param(2, id="next activity attempt"), pytest.param(1, id="after a reset")])
async def test_a_repeated_creation_adopts_the_job_that_is_there(creation: Creation, attempt: int) -> None:
    first, second = await creation.once(), await creation.once(attempt)
    assert (first.uid, first.adopted, second.adopted) == (second.uid, False, True)


async def test_a_job_whose_secret_somebody_deleted_is_adopted(system: System, creation: Creation) -> None:
    first = await creation.once()
    await system.kubernetes.delete_secret("default", creation.input.attempt.run_secret_name)
    second = await creation.once()
    assert (first.uid, second.adopted) == (second.uid, True)


@pytest.mark.parametrize("attempt", [pytest.param(2, id="next activity attempt"), pytest.param(1, id="after a reset")])
async def test_a_job_that_went_with_its_secrets_is_not_created_again(
    system: System, creation: Creation, attempt: int
) -> None:
    await creation.once()
    await ActivityEnvironment().run(
        FinishActivity(system.kubernetes).finish, EndUnreportedJob(attempt=creation.input.attempt)
    )
    with pytest.raises(JobDeletedExternally):
        await creation.once(attempt)
    assert await system.kubernetes.read_job("default", creation.input.attempt.job_name) is None


async def test_a_job_that_may_have_existed_and_been_deleted_is_not_created_again(
    system: System, creation: Creation
) -> None:
    job = await creation.once()
    await system.kubernetes.delete_job(job.namespace, job.name, job.uid)

    class Later(Cluster):
        """The Secrets are still there, as if nobody had owned them, and older than a finished Job lives."""

        async def read_job(self, namespace: str, name: str) -> Any:  # noqa: ARG002 - the client's shape
            return None

        async def read_secret_metadata(self, namespace: str, name: str) -> Metadata:  # noqa: ARG002 - as above
            return Metadata(name=name, creation_timestamp=datetime.now(UTC) - timedelta(hours=1))

    later = Later.__new__(Later)
    later.__dict__.update(system.kubernetes.__dict__)
    with pytest.raises(ExitUnknown):
        await replace(creation, step=replace(creation.step, cluster=later)).once(attempt=2)


USED_UP = 'jobs.batch "x" is forbidden: exceeded quota: q, requested: count/jobs.batch=1, used: 1, limited: 1'


async def test_a_quota_of_jobs_is_waited_for_as_one_of_pods_is(system: System, creation: Creation) -> None:
    faults, now = system.embedded.faults, datetime.now(UTC)
    faults.http(method="POST", path="/jobs$", status=403, message=USED_UP, times=2)
    with pytest.raises(JobCreateFailed, match="exceeded quota: q") as refused:
        await creation.once(scheduled=now)
    assert not refused.value.non_retryable  # Temporal tries again
    name = creation.input.attempt.run_secret_name
    assert await system.kubernetes.read_secret_metadata("default", name) is None
    limit = timedelta(seconds=creation.input.config.schedule_timeout_sec)
    with pytest.raises(JobCreateFailed, match=r"Timed out waiting for room in a quota \(600s\)") as over:
        await creation.once(attempt=2, scheduled=now - limit)
    assert over.value.non_retryable
    assert (await creation.once(attempt=3, scheduled=now)).name == creation.input.attempt.job_name


async def test_a_foreign_job_is_left_alone(system: System, creation: Creation) -> None:
    name = creation.input.attempt.job_name
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox:1.36", "command": ["true"]}]}
    foreign = await system.kubernetes.create_job(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"suspend": True, "template": {"spec": pod}},
        }
    )
    with pytest.raises(ForeignObject):
        await creation.once()
    job = await system.kubernetes.read_job("default", name)
    assert job is not None
    assert job.metadata.uid == foreign.metadata.uid


async def test_a_retained_run_without_a_job_leaves_no_prompt(system: System, creation: Creation) -> None:
    finish = EndUnreportedJob(attempt=creation.input.attempt, retain=True)
    assert (await ActivityEnvironment().run(FinishActivity(system.kubernetes).finish, finish)).deleted
    name = creation.input.attempt.prompt_secret_name
    assert await system.kubernetes.read_secret_metadata("default", name) is None
