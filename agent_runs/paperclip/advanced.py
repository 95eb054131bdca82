"""`advanced`: the fields of an agent's configuration that its form does not show, in one field.

A text of YAML or JSON, as people write it into the form, or an object. Its fields are those of the configuration, with
the same names and the same validation, so they are put into their own places before anything reads them.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from agent_runs.contracts.agent_config import TOP_LEVEL, field_schemas, top_key
from agent_runs.contracts.opencode import short
from agent_runs.contracts.pod_options import MAX_JSON
from agent_runs.plain_yaml import MAX_DEPTH, NoPlainYaml, load_yaml

FIELD: Final = "advanced"
_FIRST_STEP: Final = re.compile(r"config\.([^\s.\[]+)")
_JSON: Final = (str, int, float, bool, type(None))


@dataclass(frozen=True)
class Folded:
    """A configuration with the fields of `advanced` in their own places.

    Attributes:
        inside: which of its top-level fields were in `advanced`.
        problems: path and remedy of what cannot be read there.
    """

    config: dict[str, Any]
    inside: frozenset[str] = frozenset()
    problems: tuple[tuple[str, str], ...] = ()

    def written(self, text: str) -> str:
        """`text`, which begins with the path of a field, with the path at which people have written it."""
        step = _FIRST_STEP.match(text)
        return f"config.{FIELD}.{text[step.start(1) :]}" if step and top_key(step[1]) in self.inside else text


class _Unreadable(ValueError):
    """What `advanced` holds is not an object. The message is the remedy."""


def fold(config: Mapping[str, Any]) -> Folded:
    """Puts each field of `advanced` into its own place, but for those that are wrong there."""
    outside = {name: value for name, value in config.items() if name != FIELD}
    try:
        given = {name: value for name, value in _object(config.get(FIELD)).items() if value not in (None, "")}
    except _Unreadable as unreadable:
        return Folded(outside, problems=((f"config.{FIELD}", str(unreadable)),))
    problems = {name: tuple(_problems(name, value, outside)) for name, value in given.items()}
    right = {name: value for name, value in given.items() if not problems[name]}
    inside = frozenset(map(top_key, right))
    alone = {name: value for name, value in outside.items() if top_key(name) not in inside}
    return Folded({**alone, **right}, inside, tuple(each for found in problems.values() for each in found))


def _object(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        value = _read(value)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _Unreadable("must be an object in YAML or JSON, such as `namespace: agents`")
    if wrong := [name for name in value if not isinstance(name, str)]:
        raise _Unreadable(f"must have names of fields as keys, and {short(wrong[0])} is not text")
    return value


def _read(text: str) -> object:
    if len(text) > MAX_JSON:
        raise _Unreadable(f"must not have more than {MAX_JSON} characters")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # YAML takes all other JSON, but neither tabs nor halves of a character
        pass
    try:
        return load_yaml(text)
    except NoPlainYaml as wrong:
        raise _Unreadable(f"must be an object in YAML or JSON{wrong}") from None


def _problems(name: str, value: object, outside: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What is wrong with a field here. A default outside is no second value: earlier forms saved all defaults."""
    path, top = f"config.{FIELD}.{short(name)}", top_key(name)
    if top in TOP_LEVEL:
        yield path, f"is not read here: set config.{top} itself"
        return
    for other in (each for each in outside if top_key(each) == top):
        no_value = (None, "", field_schemas().get(other, {}).get("default"))
        if outside[other] not in no_value and (other, outside[other]) != (name, value):
            yield path, f"and config.{other} differ: remove one of the two"
    yield from _foreign(value, path)


def _foreign(value: object, path: str, levels: int = MAX_DEPTH) -> Iterator[tuple[str, str]]:
    """Values that are nested too deeply, or that JSON does not have."""
    if levels == 0:
        yield path, f"must not be nested deeper than {MAX_DEPTH} levels"
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(name, str):
                yield from _foreign(item, f"{path}.{short(name)}", levels - 1)
            else:
                yield f"{path}.{short(name)}", "must have a text as its key: write the key in quotes"
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _foreign(item, f"{path}[{index}]", levels - 1)
    elif isinstance(value, date):
        yield path, "must not be a date: write it in quotes"
    elif not isinstance(value, _JSON):
        yield path, "must be a value that JSON has"
