"""The Job of one attempt, and the other objects of the attempt, as pure functions.

Nothing secret is in the Job: the prompt is in one Secret; environment values, OpenCode's configuration and the runner
are in another. Environment variables refer to it by `secretKeyRef`, whose values Kubernetes takes as they are; only in
literals and arguments it replaces `$(NAME)`, so every `$` is doubled there, which it reads as one `$`.
Where this differs from the existing adapters, docs/deviations.md states why.
"""

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import AttemptKey, distinct, identity_label, label_value
from agent_runs.contracts.messages import CreateJob, PodProfile, SecretMount
from agent_runs.contracts.pod import AGENT_CONTAINER, DATA_DIRECTORY, HOME_DIRECTORY, SIDECAR_CONTAINER
from agent_runs.contracts.pod_options import VOLUME_KINDS
from agent_runs.contracts.request import DNS_LABEL, OPENCODE, RunConfig
from agent_runs.job.data_volume import DataRules, Folder, Owner, RunFolders, database_path
from agent_runs.job.placement import (
    DATABASE_CLAIMS,
    INIT_RESOURCES,
    SIDECAR_RESOURCES,
    extra_annotations,
    extra_labels,
    is_subdomain,
    node_selector,
    resources,
    tolerations,
)
from agent_runs.job.secrets import (
    ARGUMENT_LIMIT,
    CONFIG_KEY,
    PROMPT_KEY,
    RUNNER_KEY,
    SCRIPT_KEYS,
    SERVE_KEY,
    SIDECAR_KEY,
    TOKEN_KEYS,
    TURN_KEY,
    UPSTREAM_KEY,
    run_secret,
    token_files,
    variable_key,
)
from agent_runs.kube.ownership import API_PROXY, TTL, owner_labels
from agent_runs.kube.quantity import amount
from agent_runs.pod.archive import sidecar_archive
from agent_runs.pod.sidecar.upstream import UPSTREAM

INIT_CONTAINER: Final = "write-prompt"
PROMPT_DIRECTORY: Final = "/tmp/prompt"  # noqa: S108 - paths in the pod, the ones the peers use
PROMPT_FILE: Final = f"{PROMPT_DIRECTORY}/prompt.txt"
PROMPT_MOUNT: Final = "/tmp/prompt-secret"  # noqa: S108 - as above
RUN_DIRECTORY: Final = "/agent-run"
OUTPUT_DIRECTORY: Final = f"{RUN_DIRECTORY}/output"  # in both containers
SIDECAR_FILE: Final = f"{RUN_DIRECTORY}/sidecar/{SIDECAR_KEY}"  # this and the next ones in the sidecar only
TURN_FILE: Final = f"{RUN_DIRECTORY}/sidecar/{TURN_KEY}"
CONTROL_DIRECTORY: Final = f"{RUN_DIRECTORY}/control"
TOKEN_DIRECTORY: Final = f"{RUN_DIRECTORY}/token"
CACHE_DIRECTORY: Final = "/runtime-cache"
TEMPORARY_DIRECTORY: Final = "/runtime-cache/tmp"
DATABASE_DIRECTORY: Final = "/opencode-db"

LOGIN_FOLDERS: Final = tuple(f"{home}/.local/share/opencode" for home in (HOME_DIRECTORY, DATA_DIRECTORY))
"""Where logins of `opencode auth` are: in the agent's home, or in Paperclip's if the policy shares that folder."""

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

PYTHON_IMAGE: Final = "python:3.13-alpine@sha256:2d9aefe2fef018a7eb2c13064c89c71929800fd2e5dccdbf52ea5da5bb8d929a"
"""Of the sidecar, which holds the run's token, where a worker outside a pod has no setting for it."""

_RESERVED_PATHS: Final = (
    DATA_DIRECTORY,
    HOME_DIRECTORY,
    DATABASE_DIRECTORY,
    CACHE_DIRECTORY,
    RUN_DIRECTORY,
    PROMPT_DIRECTORY,
)
_NAME_LIMIT: Final = 1000
_SLUG_LIMIT: Final = 208


@dataclass(frozen=True)
class PodSettings:
    """The worker's settings for every agent pod."""

    data: DataRules = field(default_factory=DataRules)
    init_image: str = "busybox:1.36"
    sidecar_image: str = PYTHON_IMAGE
    cache_limit: str = "20Gi"
    output_limit: str = "10Gi"


@dataclass(frozen=True)
class ApiProxy:
    """How the agent reaches Paperclip through the sidecar.

    Attributes:
        upstream: Paperclip's address.
        run_id, token, tools_token: the identity that the proxy starts with.
        path_variables: the agent's variables that hold a path at Paperclip; the runner puts the proxy's address before
            it.
    """

    upstream: str
    run_id: str
    token: str = field(repr=False)
    tools_token: str | None = field(default=None, repr=False)
    path_variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Server:
    """How the sidecar drives OpenCode's server, or an agent that speaks ACP.

    Attributes:
        script: the text of `serve.sh` or `agent_runs/pod/acp.sh`.
        turn: what the session is to do; see `agent_runs.pod.sidecar`. Only that of an ACP agent may have secrets, which
            are its MCP servers'.
        keep_warm: how many seconds the pod may rest after a turn; 0: it ends.
        files: what the script finds beside itself, by name.
    """

    script: str
    turn: Mapping[str, Any] = field(repr=False)
    keep_warm: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class JobPlan:
    """The objects that have to exist for one attempt.

    Attributes:
        job: the Job; holds no secret.
        run_secret: must exist before the Job; its values must never be logged.
        database: a PersistentVolumeClaim to ensure before the Job, when the agent has a database of its own.
        warnings: for people.
        claim: what a pod that rests needs for this attempt, if one may be used: see `agent_runs.job.warm_pods`.
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
    scripts: Mapping[str, str],
    settings: PodSettings | None = None,
    proxy: ApiProxy | None = None,
    server: Server | None = None,
) -> JobPlan:
    """Return everything to create for one attempt.

    Args:
        argv: the agent's command line, such as `opencode run --format json ...`.
        environment: what the agent gets, already merged, in order; secret.
        opencode_config: the text of its `opencode.json`; secret, since MCP servers have tokens. None: of another agent.
        scripts: the texts of `runner.sh` and of those beside it, by their names (`SCRIPT_KEYS`).
        proxy: how the agent reaches Paperclip through the sidecar; None: it uses its own environment.
        server: how the sidecar drives the agent; None: `argv` runs as it is.

    Raises:
        InvalidRequest: names the field and the remedy.
        JobCreateFailed: the content does not fit into a Secret.
    """
    settings = settings or PodSettings()
    namespace = _namespace(input)
    labels, warnings = _labels(input)
    variables = {name: value for name, value in environment.items() if name not in _fixed_environment(input)}
    files = {**{name: text.encode() for name, text in scripts.items()}, SIDECAR_KEY: sidecar_archive()}
    claim = None
    if proxy:
        files[UPSTREAM_KEY] = proxy.upstream.encode()
    if server:
        files |= {SERVE_KEY: server.script.encode(), **server.files}
        turn = {"directory": working_directory(input), **server.turn}
        rest: dict[str, Any] = {}
        if server.keep_warm:
            same = _same_pod(input, argv, variables, opencode_config, files, settings, proxy, server)
            rest = {"keep_warm": server.keep_warm, "max_age": _max_age(input.config), "pod": same}
            rest |= {"variables": sorted(run_variables(variables)), "max_memory": _requested_memory(input.config)}
            claim = _claim(turn, same, variables, proxy)
        files[TURN_KEY] = json.dumps({"prompt": PROMPT_FILE, **turn, **rest}).encode()
    if proxy:
        files |= token_files(proxy.run_id, proxy.token, proxy.tools_token)
    return JobPlan(
        job=_job(
            input,
            namespace,
            labels,
            _pod_spec(input, ("--", *argv), variables, settings, proxy, server),
            proxied=proxy is not None,
        ),
        run_secret=run_secret(input.attempt, namespace, variables, opencode_config, files),
        database=database_claim(input),
        warnings=warnings,
        claim=claim,
    )


def run_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are about one run; all others are the agent's."""
    return {name: value for name, value in environment.items() if name.startswith("PAPERCLIP_")}


def _same_pod(
    input: CreateJob,
    argv: Sequence[str],
    environment: Mapping[str, str],
    opencode_config: str | None,
    files: Mapping[str, bytes],
    settings: PodSettings,
    proxy: ApiProxy | None,
    server: Server,
) -> str:
    """Digest of all that a pod is made of, but for what is about one run: equal ones may stand in for each other.

    Only OpenCode's command line is about one run, and its server is started by none of it.
    """
    run = input.attempt.run.model_copy(update={"run_id": ""})
    anonymous = input.model_copy(update={"attempt": AttemptKey(run=run)})
    rest = run_variables(environment)
    own = {name: value for name, value in environment.items() if name not in rest}
    extra, _ = extra_labels(input.config)
    parts = {
        "pod": _pod_spec(anonymous, () if _is_opencode(input) else argv, own, settings, proxy, server),
        "metadata": [_namespace(input), extra, extra_annotations(input.config), input.config.pod_template],
        "environment": own,
        "opencode": opencode_config,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        "limits": [_time_limits(input.config), server.keep_warm],
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


def _namespace(input: CreateJob) -> str:
    namespace = input.config.namespace or input.profile.namespace
    if not DNS_LABEL.fullmatch(namespace):
        raise InvalidRequest("namespace: must be lowercase letters, digits and '-', 63 at most")
    return namespace


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


def _pod_spec(
    input: CreateJob,
    argv: Sequence[str],
    environment: Mapping[str, str],
    settings: PodSettings,
    proxy: ApiProxy | None,
    server: Server | None,
) -> dict[str, Any]:
    config, profile = input.config, input.profile
    inherited = _inherited_mounts(profile)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": config.grace_sec + _seconds(SHUTDOWN_MARGIN),
        "enableServiceLinks": False,
        "automountServiceAccountToken": config.service_account_name is not None,
        "securityContext": _pod_security(profile),
        "initContainers": [_init_container(input, settings)],
        "containers": _containers(input, argv, environment, [mount for _, mount in inherited], settings, proxy, server),
        "volumes": _volumes(input, settings, server)
        + _sidecar_volumes(input, proxy, server)
        + _deduplicated([volume for volume, _ in inherited])
        + _extra_volumes(input),
        "serviceAccountName": _service_account(config),
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


def _service_account(config: RunConfig) -> str | None:
    name = config.service_account_name
    if name is not None and not is_subdomain(name.strip()):
        raise InvalidRequest("serviceAccountName: must be the name of a ServiceAccount (lowercase, digits, '-', '.')")
    return None if name is None else name.strip()


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


def _container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": False,
        "runAsNonRoot": True,
        "runAsUser": 1000,
    }


INIT_SCRIPT: Final = """\
trap 'exit 143' TERM
for path in /bin/busybox /usr/bin/busybox "$(command -v busybox)"; do
  if [ -f "$path" ] && [ -x "$path" ]; then
    cp "$path" /agent-run/bin/busybox && chmod 755 /agent-run/bin/busybox && break
  fi
done
for folder; do
  mkdir -p "$folder" && [ "$(cd "$folder" && pwd -P)" = "$folder" ] && continue
  echo "$folder: cannot be created, or is a link to another folder of the data volume" >&2
  exit 1
done
waited=0
until { [ -e /tmp/prompt-secret/prompt ] && [ -e /agent-run/sidecar/sidecar.pyz ]; } || [ "$waited" -ge 180 ]; do
  sleep 1
  waited=$((waited + 1))
done
cat /tmp/prompt-secret/prompt > /tmp/prompt/prompt.txt
"""
"""Plain POSIX sh. A missing busybox is no failure: the runner then uses the tools of its own image.

A pod whose prompt is deleted is a replacement of one that runs: no agent may start in it (activities.await_schedule).
The script waits, because a kubelet's view of a Secret may lag behind the API by up to two minutes, and `_files` are
optional.

The arguments are the agent's folders on the data volume. If the kubelet created one, for the main container's
`subPath`, it would belong to root, and an agent could write there only if the whole volume were writable for everybody.
A kubelet follows links inside of a volume, so a folder that another agent has replaced by one would give away what it
leads to.
"""


def _init_container(input: CreateJob, settings: PodSettings) -> dict[str, Any]:
    folders = [f"{DATA_DIRECTORY}/{path}" for path in _sub_paths(input, settings)]
    return {
        "name": INIT_CONTAINER,
        "image": settings.init_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", literal(INIT_SCRIPT), INIT_CONTAINER, *map(literal, folders)],
        "resources": INIT_RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "prompt", "mountPath": PROMPT_DIRECTORY},
            {"name": "prompt-secret", "mountPath": PROMPT_MOUNT, "readOnly": True},
            {"name": "sidecar", "mountPath": posixpath.dirname(SIDECAR_FILE), "readOnly": True},
            {"name": "runner", "mountPath": f"{RUN_DIRECTORY}/bin"},
            {"name": "data", "mountPath": DATA_DIRECTORY},
        ],
    }


def _containers(
    input: CreateJob,
    argv: Sequence[str],
    environment: Mapping[str, str],
    inherited: list[dict[str, Any]],
    settings: PodSettings,
    proxy: ApiProxy | None,
    server: Server | None,
) -> list[dict[str, Any]]:
    """Return the containers, the sidecar first: kubelets start them one by one, so the agent finds it running."""
    return [
        _sidecar_container(input, environment, inherited, settings, proxy, server),
        _main_container(input, argv, environment, inherited, settings, proxy, server),
    ]


def _sidecar_container(
    input: CreateJob,
    environment: Mapping[str, str],
    inherited: list[dict[str, Any]],
    settings: PodSettings,
    proxy: ApiProxy | None,
    server: Server | None,
) -> dict[str, Any]:
    """Return the sidecar, which has the tokens and the certificate authorities that Paperclip may need."""
    secret = input.attempt.run_secret_name
    trust = [name for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS") if proxy and name in environment]
    keys = {**({UPSTREAM: UPSTREAM_KEY} if proxy else {}), **{name: variable_key(name) for name in trust}}
    folders = [OUTPUT_DIRECTORY, CONTROL_DIRECTORY, TOKEN_DIRECTORY]
    return {
        "name": SIDECAR_CONTAINER,
        "image": settings.sidecar_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", SIDECAR_FILE],
        "args": ["run", *folders, str(input.config.max_unread_sec), *([TURN_FILE] if server else [])],
        "env": [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for name, key in keys.items()
        ],
        "resources": SIDECAR_RESOURCES,
        "securityContext": {**_container_security(), "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "output", "mountPath": OUTPUT_DIRECTORY},
            {"name": "control", "mountPath": CONTROL_DIRECTORY},
            {"name": "sidecar", "mountPath": posixpath.dirname(SIDECAR_FILE), "readOnly": True},
            *([{"name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": True}] if proxy else []),
            *([{"name": "prompt", "mountPath": PROMPT_DIRECTORY, "readOnly": True}] if server else []),
            *(inherited if trust else []),
        ],
    }


def _sidecar_volumes(input: CreateJob, proxy: ApiProxy | None, server: Server | None) -> list[dict[str, Any]]:
    secret = input.attempt.run_secret_name
    volumes: list[dict[str, Any]] = [
        {"name": "control", "emptyDir": {}},
        {"name": "sidecar", "secret": _files(secret, SIDECAR_KEY, *([TURN_KEY] if server else []))},
    ]
    if proxy:  # not every run has all tokens, and one that is added later becomes visible
        volumes.append({"name": "token", "secret": _files(secret, *TOKEN_KEYS)})
    return volumes


def _main_container(
    input: CreateJob,
    argv: Sequence[str],
    environment: Mapping[str, str],
    inherited: list[dict[str, Any]],
    settings: PodSettings,
    proxy: ApiProxy | None,
    server: Server | None,
) -> dict[str, Any]:
    config, path_variables = input.config, proxy.path_variables if proxy else ()
    options = [word for folder in LOGIN_FOLDERS for word in ("--logins", folder)] if _is_opencode(input) else []
    options += ["--serve", f"{RUN_DIRECTORY}/secret/{SERVE_KEY}"] if server else []
    container: dict[str, Any] = {
        "name": AGENT_CONTAINER,
        "image": _image(input),
        "imagePullPolicy": config.image_pull_policy,
        "command": ["sh", f"{RUN_DIRECTORY}/secret/{RUNNER_KEY}"],
        "args": [literal(argument) for argument in _runner_arguments(input, argv, path_variables, options)],
        "env": _environment(input, environment),
        "resources": resources(config.resources),
        "securityContext": _container_security(),
        "volumeMounts": _with_extra_mounts(input, _mounts(input, settings) + inherited),
    }
    if input.profile.env_from:
        container["envFrom"] = [dict(each) for each in input.profile.env_from]
    return container


def _image(input: CreateJob) -> str:
    image = (input.config.image or input.profile.image).strip()
    if not image or re.search(r"\s", image):
        raise InvalidRequest("image: must be the name of a container image, without spaces")
    return image


def _runner_arguments(
    input: CreateJob, argv: Sequence[str], path_variables: Sequence[str], options: Sequence[str]
) -> list[str]:
    """Return all arguments of the runner, of which `argv` are the last."""
    for argument in argv:
        if "\0" in argument or len(argument.encode(errors="replace")) >= ARGUMENT_LIMIT:
            raise InvalidRequest("extraArgs: an argument has a NUL byte or more than 128 KiB")
    return [
        *("--stdin", PROMPT_FILE),
        *("--out", OUTPUT_DIRECTORY),
        *("--dir", working_directory(input)),
        *("--grace", str(input.config.grace_sec)),
        *(word for name in path_variables for word in ("--api-variable", name)),
        *options,
        *argv,
    ]


def working_directory(input: CreateJob) -> str:
    """Return where OpenCode runs: the resumed session's directory, else the workspace, else `cwd`, else its home.

    Raises:
        InvalidRequest: it is no absolute path.
    """
    candidates = {
        "sessionParams.cwd": input.session.cwd if input.session else None,
        "paperclipWorkspace.cwd": input.request.context.paperclip_workspace.cwd,
        "cwd": input.config.cwd,
    }
    for name, path in candidates.items():
        if path and path.strip():
            if not path.strip().startswith("/") or "\0" in path:
                raise InvalidRequest(f"{name}: must be an absolute path in the pod, such as /paperclip/project")
            return posixpath.normpath(path.strip())
    return HOME_DIRECTORY


def literal(text: str) -> str:
    """Escape `text` so that Kubernetes passes it on unchanged: it reads `$(NAME)` as a variable and `$$` as `$`."""
    return text.replace("$", "$$")


# environment


def fixed_variables(input: CreateJob) -> frozenset[str]:
    """Return the names of the variables that only this program sets."""
    return frozenset(("NODE_ENV", *_fixed_environment(input)))


def _fixed_environment(input: CreateJob) -> dict[str, str]:
    """Return the variables that only this program sets: paths in the pod. They take precedence over the agent's."""
    opencode = {
        "OPENCODE_DB": f"{DATABASE_DIRECTORY}/opencode.db",
        "OPENCODE_CONFIG": f"{RUN_DIRECTORY}/secret/{CONFIG_KEY}",
    }
    return {
        "XDG_CACHE_HOME": f"{CACHE_DIRECTORY}/xdg",
        "GOCACHE": f"{CACHE_DIRECTORY}/go-build",
        "GOMODCACHE": f"{CACHE_DIRECTORY}/gomod",
        "npm_config_cache": f"{CACHE_DIRECTORY}/npm",
        "BUN_INSTALL_CACHE": f"{CACHE_DIRECTORY}/bun",
        "PIP_CACHE_DIR": f"{CACHE_DIRECTORY}/pip",
        "PLAYWRIGHT_BROWSERS_PATH": f"{CACHE_DIRECTORY}/ms-playwright",
        "XDG_CONFIG_HOME": f"{CACHE_DIRECTORY}/xdg/config",
        "XDG_DATA_HOME": f"{CACHE_DIRECTORY}/xdg/data",
        "XDG_STATE_HOME": f"{CACHE_DIRECTORY}/xdg/state",
        "HOME": HOME_DIRECTORY,
        "PWD": working_directory(input),
        "TMPDIR": TEMPORARY_DIRECTORY,
        "TMP": TEMPORARY_DIRECTORY,
        "TEMP": TEMPORARY_DIRECTORY,
        **(opencode if _is_opencode(input) else {}),
    }


def _environment(input: CreateJob, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the agent's variables by reference, then ours, then inherited references whose names are still free."""
    secret = input.attempt.run_secret_name
    variables: dict[str, dict[str, Any]] = {
        name: {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": variable_key(name)}}}
        for name in environment
    }
    fixed = _fixed_environment(input)
    inherited = {each.name: each for each in input.profile.env_references}
    if "NODE_ENV" not in variables and "NODE_ENV" not in inherited:
        fixed = {"NODE_ENV": "development", **fixed}
    variables |= {name: {"name": name, "value": literal(value)} for name, value in fixed.items()}
    for name, each in inherited.items():
        variables.setdefault(name, {"name": name, "valueFrom": dict(each.value_from)})
    return list(variables.values())


# volumes


def _volumes(input: CreateJob, settings: PodSettings, server: Server | None) -> list[dict[str, Any]]:
    attempt, claim = input.attempt, input.profile.data_claim
    data = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    config = [CONFIG_KEY] if _is_opencode(input) else []
    keys = (*SCRIPT_KEYS, *config, *([SERVE_KEY, *server.files] if server else []))
    volumes = [
        {"name": "prompt", "emptyDir": {}},
        {"name": "runtime-cache", "emptyDir": {"sizeLimit": settings.cache_limit}},
        {"name": "prompt-secret", "secret": _files(attempt.prompt_secret_name, PROMPT_KEY)},
        {"name": "runner", "emptyDir": {}},
        {"name": "run-secret", "secret": _files(attempt.run_secret_name, *keys)},
        {"name": "output", "emptyDir": {"sizeLimit": settings.output_limit}},
        {"name": "data", **data},
    ]
    database = _database(input)
    return volumes if database is None or "subPath" in database else [*volumes, {"name": "opencode-db", **database}]


def _files(secret: str, *keys: str) -> dict[str, Any]:
    """Optional, because a restarted kubelet mounts them anew, and until it can, kubelets up to 1.21 do nothing for the
    pod, not even report its end. The prompt is deleted once the agent has it, the rest with the Job."""
    return {
        "secretName": secret,
        "defaultMode": 0o444,
        "items": [{"key": key, "path": key} for key in keys],
        "optional": True,
    }


def _mounts(input: CreateJob, settings: PodSettings) -> list[dict[str, Any]]:
    whole = [{"name": "data", "mountPath": DATA_DIRECTORY}] if _data_rules(input, settings).whole else []
    return [
        {"name": "prompt", "mountPath": PROMPT_DIRECTORY},
        {"name": "runtime-cache", "mountPath": CACHE_DIRECTORY},
        {"name": "runner", "mountPath": f"{RUN_DIRECTORY}/bin"},
        {"name": "run-secret", "mountPath": f"{RUN_DIRECTORY}/secret", "readOnly": True},
        {"name": "output", "mountPath": OUTPUT_DIRECTORY},
        *_database_mounts(_database(input)),
        *whole,
        *map(_data_mount, _data_folders(input, settings)),
    ]


def _database_mounts(database: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if database is None:
        return []
    if "subPath" in database:
        return [{"name": "data", "mountPath": DATABASE_DIRECTORY, "subPath": database["subPath"]}]
    return [{"name": "opencode-db", "mountPath": DATABASE_DIRECTORY}]


def _data_rules(input: CreateJob, settings: PodSettings) -> DataRules:
    """Return the rules for the data volume; a volume that ends with the pod has nothing of another agent."""
    return settings.data if input.profile.data_claim else DataRules(whole=True)


def _data_folders(input: CreateJob, settings: PodSettings) -> tuple[Folder, ...]:
    run = input.attempt.run
    folders = RunFolders(
        owner=Owner(run.company_id, run.agent_id),
        directory=working_directory(input),
        workspace=input.request.context.paperclip_workspace,
        projects=input.request.context.paperclip_workspaces,
        instructions=input.config.instructions_file_path,
        skills=input.prompt.skill_folders,
    )
    return folders.mounted(_data_rules(input, settings))


def _data_mount(folder: Folder) -> dict[str, Any]:
    mount: dict[str, Any] = {"name": "data", "mountPath": folder.mount_path, "subPath": folder.sub_path}
    return {**mount, "readOnly": True} if folder.read_only else mount


def _sub_paths(input: CreateJob, settings: PodSettings) -> list[str]:
    """Return the folders that have to exist on the data volume before a kubelet mounts them."""
    database = (_database(input) or {}).get("subPath")
    return [*([database] if database else []), *(folder.sub_path for folder in _data_folders(input, settings))]


def _is_opencode(input: CreateJob) -> bool:
    return input.config.agent == OPENCODE


def _database(input: CreateJob) -> dict[str, Any] | None:
    """Return the volume of OpenCode's database: a folder per task on the data volume, a claim, or an emptyDir. None for
    another agent, which keeps its sessions in its home."""
    mode, attempt = input.config.agent_db_mode, input.attempt
    if not _is_opencode(input):
        return None
    if mode == "dedicated_pvc":
        return {"persistentVolumeClaim": {"claimName": claim_name(attempt.run.agent_id)}}
    task_key = (input.request.runtime.task_key or "").strip()
    if mode == "workspace_subpath" and input.profile.data_claim and task_key:
        return {"subPath": database_path(attempt.run.company_id, attempt.run.agent_id, task_key)}
    return {"emptyDir": {}}


def keeps_sessions(input: CreateJob) -> bool:
    """Return whether OpenCode's database, or another agent's home, outlives the pod: its sessions can be resumed."""
    database = _database(input)
    return input.profile.data_claim is not None if database is None else "emptyDir" not in database


def claim_name(agent: str) -> str:
    """Return the name of an agent's own database claim, which no other agent has."""
    slug = re.sub(r"[^a-z0-9-]", "", agent.lower()).strip("-")[:_SLUG_LIMIT].strip("-")
    return f"{DATABASE_CLAIMS}{distinct(slug, agent, _SLUG_LIMIT)}"


def database_claim(input: CreateJob) -> dict[str, Any] | None:
    """Return the claim for the agent's own database; None unless `agentDbMode` is `dedicated_pvc`.

    Raises:
        InvalidRequest: the storage class cannot be the name of one.
    """
    config, run = input.config, input.attempt.run
    if config.agent_db_mode != "dedicated_pvc" or not _is_opencode(input):
        return None
    storage_class = (config.agent_db_storage_class or "").strip()
    if storage_class and not is_subdomain(storage_class):
        raise InvalidRequest("agentDbStorageClass: must be the name of a StorageClass")
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": config.agent_db_storage_capacity}},
    }
    if storage_class:
        spec["storageClassName"] = storage_class
    labels = {
        "app.kubernetes.io/managed-by": "paperclip",
        "paperclip.io/agent-id": identity_label(run.agent_id),
        "paperclip.io/pvc-type": "agent-db",
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name(run.agent_id), "namespace": _namespace(input), "labels": labels},
        "spec": spec,
    }


def _inherited_mounts(profile: PodProfile) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return Secret volumes of the worker's pod with their mounts: one per path, none over a path of ours."""
    mounts: dict[str, SecretMount] = {}
    for each in profile.secret_mounts:
        path = posixpath.normpath(each.mount_path)
        if path != "/" and ":" not in path and not any(_covers(reserved, path) for reserved in _RESERVED_PATHS):
            mounts.setdefault(path, each)
    return [(_secret_volume(each), _secret_mount(path, each)) for path, each in mounts.items()]


def _covers(reserved: str, path: str) -> bool:
    return path == reserved or (reserved != DATA_DIRECTORY and path.startswith(f"{reserved}/"))


def _secret_volume(mount: SecretMount) -> dict[str, Any]:
    source: dict[str, Any] = {"secretName": mount.secret_name, "optional": True}
    if mount.default_mode is not None:
        source["defaultMode"] = mount.default_mode
    if mount.items:
        source["items"] = [dict(item) for item in mount.items]
    return {"name": _volume_name(mount.volume_name), "secret": source}


def _secret_mount(path: str, mount: SecretMount) -> dict[str, Any]:
    target: dict[str, Any] = {"name": _volume_name(mount.volume_name), "mountPath": path, "readOnly": True}
    if mount.sub_path:
        target["subPath"] = mount.sub_path
    return target


def _extra_volumes(input: CreateJob) -> list[dict[str, Any]]:
    """Return the volumes that the agent's configuration adds; never the data volume, of which it has its folders."""
    volumes = []
    for index, each in enumerate(input.config.extra_volumes or ()):
        kind = next(kind for kind in VOLUME_KINDS if kind in each)
        if kind == "persistentVolumeClaim" and each[kind]["claimName"] == input.profile.data_claim:
            raise InvalidRequest(f"extraVolumes[{index}].{kind}: is the data volume; name another claim")
        volumes.append({"name": f"{_EXTRA}{each['name']}", kind: dict(each[kind])})
    return volumes


def _with_extra_mounts(input: CreateJob, mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mounts with those of the agent's extra volumes."""
    taken, extra = {mount["mountPath"] for mount in mounts}, []
    for index, each in enumerate(input.config.extra_volumes or ()):
        path = posixpath.normpath(each["mountPath"])
        if path in taken:
            raise InvalidRequest(
                f"extraVolumes[{index}].mountPath: {path} has an inherited Secret; choose another path"
            )
        mount: dict[str, Any] = {"name": f"{_EXTRA}{each['name']}", "mountPath": path}
        extra.append(mount | {key: each[key] for key in ("subPath", "readOnly") if each.get(key)})
    return mounts + extra


_EXTRA: Final = "extra-"
"""Beginning of the names of the volumes that an agent's configuration adds."""
_OUR_VOLUMES: Final = {
    "prompt",
    "runtime-cache",
    "prompt-secret",
    "runner",
    "run-secret",
    "output",
    "data",
    "opencode-db",
    "control",
    "sidecar",
    "token",
}


def _volume_name(name: str) -> str:
    return f"{name}-inherited" if name in _OUR_VOLUMES or name.startswith(_EXTRA) else name


def _deduplicated(volumes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each volume once, however often it is mounted."""
    return list({volume["name"]: volume for volume in volumes}.values())


def _seconds(duration: timedelta) -> int:
    return int(duration.total_seconds())
