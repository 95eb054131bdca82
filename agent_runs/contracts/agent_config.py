"""All that an agent's configuration may say, as a model, and as the JSON Schema of each of its fields."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from agent_runs.contracts.request import AdapterConfig, OptionalText


class AgentConfig(AdapterConfig):
    """The configuration of an agent.

    Attributes:
        advanced: other fields of this model, as one text of YAML or JSON, or as an object; see `paperclip.advanced`.
        on_busy, task_queue: read by the plugin alone.
        effort, thinking_effort: Paperclip's own spellings of `variant`.
        instructions_root_path, instructions_bundle_mode: where Paperclip keeps the agent's instructions.
    """

    advanced: dict[str, Any] | str | None = None
    on_busy: Literal["wait", "refuse"] = "wait"
    task_queue: OptionalText = None
    effort: OptionalText = None
    thinking_effort: OptionalText = None
    instructions_root_path: OptionalText = None
    instructions_bundle_mode: OptionalText = None


CONFIGURATION: Final = AgentConfig.model_json_schema()
"""The JSON Schema of a whole configuration."""

TOP_LEVEL: Final = frozenset(
    {
        *("agent", "image", "workspace", "workspaceIgnore", "dangerouslySkipPermissions", "keepWarmSec", "maxCostUsd"),
        *(
            "onBusy",
            "timeoutSec",
            "graceSec",
            "advanced",
            "model",
            "effort",
            "thinkingEffort",
            "env",
            "extraArgs",
            "taskQueue",
        ),
        *("promptTemplate", "bootstrapPromptTemplate", "instructionsFilePath", "instructionsRootPath"),
        *("instructionsBundleMode", "paperclipRuntimeSkills", "paperclipSkillSync"),
    }
)
"""Fields that are never inside of `advanced`: Paperclip's page has or writes them, or the plugin, which reads no YAML,
reads them."""

_SPELLINGS: Final = {name: field.alias or name for name, field in AgentConfig.model_fields.items()}


def top_key(key: str) -> str:
    """The top-level field of a key: `resources` of `resources.limits.cpu`, `nodeSelector` of `node_selector`."""
    name = key.partition(".")[0]
    return _SPELLINGS.get(name, name)


def field_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of every field by its key; that of a nested field has dots."""
    return dict(_leaves("", CONFIGURATION))


def _leaves(prefix: str, value: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields below a value of this schema. A list or a free object is one field."""
    fields = definition(value).get("properties")
    if fields is None:
        yield prefix.removesuffix("."), value
        return
    for name, field in fields.items():
        yield from _leaves(f"{prefix}{name}.", field)


def definition(value: Mapping[str, Any]) -> dict[str, Any]:
    name = value.get("$ref", "").removeprefix("#/$defs/")
    found: dict[str, Any] = CONFIGURATION["$defs"][name] if name else dict(value)
    return found
