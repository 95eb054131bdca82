"""docs/configuration.md: what an agent's configuration may say, from the model that validates it.

`python -m dev_stack.configuration_page` rewrites the committed page; a test keeps it fresh.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from agent_runs.agents.form import CAPTIONS, EXAMPLE, FORM, Caption
from agent_runs.agents.opencode.switches import CONFIGURATION_SWITCHES, VARIABLE_SWITCHES
from agent_runs.contracts.agent_config import field_schemas
from agent_runs.paperclip.ineffective_variables import INEFFECTIVE
from agent_runs.paperclip.preparation import AI_CONNECTION, HOST_ONLY, SCRATCH
from agent_runs.paperclip.unknown_fields import FOREIGN_FIELDS
from dev_stack.markdown import table

PAGE_FILE: Final = Path(__file__).parents[1] / "docs" / "configuration.md"

_INTRODUCTION: Final = """# Configuration of an agent

What an agent's configuration (Paperclip's `adapterConfig`) may say. `python -m dev_stack.configuration_page` writes
this page from the model that validates configurations.

- A wrong value fails a run before anything is created, with the names of all wrong fields.
- A field or a variable that has no effect is a warning: in the log of the run in Paperclip, in `agent-runs show`, on
  the run's page and in its current details; and in Paperclip's environment test and in
  `agent-runs doctor --agent-config FILE`.
- An empty text and null are the same as no value. The fields of `resources` may be nested objects or keys with dots.
  An object or a list of Kubernetes or OpenCode may also be its JSON text; `nodeSelector`, `labels` and `annotations`
  may also be lines of `key=value`.
- The operator's [policy](policy.md) may allow less than this page.

## `advanced`

The form has few fields. All others go into `advanced`, a text of YAML or JSON, or an object by the API:

```yaml
{example}```

- Names, types and limits are those of this page, and a wrong value is reported with its path:
  `config.advanced.resources.limits.memory`.
- It holds the fields of the sections "In advanced". Any other is refused there by name.
- The fields of `advanced` also count at the top level of `adapterConfig`, where earlier forms and the API have saved
  them. Paperclip's form keeps what it does not show. A field with two different values is refused, unless the one at
  the top level is the default, which earlier forms have saved for every field. To remove it, send the whole
  `adapterConfig` without it: `PATCH /api/agents/ID` with `"replaceAdapterConfig": true`.
- 16384 characters at most, 32 levels at most, and no aliases (`*name`).
- Paperclip resolves no secrets there: put them into `env`.
"""
_TYPES: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "object",
}


def page_text() -> str:
    """The content of the committed page.

    Raises:
        KeyError: a field of the model has no caption, or a caption no field.
    """
    captions = {caption.key: caption for group in CAPTIONS.values() for caption in group}
    if missing := [key for key in field_schemas() if key not in captions]:
        raise KeyError(f"add a Caption to CAPTIONS in agent_runs/agents/form.py for {', '.join(missing)}")
    introduction = _INTRODUCTION.replace("{example}", EXAMPLE)
    return "\n".join([introduction, *_groups(), *_unknown_fields(), *_variables(), *_switches()])


def _groups() -> Iterator[str]:
    for group, captions in CAPTIONS.items():
        yield f"## {group}\n"
        labels = ("label",) if group == FORM else ()
        yield table(("key", *labels, "type", "default", "limits", "what it does"), map(_row, captions))


def _row(caption: Caption) -> tuple[str, ...]:
    schema = field_schemas()[caption.key]
    return (
        f"`{caption.key}`",
        *((caption.label,) if caption.label else ()),
        _type(schema),
        _default(schema),
        _limits(schema),
        caption.hint,
    )


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return _listed(schema["enum"])
    kinds = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    if any(kind.get("type") == "array" for kind in kinds):
        items = kinds[0].get("items", {})
        objects = "$ref" in items or items.get("type") == "object"
        return "list of objects" if objects else f"list of {_listed(items.get('enum', ())) or 'texts'}"
    return " or ".join(_TYPES[kind["type"]] for kind in kinds)


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return "required"
    default = schema["default"]
    if default in (None, [], {}):
        return ""
    return _listed([default]) if isinstance(default, str) else _shown(default)


def _limits(schema: dict[str, Any]) -> str:
    least, most = (schema.get(name, schema.get(long)) for name, long in (("ge", "minimum"), ("le", "maximum")))
    return "" if least is None or most is None else f"{least} to {most}"


def _unknown_fields() -> Iterator[str]:
    yield "## Other fields\n"
    yield "Any other field is a warning, with the nearest name of this page. These are none:\n"
    yield table(("fields", "why"), ((_listed(names), reason) for reason, names in FOREIGN_FIELDS.items()))


def _variables() -> Iterator[str]:
    yield "## Variables without effect\n"
    yield "`env` sets any variable but these. One of them is a warning.\n"
    yield table(("variables", "why"), ((_listed(each.names), each.why) for each in INEFFECTIVE))
    yield "Paperclip adds these for its own host, so they are dropped without a warning:"
    yield f"{_listed(sorted(HOST_ONLY | SCRATCH))};"
    yield f"with a managed AI connection also {_listed(sorted(AI_CONNECTION))}.\n"


def _switches() -> Iterator[str]:
    yield "## What runs switch off in OpenCode\n"
    yield "`opencodeFeatures` switches on what has a feature here; nothing switches on the others.\n"
    switches = (*CONFIGURATION_SWITCHES, *VARIABLE_SWITCHES)
    rows = ((_listed([each.name]), _shown(each.off), each.reason, _listed([each.feature or ""])) for each in switches)
    yield table(("key or variable", "set to", "why", "feature"), rows)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names if name)


if __name__ == "__main__":
    PAGE_FILE.write_text(page_text())
