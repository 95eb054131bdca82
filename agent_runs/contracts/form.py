"""The form of an agent's configuration in Paperclip. Values are saved flat into `adapterConfig`.

Labels, hints, groups and order stand here; types, choices and defaults are those of the configuration's model. Keys and
order follow the existing Kubernetes adapters, so that their agents keep their settings. Paperclip's own fields (model,
env, instructions, extraArgs, timeoutSec, graceSec) are not repeated.
`python -m agent_runs.contracts.schema` rewrites the committed file; a test keeps it fresh.
Source: Paperclip 2026.916.1, adapter-utils, `ConfigField`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from agent_runs.contracts.request import RunConfig

FORM_FILE: Final = Path(__file__).with_name("form.json")
DOCUMENTATION_FILE: Final = Path(__file__).with_name("form.md")
"""What Paperclip shows to an agent or a person who configures an agent of this type."""
MODELS: Final = (
    *("anthropic/claude-opus-4-7", "anthropic/claude-sonnet-4-6", "anthropic/claude-haiku-4-5"),
    *("openai/gpt-4o", "google/gemini-2.5-pro", "google/gemini-2.5-flash"),
)
"""What Paperclip offers next to a free text. Which models work depends on the providers in the agent's pod; an operator
can set `PAPERCLIP_ADAPTER_MODELS`, which Paperclip prefers to this list."""


class FormConfig(RunConfig):
    """The configuration as the form edits it.

    Attributes:
        on_busy: read by the plugin alone: while another task has the agent, wait for its end or refuse the run.
    """

    on_busy: Literal["wait", "refuse"] = "wait"


@dataclass(frozen=True)
class Caption:
    """What the form says about one field.

    Attributes:
        key: in `adapterConfig`; that of a nested field has dots.
        visible_when: key and value of the choice with which the field is shown; None: always.
    """

    key: str
    label: str
    hint: str
    visible_when: tuple[str, str] | None = None


_OWN_VOLUME: Final = ("agentDbMode", "dedicated_pvc")
CAPTIONS: Final[dict[str, tuple[Caption, ...]]] = {
    "Core": (
        Caption(
            "variant",
            "Variant",
            "The model's reasoning profile, passed to OpenCode as --variant; empty: Paperclip's Thinking effort.",
        ),
        Caption(
            "dangerouslySkipPermissions",
            "Skip Permission Checks",
            "OpenCode may use directories outside the workspace without asking; nobody can answer a question.",
        ),
        Caption(
            "workspace",
            "Workspace",
            "shared: a run is refused when no data volume keeps the files of its workspace. ephemeral: the run works, "
            "and such files are lost with its pod.",
        ),
        Caption(
            "agentDbMode",
            "Agent DB Mode",
            "Where OpenCode keeps its sessions: a folder on the shared data volume, a volume of the agent's own, "
            "or nowhere.",
        ),
        Caption(
            "agentDbStorageClass",
            "Agent DB Storage Class",
            "StorageClass of the agent's own volume; needed for dedicated_pvc while the volume does not exist.",
            _OWN_VOLUME,
        ),
        Caption("agentDbStorageCapacity", "Agent DB Storage Capacity", "Size of the agent's own volume.", _OWN_VOLUME),
    ),
    "Kubernetes": (
        Caption(
            "serviceAccountName",
            "Service Account",
            "ServiceAccount of the Job's pod; empty: the namespace's default.",
        ),
        Caption("namespace", "Namespace", "Namespace of the Job; empty: the worker's own."),
        Caption(
            "image",
            "Container Image",
            "The agent's image, which must contain OpenCode; empty: the worker's setting.",
        ),
        Caption("imagePullPolicy", "Image Pull Policy", "When the kubelet pulls the image."),
        Caption("resources.requests.cpu", "CPU Request", "Such as 500m or 2."),
        Caption("resources.requests.memory", "Memory Request", "Such as 2Gi."),
        Caption("resources.limits.cpu", "CPU Limit", "Such as 4."),
        Caption("resources.limits.memory", "Memory Limit", "Such as 8Gi."),
        Caption("nodeSelector", "Node Selector", "key=value, one per line."),
        Caption("tolerations", "Tolerations", 'A JSON array, such as [{"key": "gpu", "operator": "Exists"}].'),
        Caption("labels", "Labels", "Additional labels of the Job, key=value, one per line."),
        Caption("ttlSecondsAfterFinished", "TTL After Finished", "Seconds until Kubernetes deletes a finished Job."),
        Caption("retainJobs", "Retain Jobs", "Keep finished Jobs for inspection."),
    ),
    "Pod": (
        Caption(
            "resources.requests.ephemeral-storage", "Disk Request", "Room on the node's disk for the pod, such as 2Gi."
        ),
        Caption("resources.limits.ephemeral-storage", "Disk Limit", "Such as 20Gi; beyond it the pod is evicted."),
        Caption("annotations", "Annotations", "Additional annotations of the pod, key=value, one per line."),
        Caption("runtimeClassName", "Runtime Class", "RuntimeClass of the pod; empty: the cluster's default."),
        Caption("priorityClassName", "Priority Class", "PriorityClass of the pod; empty: the cluster's default."),
        Caption("affinity", "Affinity", "A JSON object: nodeAffinity, podAffinity and podAntiAffinity of the pod."),
        Caption("topologySpreadConstraints", "Topology Spread", "A JSON array of the pod's topologySpreadConstraints."),
        Caption(
            "extraVolumes",
            "Extra Volumes",
            'A JSON array, such as [{"name": "models", "mountPath": "/models", "readOnly": true, '
            '"persistentVolumeClaim": {"claimName": "models"}}].',
        ),
        Caption(
            "podTemplate",
            "Pod Template",
            'A JSON object that is laid over the pod, such as {"spec": {"schedulerName": "batch"}}.',
        ),
    ),
    "Timeouts": (
        Caption("scheduleTimeoutSec", "Schedule Timeout", "Seconds until a node must have taken the pod."),
        Caption("startTimeoutSec", "Start Timeout", "Seconds after that until the agent's container must run."),
        Caption(
            "firstOutputTimeoutSec",
            "First Output Timeout",
            "Seconds that OpenCode may be silent before its first line; 0: no limit.",
        ),
        Caption(
            "silenceTimeoutSec",
            "Silence Timeout",
            "Seconds that OpenCode may be silent after its first line; 0: no limit. Running tools write nothing.",
        ),
        Caption(
            "infrastructureRetries",
            "Infrastructure Retries",
            "Further attempts after a lost pod or node, with the same session.",
        ),
    ),
    "Paperclip": (
        Caption(
            "paperclipApiUrl",
            "Paperclip URL for Pods",
            "Paperclip's address as pods reach it; empty: AGENT_RUNS_PAPERCLIP_API_URL of this server, else the "
            "worker's setting.",
        ),
        Caption(
            "onBusy",
            "When the Agent Is Busy",
            "While a run of another task is open: wait for its end, or refuse this run at once.",
        ),
    ),
}

_INPUTS: Final = {
    "boolean": "toggle",
    "integer": "number",
    "string": "text",
    "object": "textarea",
    "array": "textarea",
}


def form() -> dict[str, Any]:
    """Returns Paperclip's description of the form: `fields`, each a `ConfigField`, `documentation` and `models`."""
    schema = FormConfig.model_json_schema()
    fields = [_field(caption, group, schema) for group, captions in CAPTIONS.items() for caption in captions]
    models = [{"id": model, "label": model} for model in MODELS]
    return {"fields": fields, "documentation": DOCUMENTATION_FILE.read_text(), "models": models}


def form_text() -> str:
    """Returns the content of the committed file."""
    return json.dumps(form(), indent=2, ensure_ascii=False) + "\n"


def _field(caption: Caption, group: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The entry of one field. A default that is empty or false is left out, because the form begins so anyway."""
    value = _schema_of(caption.key, schema)
    entry: dict[str, Any] = {"key": caption.key, "label": caption.label, "type": _input(value), "hint": caption.hint}
    entry["group"] = group
    if value.get("default"):
        entry["default"] = value["default"]
    if "enum" in value:
        entry["options"] = [{"label": choice, "value": choice} for choice in value["enum"]]
    if caption.visible_when:
        key, chosen = caption.visible_when
        entry["meta"] = {"visibleWhen": {"key": key, "value": chosen}}
    return entry


def _schema_of(key: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a field.

    Raises:
        KeyError: the configuration has no such field.
    """
    found = schema
    for part in key.split("."):
        definition = found.get("$ref", "").removeprefix("#/$defs/")
        found = (schema["$defs"][definition] if definition else found)["properties"][part]
    return found


def _input(value: dict[str, Any]) -> str:
    """The form's input for values of this schema; null stands for an empty input.

    Raises:
        StopIteration: the form has none.
    """
    if "enum" in value:
        return "select"
    types = [one.get("type") for one in value.get("anyOf", [value])]
    return next(_INPUTS[name] for name in types if name in _INPUTS)
