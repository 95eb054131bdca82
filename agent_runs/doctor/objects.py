"""The objects of a run, tried by a dry run: the API server judges the very manifests that a run would create.

A Job that is accepted says nothing about its pod: Pod Security, quotas of pods and ServiceAccounts are judged when the
pod is created. So the pod is tried, too, where the worker may create one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_runs.agents.profile import AgentProfile
from agent_runs.contracts.errors import ClusterForbidden, RunError
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import CreateJob, PodProfile, PromptBundle
from agent_runs.contracts.start import Finding
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.attempt_plan import attempt_plan
from agent_runs.job.manifest import JobPlan
from agent_runs.job.pod_profile import PodOverrides, own_data_claim
from agent_runs.job.pod_source import read_profile
from agent_runs.job.redactions import WorkerValues
from agent_runs.job.secrets import prompt_secret
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import AlreadyExists
from agent_runs.kube.objects import Manifest
from agent_runs.paperclip.preparation import Preparation


@dataclass(frozen=True)
class CheckedAgent:
    """An agent whose configuration is correct, as its next run would find it."""

    run: RunKey
    prepared: Preparation
    values: WorkerValues


@dataclass(frozen=True)
class Planned:
    """What an agent's next run would create.

    Attributes:
        paperclip: Paperclip's address for pods, if there is one.
        worker_has_data: the worker's own pod mounts the data volume.
        agent: None: OpenCode.
        workspaces: the address for workspaces, if the agent's is carried.
    """

    input: CreateJob
    plan: JobPlan
    profile: PodProfile
    paperclip: str | None
    worker_has_data: bool
    agent: AgentProfile | None = None
    workspaces: str | None = None

    @property
    def namespace(self) -> str:
        return str(self.plan.job["metadata"]["namespace"])

    @property
    def image(self) -> str:
        return self.input.config.image or self.profile.image


@dataclass(frozen=True)
class Objects:
    """Tries the objects of an agent's run.

    Attributes:
        settings: the worker's, for agent pods.
        overrides: what of the worker's own pod they replace.
        workspaces: the address at which pods reach workspaces.
    """

    cluster: Cluster
    settings: AgentPodSettings
    overrides: PodOverrides
    workspaces: str | None = None

    async def planned(self, agent: CheckedAgent) -> "Planned":
        """What the agent's next run would create.

        Raises:
            RunError: no manifest can be built, as in a run; or what agents inherit cannot be read or referred to; or
                the API server does not answer.
        """
        own_pod = await self.cluster.own_pod()
        config, secrets, values = agent.prepared.request.config, agent.prepared.secrets, agent.values
        settings = self.settings.completed(config, own_pod)
        profile = await read_profile(self.cluster, config, self.overrides, settings.inheritance)
        input = _create_job_input(agent, profile)
        plan = attempt_plan(input, secrets, values.inherited, values.opencode, settings)
        mounted = own_data_claim(own_pod) is not None if own_pod else False
        program = self.settings.agents.get(config.agent)
        return Planned(
            input=input,
            plan=plan,
            profile=profile,
            paperclip=settings.paperclip_api_url,
            worker_has_data=mounted,
            agent=program,
            workspaces=self.workspaces if config.workspace == "carried" else None,
        )

    async def findings(self, agent: CheckedAgent) -> Sequence[Finding]:
        """What the API server refuses of the run's objects, whether the data volume's claim and the StorageClass of the
        agent's own volume are there, and the warnings that every run of this agent has.

        Raises:
            RunError: no manifest can be built, as in a run; or the API server does not answer.
        """
        planned = await self.planned(agent)
        profile = planned.profile
        hide = agent.values.redaction(agent.prepared.secrets).hide
        refused = [
            Finding.error(error.code, hide(error.message), error.next_step)
            for each in _objects(planned.input, planned.plan)
            if (error := await self._refusal(each)) is not None
        ]
        claim = [*await self._data_claim(profile), *await self._storage_class(planned)]
        found = [*refused, *(each for each in claim if each.level == "error")]
        accepted = f"The API server accepts the objects of a run in namespace {profile.namespace}"
        notes = [Finding(code="run_configuration", level="warn", message=hide(note)) for note in planned.plan.warnings]
        warnings = [*(each for each in claim if each.level != "error"), *notes]
        return [*(found or [Finding(code="run_objects", level="info", message=accepted)]), *warnings]

    async def _refusal(self, manifest: Manifest) -> RunError | None:
        try:
            await self.cluster.dry_run(manifest)
        except (AlreadyExists, ClusterForbidden):  # a missing permission is named by the check of permissions
            return None
        except RunError as error:
            return error
        return None

    async def _storage_class(self, planned: Planned) -> Sequence[Finding]:
        """Whether the StorageClass exists of a volume that the agent's first run would create."""
        own = planned.plan.database
        name = own["spec"].get("storageClassName") if own else None
        if not own or not name:
            return []
        try:
            if await self.cluster.read_claim(planned.namespace, own["metadata"]["name"]) is not None:
                return []
            if await self.cluster.has_storage_class(name):
                return []
        except ClusterForbidden:
            message = f"Whether StorageClass {name} exists was not checked: the worker may not read StorageClasses"
            hint = "Add deploy/components/storage-classes, or look yourself: kubectl get storageclass."
            return [Finding(code="storage_class_unchecked", level="info", message=message, hint=hint)]
        message = f"StorageClass {name}, for the agent's own volume, does not exist"
        return [Finding.error("storage_class_missing", message, "Set agentDbStorageClass to one that does.")]

    async def _data_claim(self, profile: PodProfile) -> Sequence[Finding]:
        name, namespace = profile.data_claim, profile.namespace
        if name is None:
            return []
        try:
            claim = await self.cluster.read_claim(namespace, name)
        except ClusterForbidden:  # named by the check of permissions
            return []
        what = f"PersistentVolumeClaim {name}, the data volume,"
        if claim is None:
            hint = "Create it there, on the same storage as the worker's, or set AGENT_RUNS_DATA_CLAIM to another."
            message = f"{what} does not exist in namespace {namespace}"
            return [Finding.error("data_claim_missing", message, hint)]
        if "ReadWriteMany" not in claim.spec.access_modes:
            hint = "Take a claim that is ReadWriteMany where agents run on several nodes."
            message = f"{what} is {' and '.join(claim.spec.access_modes)}: all pods with it have to be on one node"
            return [Finding(code="data_claim_one_node", level="warn", message=message, hint=hint)]
        return []


def _create_job_input(agent: CheckedAgent, profile: PodProfile) -> CreateJob:
    attempt, request = AttemptKey(run=agent.run), agent.prepared.request
    prompt = PromptBundle(namespace=profile.namespace, secret_name=attempt.prompt_secret_name, sha256="", size=0)
    return CreateJob(attempt=attempt, request=request, profile=profile, prompt=prompt)


def _objects(input: CreateJob, plan: JobPlan) -> Iterator[Mapping[str, Any]]:
    yield prompt_secret(input.attempt, input.prompt.namespace, b"check")
    yield plan.run_secret
    if plan.database:
        yield plan.database
    yield plan.job
    yield _pod(plan.job)


def _pod(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod that the Job's controller would create."""
    template, metadata = job["spec"]["template"], job["metadata"]
    own = {**template["metadata"], "name": f"{metadata['name'][:57]}-check", "namespace": metadata["namespace"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": own, "spec": template["spec"]}
