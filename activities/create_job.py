"""Creates the Job of one attempt, once, whatever happens to the worker in between."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from temporalio import activity

from activities.requests import Requests
from cluster import api_proxy, manifest
from cluster.introspection import inherited_literals
from cluster.manifest import ApiProxy, Plan, PodSettings
from cluster.objects import Job, Metadata
from cluster.ownership import API_PROXY, belongs_to
from cluster.port import AlreadyExists, Cluster
from cluster.secrets import CONFIG_KEY
from contracts.errors import (
    ExitUnknown,
    ForeignObject,
    InvalidRequest,
    JobDeletedExternally,
    SealedFieldUnreadable,
)
from contracts.messages import CreateJob, JobRef
from contracts.request import RunRequest, Secrets
from opencode.command import command_line
from opencode.config import CLASHING, mcp_translation, runtime_config
from opencode.config import environment as opencode_environment
from paperclip.environment import absolute_url, api_url_warning
from paperclip.environment import environment as paperclip_environment
from paperclip.proxied import API_KEY, API_URL, TOOLS_TOKEN, Words, proxied
from paperclip.sealing import Opener

CONFIG_FILE: Final = f"{manifest.RUN_DIRECTORY}/secret/{CONFIG_KEY}"
RUNNER: Final = Path(manifest.__file__).with_name("runner.sh")
PROXY: Final = Path(api_proxy.__file__)
WORDS: Final = Words(key=api_proxy.KEY_PLACEHOLDER, tools=api_proxy.TOOLS_PLACEHOLDER)
WORKER_CONTAINER: Final = "worker"
"""In a pod of several containers, the one whose image has our Python (deploy/base/worker.yaml)."""


@dataclass(frozen=True)
class PodPlan:
    """What the worker's settings say about every agent pod.

    Attributes:
        inherit_env: glob patterns of literal variables of the worker's own pod that agents inherit.
        api_proxy_image: of the container through which agents speak to Paperclip; None: the image of the worker's own
            pod; empty: agents have their token in their environment.
        opencode_config: JSON file with a `provider` block and perhaps a `small_model`.
        page: the address of a run's page by its Paperclip run id, without a token: it goes into histories.
    """

    init_image: str = "busybox:1.36"
    inherit_env: tuple[str, ...] = ()
    paperclip_api_url: str | None = None
    api_proxy_image: str | None = None
    opencode_config: Path | None = None
    page: Callable[[str], str] | None = None


@dataclass(frozen=True)
class JobCreation:
    """Opens the sealed secrets; they go straight into a Kubernetes Secret."""

    cluster: Cluster
    requests: Requests
    opener: Opener
    settings: PodPlan

    @activity.defn
    async def create_job(self, order: CreateJob) -> JobRef:
        """The Job of this attempt: created, or adopted when an earlier try of this step has created it.

        An agent never runs twice for one attempt. A Job that is gone is not created again: its prompt Secret goes with
        it, and a run Secret older than a finished Job's shortest life says that a Job may have come and gone. The
        first try that also makes the run Secret need not look for what earlier ones have made.

        Raises:
            InvalidRequest: a field that only shows itself here, such as a label or an argument.
            SealedFieldUnreadable: the sealing key is another one.
            JobCreateFailed: Kubernetes refuses Job or Secret; `ForeignObject` when the name is taken.
            JobDeletedExternally: this attempt's Job existed and somebody deleted it.
            ExitUnknown: this attempt's Job may have existed; it is not known what became of it.
            ClusterUnavailable: the API server refused or timed out; Temporal tries again.
        """
        job = await self._job(order)
        page = self.settings.page(order.attempt.run.run_id) if self.settings.page else None
        return job.model_copy(update={"keeps_sessions": manifest.keeps_sessions(order), "page": page})

    async def _job(self, order: CreateJob) -> JobRef:
        if activity.info().attempt == 1:
            plan = await self._plan(order)
            if await self.cluster.create_secret(plan.run_secret):
                return await self._created(order, plan)
        return await self._repeated(order)

    async def _repeated(self, order: CreateJob) -> JobRef:
        """After an earlier try, or a reset of the run, which may have come to any point."""
        existing = await self.cluster.read_job(order.prompt.namespace, order.attempt.job_name)
        if existing is not None:
            return await self._adopted(order, existing)
        await self._check_that_none_existed(order)
        plan = await self._plan(order)
        await self.cluster.put_secret(plan.run_secret)
        return await self._created(order, plan)

    async def _created(self, order: CreateJob, plan: Plan) -> JobRef:
        """The Job, made after everything it needs, or the one that somebody else has just made."""
        namespace, name = order.prompt.namespace, order.attempt.job_name
        if plan.token_secret:
            await self.cluster.put_secret(plan.token_secret)
        if plan.claim:
            await self.cluster.ensure_claim(plan.claim)
        try:
            created = await self.cluster.create_job(plan.job)
        except AlreadyExists:
            winner = await self.cluster.read_job(namespace, name)
            if winner is None:
                raise JobDeletedExternally(f"Job {name} vanished while it was created") from None
            return await self._adopted(order, winner)
        job = reference(created).model_copy(update={"warnings": plan.warnings})
        if not await self._own_secrets(order, job):
            # an agent cannot start without its prompt: an earlier Job of this attempt took it along
            await self.cluster.delete_job(namespace, name, job.uid)
            raise JobDeletedExternally(f"the prompt of Job {name} is gone, so the Job existed before and was deleted")
        return job

    async def _adopted(self, order: CreateJob, existing: Job) -> JobRef:
        job = adopted(order, existing)
        await self._own_secrets(order, job)
        return job

    async def _own_secrets(self, order: CreateJob, job: JobRef) -> bool:
        """Lets the Job own its Secrets, so that nothing is left when it goes without us. False without a prompt."""
        await self.cluster.own_secret(job.namespace, order.attempt.run_secret_name, job)
        if job.rotates:
            await self.cluster.own_secret(job.namespace, order.attempt.token_secret_name, job)
        return await self.cluster.own_secret(job.namespace, order.attempt.prompt_secret_name, job)

    async def _check_that_none_existed(self, order: CreateJob) -> None:
        namespace, attempt = order.prompt.namespace, order.attempt
        prompt = await self.cluster.read_secret_metadata(namespace, attempt.prompt_secret_name)
        if prompt is None:
            raise JobDeletedExternally(f"Job {attempt.job_name} and its prompt are gone; it is not created again")
        earlier = await self.cluster.read_secret_metadata(namespace, attempt.run_secret_name)
        if earlier is not None and not order.config.retain_jobs and age(earlier) > shortest_life(order):
            raise ExitUnknown(f"Job {attempt.job_name} may have run and been removed; it is not created again")

    async def _plan(self, order: CreateJob) -> Plan:
        request = await self.requests.current()
        secrets, missed = self._secrets(order, request)
        own = await self.cluster.own_pod()
        settings = self._settings(order, own)
        inherited = inherited_literals(own, settings.inherit_env) if own else {}
        provided = await asyncio.to_thread(provider_settings, settings.opencode_config)
        plan = attempt_plan(order, request, secrets, inherited, provided, settings)
        _, lost = mcp_translation(secrets.mcp_servers)
        told = [f"MCP server {name} is neither local nor remote and was left out" for name in lost]
        unreachable = api_url_warning(settings.paperclip_api_url) if own else None
        return replace(plan, warnings=(*plan.warnings, *missed, *told, *([unreachable] if unreachable else [])))

    def _secrets(self, order: CreateJob, request: RunRequest) -> tuple[Secrets, tuple[str, ...]]:
        """The run's secrets, with the tokens of the run that has joined it; one that cannot be opened ends nothing."""
        secrets = self.opener.secrets(request)
        if order.joined is None:
            return secrets, ()
        try:
            later = self.opener.secrets(order.joined.sealed_secrets, order.joined.run_id)
        except SealedFieldUnreadable as error:
            return secrets, (f"run {order.joined.run_id} joined, but its token cannot be used: {error.message}",)
        return speaking_for(later, secrets), ()

    def _settings(self, order: CreateJob, own: Mapping[str, Any] | None) -> PodPlan:
        """The worker's, where the agent's configuration and the worker's own pod do not say better."""
        image = self.settings.api_proxy_image
        return replace(
            self.settings,
            paperclip_api_url=order.config.paperclip_api_url or self.settings.paperclip_api_url,
            api_proxy_image=image if image is not None else own_image(own),
        )


def attempt_plan(
    order: CreateJob,
    request: RunRequest,
    secrets: Secrets,
    inherited: dict[str, str],
    provided: dict[str, Any],
    settings: PodPlan,
) -> Plan:
    """Everything to create for one attempt. Pure."""
    config, directory = order.config, manifest.working_directory(order)
    variables = paperclip_environment(request, secrets, api_url=settings.paperclip_api_url, inherited=inherited)
    if secrets.run_id != request.run_id:
        variables["PAPERCLIP_RUN_ID"] = secrets.run_id
    servers, proxy = secrets.mcp_servers, None
    if settings.api_proxy_image and variables.get(API_KEY) and absolute_url(variables.get(API_URL, "")):
        led = proxied(variables, servers, WORDS)
        variables, servers = led.environment, led.mcp_servers
        proxy = ApiProxy(
            image=settings.api_proxy_image,
            script=PROXY.read_text(),
            upstream=led.upstream,
            run_id=secrets.run_id,
            token=led.token,
            tools_token=led.tools_token,
            rebased=led.rebased,
        )
    runtime = runtime_config(
        model=config.model,
        small_model=provided.get("small_model"),
        skip_permissions=config.dangerously_skip_permissions,
        mcp_servers=servers,
        provider_config=provided.get("provider"),
    )
    argv = command_line(
        model=config.model,
        directory=directory,
        title=f"{order.agent_name} {order.attempt.transcript}",
        session_id=order.session.session_id if order.session else None,
        variant=config.variant,
        extra_args=config.extra_args,
    )
    return manifest.plan(
        order,
        argv=argv,
        environment={
            **without_clashes(variables),
            **opencode_environment(config_file=CONFIG_FILE, directory=directory),
        },
        opencode_config=json.dumps(runtime),
        runner=RUNNER.read_text(),
        settings=PodSettings(init_image=settings.init_image),
        proxy=proxy,
    )


def speaking_for(later: Secrets, first: Secrets) -> Secrets:
    """The secrets of the run that the agent was started for, with the tokens of the one that it speaks for."""
    if not later.auth_token:
        return first
    tools = {name: value for name, value in later.paperclip_env.items() if name == TOOLS_TOKEN}
    return first.model_copy(
        update={
            "run_id": later.run_id,
            "auth_token": later.auth_token,
            "paperclip_env": {**first.paperclip_env, **tools},
        }
    )


def own_image(pod: Mapping[str, Any] | None) -> str | None:
    """The image of the worker's own container, which has Python; None when the pod does not tell which one that is."""
    containers = (pod or {}).get("spec", {}).get("containers") or []
    named = [each for each in containers if each.get("name") == WORKER_CONTAINER]
    (only,) = named or (containers if len(containers) == 1 else [{}])
    image = only.get("image")
    return image if isinstance(image, str) and image else None


def without_clashes(variables: dict[str, str]) -> dict[str, str]:
    """The agent's environment without what would change OpenCode's configuration behind our back."""
    return {name: value for name, value in variables.items() if name not in CLASHING}


def adopted(order: CreateJob, job: Job) -> JobRef:
    """The Job that is there, if its labels say that it is this attempt's.

    Raises:
        ForeignObject: it is somebody else's; it is left alone.
    """
    if not belongs_to(job.metadata, order.attempt):
        raise ForeignObject(f"Job {job.metadata.namespace}/{job.metadata.name} exists and is not this attempt's")
    return reference(job, adopted=True)


def reference(job: Job, *, adopted: bool = False) -> JobRef:
    """How later steps address this very Job."""
    return JobRef(
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        uid=job.metadata.uid,
        adopted=adopted,
        rotates=API_PROXY in job.metadata.annotations,
    )


def age(found: Metadata) -> timedelta:
    """Since the object was created; without a date it counts as old."""
    created = found.creation_timestamp
    return datetime.now(UTC) - created if created else timedelta.max


def shortest_life(order: CreateJob) -> timedelta:
    """How long a Job of this attempt exists at the least once it was created: its TTL counts from its end."""
    return max(timedelta(seconds=order.config.ttl_seconds_after_finished), manifest.SHORTEST_TTL)


def provider_settings(file: Path | None) -> dict[str, Any]:
    """The settings' OpenCode configuration file; empty without one.

    Raises:
        InvalidRequest: the file cannot be read or is not a JSON object.
    """
    if file is None:
        return {}
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"AGENT_RUNS_OPENCODE_CONFIG: {file} cannot be read: {type(error).__name__}") from None
    if not isinstance(content, dict):
        raise InvalidRequest(f"AGENT_RUNS_OPENCODE_CONFIG: {file} must hold a JSON object")
    return content
