"""The Job of one attempt, and the other objects of the attempt, as pure functions.

Nothing secret is in the Job: the prompt is in one Secret; environment values, OpenCode's configuration and the runner
are in another. Environment variables refer to it by `secretKeyRef`, whose values Kubernetes takes as they are; only in
literals and arguments it replaces `$(NAME)`, so every `$` is doubled there, which it reads as one `$`.
Where this differs from the existing adapters, docs/deviations.md states why.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from agent_runs.contracts.identity import AttemptKey, label_value
from agent_runs.contracts.messages import CreateJob, PodProfile
from agent_runs.contracts.pod import PROMPT_FILE, SIDECAR_CONTAINER
from agent_runs.contracts.request import RunConfig
from agent_runs.job.agent_pod import (
    AgentPod,
    AgentPodSettings,
    ApiProxy,
    Driven,
    is_opencode,
    working_directory,
)
from agent_runs.job.containers import (
    agent_container,
    fixed_environment,
    init_container,
    restoring_container,
    sidecar_container,
)
from agent_runs.job.placement import (
    extra_annotations,
    extra_labels,
    node_selector,
    resources,
    tolerations,
)
from agent_runs.job.secrets import (
    SCRIPT_KEYS,
    SERVE_KEY,
    SIDECAR_KEY,
    TURN_KEY,
    UPSTREAM_KEY,
    WORKSPACE_KEY,
    run_secret,
    script,
    token_files,
)
from agent_runs.job.volumes import database_claim, volumes
from agent_runs.kube.objects import amount
from agent_runs.kube.ownership import API_PROXY, TTL, owner_labels
from agent_runs.pod.archive import sidecar_archive

SHUTDOWN_MARGIN: Final = timedelta(seconds=10)
"""What runner and sidecar get after the agent's grace, to end processes and to write the last frame."""
DEADLINE_MARGIN: Final = timedelta(minutes=30)
"""After timeout and grace, before Kubernetes ends the Job: its deadline includes scheduling and image pulls."""
REST_MARGIN: Final = timedelta(minutes=5)
"""Before the end of that margin no pod rests any more: the deadline does not begin anew with the next run."""
MAX_AGE: Final = timedelta(hours=12)
"""Of a pod whose Job has no deadline."""
MIN_TTL: Final = timedelta(seconds=60)
"""A finished Job must live until its log and exit code have been read."""

_NAME_LIMIT: Final = 1000


@dataclass(frozen=True)
class JobPlan:
    """The objects that have to exist for one attempt.

    Attributes:
        job: the Job; holds no secret.
        run_secret: must exist before the Job; its values must never be logged.
        database: a PersistentVolumeClaim to ensure before the Job, when the agent has a database of its own.
        warnings: for people.
        claim: what a pod that rests needs for this attempt, if one may be used: see `agent_runs.job.resting_pods`.
    """

    job: dict[str, Any]
    run_secret: dict[str, Any] = field(repr=False)
    database: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    claim: Mapping[str, Any] | None = field(default=None, repr=False)


def plan_job(
    input: CreateJob,
    *,
    argv: Sequence[str],
    environment: Mapping[str, str],
    opencode_config: str | None,
    settings: AgentPodSettings,
    proxy: ApiProxy | None = None,
    driven: Driven | None = None,
    skills: Mapping[str, str] | None = None,
    carried: bytes | None = None,
) -> JobPlan:
    """Return everything to create for one attempt.

    Args:
        argv: the agent's command line, such as `opencode run --format json ...`.
        environment: what the agent gets, already merged, in order; secret.
        opencode_config: the text of its `opencode.json`; secret, since MCP servers have tokens. None: of another agent.
        proxy: how the agent reaches Paperclip through the sidecar; None: it uses its own environment.
        driven: how the sidecar drives the agent; None: `argv` runs as it is.
        skills: texts by the paths that their files have below `SKILLS_DIRECTORY`.
        carried: how the pod reaches its carried workspace; None: it has none.

    Raises:
        InvalidRequest: names the field and the remedy.
        JobCreateFailed: the content does not fit into a Secret.
    """
    namespace = input.prompt.namespace
    labels, warnings = _labels(input)
    fixed = fixed_environment(input)
    variables = {name: value for name, value in environment.items() if name not in fixed}
    files = {**{name: script(name) for name in SCRIPT_KEYS}, SIDECAR_KEY: sidecar_archive()}
    skill_keys = {path: f"skill-{number}" for number, path in enumerate(skills or {})}
    files |= {skill_keys[path]: text.encode() for path, text in (skills or {}).items()}
    pod = AgentPod(input, ("--", *argv), variables, settings, proxy, driven, skill_keys, carried is not None)
    claim = None
    if carried is not None:
        files[WORKSPACE_KEY] = carried
    if proxy:
        files[UPSTREAM_KEY] = proxy.upstream.encode()
    if driven:
        files |= {SERVE_KEY: driven.script, **driven.files}
        turn = {"directory": working_directory(input), **driven.turn}
        rest: dict[str, Any] = {}
        if driven.keep_warm:
            same = _same_pod(replace(pod, argv=argv), opencode_config, files, driven.keep_warm)
            rest = {"keep_warm": driven.keep_warm, "max_age": _max_age(input.config), "pod": same}
            rest |= {"variables": sorted(run_variables(variables)), "max_memory": _requested_memory(input.config)}
            claim = _claim(turn, same, variables, proxy)
        files[TURN_KEY] = json.dumps({"prompt": PROMPT_FILE, **turn, **rest}).encode()
    if proxy:
        files |= token_files(proxy.run_id, proxy.token, proxy.tools_token)
    return JobPlan(
        job=_job(input, namespace, labels, _pod_spec(pod), proxied=proxy is not None),
        run_secret=run_secret(input.attempt, namespace, variables, opencode_config, files),
        database=database_claim(input),
        warnings=warnings,
        claim=claim,
    )


def run_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are about one run; all others are the agent's."""
    return {name: value for name, value in environment.items() if name.startswith("PAPERCLIP_")}


def _same_pod(pod: AgentPod, opencode_config: str | None, files: Mapping[str, bytes], keep_warm: int) -> str:
    """Digest of all that a pod is made of, but for what is about one run: equal ones may stand in for each other.

    Only OpenCode's command line is about one run, and its server is started by none of it.
    """
    input = pod.input
    run = input.attempt.run.model_copy(update={"run_id": ""})
    rest = run_variables(pod.environment)
    own = {name: value for name, value in pod.environment.items() if name not in rest}
    anonymous = replace(
        pod,
        input=input.model_copy(update={"attempt": AttemptKey(run=run)}),
        argv=() if is_opencode(input) else pod.argv,
        environment=own,
    )
    extra, _ = extra_labels(input.config)
    parts = {
        "pod": _pod_spec(anonymous),
        "metadata": [input.prompt.namespace, extra, extra_annotations(input.config), input.config.pod_template],
        "environment": own,
        "opencode": opencode_config,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "limits": [_time_limits(input.config), keep_warm],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _requested_memory(config: RunConfig) -> int:
    """Bytes that the scheduler keeps free for the agent."""
    return int(amount(resources(config.resources)["requests"]["memory"]))


def _max_age(config: RunConfig) -> int:
    """Seconds after which a pod does not rest any more: its Job's deadline does not begin anew with a run."""
    return _seconds(DEADLINE_MARGIN - REST_MARGIN if config.timeout_sec else MAX_AGE)


def _claim(
    turn: Mapping[str, Any], same: str, environment: Mapping[str, str], proxy: ApiProxy | None
) -> dict[str, Any]:
    variables, paths = run_variables(environment), proxy.path_variables if proxy else ()
    return {
        "pod": same,
        "turn": dict(turn),
        "environment": {name: value for name, value in variables.items() if name not in paths},
        "paths": {name: value for name, value in variables.items() if name in paths},
        "tokens": {"token": proxy.token, "run_id": proxy.run_id, "tools_token": proxy.tools_token} if proxy else {},
    }


def _labels(input: CreateJob) -> tuple[dict[str, str], tuple[str, ...]]:
    extra, warnings = extra_labels(input.config)
    identifiers = {
        "paperclip.io/adapter-type": "opencode_k8s",
        "paperclip.io/task-id": label_value(input.request.task_id or ""),
        "paperclip.io/session-id": label_value(input.session.session_id if input.session else ""),
    }
    return {
        **extra,
        **owner_labels(input.attempt),
        **{key: value for key, value in identifiers.items() if value},
    }, warnings


def _job(
    input: CreateJob, namespace: str, labels: dict[str, str], pod: dict[str, Any], *, proxied: bool
) -> dict[str, Any]:
    annotations = {
        "paperclip.io/adapter-type": "opencode_k8s",
        "paperclip.io/agent-name": input.request.agent.name[:_NAME_LIMIT],
    }
    ours = {"kubectl.kubernetes.io/default-container": SIDECAR_CONTAINER}
    overlay = (input.config.pod_template or {}).get("metadata", {}).get("labels", {})
    template = {"labels": {**overlay, **labels}, "annotations": {**extra_annotations(input.config), **ours}}
    if proxied:
        annotations[API_PROXY] = SIDECAR_CONTAINER
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": input.attempt.job_name,
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            # a pod that is being deleted must not be replaced while it still runs (Kubernetes 1.29 and later)
            "podReplacementPolicy": "Failed",
            **_time_limits(input.config),
            "template": {"metadata": template, "spec": pod},
        },
    }


def _time_limits(config: RunConfig) -> dict[str, int]:
    limits: dict[str, int] = {}
    if config.timeout_sec > 0:
        limits["activeDeadlineSeconds"] = config.timeout_sec + config.grace_sec + _seconds(DEADLINE_MARGIN)
    if not config.retain_jobs:
        limits[TTL] = max(config.ttl_seconds_after_finished, _seconds(MIN_TTL))
    return limits


def _pod_spec(pod: AgentPod) -> dict[str, Any]:
    config, profile = pod.input.config, pod.input.profile
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": config.grace_sec + _seconds(SHUTDOWN_MARGIN),
        "enableServiceLinks": False,
        "automountServiceAccountToken": config.service_account_name is not None,
        "securityContext": _pod_security(profile),
        "initContainers": [init_container(pod), *([restoring_container(pod)] if pod.carried else [])],
        # kubelets start containers one by one, so the agent finds the sidecar running
        "containers": [sidecar_container(pod), agent_container(pod)],
        "volumes": volumes(pod),
        "serviceAccountName": config.service_account_name,
        "imagePullSecrets": [{"name": name} for name in profile.image_pull_secrets],
        "dnsConfig": profile.dns_config,
        "nodeSelector": node_selector(config, profile.node_selector),
        "tolerations": tolerations(config, profile.tolerations),
        "affinity": config.affinity,
        "topologySpreadConstraints": list(config.topology_spread_constraints or ()),
        "runtimeClassName": config.runtime_class_name,
        "priorityClassName": config.priority_class_name,
    }
    overlaid = _with_overlay(spec, (config.pod_template or {}).get("spec", {}))
    return {key: value for key, value in overlaid.items() if value not in (None, [], {})}


def _with_overlay(spec: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with the agent's own keys of it, none of which is one that a guarantee depends on.

    The security context keeps what it has: an overlay only adds to it, or names another profile.
    """
    security = {**spec["securityContext"], **overlay.get("securityContext", {})}
    return {**spec, **overlay, "securityContext": security}


def _pod_security(profile: PodProfile) -> dict[str, Any]:
    """Return the security context of the pod.

    Without a shared volume `fsGroup` makes new volumes writable; with one the kubelet would first change the group of
    every file there, which stalled starts for minutes in production.
    """
    security: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if profile.data_claim is None:
        security |= {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
    return security


def _seconds(duration: timedelta) -> int:
    return int(duration.total_seconds())
