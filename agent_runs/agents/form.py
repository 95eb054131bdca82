"""What people read about each field of an agent's configuration: in Paperclip's form, and in docs/configuration.md.

Labels, hints, groups and order stand here, once for each field; types, choices, limits and defaults are those of the
configuration's model. Values of the form are saved flat into `adapterConfig`. Keys and order follow the existing
Kubernetes adapters, so that their agents keep their settings. Paperclip's own fields (model, env, instructions,
extraArgs, timeoutSec, graceSec) have a place in its page already, so they have no label here.
`python -m agent_runs.agents.form` rewrites the committed form, `python -m dev_stack.configuration_page` the page;
tests keep both fresh.
Source: Paperclip 2026.916.1, adapter-utils, `ConfigField`.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent_runs.agents.opencode.command import SERVER_CAPABILITIES
from agent_runs.agents.profile import OPENCODE_TITLE, load
from agent_runs.contracts.agent_config import field_schemas
from agent_runs.contracts.request import OPENCODE

FORM_FILE: Final = Path(__file__).with_name("form.json")
DOCUMENTATION_FILE: Final = Path(__file__).with_name("form.md")
"""What Paperclip shows to an agent or a person who configures an agent of this type."""
PROFILES: Final = load()
AGENTS: Final = {OPENCODE: OPENCODE_TITLE} | {name: profile.title for name, profile in PROFILES.items()}
"""The agents of this program, which the form offers next to a free text: an operator may add others."""
CAPABILITIES: Final = {OPENCODE: SERVER_CAPABILITIES} | {name: each.capabilities for name, each in PROFILES.items()}


@dataclass(frozen=True)
class Caption:
    """What people read about one field.

    Attributes:
        key: in `adapterConfig`; that of a nested field has dots.
        label: above the field in the form; None: this form does not show it.
        visible_when: key and value of the choice with which the field is shown; None: always.
        opencode_only: the field is hidden when another agent is chosen.
        suggestions: values that the form offers next to a free text, with their labels.
    """

    key: str
    label: str | None
    hint: str
    visible_when: tuple[str, str] | None = None
    opencode_only: bool = False
    suggestions: Mapping[str, str] = dataclasses.field(default_factory=dict)


_OWN_VOLUME: Final = ("agentDbMode", "dedicated_pvc")
CAPTIONS: Final[dict[str, tuple[Caption, ...]]] = {
    "Agent": (
        Caption("model", None, "Provider and model, such as anthropic/claude-sonnet-4-6."),
        Caption(
            "effort", None, "Paperclip's Thinking effort of a changed agent; used for variant where that is empty."
        ),
        Caption("thinkingEffort", None, "Thinking effort of a new agent; used like effort."),
        Caption(
            "env",
            None,
            "Variables of the agent. Paperclip resolves references to its secrets, and all values stay sealed. A name "
            "that cannot have an effect is a warning of the run.",
        ),
        Caption(
            "extraArgs",
            None,
            "Additional arguments of opencode run. Options that a run sets itself are refused by name.",
        ),
        Caption(
            "instructionsFilePath",
            None,
            "File with the agent's instructions, which begin its prompt. Paperclip sets it; it may be in the agent's "
            "own folder of instructions or in a folder that the operator allows.",
        ),
        Caption(
            "promptTemplate",
            None,
            "Template of the prompt's last section; empty: Paperclip's own. Paperclip refuses it for a new agent, "
            "whose instructions take its place.",
        ),
        Caption("bootstrapPromptTemplate", None, "Template of a section that only a fresh session gets."),
        Caption(
            "cwd",
            None,
            "Working directory of a run for which Paperclip names no workspace; empty: the agent's home.",
        ),
        Caption(
            "timeoutSec", None, "Run time of the agent in one run, all attempts together, in seconds; 0: no limit."
        ),
        Caption("graceSec", None, "Seconds that the agent may take to end after SIGTERM; then it is killed."),
        Caption(
            "mcpServers",
            None,
            "MCP servers by name, in OpenCode's spelling (type local or remote) or Claude's (command and args, or "
            "url). Headers and tokens in it stay sealed.",
        ),
        Caption(
            "opencode",
            None,
            "The agent's own OpenCode configuration, an object or its JSON text (docs/opencode.md). It stays sealed.",
        ),
        Caption(
            "resumeLastSession",
            None,
            "Continue the session of the agent's last run of the same task; false: a fresh session every time.",
        ),
    ),
    "Core": (
        Caption(
            "agent",
            "Agent",
            "Whose program runs. Another one than OpenCode needs an image of its own. A session is continued only by "
            "the agent that made it. What of this configuration an agent cannot do is a warning of the run. "
            "These take messages while they work, the others as their next prompt: "
            f"{', '.join(AGENTS[name] for name, can in CAPABILITIES.items() if can.takes_messages)}.",
            suggestions=AGENTS,
        ),
        Caption(
            "variant",
            "Variant",
            "The model's reasoning profile or effort, which OpenCode gets as --variant and another agent in its own "
            "way; empty: Paperclip's Thinking "
            "effort.",
        ),
        Caption(
            "dangerouslySkipPermissions",
            "Skip Permission Checks",
            "Dangerous: the agent's tools may read and change whatever the pod reaches outside of the workspace, with "
            "nobody asked: other folders of its home, mounted Secrets, the pod itself. Off: people are asked for each "
            "tool call that leaves the workspace and each shell command that names such a path (askTimeoutSec), and "
            "OpenCode may ask them questions. Neither rule confines programs that the agent starts. An agent without "
            "such a mode is refused.",
        ),
        Caption(
            "askTimeoutSec",
            "Ask Timeout",
            "Seconds that the agent waits for the answer of a person to what it asks: a permission that is set to ask, "
            "or a question. Then the question is rejected. 0: nobody is asked, and ask means deny.",
        ),
        Caption(
            "keepWarmSec",
            "Keep Warm",
            "Seconds that the pod of an agent that has succeeded waits for the agent's next run, which then needs no "
            "new pod and no start of OpenCode; 0: it is deleted at once. OpenCode needs the transport serve or auto; "
            "of other agents docs/agents.md says which may. Values above the operator's limit are lowered "
            "to it.",
        ),
        Caption(
            "transport",
            "Transport",
            "How the pod drives OpenCode: run is its command line, serve its server, auto the server unless extraArgs "
            "need the command line.",
            opencode_only=True,
        ),
        Caption(
            "opencodeFeatures",
            "OpenCode Features",
            "Features to enable; all are off by default. One per line: lsp (language servers of the image), "
            "formatter, snapshot (OpenCode's own undo), projectConfig (opencode.json and AGENTS.md of the workspace). "
            "Dangerous: with projectConfig a repository chooses where prompts and the provider's key are sent.",
            opencode_only=True,
        ),
        Caption(
            "workspace",
            "Workspace",
            "shared: a run is refused when no data volume keeps the files of its workspace. ephemeral: the run works, "
            "and such files are lost with its pod.",
        ),
        Caption(
            "skills",
            "Skills",
            "folders: the agent gets the folders of skills on the data volume and of those that come with Paperclip, "
            "and reads of them what it needs. inline: the texts of skills are in the prompt.",
        ),
        Caption(
            "agentDbMode",
            "Agent DB Mode",
            "Where OpenCode keeps its sessions: a folder on the shared data volume, a volume of the agent's own, "
            "or nowhere.",
            opencode_only=True,
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
            "The agent's image, which must contain its program; empty: the worker's setting.",
        ),
        Caption("imagePullPolicy", "Image Pull Policy", "When the kubelet pulls the image."),
        Caption("resources.requests.cpu", "CPU Request", "Such as 500m or 2; empty: 1000m."),
        Caption("resources.requests.memory", "Memory Request", "Such as 2Gi; empty: 2Gi."),
        Caption("resources.limits.cpu", "CPU Limit", "Such as 4; empty: 4000m."),
        Caption("resources.limits.memory", "Memory Limit", "Such as 8Gi; empty: 8Gi."),
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
    "Budget": (
        Caption(
            "maxCostUsd",
            "Max Cost (USD)",
            "What one run may cost, all attempts together; 0: the operator's limit. What is left of the agent's "
            "monthly budget in Paperclip is a limit, too. At 80 % of a limit there is a warning, and at 100 % the "
            "agent is stopped (budget_exceeded). Its session is kept.",
        ),
        Caption(
            "maxTokens",
            "Max Tokens",
            "Tokens of one run: input, cached input, cache writes and output of all steps. They are counted where no "
            "price is known, too.",
        ),
        Caption(
            "maxSteps",
            "Max Steps",
            "Steps of the model in one run; those of sub-agents count, except with transport: run.",
        ),
        Caption(
            "maxRepeatedCalls",
            "Max Repeated Calls",
            "Calls of the same tool with the same input, one directly after the other.",
        ),
    ),
    "Timeouts": (
        Caption("scheduleTimeoutSec", "Schedule Timeout", "Seconds until a node must have taken the pod."),
        Caption("startTimeoutSec", "Start Timeout", "Seconds after that until the agent's container must run."),
        Caption(
            "firstOutputTimeoutSec",
            "First Output Timeout",
            "Seconds that the agent may be silent before its first line; 0: no limit.",
        ),
        Caption(
            "silenceTimeoutSec",
            "Silence Timeout",
            "Seconds without progress of the model or of a tool after the agent's first line; 0: no limit. A tool that "
            "works is never stopped for it.",
        ),
        Caption(
            "infrastructureRetries",
            "Infrastructure Retries",
            "Further attempts after a lost pod or node, with the same session.",
        ),
        Caption(
            "maxUnreadSec",
            None,
            "Seconds that the pod of an agent that has ended waits for a worker to read its output.",
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
        Caption(
            "taskQueue",
            None,
            "Temporal task queue of the worker that is to run this agent, in another cluster, say; empty: "
            "AGENT_RUNS_TASK_QUEUE of this server.",
        ),
    ),
    "Set by Paperclip": (
        Caption("paperclipRuntimeSkills", None, "All skills that Paperclip offers, with their folders."),
        Caption("paperclipSkillSync.desiredSkills", None, "Which of them this agent gets, besides the required ones."),
        Caption("instructionsRootPath", None, "Folder of the agent's instructions; AGENT_HOME of an external one."),
        Caption("instructionsBundleMode", None, "managed or external: whether that folder is Paperclip's own."),
    ),
}

_INPUTS: Final = {
    "boolean": "toggle",
    "integer": "number",
    "number": "number",
    "string": "text",
    "object": "textarea",
    "array": "textarea",
}


def form() -> dict[str, Any]:
    """Returns Paperclip's description of the form: `fields`, each a `ConfigField`, and `documentation`."""
    shown = [(group, caption) for group, captions in CAPTIONS.items() for caption in captions if caption.label]
    return {
        "fields": [_field(caption, group) for group, caption in shown],
        "documentation": _documentation(),
    }


def form_text() -> str:
    return json.dumps(form(), indent=2, ensure_ascii=False) + "\n"


def _documentation() -> str:
    text = DOCUMENTATION_FILE.read_text()
    return text.replace("{fields}\n", "".join(_fields())).replace("{agents}\n", "".join(_abilities()))


def _abilities() -> Iterator[str]:
    for name, can in CAPABILITIES.items():
        yield f"- {name}: {', '.join(f'{what}: {answer}' for what, answer in can.words.items())}\n"


def _fields() -> Iterator[str]:
    for group, captions in CAPTIONS.items():
        yield f"{group}:\n"
        yield from (f"- {caption.key}{_default(caption.key)}: {caption.hint}\n" for caption in captions)
        yield "\n"


def _default(key: str) -> str:
    default = field_schemas()[key].get("default")
    return "" if default in (None, [], {}, "") else f" (default {json.dumps(default).strip(chr(34))})"


def _field(caption: Caption, group: str) -> dict[str, Any]:
    """The entry of one field. A default that is empty or false is left out, because the form begins so anyway."""
    value = field_schemas()[caption.key]
    kind = "combobox" if caption.suggestions else _input(value)
    entry: dict[str, Any] = {"key": caption.key, "label": caption.label, "type": kind, "hint": caption.hint}
    entry["group"] = group
    if value.get("default"):
        entry["default"] = value["default"]
    if "enum" in value:
        entry["options"] = [{"label": choice, "value": choice} for choice in value["enum"]]
    elif caption.suggestions:
        entry["options"] = [{"label": label, "value": value} for value, label in caption.suggestions.items()]
    if caption.visible_when:
        key, chosen = caption.visible_when
        entry["meta"] = {"visibleWhen": {"key": key, "value": chosen}}
    elif caption.opencode_only:  # an agent that was made before there was a choice has none, and is OpenCode
        others = [name for name in AGENTS if name != OPENCODE]
        entry["meta"] = {"visibleWhen": {"key": "agent", "notValues": others}}
    return entry


def _input(value: dict[str, Any]) -> str:
    """The form's input for values of this schema; null stands for an empty input.

    Raises:
        StopIteration: the form has none.
    """
    if "enum" in value:
        return "select"
    types = [one.get("type") for one in value.get("anyOf", [value])]
    return next(_INPUTS[name] for name in types if name in _INPUTS)


if __name__ == "__main__":
    FORM_FILE.write_text(form_text())
