"""The Job of one attempt, and what goes with it, as pure functions.

Nothing secret is in the Job: the prompt is in one Secret, environment values, OpenCode's configuration and the runner
in another. Environment variables point to it by `secretKeyRef`, whose values Kubernetes takes as they are; only in
literals and arguments would it replace `$(NAME)`, and there every `$` is doubled, which it reads as one `$`.
Where this differs from the existing adapters, docs/deviations.md says why.
"""

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from cluster.api_proxy import UPSTREAM
from cluster.ownership import API_PROXY, owner_labels
from cluster.placement import (
    INIT_RESOURCES,
    PROXY_RESOURCES,
    extra_labels,
    is_subdomain,
    node_selector,
    resources,
    tolerations,
)
from cluster.secrets import (
    ARGUMENT_LIMIT,
    CONFIG_KEY,
    PROMPT_KEY,
    PROXY_KEY,
    RUNNER_KEY,
    UPSTREAM_KEY,
    run_secret,
    token_files,
    token_secret,
    variable_key,
)
from contracts.errors import InvalidRequest
from contracts.identity import label_value
from contracts.messages import CreateJob, PodProfile, SecretMount
from contracts.request import DNS_LABEL, RunConfig

CONTAINER: Final = "opencode"
INIT_CONTAINER: Final = "write-prompt"
PROXY_CONTAINER: Final = "paperclip-api"
DATA: Final = "/paperclip"
PROMPT: Final = "/tmp/prompt"  # noqa: S108 - paths in the pod, the ones the peers use
PROMPT_SOURCE: Final = "/tmp/prompt-secret"  # noqa: S108 - as above
RUN_DIRECTORY: Final = "/agent-run"
API: Final = f"{RUN_DIRECTORY}/api"
TOKENS: Final = f"{RUN_DIRECTORY}/token"  # where the proxy's container has it; the agent's has not
CACHE: Final = "/runtime-cache"
TEMPORARY: Final = "/runtime-cache/tmp"
DATABASE: Final = "/opencode-db"

TIDYING: Final = timedelta(seconds=10)
"""What the runner gets beyond the agent's grace, to write its last frame."""
BELT: Final = timedelta(minutes=30)
"""Beyond timeout and grace before Kubernetes itself ends the Job: its clock starts before scheduling and image pull."""
SHORTEST_TTL: Final = timedelta(seconds=60)
"""A finished Job must live until its log and exit code have been read."""

_TAKEN: Final = (DATA, DATABASE, CACHE, RUN_DIRECTORY, PROMPT)
_TASK_LIMIT: Final = 128
_NAME_LIMIT: Final = 1000


@dataclass(frozen=True)
class PodSettings:
    """What the worker's settings say about every agent pod."""

    init_image: str = "busybox:1.36"
    cache_limit: str = "20Gi"
    output_limit: str = "10Gi"


@dataclass(frozen=True)
class ApiProxy:
    """The container beside the agent that speaks to Paperclip for it.

    Attributes:
        image: has python3 (3.9 or later).
        script: the text of `api_proxy.py`.
        upstream: Paperclip's address.
        run_id, token, tools_token: whom the agent speaks for, at first.
        rebased: the agent's variables that hold a path of Paperclip's and get the proxy's address before it.
    """

    image: str
    script: str
    upstream: str
    run_id: str
    token: str = field(repr=False)
    tools_token: str | None = field(default=None, repr=False)
    rebased: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What has to exist for one attempt.

    Attributes:
        job: the Job; holds no secret.
        run_secret: must exist before the Job; its values must never be logged.
        token_secret: must exist before the Job when there is one, and is as secret.
        claim: a PersistentVolumeClaim to ensure before the Job, when the agent has a database of its own.
        warnings: for people.
    """

    job: dict[str, Any]
    run_secret: dict[str, Any] = field(repr=False)
    token_secret: dict[str, Any] | None = field(default=None, repr=False)
    claim: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def plan(
    order: CreateJob,
    *,
    argv: Sequence[str],
    environment: Mapping[str, str],
    opencode_config: str,
    runner: str,
    settings: PodSettings | None = None,
    proxy: ApiProxy | None = None,
) -> Plan:
    """Everything to create for one attempt.

    Args:
        argv: the agent's command line, such as `opencode run --format json ...`.
        environment: what the agent gets, already merged, in order; secret.
        opencode_config: the text of its `opencode.json`; secret, since MCP servers have tokens.
        runner: the text of `runner.sh`.
        proxy: how the agent reaches Paperclip; None: by its own environment.

    Raises:
        InvalidRequest: names the field and the remedy.
        JobCreateFailed: the content does not fit into a Secret.
    """
    chosen = settings or PodSettings()
    namespace = _namespace(order)
    labels, warnings = _labels(order)
    own = {name: value for name, value in environment.items() if name not in _fixed_environment(order)}
    files = {PROXY_KEY: proxy.script, UPSTREAM_KEY: proxy.upstream} if proxy else None
    tokens = token_files(proxy.run_id, proxy.token, proxy.tools_token) if proxy else None
    return Plan(
        job=_job(order, namespace, labels, _pod_spec(order, argv, own, chosen, proxy), proxied=proxy is not None),
        run_secret=run_secret(order.attempt, namespace, own, opencode_config, runner, files),
        token_secret=token_secret(order.attempt, namespace, tokens) if tokens else None,
        claim=database_claim(order),
        warnings=warnings,
    )


def _namespace(order: CreateJob) -> str:
    namespace = order.config.namespace or order.profile.namespace
    if not DNS_LABEL.fullmatch(namespace):
        raise InvalidRequest("namespace: must be lowercase letters, digits and '-', 63 at most")
    return namespace


def _labels(order: CreateJob) -> tuple[dict[str, str], tuple[str, ...]]:
    extra, warnings = extra_labels(order.config)
    told = {
        "paperclip.io/adapter-type": "opencode_k8s",
        "paperclip.io/task-id": label_value(order.task_id or ""),
        "paperclip.io/session-id": label_value(order.session.session_id if order.session else ""),
    }
    return {**extra, **owner_labels(order.attempt), **{key: value for key, value in told.items() if value}}, warnings


def _job(
    order: CreateJob, namespace: str, labels: dict[str, str], pod: dict[str, Any], *, proxied: bool
) -> dict[str, Any]:
    annotations = {
        "paperclip.io/adapter-type": "opencode_k8s",
        "paperclip.io/agent-name": order.agent_name[:_NAME_LIMIT],
    }
    template: dict[str, Any] = {"labels": labels}
    if proxied:
        annotations[API_PROXY] = PROXY_CONTAINER
        template["annotations"] = {"kubectl.kubernetes.io/default-container": CONTAINER}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": order.attempt.job_name,
            "namespace": namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            # a pod that is being deleted must not get a twin while it still runs (Kubernetes 1.29 and later)
            "podReplacementPolicy": "Failed",
            **_clocks(order.config),
            "template": {"metadata": template, "spec": pod},
        },
    }


def _clocks(config: RunConfig) -> dict[str, int]:
    clocks: dict[str, int] = {}
    if config.timeout_sec > 0:
        clocks["activeDeadlineSeconds"] = config.timeout_sec + config.grace_sec + _whole(BELT)
    if not config.retain_jobs:
        clocks["ttlSecondsAfterFinished"] = max(config.ttl_seconds_after_finished, _whole(SHORTEST_TTL))
    return clocks


def _pod_spec(
    order: CreateJob,
    argv: Sequence[str],
    environment: Mapping[str, str],
    settings: PodSettings,
    proxy: ApiProxy | None,
) -> dict[str, Any]:
    config, profile = order.config, order.profile
    inherited = _inherited_mounts(profile)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": config.grace_sec + _whole(TIDYING),
        "enableServiceLinks": False,
        "automountServiceAccountToken": config.service_account_name is not None,
        "securityContext": _pod_security(profile),
        "initContainers": [_init_container(order, settings)],
        "containers": _containers(order, argv, environment, [mount for _, mount in inherited], proxy),
        "volumes": _volumes(order, settings)
        + _proxy_volumes(order, proxy)
        + _once([volume for volume, _ in inherited]),
        "serviceAccountName": _service_account(config),
        "imagePullSecrets": [{"name": name} for name in profile.image_pull_secrets],
        "dnsConfig": profile.dns_config,
        "nodeSelector": node_selector(config, profile.node_selector),
        "tolerations": tolerations(config, profile.tolerations),
    }
    return {key: value for key, value in spec.items() if value not in (None, [], {})}


def _service_account(config: RunConfig) -> str | None:
    name = config.service_account_name
    if name is not None and not is_subdomain(name.strip()):
        raise InvalidRequest("serviceAccountName: must be the name of a ServiceAccount (lowercase, digits, '-', '.')")
    return None if name is None else name.strip()


def _pod_security(profile: PodProfile) -> dict[str, Any]:
    """Without a shared volume the group makes new volumes writable; on a shared one the kubelet would first change
    the group of every file there, which stalled starts for minutes in production."""
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
for found in /bin/busybox /usr/bin/busybox "$(command -v busybox)"; do
  if [ -f "$found" ] && [ -x "$found" ]; then
    cp "$found" /agent-run/bin/busybox && chmod 755 /agent-run/bin/busybox && break
  fi
done
[ -z "$1" ] || mkdir -p "$1" || :
waited=0
until [ -e /tmp/prompt-secret/prompt ] || [ "$waited" -ge 180 ]; do
  sleep 1
  waited=$((waited + 1))
done
cat /tmp/prompt-secret/prompt > /tmp/prompt/prompt.txt
"""
"""Plain POSIX sh. A missing busybox is no failure: the runner then uses the tools of its own image.

A pod whose prompt is gone is the twin of one that runs: no agent may start in it (activities.await_schedule). It waits,
because a kubelet may know less than the API; it mends such a volume within two minutes.

The argument is the database's folder on the data volume. Made by the kubelet, for the main container's `subPath`, it
would belong to root, and an agent could write there only if the whole volume were open to everybody.
"""


def _init_container(order: CreateJob, settings: PodSettings) -> dict[str, Any]:
    folder = _database(order).get("subPath")
    data = [{"name": "data", "mountPath": DATA}] if folder else []
    return {
        "name": INIT_CONTAINER,
        "image": settings.init_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", literal(INIT_SCRIPT), INIT_CONTAINER, f"{DATA}/{folder}" if folder else ""],
        "resources": INIT_RESOURCES,
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "prompt", "mountPath": PROMPT},
            {"name": "prompt-secret", "mountPath": PROMPT_SOURCE, "readOnly": True},
            {"name": "runner", "mountPath": f"{RUN_DIRECTORY}/bin"},
            *data,
        ],
    }


def _containers(
    order: CreateJob,
    argv: Sequence[str],
    environment: Mapping[str, str],
    inherited: list[dict[str, Any]],
    proxy: ApiProxy | None,
) -> list[dict[str, Any]]:
    """The proxy comes first: kubelets start containers one by one, so the agent's image is pulled after its."""
    if proxy is None:
        return [_main_container(order, argv, environment, inherited)]
    main = _main_container(order, argv, environment, inherited, _proxy_arguments(proxy))
    main["volumeMounts"].append({"name": "api", "mountPath": API, "readOnly": True})
    return [_proxy_container(order, proxy, environment, inherited), main]


def _proxy_arguments(proxy: ApiProxy) -> list[str]:
    return ["--api", API, *(word for name in proxy.rebased for word in ("--at-api", name))]


def _proxy_container(
    order: CreateJob, proxy: ApiProxy, environment: Mapping[str, str], inherited: list[dict[str, Any]]
) -> dict[str, Any]:
    """Has the tokens and nothing else of the run, but the authorities that Paperclip's certificate may need."""
    secret = order.attempt.run_secret_name
    trust = [name for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS") if name in environment]
    keys = {UPSTREAM: UPSTREAM_KEY, **{name: variable_key(name) for name in trust}}
    return {
        "name": PROXY_CONTAINER,
        "image": proxy.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", f"{RUN_DIRECTORY}/proxy/{PROXY_KEY}", API, TOKENS],
        "env": [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for name, key in keys.items()
        ],
        "resources": PROXY_RESOURCES,
        "securityContext": {**_container_security(), "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "api", "mountPath": API},
            {"name": "api-proxy", "mountPath": f"{RUN_DIRECTORY}/proxy", "readOnly": True},
            {"name": "api-token", "mountPath": TOKENS, "readOnly": True},
            *(inherited if trust else []),
        ],
    }


def _proxy_volumes(order: CreateJob, proxy: ApiProxy | None) -> list[dict[str, Any]]:
    if proxy is None:
        return []
    attempt = order.attempt
    # without a list of keys: one that comes with a rotation is shown, too
    tokens = {"secretName": attempt.token_secret_name, "defaultMode": 0o444}
    return [
        {"name": "api", "emptyDir": {}},
        {"name": "api-proxy", "secret": _files(attempt.run_secret_name, PROXY_KEY)},
        {"name": "api-token", "secret": tokens},
    ]


def _main_container(
    order: CreateJob,
    argv: Sequence[str],
    environment: Mapping[str, str],
    inherited: list[dict[str, Any]],
    api: Sequence[str] = (),
) -> dict[str, Any]:
    config = order.config
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": _image(order),
        "imagePullPolicy": config.image_pull_policy,
        "command": ["sh", f"{RUN_DIRECTORY}/secret/{RUNNER_KEY}"],
        "args": [literal(argument) for argument in _runner_arguments(order, argv, api)],
        "env": _environment(order, environment),
        "resources": resources(config.resources),
        "securityContext": _container_security(),
        "volumeMounts": _mounts(order) + inherited,
    }
    if order.profile.env_from:
        container["envFrom"] = [dict(each) for each in order.profile.env_from]
    return container


def _image(order: CreateJob) -> str:
    image = (order.config.image or order.profile.image).strip()
    if not image or re.search(r"\s", image):
        raise InvalidRequest("image: must be the name of a container image, without spaces")
    return image


def _runner_arguments(order: CreateJob, argv: Sequence[str], api: Sequence[str]) -> list[str]:
    for argument in argv:
        if "\0" in argument or len(argument.encode(errors="replace")) >= ARGUMENT_LIMIT:
            raise InvalidRequest("extraArgs: an argument has a NUL byte or more than 128 KiB")
    return [
        *("--stdin", f"{PROMPT}/prompt.txt"),
        *("--out", f"{RUN_DIRECTORY}/output"),
        *("--dir", working_directory(order)),
        *("--grace", str(order.config.grace_sec)),
        *api,
        "--",
        *argv,
    ]


def working_directory(order: CreateJob) -> str:
    """Where OpenCode runs: the resumed session's own directory, else the workspace, else `cwd`, else `/paperclip`.

    Raises:
        InvalidRequest: it is no absolute path.
    """
    asked = {
        "sessionParams.cwd": order.session.cwd if order.session else None,
        "paperclipWorkspace.cwd": order.workspace.cwd,
        "cwd": order.config.cwd,
    }
    for name, path in asked.items():
        if path and path.strip():
            if not path.strip().startswith("/") or "\0" in path:
                raise InvalidRequest(f"{name}: must be an absolute path in the pod, such as /paperclip/project")
            return posixpath.normpath(path.strip())
    return DATA


def literal(text: str) -> str:
    """`text` as Kubernetes hands it on unchanged: it reads `$(NAME)` as a variable and `$$` as `$`."""
    return text.replace("$", "$$")


# environment


def _fixed_environment(order: CreateJob) -> dict[str, str]:
    """Variables that are ours to set: paths in the pod. They win over the agent's own."""
    return {
        "XDG_CACHE_HOME": f"{CACHE}/xdg",
        "GOCACHE": f"{CACHE}/go-build",
        "GOMODCACHE": f"{CACHE}/gomod",
        "npm_config_cache": f"{CACHE}/npm",
        "BUN_INSTALL_CACHE": f"{CACHE}/bun",
        "PIP_CACHE_DIR": f"{CACHE}/pip",
        "PLAYWRIGHT_BROWSERS_PATH": f"{CACHE}/ms-playwright",
        "XDG_CONFIG_HOME": f"{CACHE}/xdg/config",
        "XDG_DATA_HOME": f"{CACHE}/xdg/data",
        "XDG_STATE_HOME": f"{CACHE}/xdg/state",
        "OPENCODE_DISABLE_PROJECT_CONFIG": "true",
        "HOME": DATA,
        "PWD": working_directory(order),
        "TMPDIR": TEMPORARY,
        "TMP": TEMPORARY,
        "TEMP": TEMPORARY,
        "OPENCODE_DB": f"{DATABASE}/opencode.db",
        "OPENCODE_CONFIG": f"{RUN_DIRECTORY}/secret/{CONFIG_KEY}",
    }


def _environment(order: CreateJob, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """The agent's variables by reference, then ours, then the inherited references whose names are still free."""
    secret = order.attempt.run_secret_name
    variables: dict[str, dict[str, Any]] = {
        name: {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": variable_key(name)}}}
        for name in environment
    }
    fixed = _fixed_environment(order)
    inherited = {each.name: each for each in order.profile.env_references}
    if "NODE_ENV" not in variables and "NODE_ENV" not in inherited:
        fixed = {"NODE_ENV": "development", **fixed}
    variables |= {name: {"name": name, "value": literal(value)} for name, value in fixed.items()}
    for name, each in inherited.items():
        variables.setdefault(name, {"name": name, "valueFrom": dict(each.value_from)})
    return list(variables.values())


# volumes


def _volumes(order: CreateJob, settings: PodSettings) -> list[dict[str, Any]]:
    attempt, claim = order.attempt, order.profile.data_claim
    data = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    volumes = [
        {"name": "prompt", "emptyDir": {}},
        {"name": "runtime-cache", "emptyDir": {"sizeLimit": settings.cache_limit}},
        # optional: a kubelet that was restarted mounts it again, and does nothing for the pod, not even end it, while
        # it cannot; by then the agent has its prompt and the Secret is gone
        {"name": "prompt-secret", "secret": {**_files(attempt.prompt_secret_name, PROMPT_KEY), "optional": True}},
        {"name": "runner", "emptyDir": {}},
        {"name": "run-secret", "secret": _files(attempt.run_secret_name, RUNNER_KEY, CONFIG_KEY)},
        {"name": "output", "emptyDir": {"sizeLimit": settings.output_limit}},
        {"name": "data", **data},
    ]
    database = _database(order)
    return volumes if "subPath" in database else [*volumes, {"name": "opencode-db", **database}]


def _files(secret: str, *keys: str) -> dict[str, Any]:
    return {
        "secretName": secret,
        "defaultMode": 0o444,
        "items": [{"key": key, "path": key} for key in keys],
    }


def _mounts(order: CreateJob) -> list[dict[str, Any]]:
    database = _database(order)
    return [
        {"name": "prompt", "mountPath": PROMPT},
        {"name": "runtime-cache", "mountPath": CACHE},
        {"name": "runner", "mountPath": f"{RUN_DIRECTORY}/bin"},
        {"name": "run-secret", "mountPath": f"{RUN_DIRECTORY}/secret", "readOnly": True},
        {"name": "output", "mountPath": f"{RUN_DIRECTORY}/output"},
        {"name": "data", "mountPath": DATA},
        {"name": "data", "mountPath": DATABASE, "subPath": database["subPath"]}
        if "subPath" in database
        else {"name": "opencode-db", "mountPath": DATABASE},
    ]


def _database(order: CreateJob) -> dict[str, Any]:
    """Where OpenCode's database lives: a folder of the data volume for each task, a volume of its own, or nowhere."""
    mode, attempt = order.config.agent_db_mode, order.attempt
    if mode == "dedicated_pvc":
        return {"persistentVolumeClaim": {"claimName": claim_name(attempt.run.agent_id)}}
    if mode == "workspace_subpath" and order.profile.data_claim and order.task_key:
        return {"subPath": database_path(attempt.run.company_id, attempt.run.agent_id, order.task_key)}
    return {"emptyDir": {}}


def keeps_sessions(order: CreateJob) -> bool:
    """Whether OpenCode's database outlives the pod, so that its sessions can be resumed."""
    return "emptyDir" not in _database(order)


def database_path(company: str, agent: str, task_key: str | None) -> str:
    """The folder of a task's database on the data volume; never leaves `.opencode-db`."""
    return "/".join((".opencode-db", _segment(company), _segment(agent), task_segment(task_key)))


def task_segment(task_key: str | None) -> str:
    """A task key as the name of one folder: lowercase, `_` for anything unusual, 128 at most."""
    return re.sub(r"[^a-z0-9_-]", "_", (task_key or "").strip().lower())[:_TASK_LIMIT] or "_no_task_"


def _segment(identifier: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", identifier) or "_"


def claim_name(agent: str) -> str:
    """The name of an agent's own database claim.

    Raises:
        InvalidRequest: the agent's id has no usable character.
    """
    slug = re.sub(r"[^a-z0-9-]", "", agent.lower()).strip("-")[:208].strip("-")
    if not slug:
        raise InvalidRequest("agent.id: has no letter or digit that a PersistentVolumeClaim name could hold")
    return f"opencode-db-{slug}"


def database_claim(order: CreateJob) -> dict[str, Any] | None:
    """The claim for the agent's own database; None unless `agentDbMode` is `dedicated_pvc`.

    Raises:
        InvalidRequest: the storage class cannot be the name of one.
    """
    config, run = order.config, order.attempt.run
    if config.agent_db_mode != "dedicated_pvc":
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
        "paperclip.io/agent-id": label_value(run.agent_id),
        "paperclip.io/pvc-type": "agent-db",
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name(run.agent_id), "namespace": _namespace(order), "labels": labels},
        "spec": spec,
    }


def _inherited_mounts(profile: PodProfile) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Secret volumes of the worker's pod with their mounts: one for each path, none over a path of ours."""
    mounts: dict[str, SecretMount] = {}
    for each in profile.secret_mounts:
        path = posixpath.normpath(each.mount_path)
        if path != "/" and ":" not in path and not any(_covers(taken, path) for taken in _TAKEN):
            mounts.setdefault(path, each)
    return [(_secret_volume(each), _secret_mount(path, each)) for path, each in mounts.items()]


def _covers(taken: str, path: str) -> bool:
    return path == taken or (taken != DATA and path.startswith(f"{taken}/"))


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


_OUR_VOLUMES: Final = {
    "prompt",
    "runtime-cache",
    "prompt-secret",
    "runner",
    "run-secret",
    "output",
    "data",
    "opencode-db",
    "api",
    "api-proxy",
    "api-token",
}


def _volume_name(name: str) -> str:
    return f"{name[:53].rstrip('-')}-inherited" if name in _OUR_VOLUMES else name


def _once(volumes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each volume once, however often it is mounted."""
    return list({volume["name"]: volume for volume in volumes}.values())


def _whole(duration: timedelta) -> int:
    return int(duration.total_seconds())
