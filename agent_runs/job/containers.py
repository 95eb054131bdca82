"""The containers of an agent's pod."""

import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.messages import CreateJob
from agent_runs.contracts.pod import (
    AGENT_CONTAINER,
    CONTROL_DIRECTORY,
    DATA_DIRECTORY,
    HOME_DIRECTORY,
    OUTPUT_DIRECTORY,
    PROMPT_DIRECTORY,
    PROMPT_FILE,
    RESTORE_CONTAINER,
    RUN_DIRECTORY,
    RUNNER_FILE,
    SIDECAR_CONTAINER,
    SIDECAR_FILE,
    TOKEN_DIRECTORY,
)
from agent_runs.job.agent_pod import PYTHON_IMAGE, AgentPod, is_opencode, literal, working_directory
from agent_runs.job.placement import INIT_RESOURCES, SIDECAR_RESOURCES, resources
from agent_runs.job.secrets import (
    ARGUMENT_LIMIT,
    CONFIG_KEY,
    SERVE_KEY,
    TURN_KEY,
    UPSTREAM_KEY,
    WORKSPACE_KEY,
    variable_key,
)
from agent_runs.job.volumes import (
    CACHE_DIRECTORY,
    DATABASE_DIRECTORY,
    agent_mounts,
    inherited_mounts,
    sub_paths,
    work_mounts,
)
from agent_runs.pod.sidecar.upstream import UPSTREAM

INIT_CONTAINER: Final = "write-prompt"
PROMPT_MOUNT: Final = "/tmp/prompt-secret"  # noqa: S108 - a path in the pod
CONFIG_FILE: Final = f"{RUN_DIRECTORY}/secret/{CONFIG_KEY}"
WORKSPACE_FILE: Final = f"{posixpath.dirname(SIDECAR_FILE)}/{WORKSPACE_KEY}"
TURN_FILE: Final = f"{posixpath.dirname(SIDECAR_FILE)}/{TURN_KEY}"
TEMPORARY_DIRECTORY: Final = "/runtime-cache/tmp"
LOGIN_FOLDERS: Final = tuple(f"{home}/.local/share/opencode" for home in (HOME_DIRECTORY, DATA_DIRECTORY))
"""Where logins of `opencode auth` are: in the agent's home, or in Paperclip's if the policy shares that folder."""
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


def init_container(pod: AgentPod) -> dict[str, Any]:
    folders = [f"{DATA_DIRECTORY}/{path}" for path in sub_paths(pod.input, pod.settings)]
    return {
        "name": INIT_CONTAINER,
        "image": pod.settings.init_image,
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


def sidecar_container(pod: AgentPod) -> dict[str, Any]:
    """Return the sidecar, which has the tokens and the certificate authorities that Paperclip may need."""
    trust = [name for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS") if pod.proxy and name in pod.environment]
    keys = {**({UPSTREAM: UPSTREAM_KEY} if pod.proxy else {}), **{name: variable_key(name) for name in trust}}
    folders = [OUTPUT_DIRECTORY, CONTROL_DIRECTORY, TOKEN_DIRECTORY]
    carried = ["--workspace", WORKSPACE_FILE] if pod.carried else []
    return {
        "name": SIDECAR_CONTAINER,
        "image": pod.settings.sidecar_image or PYTHON_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", SIDECAR_FILE],
        "args": ["run", *carried, *folders, str(pod.input.config.max_unread_sec), *([TURN_FILE] if pod.driven else [])],
        "env": [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": pod.secret, "key": key}}}
            for name, key in keys.items()
        ],
        "resources": SIDECAR_RESOURCES,
        "securityContext": {**_container_security(), "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "output", "mountPath": OUTPUT_DIRECTORY},
            {"name": "control", "mountPath": CONTROL_DIRECTORY},
            {"name": "sidecar", "mountPath": posixpath.dirname(SIDECAR_FILE), "readOnly": True},
            *([{"name": "token", "mountPath": TOKEN_DIRECTORY, "readOnly": True}] if pod.proxy else []),
            *([{"name": "prompt", "mountPath": PROMPT_DIRECTORY, "readOnly": True}] if pod.driven else []),
            *(inherited_mounts(pod.input.profile) if trust else []),
            *(work_mounts(pod.input, pod.settings) if pod.carried else []),
        ],
    }


def restoring_container(pod: AgentPod) -> dict[str, Any]:
    """Return the init container that puts a carried workspace into its place."""
    return {
        "name": RESTORE_CONTAINER,
        "image": pod.settings.sidecar_image or PYTHON_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-I", "-S", SIDECAR_FILE],
        "args": ["restore", WORKSPACE_FILE],
        "resources": SIDECAR_RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {**_container_security(), "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "sidecar", "mountPath": posixpath.dirname(SIDECAR_FILE), "readOnly": True},
            *work_mounts(pod.input, pod.settings),
        ],
    }


def agent_container(pod: AgentPod) -> dict[str, Any]:
    input, config = pod.input, pod.input.config
    options = [word for folder in LOGIN_FOLDERS for word in ("--logins", folder)] if is_opencode(input) else []
    options += ["--serve", f"{RUN_DIRECTORY}/secret/{SERVE_KEY}"] if pod.driven else []
    container: dict[str, Any] = {
        "name": AGENT_CONTAINER,
        "image": _image(input),
        "imagePullPolicy": config.image_pull_policy,
        "command": ["sh", RUNNER_FILE],
        "args": [literal(argument) for argument in _runner_arguments(pod, options)],
        "env": _environment(pod),
        "resources": resources(config.resources),
        "securityContext": _container_security(),
        "volumeMounts": agent_mounts(pod),
    }
    if input.profile.env_from:
        container["envFrom"] = [dict(each) for each in input.profile.env_from]
    return container


def _container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": False,
        "runAsNonRoot": True,
        "runAsUser": 1000,
    }


def _image(input: CreateJob) -> str:
    image = (input.config.image or input.profile.image).strip()
    if not image or re.search(r"\s", image):
        raise InvalidRequest("image: must be the name of a container image, without spaces")
    return image


def _runner_arguments(pod: AgentPod, options: Sequence[str]) -> list[str]:
    input, path_variables = pod.input, pod.proxy.path_variables if pod.proxy else ()
    for argument in pod.argv:
        if "\0" in argument or len(argument.encode(errors="replace")) >= ARGUMENT_LIMIT:
            raise InvalidRequest("extraArgs: an argument has a NUL byte or more than 128 KiB")
    return [
        *("--stdin", PROMPT_FILE),
        *("--out", OUTPUT_DIRECTORY),
        *("--dir", working_directory(input)),
        *("--grace", str(input.config.grace_sec)),
        *(word for name in path_variables for word in ("--api-variable", name)),
        *options,
        *pod.argv,
    ]


def fixed_variables(input: CreateJob) -> frozenset[str]:
    """Return the names of the variables that only this program sets."""
    return frozenset(("NODE_ENV", *fixed_environment(input)))


def fixed_environment(input: CreateJob) -> dict[str, str]:
    """Return the variables that only this program sets: paths in the pod. They take precedence over the agent's."""
    opencode = {
        "OPENCODE_DB": f"{DATABASE_DIRECTORY}/opencode.db",
        "OPENCODE_CONFIG": CONFIG_FILE,
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
        **(opencode if is_opencode(input) else {}),
    }


def known_environment(input: CreateJob, own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the agent's process, but for inherited references: only the kubelet reads their values.

    Args:
        own: what the agent gets.
    """
    inherited = {each.name for each in input.profile.env_references}
    default = {} if "NODE_ENV" in inherited else {"NODE_ENV": "development"}
    return {**default, **own, **fixed_environment(input)}


def _environment(pod: AgentPod) -> list[dict[str, Any]]:
    """The agent's variables by reference, then ours, then inherited references whose names are still free."""
    input = pod.input
    variables: dict[str, dict[str, Any]] = {
        name: {"name": name, "valueFrom": {"secretKeyRef": {"name": pod.secret, "key": variable_key(name)}}}
        for name in pod.environment
    }
    for name, value in known_environment(input, pod.environment).items():
        variables.setdefault(name, {"name": name, "value": literal(value)})
    for each in input.profile.env_references:
        variables.setdefault(each.name, {"name": each.name, "valueFrom": dict(each.value_from)})
    return list(variables.values())
