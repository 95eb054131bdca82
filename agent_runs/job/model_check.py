"""Whether OpenCode in an agents' image knows a model: asked once for each image and provider, before a Job is created.

Only for models of OpenCode's own list: what a configuration declares, and what plugins or a repository's configuration
may add, is not asked about. The pod that is asked is placed and secured as the run's, but has none of its volumes,
variables and secrets. If it gives no answer, the run goes on: OpenCode itself refuses an unknown model.
Source: OpenCode 1.18.33, observed: `opencode models PROVIDER` lists what it would accept, if the provider has any key.
"""

import asyncio
import copy
import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from time import monotonic
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog

from agent_runs.agents.opencode.switches import switched_variables
from agent_runs.contracts.errors import ModelUnknown, RunError
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import JobRef
from agent_runs.contracts.pod import AGENT_CONTAINER, HOME_DIRECTORY
from agent_runs.job.manifest import JobPlan, literal
from agent_runs.job.reference import job_ref
from agent_runs.kube.ended_pod import ANSWER_LIMIT, ended_pod
from agent_runs.kube.objects import Pod
from agent_runs.kube.ownership import owner_labels
from agent_runs.kube.port import AlreadyExists, Cluster, LogCut, LogRefused, Manifest

log: Final[Any] = structlog.get_logger()

LISTED_FOR: Final = timedelta(hours=24)
"""How long a list shows that a model is known."""
MISSING_FOR: Final = timedelta(minutes=10)
"""How long a list shows that one is not, and how long no answer keeps from asking again: images and tags change."""
LIST_BYTES: Final = 256 * 1024
"""Of a provider's list; the longest has some 20 KB."""
MAX_LISTS: Final = 500
READ_TIMEOUT: Final = timedelta(seconds=10)
NEAREST: Final = 3
MODEL_LIMIT: Final = 100
"""Characters of a model's name in a message."""


@dataclass(frozen=True)
class _List:
    """The models that OpenCode lists for a provider; None: there was no answer."""

    models: frozenset[str] | None
    since: float

    def answers(self, model: str) -> bool:
        known = self.models is not None and model in self.models
        return monotonic() - self.since < (LISTED_FOR if known else MISSING_FOR).total_seconds()


@dataclass(frozen=True)
class ModelCheck:
    """The lists that this worker has asked for; of runs that need the same one only the first asks."""

    cluster: Cluster
    _lists: dict[tuple[str, str], _List] = field(default_factory=dict)
    _locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def check(self, plan: JobPlan, attempt: AttemptKey) -> None:
        """Asks, unless the plan's model is not one of OpenCode's own list or the answer is known.

        Raises:
            ModelUnknown: OpenCode in the agents' image does not list the model.
        """
        model = plan.listed_model
        if model is None:
            return
        key = image, provider = agent_container(plan.job)["image"], model.partition("/")[0]
        async with self._locks.setdefault(key, asyncio.Lock()):
            found = self._lists.get(key)
            if found is None or not found.answers(model):
                found = self._keep(key, _List(await self._ask(plan, attempt, provider), monotonic()))
        if found.models is not None and model not in found.models:
            raise ModelUnknown(_refusal(model, provider, image, found.models))

    def _keep(self, key: tuple[str, str], found: _List) -> _List:
        if len(self._lists) >= MAX_LISTS:
            self._lists.clear()
        self._lists[key] = found
        return found

    async def _ask(self, plan: JobPlan, attempt: AttemptKey, provider: str) -> frozenset[str] | None:
        """The provider's models, none for an unknown provider; None without an answer."""
        job = None
        try:
            job = await self._created(question(plan, attempt, provider))
            ended = await ended_pod(self.cluster, job)
            if isinstance(ended, Pod):
                if (models := listed(await self._output(ended), provider)) is not None:
                    return models
                reason = "it printed no list"
            else:
                reason = ended if isinstance(ended, str) else ended.message
        except (RunError, LogRefused, LogCut) as error:
            reason = str(error)
        finally:
            if job is not None:
                with suppress(RunError):
                    await self.cluster.delete_job(job.namespace, job.name, job.uid, timedelta(seconds=1))
        log.warning("models.unlisted", provider=provider[:MODEL_LIMIT], reason=reason)
        return None

    async def _created(self, manifest: Manifest) -> JobRef:
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        try:
            return job_ref(await self.cluster.create_job(manifest))
        except AlreadyExists:  # of an earlier activity attempt
            existing = await self.cluster.read_job(namespace, name)
            if existing is None:
                raise
            return job_ref(existing)

    async def _output(self, pod: Pod) -> str:
        output = b""
        async with self.cluster.open_log(
            pod.metadata.namespace, pod.metadata.name, AGENT_CONTAINER, follow=False, idle_timeout=READ_TIMEOUT
        ) as pieces:
            async for piece in pieces:
                output += piece
                if len(output) > LIST_BYTES:
                    break
        return "\n".join(
            line.partition(" ")[2] for line in output.decode(errors="replace").splitlines()
        )  # after stamps


def question(plan: JobPlan, attempt: AttemptKey, provider: str) -> Manifest:
    """The Job that asks: the run's own without volumes, variables, sidecar and init container.

    The key that it gives the provider is none: without any, OpenCode does not list the provider.
    """
    image = agent_container(plan.job)["image"]
    digest = hashlib.sha256(f"{attempt.run.run_id}:{image}:{provider}".encode()).hexdigest()[:16]
    labels = owner_labels(
        AttemptKey(run=RunKey(agent_id="model-check", company_id=attempt.run.company_id, run_id=digest))
    )
    job: dict[str, Any] = copy.deepcopy(plan.job)
    job["metadata"] |= {"name": f"agent-models-{digest}", "labels": labels, "annotations": {}}
    job["spec"] |= {"activeDeadlineSeconds": int(ANSWER_LIMIT.total_seconds()), "ttlSecondsAfterFinished": 60}
    template = job["spec"]["template"]
    template["metadata"] = {"labels": labels, "annotations": {}}
    pod = template["spec"]
    pod.pop("initContainers", None)
    pod |= {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "home", "emptyDir": {}}],
    }
    kept = ("name", "image", "imagePullPolicy", "resources", "securityContext")
    agent = agent_container(plan.job)
    settings = {"provider": {provider: {"options": {"apiKey": "none"}}}, "enabled_providers": [provider]}
    variables = {
        "HOME": HOME_DIRECTORY,
        **switched_variables(),
        "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
    }
    pod["containers"] = [
        {
            **{key: agent[key] for key in kept if key in agent},
            "command": ["opencode", "models", literal(provider)],
            "env": [{"name": name, "value": literal(value)} for name, value in variables.items()],
            "volumeMounts": [{"name": "home", "mountPath": HOME_DIRECTORY}],
        }
    ]
    return job


def agent_container(job: Manifest) -> dict[str, Any]:
    """The agent's container of a run's Job."""
    containers: list[dict[str, Any]] = job["spec"]["template"]["spec"]["containers"]
    return next(each for each in containers if each["name"] == AGENT_CONTAINER)


def listed(output: str, provider: str) -> frozenset[str] | None:
    """The models in what `opencode models PROVIDER` has printed; None if that is no answer."""
    models = frozenset(line for line in output.splitlines() if line.startswith(f"{provider}/"))
    if models or f"Provider not found: {provider}" in output:
        return models
    return None


def _refusal(model: str, provider: str, image: str, models: frozenset[str]) -> str:
    asked = f"model: OpenCode in image {image}"
    if not models:
        return f"{asked} has no provider {provider[:MODEL_LIMIT]}"
    nearest = get_close_matches(model, models, NEAREST, cutoff=0.4) or sorted(models)[:NEAREST]
    return f"{asked} does not list {model[:MODEL_LIMIT]}; the nearest are {', '.join(nearest)}"
