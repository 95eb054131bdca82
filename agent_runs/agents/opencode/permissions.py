"""OpenCode's permissions of a run: those of the agent and of the operator between our defaults and our own rules.

Of several rules that match, OpenCode takes the last, so their order is their rank: defaults, agent, operator, ours.
Where nobody is asked, `ask` becomes `deny`: the command line stops with exit code 0 at the first question.
Source: OpenCode 1.18.33, observed; opencode.ai/docs/permissions.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from agent_runs.contracts.opencode import short

EDITS: Final = ("write", "edit", "patch")
"""Tools that have the permission `edit`. Source: OpenCode's own translation of `tools`."""

ENVIRONMENT_DUMPS: Final = (
    "env",
    "printenv",
    "set",
    "export -p",
    "export -p *",
    "declare -x",
    "declare -x *",
    "cat /proc/*/environ",
)
"""Commands that print every secret of the environment into the transcript: a hurdle for accidents, no protection."""


class Rule(NamedTuple):
    """One permission: of which tool, for what, and whether."""

    tool: str
    pattern: str
    action: str


class Source(NamedTuple):
    """Somebody's configuration, and its name in notes."""

    name: str
    config: Mapping[str, Any]


EVERYTHING_DENIED: Final = Rule("*", "*", "deny")
DEFAULTS: Final = (Rule("*", "*", "allow"), Rule("external_directory", "*", "allow"), Rule("bash", "*", "allow"))
QUESTION: Final = "question"
"""The tool with which an agent asks for anything but a permission."""


def fixed_rules(*, skip_permissions: bool, asks: bool = False, readable: Iterable[str] = ()) -> tuple[Rule, ...]:
    """The rules that nobody overrides.

    `doom_loop` (three equal calls in one message) is allowed because a denial ends the run with an error, while the
    model continues after the denial of a tool.

    Args:
        skip_permissions: whether the agent may leave its directory (`dangerouslySkipPermissions`).
        asks: people are asked; otherwise it may not.
        readable: folders outside of its directory that it may use all the same.
    """
    inside = [Rule("external_directory", f"{folder}/*", "allow") for folder in readable]
    outside = () if skip_permissions else (Rule("external_directory", "*", "ask" if asks else "deny"), *inside)
    dumps = [Rule("bash", command, "deny") for command in ENVIRONMENT_DUMPS]
    return (*outside, Rule("doom_loop", "*", "allow"), *dumps)


def merged_permissions(
    sources: Iterable[Source], fixed: Iterable[Rule], *, skip_permissions: bool = True, asks: bool = False
) -> dict[str, Any]:
    """OpenCode's permission block; `ask` is in it only if people are asked.

    An agent asks questions if it has to ask for permissions, too, or is configured to.
    """
    own = [rule for source in sources for rule in rules(source.config, asks=asks)]
    quiet = () if asks and not skip_permissions else (Rule(QUESTION, "*", "deny"),)
    return block((*DEFAULTS, *quiet, *own, *fixed))


def asks_questions(permissions: Mapping[str, Any]) -> bool:
    """Whether a block of permissions has the agent ask questions."""
    return bool(permissions.get(QUESTION, permissions.get("*")) != "deny")


def limited(
    settings: Mapping[str, Any], operator: Iterable[Mapping[str, Any]], fixed: Iterable[Rule], *, asks: bool = False
) -> dict[str, Any]:
    """The settings of one of OpenCode's agents. What they permit counts more than anything else in a configuration, so
    what the operator denies and our own rules follow it.

    Args:
        operator: the operator's configuration, and what it has for this agent.
    """
    own = list(rules(settings, asks=asks))
    kept = {key: value for key, value in settings.items() if key not in ("permission", "tools")}
    bounds = [rule for config in operator for rule in rules(config, asks=asks)]
    if EVERYTHING_DENIED not in bounds:
        bounds = [rule for rule in bounds if rule.action != "allow"]
    denied = [rule for rule in own if rule.action == "deny" and rule != EVERYTHING_DENIED]
    return {**kept, "permission": block((*own, *bounds, *denied, *fixed))} if own else kept


def rules(config: Mapping[str, Any], *, asks: bool) -> Iterator[Rule]:
    """What a configuration says in `tools`, which OpenCode reads first, and in `permission`."""
    for tool, enabled in _items(config.get("tools")):
        yield Rule("edit" if tool in EDITS else tool, "*", "allow" if enabled else "deny")
    permission = config.get("permission")
    for tool, rule in [("*", permission)] if isinstance(permission, str) else _items(permission):
        for pattern, action in [("*", rule)] if isinstance(rule, str) else _items(rule):
            yield Rule(tool, pattern, "deny" if action == "ask" and not asks else action)


def questions(config: Mapping[str, Any], path: str) -> Iterator[str]:
    """The paths of permissions that ask."""
    permission = config.get("permission")
    if permission == "ask":
        yield f"{path}.permission"
    for tool, rule in _items(permission):
        if rule == "ask" or any(action == "ask" for _, action in _items(rule)):
            yield f"{path}.permission.{short(tool)}"


def block(ordered: Iterable[Rule]) -> dict[str, Any]:
    """The rules as OpenCode's configuration has them: by tool, and of each tool the last one counts."""
    tools: dict[str, dict[str, str]] = {}
    for tool, pattern, action in ordered:
        if tool == pattern == "*":
            tools.clear()  # no earlier rule counts any more
        patterns = tools.pop(tool, {})
        patterns.pop(pattern, None)
        tools[tool] = {**patterns, pattern: action}
    return {tool: patterns["*"] if list(patterns) == ["*"] else patterns for tool, patterns in tools.items()}


def _items(value: object) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, Mapping) else []
