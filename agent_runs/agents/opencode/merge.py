"""OpenCode's configuration of one run: the agent's own, the operator's and ours, merged.

An agent's settings win over the operator's, except where the operator's hold keys and bounds: `provider` and
`permission`. An MCP server is taken whole from one of them, so that no header goes to an address of somebody else. Ours
win over both, and a note names what they replace. Pure.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from agent_runs.agents.opencode.config import deep_merge, runtime_config
from agent_runs.agents.opencode.permissions import Source, fixed_rules, limited, merged_permissions, questions
from agent_runs.contracts.opencode import KNOWN, short
from agent_runs.contracts.request import OpenCodeFeature

AGENT: Final = "config.opencode"
OPERATOR: Final = "AGENT_RUNS_OPENCODE_CONFIG"
NOTES_LIMIT: Final = 20

OURS: Final = {
    "model": "config.model is used",
    "enabled_providers": "the providers of the models that the configuration names are used",
    "disabled_providers": "the providers of the models that the configuration names are used",
    "share": "sharing is switched off",
    "autoshare": "sharing is switched off",
    "autoupdate": "the image decides the version",
    "snapshot": "add it to config.opencodeFeatures, which alone switches it on",
    "lsp": "add it to config.opencodeFeatures, which alone switches it on",
    "formatter": "add it to config.opencodeFeatures, which alone switches it on",
}
"""Keys that are ours, and what holds instead."""
JOINED: Final = ("instructions", "plugin")
"""Lists that OpenCode joins when several of its files have them."""
SPECIAL: Final = ("$schema", "agent", "mcp", "mode", "permission", "provider", "skills", "small_model", "tools")

CONTAINER_VARIABLES: Final = frozenset({"HOSTNAME", "PATH"})
"""Every container has them."""

_VARIABLE: Final = re.compile(r"\{env:([^}]*)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Merged:
    """The configuration of a run, and notes for people. It may hold secrets; the notes hold no values."""

    config: dict[str, Any] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def has_plugins(self) -> bool:
        return bool(self.config.get("plugin"))


def merge(
    *,
    model: str,
    agent: Mapping[str, Any],
    operator: Mapping[str, Any],
    mcp_servers: Mapping[str, Any] | None = None,
    skip_permissions: bool = True,
    asks: bool = False,
    skill_folders: Sequence[str] = (),
    readable: Sequence[str] = (),
    features: Collection[OpenCodeFeature] = (),
) -> Merged:
    """The whole configuration of one attempt.

    Args:
        agent: `config.opencode`.
        operator: the content of the worker's file.
        mcp_servers: `config.mcpServers` with Paperclip's own; one wins over those of the same name.
        asks: people are asked what a permission leaves open.
        skill_folders: paths in the pod of the agent's skills.
        readable: further folders that an agent may read that must not leave its directory.
        features: what the agent's configuration switches on.
    """
    sources = (Source(AGENT, agent), Source(OPERATOR, operator))
    fixed = fixed_rules(skip_permissions=skip_permissions, asks=asks, readable=(*skill_folders, *readable))
    own = {**deep_merge(_plain(operator), _plain(agent)), **_joined(sources)}
    for kind in ("agent", "mode"):
        theirs = _block(operator, kind)
        named = deep_merge(theirs, _block(agent, kind))
        if named:
            own[kind] = {
                name: limited(settings, (operator, theirs.get(name, {})), fixed, asks=asks)
                for name, settings in named.items()
            }
    small = agent.get("small_model") or operator.get("small_model")
    ours = runtime_config(
        model=model,
        small_model=small,
        mcp_servers=mcp_servers or {},
        provider_config=deep_merge(_block(agent, "provider"), _block(operator, "provider")),
        more_models=_models(own),
        features=features,
    )
    servers = {**_servers(agent, operator), **ours.get("mcp", {})}
    skills = _skills(sources, skill_folders)
    config = {
        **own,
        **ours,
        "permission": merged_permissions(sources, fixed, skip_permissions=skip_permissions, asks=asks),
        **({"mcp": servers} if servers else {}),
        **({"skills": skills} if skills else {}),
    }
    notes = [*_replaced(sources, ours), *_overruled(agent, operator, mcp_servers or {})]
    notes += [] if asks else _asking(sources)
    notes += _undeclared([model, *([small] if small else [])], config["provider"])
    if not skip_permissions:
        notes += _outside(sources)
    return Merged(config, _bounded(notes))


def unset_variables(config: Mapping[str, Any], known: Iterable[str], path: str) -> tuple[str, ...]:
    """Notes about variables that a configuration refers to and that the pod does not get."""
    names = frozenset(known)
    names |= CONTAINER_VARIABLES
    found = dict.fromkeys(
        (place, name) for place, text in _texts(config, path) for name in _VARIABLE.findall(text) if name not in names
    )
    return _bounded(
        [
            f"{place}: {{env:{name}}} is not set, so OpenCode reads it as empty unless the agent's image or a Secret "
            "that agents inherit sets it: add it to config.env"
            if _NAME.fullmatch(name)
            else f"{place}: {{env:...}} has no variable's name"
            for place, name in ((place, short(name)) for place, name in found)
        ]
    )


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """What is merged as OpenCode would."""
    return {key: value for key, value in config.items() if key not in OURS and key not in (*SPECIAL, *JOINED)}


def _joined(sources: Sequence[Source]) -> dict[str, list[Any]]:
    """The lists of all, the operator's first, each item once."""
    joined: dict[str, list[Any]] = {}
    for key in JOINED:
        for source in reversed(sources):
            kept = joined.setdefault(key, [])
            kept += [item for item in source.config.get(key, ()) if item not in kept]
    return {key: items for key, items in joined.items() if items}


def _servers(agent: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    """The MCP servers of both. An agent may replace one of the operator's, or only switch it on or off."""
    servers = dict(_block(operator, "mcp"))
    for name, server in _block(agent, "mcp").items():
        switch = set(server) == {"enabled"}
        servers[name] = {**servers.get(name, {}), **server} if switch else server
    return servers


def _skills(sources: Sequence[Source], folders: Sequence[str]) -> dict[str, Any]:
    blocks = [_block(source.config, "skills") for source in reversed(sources)]
    paths = [*folders, *(path for block in blocks for path in block.get("paths", ()))]
    urls = [url for block in blocks for url in block.get("urls", ())]
    found = {"paths": list(dict.fromkeys(paths)), "urls": list(dict.fromkeys(urls))}
    return {key: items for key, items in found.items() if items}


def _models(config: Mapping[str, Any]) -> Iterator[str]:
    """The models that agents and commands of OpenCode have of their own."""
    for kind in ("agent", "mode", "command"):
        for settings in _block(config, kind).values():
            model = settings.get("model")
            if isinstance(model, str) and "/" in model:
                yield model


def _replaced(sources: Iterable[Source], ours: Mapping[str, Any]) -> Iterator[str]:
    for name, config in sources:
        for key, value in config.items():
            if key in OURS and value != ours.get(key):
                yield f"{name}.{key} is set by us: {OURS[key]}"
            elif key not in KNOWN:
                yield f"{name}.{short(key)} is not known to OpenCode 1.18: correct its name or remove it"


def _overruled(agent: Mapping[str, Any], operator: Mapping[str, Any], servers: Mapping[str, Any]) -> Iterator[str]:
    for path in _different(_block(agent, "provider"), _block(operator, "provider"), f"{AGENT}.provider"):
        yield f"{path} is set by the operator ({OPERATOR})"
    for source in ((AGENT, agent), (OPERATOR, operator)):
        for name in _block(source[1], "mcp").keys() & servers.keys():
            yield f"{source[0]}.mcp.{short(name)} is replaced by the server of this name in config.mcpServers"


def _undeclared(models: Iterable[str], providers: Mapping[str, Any]) -> Iterator[str]:
    """Models that a provider with a package and models of its own does not declare: OpenCode takes no others of it."""
    for model in models:
        provider, _, name = model.partition("/")
        settings = providers.get(provider, {})
        declared = list(_block(settings, "models"))
        if declared and "npm" in settings and name not in declared:
            yield (
                f"model {short(model)}: provider {short(provider)} declares no such model, so OpenCode fails unless it "
                f"knows the model itself, which `agent-runs doctor --pod` finds out; {similar_models(name, declared)}"
            )


def similar_models(name: str, known: Sequence[str]) -> str:
    """A sentence about those of the known models whose name, or its last part, is like this one."""
    parts = {part: each for each in known for part in (each.rpartition("/")[2], each)}
    like = [short(parts[part]) for part in get_close_matches(name, parts)]
    like += [short(parts[part]) for part in get_close_matches(name.rpartition("/")[2], parts)]
    if like:
        return f"similar ones are {', '.join(dict.fromkeys(like))}"
    return f"it has {len(known)} others, such as {', '.join(map(short, known[:3]))}"


def _asking(sources: Iterable[Source]) -> Iterator[str]:
    for name, config in sources:
        agents = [
            (f"{name}.{kind}.{short(each)}", own) for kind in ("agent", "mode") for each, own in _items(config, kind)
        ]
        for path, settings in [(name, config), *agents]:
            for asking in questions(settings, path):
                yield f"{asking}: `ask` is read as `deny`: asking needs transport serve or auto, and askTimeoutSec"


def _outside(sources: Iterable[Source]) -> Iterator[str]:
    for name, config in sources:
        permission = config.get("permission")
        if isinstance(permission, Mapping) and "external_directory" in permission:
            yield f"{name}.permission.external_directory is set by us: dangerouslySkipPermissions is off"


def _different(below: Mapping[str, Any], over: Mapping[str, Any], path: str) -> Iterator[str]:
    for key in below.keys() & over.keys():
        first, second, place = below[key], over[key], f"{path}.{short(key)}"
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            yield from _different(first, second, place)
        elif first != second:
            yield place


def _texts(value: object, path: str) -> Iterator[tuple[str, str]]:
    """All texts of JSON data with their paths, keys too."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, below in value.items():
            place = f"{path}.{short(key)}"
            yield place, str(key)
            yield from _texts(below, place)
    elif isinstance(value, list | tuple):
        for index, below in enumerate(value):
            yield from _texts(below, f"{path}[{index}]")


def _block(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return dict(value) if isinstance(value, Mapping) else {}


def _items(config: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    return list(_block(config, key).items())


def _bounded(notes: Iterable[str]) -> tuple[str, ...]:
    unique = sorted(dict.fromkeys(notes))
    rest = len(unique) - NOTES_LIMIT
    return (*unique[:NOTES_LIMIT], *([f"{AGENT}: {rest} more such notes"] if rest > 0 else []))
