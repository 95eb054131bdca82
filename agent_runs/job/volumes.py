"""The volumes of an agent's pod, and where its containers mount them."""

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import distinct, identity_label
from agent_runs.contracts.messages import CreateJob, PodProfile, SecretMount
from agent_runs.contracts.pod import (
    DATA_DIRECTORY,
    HOME_DIRECTORY,
    OUTPUT_DIRECTORY,
    PROMPT_DIRECTORY,
    RUN_DIRECTORY,
    SKILLS_DIRECTORY,
)
from agent_runs.contracts.pod_options import VOLUME_KINDS
from agent_runs.contracts.syntax import is_subdomain
from agent_runs.job.agent_pod import AgentPod, AgentPodSettings, is_opencode, working_directory
from agent_runs.job.data_volume import DataRules, Folder, Owner, RunFolders, database_path
from agent_runs.job.placement import DATABASE_CLAIMS
from agent_runs.job.secrets import (
    CONFIG_KEY,
    PROMPT_KEY,
    SCRIPT_KEYS,
    SERVE_KEY,
    SIDECAR_KEY,
    TOKEN_KEYS,
    TURN_KEY,
    WORKSPACE_KEY,
)

CACHE_DIRECTORY: Final = "/runtime-cache"
CACHE_LIMIT: Final = "20Gi"
OUTPUT_LIMIT: Final = "10Gi"
DATABASE_DIRECTORY: Final = "/opencode-db"
WORKSPACE: Final = "workspace"
"""Folder of the data volume with a carried workspace whose path is elsewhere."""

_SLUG_LIMIT: Final = 208
_RESERVED_PATHS: Final = (
    DATA_DIRECTORY,
    HOME_DIRECTORY,
    DATABASE_DIRECTORY,
    CACHE_DIRECTORY,
    RUN_DIRECTORY,
    PROMPT_DIRECTORY,
)
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
    "skills",
    "control",
    "sidecar",
    "token",
}


def volumes(pod: AgentPod) -> list[dict[str, Any]]:
    inherited = [volume for volume, _ in _inherited(pod.input.profile)]
    ours = _pod_volumes(pod) + _sidecar_volumes(pod)
    return ours + _deduplicated(inherited) + _extra_volumes(pod.input)


def agent_mounts(pod: AgentPod) -> list[dict[str, Any]]:
    skills = [{"name": "skills", "mountPath": SKILLS_DIRECTORY, "readOnly": True}] if pod.skills else []
    own = _own_mounts(pod.input, pod.settings) + skills + inherited_mounts(pod.input.profile)
    return _with_extra_mounts(pod.input, own)


def inherited_mounts(profile: PodProfile) -> list[dict[str, Any]]:
    """The mounts of Secrets of the worker's own pod."""
    return [mount for _, mount in _inherited(profile)]


def _pod_volumes(pod: AgentPod) -> list[dict[str, Any]]:
    input = pod.input
    attempt, claim = input.attempt, input.profile.data_claim
    data = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    config = [CONFIG_KEY] if is_opencode(input) else []
    keys = (*SCRIPT_KEYS, *config, *([SERVE_KEY, *pod.driven.files] if pod.driven else []))
    volumes = [
        {"name": "prompt", "emptyDir": {}},
        {"name": "runtime-cache", "emptyDir": {"sizeLimit": CACHE_LIMIT}},
        {"name": "prompt-secret", "secret": _files(attempt.prompt_secret_name, PROMPT_KEY)},
        {"name": "runner", "emptyDir": {}},
        {"name": "run-secret", "secret": _files(pod.secret, *keys)},
        {"name": "output", "emptyDir": {"sizeLimit": OUTPUT_LIMIT}},
        {"name": "data", **data},
    ]
    if pod.skills:
        items = [{"key": key, "path": path} for path, key in pod.skills.items()]
        volumes.append({"name": "skills", "secret": {**_files(pod.secret), "defaultMode": 0o555, "items": items}})
    database = _database(input)
    return volumes if database is None or "subPath" in database else [*volumes, {"name": "opencode-db", **database}]


def _sidecar_volumes(pod: AgentPod) -> list[dict[str, Any]]:
    keys = [SIDECAR_KEY, *([TURN_KEY] if pod.driven else []), *([WORKSPACE_KEY] if pod.carried else [])]
    volumes: list[dict[str, Any]] = [
        {"name": "control", "emptyDir": {}},
        {"name": "sidecar", "secret": _files(pod.secret, *keys)},
    ]
    if pod.proxy:  # not every run has all tokens, and one that is added later becomes visible
        volumes.append({"name": "token", "secret": _files(pod.secret, *TOKEN_KEYS)})
    return volumes


def _files(secret: str, *keys: str) -> dict[str, Any]:
    """Optional, because a restarted kubelet mounts them anew, and until it can, kubelets up to 1.21 do nothing for the
    pod, not even report its end. The prompt is deleted once the agent has it, the rest with the Job."""
    return {
        "secretName": secret,
        "defaultMode": 0o444,
        "items": [{"key": key, "path": key} for key in keys],
        "optional": True,
    }


def _own_mounts(input: CreateJob, settings: AgentPodSettings) -> list[dict[str, Any]]:
    return [
        {"name": "prompt", "mountPath": PROMPT_DIRECTORY},
        {"name": "runtime-cache", "mountPath": CACHE_DIRECTORY},
        {"name": "runner", "mountPath": f"{RUN_DIRECTORY}/bin"},
        {"name": "run-secret", "mountPath": f"{RUN_DIRECTORY}/secret", "readOnly": True},
        {"name": "output", "mountPath": OUTPUT_DIRECTORY},
        *work_mounts(input, settings),
    ]


def work_mounts(input: CreateJob, settings: AgentPodSettings) -> list[dict[str, Any]]:
    """The mounts of all that the agent works with and keeps: its workspace, its home, OpenCode's database."""
    whole = [{"name": "data", "mountPath": DATA_DIRECTORY}] if _data_rules(input, settings).whole else []
    return [*_database_mounts(_database(input)), *whole, *map(_data_mount, _data_folders(input, settings))]


def _database_mounts(database: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if database is None:
        return []
    if "subPath" in database:
        return [{"name": "data", "mountPath": DATABASE_DIRECTORY, "subPath": database["subPath"]}]
    return [{"name": "opencode-db", "mountPath": DATABASE_DIRECTORY}]


def _data_rules(input: CreateJob, settings: AgentPodSettings) -> DataRules:
    """Return the rules for the data volume; a volume that ends with the pod has nothing of another agent."""
    return settings.data if input.profile.data_claim else DataRules(whole=True)


def _data_folders(input: CreateJob, settings: AgentPodSettings) -> tuple[Folder, ...]:
    run = input.attempt.run
    folders = RunFolders(
        owner=Owner(run.company_id, run.agent_id),
        directory=working_directory(input),
        workspace=input.request.context.paperclip_workspace,
        projects=input.request.context.paperclip_workspaces,
        instructions=input.config.instructions_file_path,
        skills=input.prompt.skill_paths,
    )
    mounted = folders.mounted(_data_rules(input, settings))
    place = f"{folders.directory}/"
    if input.config.workspace != "carried" or any(
        place.startswith(f"{each}/") for each in (DATA_DIRECTORY, HOME_DIRECTORY)
    ):
        return mounted
    return (*mounted, Folder(WORKSPACE, folders.directory))


def _data_mount(folder: Folder) -> dict[str, Any]:
    mount: dict[str, Any] = {"name": "data", "mountPath": folder.mount_path, "subPath": folder.sub_path}
    return {**mount, "readOnly": True} if folder.read_only else mount


def sub_paths(input: CreateJob, settings: AgentPodSettings) -> list[str]:
    """Return the folders that have to exist on the data volume before a kubelet mounts them."""
    database = (_database(input) or {}).get("subPath")
    return [*([database] if database else []), *(folder.sub_path for folder in _data_folders(input, settings))]


def _database(input: CreateJob) -> dict[str, Any] | None:
    """Return the volume of OpenCode's database: a folder per task on the data volume, a claim, or an emptyDir. None for
    another agent, which keeps its sessions in its home."""
    mode, attempt = input.config.agent_db_mode, input.attempt
    if not is_opencode(input):
        return None
    if mode == "dedicated_pvc" and input.config.workspace != "carried":
        return {"persistentVolumeClaim": {"claimName": claim_name(attempt.run.agent_id)}}
    task_key = (input.request.runtime.task_key or "").strip()
    if mode == "workspace_subpath" and input.profile.data_claim and task_key:
        return {"subPath": database_path(attempt.run.company_id, attempt.run.agent_id, task_key)}
    return {"emptyDir": {}}


def keeps_sessions(input: CreateJob) -> bool:
    """Return whether OpenCode's database, or another agent's home, outlives the pod: its sessions can be resumed."""
    database = _database(input)
    if input.config.workspace == "carried":
        return True
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
    if config.agent_db_mode != "dedicated_pvc" or config.workspace == "carried" or not is_opencode(input):
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
        "metadata": {"name": claim_name(run.agent_id), "namespace": input.prompt.namespace, "labels": labels},
        "spec": spec,
    }


def _inherited(profile: PodProfile) -> list[tuple[dict[str, Any], dict[str, Any]]]:
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


def _volume_name(name: str) -> str:
    return f"{name}-inherited" if name in _OUR_VOLUMES or name.startswith(_EXTRA) else name


def _deduplicated(volumes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({volume["name"]: volume for volume in volumes}.values())
