"""An agent is never run twice for one attempt: what a repeated creation finds, it adopts or refuses by name."""

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.bundle_prompt import PromptBundling
from activities.create_job import JobCreation, PodPlan
from activities.finish import Cleanup
from cluster.client import KubernetesCluster
from cluster.objects import Metadata
from contracts.errors import ExitUnknown, ForeignObject, JobDeletedExternally
from contracts.messages import BundlePrompt, CreateJob, Finish, JobRef, PodProfile
from contracts.request import RunRequest
from local.demo import context
from paperclip.preparation import prepare
from paperclip.sealing import Opener, Sealer, SealingKey
from tests.runs.ground import Ground, attempt_key


@dataclass(frozen=True)
class Given:
    """The request of a run, without a Temporal that holds it."""

    request: RunRequest

    async def current(self) -> RunRequest:
        return self.request


@dataclass(frozen=True)
class Creation:
    """One attempt up to its Job."""

    step: JobCreation
    order: CreateJob

    async def once(self, attempt: int = 1) -> JobRef:
        """The step as Temporal would call it, on this try."""
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, attempt=attempt)
        made: JobRef = await environment.run(self.step.create_job, self.order)
        return made


@pytest.fixture
async def creation(system: Ground, tmp_path: Path) -> Creation:
    """An attempt whose prompt is there and whose Job is not."""
    raw = context(agent_id=str(uuid.uuid4()))
    key = SealingKey.generate()
    request = prepare(raw, Sealer(key.public))
    given, opener, attempt = Given(request), Opener([key]), attempt_key(raw)
    bundling = PromptBundling(system.kubernetes, given, opener, tmp_path)
    prompt = await ActivityEnvironment().run(
        bundling.bundle_prompt, BundlePrompt(attempt=attempt, config=request.config)
    )
    profile = PodProfile(namespace="default", image="agent:test")
    order = CreateJob(attempt=attempt, config=request.config, profile=profile, prompt=prompt)
    return Creation(JobCreation(system.kubernetes, given, opener, PodPlan()), order)


@pytest.mark.parametrize("attempt", [pytest.param(2, id="another try"), pytest.param(1, id="after a reset")])
async def test_a_repeated_creation_adopts_the_job_that_is_there(creation: Creation, attempt: int) -> None:
    first, second = await creation.once(), await creation.once(attempt)
    assert (first.uid, first.adopted, second.adopted) == (second.uid, False, True)


async def test_a_job_whose_secret_somebody_deleted_is_adopted(system: Ground, creation: Creation) -> None:
    first = await creation.once()
    await system.kubernetes.delete_secret("default", creation.order.attempt.run_secret_name)
    second = await creation.once()
    assert (first.uid, second.adopted) == (second.uid, True)


@pytest.mark.parametrize("attempt", [pytest.param(2, id="another try"), pytest.param(1, id="after a reset")])
async def test_a_job_that_went_with_its_secrets_is_not_created_again(
    system: Ground, creation: Creation, attempt: int
) -> None:
    await creation.once()
    await ActivityEnvironment().run(Cleanup(system.kubernetes).finish, Finish(attempt=creation.order.attempt))
    with pytest.raises(JobDeletedExternally):
        await creation.once(attempt)
    assert await system.kubernetes.read_job("default", creation.order.attempt.job_name) is None


async def test_a_job_that_may_have_come_and_gone_is_not_created_again(system: Ground, creation: Creation) -> None:
    job = await creation.once()
    await system.kubernetes.delete_job(job.namespace, job.name, job.uid)

    class Later(KubernetesCluster):
        """The Secrets are still there, as if nobody had owned them, and older than a finished Job lives."""

        async def read_job(self, namespace: str, name: str) -> Any:  # noqa: ARG002 - the client's shape
            return None

        async def read_secret_metadata(self, namespace: str, name: str) -> Metadata:  # noqa: ARG002 - as above
            return Metadata(name=name, creation_timestamp=datetime.now(UTC) - timedelta(hours=1))

    later = Later.__new__(Later)
    later.__dict__.update(system.kubernetes.__dict__)
    with pytest.raises(ExitUnknown):
        await replace(creation, step=replace(creation.step, cluster=later)).once(attempt=2)


async def test_a_job_of_somebody_else_is_left_alone(system: Ground, creation: Creation) -> None:
    name = creation.order.attempt.job_name
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
    found = await system.kubernetes.read_job("default", name)
    assert found is not None
    assert found.metadata.uid == foreign.metadata.uid


async def test_a_retained_run_without_a_job_leaves_no_prompt(system: Ground, creation: Creation) -> None:
    finish = Finish(attempt=creation.order.attempt, retain=True)
    assert (await ActivityEnvironment().run(Cleanup(system.kubernetes).finish, finish)).deleted
    name = creation.order.attempt.prompt_secret_name
    assert await system.kubernetes.read_secret_metadata("default", name) is None
