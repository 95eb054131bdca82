"""Fields of an agent's configuration that nobody reads: each is a warning, with the nearest name that is known.

Paperclip validates no `adapterConfig`, so a misspelt field would be a setting that never applies. What Paperclip itself
and other adapters write there is in `FOREIGN_FIELDS` and no warning.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from agent_runs.contracts.agent_config import CONFIGURATION, definition, field_schemas

WARNINGS_LIMIT: Final = 5
EXAMINED_LIMIT: Final = 200
"""Unknown fields that are compared with the known ones."""
NAME_LIMIT: Final = 60
"""Characters of a name in a warning."""
ITEMS_LIMIT: Final = 20
"""Items of a list whose fields are looked at."""

FOREIGN_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "Paperclip writes them for itself": (
        *("instructionsEntryFile", "paperclipConnectorSkillDigest", "managedAiConnection"),
        *("workspaceStrategy", "workspaceRuntime", "desiredState", "serviceStates"),
    ),
    "Paperclip's form of any adapter has it": ("command",),
    "the earlier Kubernetes adapters have them, and this one deliberately does not": (
        *("reattachOrphanedJobs", "envGuardPlugin", "compactThreshold", "secretRef", "secretsNamespace", "providers"),
        *("enableDocker", "dockerImage", "dockerCpuLimit", "dockerMemoryLimit"),
        *("k8sRunIsolation", "runIsolation", "isolation", "workspaceVolumeClaim", "workspaceMountPath"),
    ),
    "refused where it has a value": ("kubeconfig",),
}
"""Known names that this program does not read, by the reason. Sources: Paperclip 2026.916.1 (its captured contexts, and
what its server and its form write), the two earlier Kubernetes adapters."""

_FOREIGN: Final = frozenset(name for names in FOREIGN_FIELDS.values() for name in names)
_PAPERCLIPS: Final = "paperclip"
"""What Paperclip's own fields begin with. What is in them is Paperclip's, and a later version may add more."""

_UNPRINTED: Final = re.compile(r"[^\w.\[\]-]", re.ASCII)
_CAPITAL: Final = re.compile(r"(?<=[a-z])[A-Z]")


@dataclass(frozen=True)
class Unknown:
    """A field that is not known.

    Attributes:
        place: path of what it is in, with its final dot; nothing for the configuration itself.
        candidates: what is known there.
    """

    place: str
    name: str
    candidates: tuple[str, ...]

    @property
    def nearest(self) -> str | None:
        """The known name that is most similar, whatever its case and separators."""
        known = {_plain(candidate): candidate for candidate in self.candidates}
        similar = difflib.get_close_matches(_plain(self.name[:NAME_LIMIT]), known, n=1, cutoff=0.75)
        return known[similar[0]] if similar else None

    def __str__(self) -> str:
        field = _UNPRINTED.sub("?", f"{self.place}{self.name}"[:NAME_LIMIT])
        if nearest := self.nearest:
            return f"config.{field} is not known: did you mean {self.place}{nearest}?"
        return f"config.{field} is not known and has no effect: remove it, or see docs/configuration.md for its name"


def unknown_fields(config: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each field that is not known, never with its value; a bounded number of them."""
    examined = islice(_unknown_in(config, CONFIGURATION, ""), EXAMINED_LIMIT)
    found = (each for each in examined if not _is_paperclips(each))
    warnings = tuple(str(each) for each in islice(found, WARNINGS_LIMIT))
    return (*warnings, "config: more fields are not known and have no effect") if next(found, None) else warnings


def _is_paperclips(unknown: Unknown) -> bool:
    """Whether it is a field that a later Paperclip writes for itself, and no misspelt one of ours."""
    return not unknown.place and unknown.name.startswith(_PAPERCLIPS) and unknown.nearest is None


def _unknown_in(value: Any, schema: Mapping[str, Any], place: str) -> Iterator[Unknown]:
    fields = definition(schema).get("properties", {})
    if not (fields and isinstance(value, Mapping)):
        return
    flat = () if place else tuple(key for key in field_schemas() if "." in key)
    candidates = (*fields, *flat)
    by_name = {_in_snake_case(name): name for name in fields}  # the model takes its own names as well
    for name, below in value.items():
        field = by_name.get(name, name)
        if field in fields:
            yield from _unknown_below(below, fields[field], f"{place}{name}")
        elif below not in (None, "") and not (not place and (name in flat or name in _FOREIGN)):
            yield Unknown(place, name, candidates)


def _unknown_below(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[Unknown]:
    """What is unknown in an object, or in the objects of a list."""
    if path.startswith(_PAPERCLIPS):
        return
    yield from _unknown_in(value, schema, f"{path}.")
    for choice in schema.get("anyOf", [schema]):
        for index, item in enumerate(_listed(value)[:ITEMS_LIMIT] if "items" in choice else ()):
            yield from _unknown_in(item, choice["items"], f"{path}[{index}].")


def _listed(value: Any) -> list[Any]:
    """A list, also one that the form has saved as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return value if isinstance(value, list) else []


def _in_snake_case(name: str) -> str:
    return _CAPITAL.sub(lambda match: f"_{match[0]}", name).lower().replace("-", "_")


def _plain(name: str) -> str:
    return re.sub(r"[_.-]", "", name).lower()
