"""Creates the Job of one attempt exactly once, whatever happens to the worker meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from temporalio import activity

from agent_runs.agents.opencode.config import translate_mcp_servers
from agent_runs.contracts.errors import (
    ClusterForbidden,
    ClusterUnavailable,
    ExitUnknown,
    ForeignObject,
    JobCreateFailed,
    JobDeletedExternally,
    QuotaUsedUp,
    SealedFieldUnreadable,
)
from agent_runs.contracts.messages import CreateJob, JobRef
from agent_runs.contracts.request import Secrets
from agent_runs.job.acp_plan import capabilities_of
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.attempt_plan import attempt_plan, replace_tokens
from agent_runs.job.carried import Carried, CarriedWorkspaces
from agent_runs.job.manifest import MIN_TTL, JobPlan
from agent_runs.job.redactions import WorkerValues
from agent_runs.job.resting_pods import NotAsked, RestingPods, release_resting_pod
from agent_runs.job.volumes import keeps_sessions
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import AlreadyExists
from agent_runs.kube.objects import Job, Metadata
from agent_runs.kube.ownership import belongs_to, job_ref
from agent_runs.kube.previous_runs import remove_previous_runs
from agent_runs.paperclip.environment import api_url_warning
from agent_runs.paperclip.preparation import Preparations
from agent_runs.paperclip.sealing import Opener

MAX_NAMED_PODS: Final = 5
EXCEEDED_QUOTA: Final = "exceeded quota"
"""In what the API server says of an object for which a ResourceQuota has no room."""


@dataclass(frozen=True)
class CreateJobActivity:
    """Puts the run's secrets into a Kubernetes Secret, nowhere else.

    Attributes:
        worker_values: as `Redactions.worker_values`.
        resting: claims a pod that rests.
        carried: begins a workspace that is carried; None: this worker has no store for one.
    """

    cluster: Cluster
    preparations: Preparations
    opener: Opener
    settings: AgentPodSettings
    worker_values: Callable[[], Awaitable[WorkerValues]]
    resting: RestingPods
    carried: CarriedWorkspaces | None = None

    @activity.defn
    async def create_job(self, input: CreateJob) -> JobRef:
        """Creates the Job of this attempt, or adopts the one that an earlier activity attempt has created.

        Before the first attempt's Job it ends the pods of the agent's previous runs and waits until none of them runs.
        If one of them rests that is equal to what would be created, it is claimed instead, and nothing is created.
        An agent never runs twice for one attempt. A deleted Job is not created a second time: its prompt Secret is
        deleted with it, and a run Secret older than a finished Job's shortest lifetime shows that a Job may have
        existed. A first activity attempt that creates the run Secret need not search for earlier objects.

        Raises:
            InvalidRequest: a field that can only be checked here, such as a label or an argument; or more secrets than
                can be kept out of the transcript.
            SealedFieldUnreadable: sealed with a key that this worker does not hold.
            JobCreateFailed: Kubernetes refused Job or Secret. `ForeignObject`: the name belongs to another object.
            QuotaUsedUp: a quota has no room; retried until the time-out of a pod's schedule is over.
            PodLost: a pod that was to be claimed was lost, and may have got the prompt.
            JobDeletedExternally: this attempt's Job existed and was deleted.
            ExitUnknown: this attempt's Job may have existed; how it ended is unknown.
            ClusterUnavailable: the API server refused or timed out; retried.
            WorkspaceNotCarried: the workspace is not in its store, or what is there was changed.
            WorkspaceStoreUnavailable: that store does not answer; retried.
        """
        plan, notes = await self._plan(input) if activity.info().attempt == 1 else None, list[str]()
        try:
            if claimed := await self._claim(input, plan):
                return await self._completed(claimed, input)
        except NotAsked as reason:
            notes.append(str(reason))
        if input.attempt.attempt == 1 and (ended := await self._remove_previous_runs(input)):
            notes.append(f"pods of previous runs were ended: {', '.join(ended[:MAX_NAMED_PODS])}")
        try:
            job = await self._create_or_adopt(input, plan)
        except JobCreateFailed as refused:
            if EXCEEDED_QUOTA not in refused.message:
                raise
            raise await self._refused_by_quota(input, refused.message) from None
        return await self._completed(job.model_copy(update={"warnings": (*job.warnings, *notes)}), input)

    async def _claim(self, input: CreateJob, plan: JobPlan | None) -> JobRef | None:
        if plan is not None:
            return await self.resting.claim(input, plan)
        return await self.resting.again(input, partial(self._plan, input))

    async def _completed(self, job: JobRef, input: CreateJob) -> JobRef:
        page = self.settings.page(input.attempt.run) if self.settings.page else None
        joined = input.joined if await asyncio.to_thread(self._can_open, input) else None
        kept = keeps_sessions(input) and capabilities_of(input.config, self.settings.agents).resumes
        carried = await self._carried(input)
        restored = carried.restored if carried else None
        known = {"keeps_sessions": kept, "page": page, "joined": joined, "restored": restored}
        return job.model_copy(update=known)

    async def _carried(self, input: CreateJob) -> Carried | None:
        if input.config.workspace != "carried" or self.carried is None:
            return None
        return await self.carried.begin(input)

    def _can_open(self, input: CreateJob) -> bool:
        """Whether the pod has the tokens of the run that has joined, so that they must be kept out of its output."""
        try:
            return input.joined is not None and bool(self.opener.tokens(input.joined, input.attempt.run))
        except SealedFieldUnreadable:
            return False

    async def _remove_previous_runs(self, input: CreateJob) -> tuple[str, ...]:
        return await remove_previous_runs(
            self.cluster,
            input.prompt.namespace,
            input.attempt.run,
            grace=timedelta(seconds=input.config.grace_sec),
            progress=activity.heartbeat,
        )

    async def _create_or_adopt(self, input: CreateJob, plan: JobPlan | None) -> JobRef:
        if plan is not None and await self.cluster.create_secret(plan.run_secret):
            return await self._create(input, plan)
        return await self._continue_earlier_attempt(input)

    async def _refused_by_quota(self, input: CreateJob, message: str) -> JobCreateFailed:
        """The failure, after making room as for a pod that a quota refuses.

        The run Secret goes, because its age would show that a Job may have existed, and none has.
        """
        limit = input.config.schedule_timeout_sec
        if datetime.now(UTC) - activity.info().scheduled_time >= timedelta(seconds=limit):
            return JobCreateFailed(f"Timed out waiting for room in a quota ({limit}s): {message}")
        namespace = input.prompt.namespace
        with suppress(ClusterForbidden, ClusterUnavailable):
            await release_resting_pod(self.cluster, namespace, input.attempt.transcript)
        await self.cluster.delete_secret(namespace, input.attempt.run_secret_name)
        return QuotaUsedUp(message)

    async def _continue_earlier_attempt(self, input: CreateJob) -> JobRef:
        """After an earlier activity attempt, or a reset of the run, which may have stopped at any point."""
        existing = await self.cluster.read_job(input.prompt.namespace, input.attempt.job_name)
        if existing is not None:
            return await self._adopt(input, existing)
        await self._check_that_none_existed(input)
        plan = await self._plan(input)
        await self.cluster.put_secret(plan.run_secret)
        return await self._create(input, plan)

    async def _create(self, input: CreateJob, plan: JobPlan) -> JobRef:
        """Creates everything the Job needs and then the Job, or adopts one that was created meanwhile."""
        namespace, name = input.prompt.namespace, input.attempt.job_name
        if plan.database:
            await self.cluster.ensure_claim(plan.database)
        try:
            created = await self.cluster.create_job(plan.job)
        except AlreadyExists:
            existing = await self.cluster.read_job(namespace, name)
            if existing is None:
                raise JobDeletedExternally(f"Job {name} vanished while it was created") from None
            return await self._adopt(input, existing)
        job = job_ref(created).model_copy(update={"warnings": plan.warnings})
        if not await self._set_owner_of_secrets(input, job):
            # an earlier Job of this attempt was deleted together with its prompt; no agent can start without one
            await self.cluster.delete_job(namespace, name, job.uid)
            raise JobDeletedExternally(f"the prompt of Job {name} is missing: the Job existed before and was deleted")
        return job

    async def _adopt(self, input: CreateJob, existing: Job) -> JobRef:
        job = adopted_job(input, existing)
        await self._set_owner_of_secrets(input, job)
        return job

    async def _set_owner_of_secrets(self, input: CreateJob, job: JobRef) -> bool:
        """Makes the Job own its Secrets, so that Kubernetes deletes them with it. False when the prompt is missing."""
        await self.cluster.set_secret_owner(job.namespace, input.attempt.run_secret_name, job)
        return await self.cluster.set_secret_owner(job.namespace, input.attempt.prompt_secret_name, job)

    async def _check_that_none_existed(self, input: CreateJob) -> None:
        namespace, attempt = input.prompt.namespace, input.attempt
        prompt = await self.cluster.read_secret_metadata(namespace, attempt.prompt_secret_name)
        if prompt is None:
            raise JobDeletedExternally(
                f"Job {attempt.job_name} and its prompt were deleted; it is not created a second time"
            )
        earlier = await self.cluster.read_secret_metadata(namespace, attempt.run_secret_name)
        if earlier is not None and not input.config.retain_jobs and age(earlier) > shortest_lifetime(input):
            raise ExitUnknown(f"Job {attempt.job_name} may have run and been removed; it is not created a second time")

    async def _plan(self, input: CreateJob) -> JobPlan:
        prepared = await self.preparations.current()
        secrets, secrets_warnings = await asyncio.to_thread(self._secrets, input, prepared.secrets)
        own_pod = await self.cluster.own_pod()
        settings = self.settings.completed(input.config, own_pod)
        values = await self.worker_values()
        await asyncio.to_thread(values.redaction, secrets)  # refused here, and not once the agent has begun to write
        carried = await self._carried(input)
        config = carried.config if carried else None
        plan = attempt_plan(input, secrets, values.inherited, values.opencode, settings, config)
        _, unsupported = translate_mcp_servers(secrets.mcp_servers)
        mcp_warnings = [f"MCP server {name} is neither local nor remote and was left out" for name in unsupported]
        url_warning = api_url_warning(settings.paperclip_api_url) if own_pod else None
        warnings = (*plan.warnings, *secrets_warnings, *values.warnings(secrets), *mcp_warnings)
        return replace(plan, warnings=(*warnings, *([url_warning] if url_warning else [])))

    def _secrets(self, input: CreateJob, secrets: Secrets) -> tuple[Secrets, tuple[str, ...]]:
        """The run's secrets, with the tokens of the run that has joined it; if those cannot be opened, a warning."""
        joined = input.joined
        if joined is None:
            return secrets, ()
        try:
            tokens = self.opener.tokens(joined, input.attempt.run)
        except SealedFieldUnreadable as error:
            return secrets, (f"run {joined.run_id} joined, but its token cannot be used: {error.message}",)
        return replace_tokens(secrets, joined.run_id, tokens), ()


def adopted_job(input: CreateJob, job: Job) -> JobRef:
    """References an existing Job, if its labels show that it is this attempt's.

    Raises:
        ForeignObject: it is not this attempt's, and is left alone.
    """
    if not belongs_to(job.metadata, input.attempt):
        raise ForeignObject(f"Job {job.metadata.namespace}/{job.metadata.name} exists and is not this attempt's")
    return job_ref(job, adopted=True)


def age(metadata: Metadata) -> timedelta:
    """Time since the object was created; without a date it counts as old."""
    created = metadata.creation_timestamp
    return datetime.now(UTC) - created if created else timedelta.max


def shortest_lifetime(input: CreateJob) -> timedelta:
    """How long a Job of this attempt exists at least after its creation: its TTL counts from its end."""
    return max(timedelta(seconds=input.config.ttl_seconds_after_finished), MIN_TTL)
