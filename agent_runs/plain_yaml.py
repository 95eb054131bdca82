"""Reads YAML that people write, bounded: no aliases, which make gigabytes of a few lines, and nothing deep."""

from typing import Any, Final

import yaml

MAX_FILE: Final = 1024 * 1024
"""Characters: a ConfigMap holds no more."""
MAX_DEPTH: Final = 32
MAX_PLAIN: Final = 1024
"""Characters of a value without quotes: Python works for minutes on a number of a million digits."""


class NoPlainYaml(ValueError):
    """A text that is no YAML, or more of it than people write. Its message begins with the line or a colon."""


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that is there twice, of which YAML's loader would take the last one."""
        found = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in found:
                raise NoPlainYaml(f", line {key.start_mark.line + 1}: `{key.value}` is there twice")
            found.add(str(key.value))
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The content of a text; None for an empty one.

    Raises:
        NoPlainYaml: see there.
    """
    if len(text) > MAX_FILE:
        raise NoPlainYaml(f" is larger than {MAX_FILE} characters")
    try:
        _check(text)
        return yaml.load(text, _Loader)  # noqa: S506 - it is a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise NoPlainYaml(f"{where}: {getattr(error, 'problem', None) or 'no YAML'}") from None
    except ValueError as error:  # an impossible date, say; the loader lets Python's own errors through
        raise NoPlainYaml(str(error) if isinstance(error, NoPlainYaml) else ": a value is no date or number") from None


def _check(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        where = f", line {event.start_mark.line + 1}: " if event.start_mark else ": "
        if isinstance(event, yaml.AliasEvent):
            raise NoPlainYaml(f"{where}aliases (`*{event.anchor}`) are not read; write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise NoPlainYaml(f"{where}nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.ScalarEvent) and (event.implicit[0] or event.tag) and len(event.value) > MAX_PLAIN:
            raise NoPlainYaml(f"{where}a value without quotes has more than {MAX_PLAIN} characters")
