"""The shape of an OpenCode configuration that people write: what is judged before OpenCode itself reads it.

OpenCode refuses a value of the wrong type only once its pod runs, so the types of what we merge are checked here. What
is inside of a block that we only pass on is OpenCode's to judge. Source: OpenCode 1.18.33, its schema, and observed.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

SIZE_LIMIT: Final = 128 * 1024
"""Bytes of one configuration as JSON; it shares a Secret of 1 MiB with the agent's environment."""
DEPTH_LIMIT: Final = 16
NAME_LIMIT: Final = 60
"""Characters of a name in a message."""

ACTIONS: Final = ("allow", "ask", "deny")
OBJECTS: Final = (
    *("agent", "attachment", "command", "compaction", "enterprise", "experimental", "mcp", "mode", "provider"),
    *("reference", "references", "server", "skills", "tool_output", "tools", "watcher"),
)
LISTS: Final = ("disabled_providers", "enabled_providers", "instructions", "plugin")
KNOWN: Final = frozenset(
    (
        *OBJECTS,
        *LISTS,
        *("$schema", "autoshare", "autoupdate", "default_agent", "formatter", "layout", "logLevel", "lsp", "model"),
        *("permission", "share", "shell", "small_model", "snapshot", "subagent_depth", "username"),
    )
)
"""Top-level keys. Others do nothing: OpenCode 1.18.33 drops them without a word."""


def problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Path and remedy of each wrong part, the path relative to the configuration and "" for all of it."""
    if _deeper(config, DEPTH_LIMIT):
        yield "", f"must not be nested deeper than {DEPTH_LIMIT} levels"
        return
    if (size := len(json.dumps(config).encode())) > SIZE_LIMIT:
        yield "", f"has {size} bytes as JSON, more than {SIZE_LIMIT}: put long texts into files of the workspace"
        return
    for key in OBJECTS:
        if not isinstance(config.get(key, {}), Mapping):
            yield key, "must be an object"
    for key in LISTS:
        if not isinstance(config.get(key, []), list):
            yield key, "must be a list"
    yield from _named_problems(config)
    small = config.get("small_model", "a/b")
    if not (isinstance(small, str) and small.strip("/").count("/")):
        yield "small_model", "must be '<provider>/<model>'"
    yield from _permission_problems(config.get("permission", {}), "permission")
    yield from _skills_problems(_mapping(config.get("skills")))


def short(name: object) -> str:
    """A name that somebody chose, for a message."""
    text = str(name)
    kept = text if len(text) <= NAME_LIMIT else f"{text[:NAME_LIMIT]}..."
    return "".join(character if character.isprintable() else "?" for character in kept)


def _named_problems(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("agent", "command", "mcp", "mode", "provider"):
        for name, settings in _mapping(config.get(key)).items():
            path = f"{key}.{short(name)}"
            if not isinstance(settings, Mapping):
                yield path, "must be an object"
            elif key in ("agent", "mode"):
                yield from _permission_problems(settings.get("permission", {}), f"{path}.permission")
                if not isinstance(settings.get("tools", {}), Mapping):
                    yield f"{path}.tools", "must be an object"


def _permission_problems(permission: object, path: str) -> Iterator[tuple[str, str]]:
    if permission in ACTIONS:
        return
    if not isinstance(permission, Mapping):
        yield path, "must be an object, or one of: allow, ask, deny"
        return
    for tool, rule in permission.items():
        rules = rule.values() if isinstance(rule, Mapping) else [rule]
        if any(action not in ACTIONS for action in rules):
            yield f"{path}.{short(tool)}", "must be allow, ask or deny, or an object of patterns with these"


def _skills_problems(skills: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("paths", "urls"):
        items = skills.get(key, [])
        if not (isinstance(items, list) and all(isinstance(item, str) for item in items)):
            yield f"skills.{key}", "must be a list of texts"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _deeper(value: object, levels: int) -> bool:
    below = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else None
    return below is not None and (levels == 0 or any(_deeper(item, levels - 1) for item in below))
