"""What people read about each field of an agent's configuration: in Paperclip's form, and in docs/configuration.md.

Labels, hints, groups and order stand here, once for each field; types, limits and defaults are those of the
configuration's model. Values of the form are saved flat into `adapterConfig`. Keys follow the existing Kubernetes
adapters, so that their agents keep their settings. Paperclip's page has fields of its own (model, env, instructions,
extraArgs). It has timeoutSec and graceSec only for an existing agent, and with another default of graceSec, unless the
form has them. It ignores `group`, has placeholders for a combobox alone, and shows a field whose key contains "timeout"
or "grace" in its closed section "Advanced Run Policy".
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
        label: above the field in the form, with the unit of its value; None: the form does not show it.
        choices: values that the form offers, with their labels; next to a free text where any other is possible.
    """

    key: str
    hint: str
    label: str | None = None
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)


FORM: Final = "In the form"
IN_ADVANCED: Final = "In advanced"
"""What the groups of the fields begin with that `advanced` holds."""
EXAMPLE: Final = """\
namespace: agents
resources:
  requests: {cpu: 2, memory: 4Gi}
  limits: {memory: 8Gi}
nodeSelector: {pool: agents}
tolerations:
  - {key: dedicated, operator: Equal, value: agents, effect: NoSchedule}
silenceTimeoutSec: 1800
maxSteps: 200
opencodeFeatures: [lsp]
mcpServers:
  docs: {type: remote, url: "https://docs.example/mcp"}
"""
"""A value of `advanced`, for people."""

CAPTIONS: Final[dict[str, tuple[Caption, ...]]] = {
    FORM: (
        Caption(
            "agent",
            "Whose program runs. Another one than OpenCode needs an image of its own. A session is continued only by "
            "the agent that made it. What of this configuration an agent cannot do is a warning of the run. "
            "These take messages while they work, the others as their next prompt: "
            f"{', '.join(AGENTS[name] for name, can in CAPABILITIES.items() if can.takes_messages)}.",
            "Agent program",
            AGENTS,
        ),
        Caption(
            "image",
            "The agent's image, which must contain its program; empty: the worker's setting.",
            "Container image",
        ),
        Caption(
            "dangerouslySkipPermissions",
            "Dangerous: the agent's tools may read and change whatever the pod reaches outside of the workspace, with "
            "nobody asked: other folders of its home, mounted Secrets, the pod itself. Off: people are asked for each "
            "tool call that leaves the workspace and each shell command that names such a path (askTimeoutSec), and "
            "OpenCode may ask them questions. Neither rule confines programs that the agent starts. An agent without "
            "such a mode is refused.",
            "Skip permissions",
        ),
        Caption(
            "workspace",
            "Where the files of a run are: on a data volume that pods share with Paperclip, without which a run is "
            "refused (shared); sent to the pod before the run and back after it (carried); or lost with the pod "
            "(ephemeral). By default they are carried where the worker has a store for them, and shared elsewhere.",
            "Files of a run",
            {
                "auto": "Carried where the worker has a store, else shared",
                "shared": "On a data volume",
                "carried": "Sent to the pod, and back",
                "ephemeral": "They may be lost with the pod",
            },
        ),
        Caption(
            "workspaceIgnore",
            "Files and folders that stay where they are when a folder is carried: they are not sent to the pod, those "
            "that the agent makes do not come back, and none is deleted. A pattern in each line, as in .gitignore, but "
            "without ! and backslashes, such as node_modules or /build/*.log.",
            "What is not carried (patterns)",
        ),
        Caption(
            "keepWarmSec",
            "Seconds that the pod of an agent that has succeeded waits for the agent's next run, which then needs no "
            "new pod and no start of OpenCode; 0: it is deleted at once. OpenCode needs the transport serve or auto; "
            "of other agents docs/agents.md says which may. Values above the operator's limit are lowered "
            "to it.",
            "Keep the pod warm (seconds)",
        ),
        Caption(
            "maxCostUsd",
            "What one run may cost, all attempts together; 0: the operator's limit. What is left of the agent's "
            "monthly budget in Paperclip is a limit, too. At 80 % of a limit there is a warning, and at 100 % the "
            "agent is stopped (budget_exceeded). Its session is kept.",
            "Cost limit per run (US dollars)",
        ),
        Caption(
            "onBusy",
            "While a run of another task is open: wait for its end, or refuse this run at once.",
            "When the agent is busy with another task",
            {"wait": "Wait for the end of its run", "refuse": "Refuse the new run at once"},
        ),
        Caption(
            "timeoutSec",
            "Run time of the agent in one run, all attempts together; 0: no limit.",
            "Time limit per run (seconds)",
        ),
        Caption(
            "graceSec",
            "Time that the agent may take to end after SIGTERM; then it is killed.",
            "Time to end after a stop (seconds)",
        ),
        Caption(
            "advanced",
            "All other fields, including those of Kubernetes, as YAML or JSON, such as `resources: {limits: {memory: "
            "8Gi}}`. docs/configuration.md lists them. Test environment checks it.",
            "All other settings (YAML or JSON)",
        ),
    ),
    "In Paperclip's page": (
        Caption("model", "Provider and model, such as anthropic/claude-sonnet-4-6."),
        Caption("effort", "Paperclip's Thinking effort of a changed agent; used for variant where that is empty."),
        Caption("thinkingEffort", "Thinking effort of a new agent; used like effort."),
        Caption(
            "env",
            "Variables of the agent. Paperclip resolves references to its secrets, and all values stay sealed. A name "
            "that cannot have an effect is a warning of the run.",
        ),
        Caption(
            "extraArgs",
            "Additional arguments of opencode run. Options that a run sets itself are refused by name.",
        ),
        Caption(
            "promptTemplate",
            "Template of the prompt's last section; empty: Paperclip's own. Paperclip refuses it for a new agent, "
            "whose instructions take its place.",
        ),
        Caption("bootstrapPromptTemplate", "Template of a section that only a fresh session gets."),
        Caption(
            "instructionsFilePath",
            "File with the agent's instructions, which begin its prompt. Paperclip sets it; it may be in the agent's "
            "own folder of instructions or in a folder that the operator allows.",
        ),
    ),
    "Only through Paperclip's API": (
        Caption(
            "taskQueue",
            "Temporal task queue of the worker that is to run this agent, in another cluster, say; empty: "
            "AGENT_RUNS_TASK_QUEUE of this server.",
        ),
    ),
    "Set by Paperclip": (
        Caption("paperclipRuntimeSkills", "All skills that Paperclip offers, with their folders."),
        Caption("paperclipSkillSync.desiredSkills", "The skills of this agent, in addition to the required ones."),
        Caption("instructionsRootPath", "Folder of the agent's instructions; AGENT_HOME of an external one."),
        Caption("instructionsBundleMode", "managed or external: whether that folder is Paperclip's own."),
    ),
    f"{IN_ADVANCED}: agent": (
        Caption(
            "variant",
            "The model's reasoning profile or effort, which OpenCode gets as --variant and another agent in its own "
            "way; empty: Paperclip's Thinking effort, which has fewer.",
        ),
        Caption(
            "askTimeoutSec",
            "Seconds that the agent waits for the answer of a person to what it asks: a permission that is set to ask, "
            "or a question. Then the question is rejected. 0: nobody is asked, and ask means deny.",
        ),
        Caption(
            "mcpServers",
            "MCP servers by name, in OpenCode's spelling (type local or remote) or Claude's (command and args, or "
            "url). Headers and tokens in it stay sealed.",
        ),
        Caption(
            "skills",
            "folders: the agent gets the folders of skills on the data volume and of those that come with Paperclip, "
            "and reads of them what it needs. inline: the texts of skills are in the prompt.",
        ),
        Caption(
            "resumeLastSession",
            "Continue the session of the agent's last run of the same task; false: a fresh session every time.",
        ),
        Caption("cwd", "Working directory of a run for which Paperclip names no workspace; empty: the agent's home."),
        Caption(
            "paperclipApiUrl",
            "Paperclip's address as pods reach it; empty: AGENT_RUNS_PAPERCLIP_API_URL of this server, else the "
            "worker's setting.",
        ),
    ),
    f"{IN_ADVANCED}: OpenCode": (
        Caption(
            "transport",
            "How the pod drives OpenCode: run is its command line, serve its server, auto the server unless extraArgs "
            "need the command line.",
        ),
        Caption(
            "opencodeFeatures",
            "Features to enable; all are off by default: lsp (language servers of the image), "
            "formatter, snapshot (OpenCode's own undo), projectConfig (opencode.json and AGENTS.md of the workspace). "
            "Dangerous: with projectConfig a repository chooses where prompts and the provider's key are sent.",
        ),
        Caption("opencode", "The agent's own OpenCode configuration (docs/opencode.md). It stays sealed."),
        Caption(
            "agentDbMode",
            "Where OpenCode keeps its sessions: a folder on the shared data volume, a volume of the agent's own, "
            "or nowhere.",
        ),
        Caption(
            "agentDbStorageClass",
            "StorageClass of the agent's own volume; needed for dedicated_pvc while the volume does not exist.",
        ),
        Caption("agentDbStorageCapacity", "Size of the agent's own volume."),
    ),
    f"{IN_ADVANCED}: limits": (
        Caption(
            "maxTokens",
            "Tokens of one run: input, cached input, cache writes and output of all steps. They are counted where no "
            "price is known, too.",
        ),
        Caption("maxSteps", "Steps of the model in one run; those of sub-agents count, except with transport: run."),
        Caption("maxRepeatedCalls", "Calls of the same tool with the same input, one directly after the other."),
        Caption("scheduleTimeoutSec", "Seconds until a node must have taken the pod."),
        Caption("startTimeoutSec", "Seconds after that until the agent's container must run."),
        Caption("firstOutputTimeoutSec", "Seconds that the agent may be silent before its first line; 0: no limit."),
        Caption(
            "silenceTimeoutSec",
            "Seconds without progress of the model or of a tool after the agent's first line; 0: no limit. A tool that "
            "works is never stopped for it.",
        ),
        Caption("infrastructureRetries", "Further attempts after a lost pod or node, with the same session."),
        Caption(
            "maxUnreadSec", "Seconds that the pod of an agent that has ended waits for a worker to read its output."
        ),
    ),
    f"{IN_ADVANCED}: Kubernetes": (
        Caption("serviceAccountName", "ServiceAccount of the Job's pod; empty: the namespace's default."),
        Caption("namespace", "Namespace of the Job; empty: the worker's own."),
        Caption("imagePullPolicy", "When the kubelet pulls the image."),
        Caption("resources.requests.cpu", "Such as 500m or 2; empty: 1000m."),
        Caption("resources.requests.memory", "Such as 2Gi; empty: 2Gi."),
        Caption("resources.requests.ephemeral-storage", "Room on the node's disk for the pod, such as 2Gi."),
        Caption("resources.limits.cpu", "Such as 4; empty: 4000m."),
        Caption("resources.limits.memory", "Such as 8Gi; empty: 8Gi."),
        Caption("resources.limits.ephemeral-storage", "Such as 20Gi; beyond it the pod is evicted."),
        Caption("nodeSelector", "Labels of the node, such as {pool: agents}."),
        Caption("tolerations", "Such as [{key: gpu, operator: Exists}]."),
        Caption("labels", "Additional labels of the Job."),
        Caption("annotations", "Additional annotations of the pod."),
        Caption("runtimeClassName", "RuntimeClass of the pod; empty: the cluster's default."),
        Caption("priorityClassName", "PriorityClass of the pod; empty: the cluster's default."),
        Caption("affinity", "nodeAffinity, podAffinity and podAntiAffinity of the pod."),
        Caption("topologySpreadConstraints", "The pod's own."),
        Caption(
            "extraVolumes",
            "Such as [{name: models, mountPath: /models, readOnly: true, persistentVolumeClaim: {claimName: models}}].",
        ),
        Caption("podTemplate", "Is laid over the pod, such as {spec: {schedulerName: batch}}."),
        Caption("ttlSecondsAfterFinished", "Seconds until Kubernetes deletes a finished Job."),
        Caption("retainJobs", "Keep finished Jobs for inspection."),
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
    return {"fields": list(map(_field, CAPTIONS[FORM])), "documentation": _documentation()}


def form_text() -> str:
    return json.dumps(form(), indent=2, ensure_ascii=False) + "\n"


def _documentation() -> str:
    text = DOCUMENTATION_FILE.read_text()
    parts = {"{fields}\n": "".join(_fields()), "{agents}\n": "".join(_abilities()), "{example}\n": EXAMPLE}
    for place, part in parts.items():
        text = text.replace(place, part)
    return text


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


def _field(caption: Caption) -> dict[str, Any]:
    """The entry of one field. A default that is empty or false is left out, because the form begins so anyway."""
    value = field_schemas()[caption.key]
    kind = "combobox" if caption.choices and "enum" not in value else _input(value)
    entry: dict[str, Any] = {"key": caption.key, "label": caption.label, "type": kind, "hint": caption.hint}
    if value.get("default"):
        entry["default"] = value["default"]
    if caption.choices:
        entry["options"] = [{"label": label, "value": choice} for choice, label in caption.choices.items()]
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
