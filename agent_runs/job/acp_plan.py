"""What a profile comes to in one attempt: command, variables, files, and what the sidecar's driver is to do.

Pure. What the sidecar gets is `turn.json`; what the agent's container gets before its start is listed in `agent-files`:
lines `KEY<TAB>TARGET`, each KEY a file beside it. `agent-skills` names the folder below the home where the agent looks
for skills, then lists them: lines `NAME<TAB>PATH`. Source: agentclientprotocol.com, version 1 of the protocol.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from agent_runs.agents.opencode.command import capabilities as opencode_capabilities
from agent_runs.agents.opencode.command import run_title
from agent_runs.agents.opencode.config import translate_mcp_servers
from agent_runs.agents.profile import AgentProfile, rendered, rendered_file
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.messages import CreateJob, PromptBundle
from agent_runs.contracts.request import OPENCODE, Capabilities, RunConfig
from agent_runs.job.containers import known_environment
from agent_runs.job.secrets import AGENT_FILES_KEY, AGENT_SKILLS_KEY
from agent_runs.paperclip.proxy_env import API_URL

PREPARE: Final = "AGENT_RUN_PREPARE"
"""The variable that names the step before the start, for `agent_runs/pod/acp.sh`."""
NAMED: Final = 5
"""Variables or servers in one warning."""
_REFERENCE: Final = re.compile(r"\{env:([^{}]*)\}")
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class AcpStart:
    """How an agent is started.

    Attributes:
        environment: its variables, all of them.
        files: what `agent_runs/pod/acp.sh` finds beside itself.
        turn: what the driver is to do; secret, since MCP servers have tokens.
    """

    argv: list[str]
    environment: dict[str, str] = field(repr=False)
    files: dict[str, bytes] = field(repr=False)
    turn: dict[str, Any] = field(repr=False)
    warnings: tuple[str, ...] = ()


def acp_start(
    input: CreateJob,
    profile: AgentProfile,
    *,
    variables: Mapping[str, str],
    mcp_servers: Mapping[str, Any],
    path_variables: Sequence[str],
) -> AcpStart:
    """How this agent is started for one attempt.

    Args:
        variables: its environment without what the profile sets.
        mcp_servers: by name, in OpenCode's spelling or Claude's.
        path_variables: those that hold a path, before which the runner puts the address of the pod's API proxy.
    """
    config, session = input.config, input.session
    values = profile.values(
        model=config.model,
        effort=config.variant,
        skip_permissions=config.dangerously_skip_permissions,
        variables=variables,
    )
    own = {name: value for name, text in profile.environment.items() if (value := rendered(text, values)) is not None}
    if profile.prepare:
        own[PREPARE] = profile.prepare
    process = known_environment(input, {**variables, **own})
    process |= {name: f"{{env:{API_URL}}}{process[name]}" for name in path_variables}
    servers, dropped = acp_servers(mcp_servers, profile, process)
    turn = {
        "driver": "acp",
        "session": session.session_id if session and profile.loads_sessions else None,
        "model": values["model"],
        "start_timeout": profile.start_timeout,
        "title": run_title(input.request.agent.name, str(input.attempt.transcript)) if profile.set_title else None,
        "profile": driver_profile(profile, values["permission_mode"], servers, config),
    }
    return AcpStart(
        argv=[word for text in profile.command if (word := rendered(text, values)) is not None],
        environment={**variables, **own},
        files={**agent_files(profile, values), **agent_skills(profile, input.prompt)},
        turn=turn,
        warnings=(*_replaced(profile, variables, own), *_missing_values(input, profile, variables), *dropped),
    )


def driver_profile(
    profile: AgentProfile, mode: str | None, servers: list[dict[str, Any]], config: RunConfig
) -> dict[str, Any]:
    return {
        "title": profile.title,
        "versions": profile.versions,
        "authenticate": profile.authenticate,
        "client_meta": profile.client_meta,
        "failure": list(profile.failure),
        "mode": mode if profile.set_mode else None,
        "model_option": profile.model_option,
        "permissions": _permissions(config),
        "usage": profile.usage,
        "usage_files": profile.usage_files,
        "cost": profile.cost,
        "mcp_servers": servers,
        "unknown_session": [each.model_dump() for each in profile.unknown_session],
        "errors": [each.model_dump() for each in profile.errors],
        "informational": list(profile.informational),
    }


def _permissions(config: RunConfig) -> str:
    """What becomes of a request for a permission."""
    if config.dangerously_skip_permissions:
        return "allow"
    return "ask" if config.ask_timeout_sec else "reject"


def agent_files(profile: AgentProfile, values: Mapping[str, str | None]) -> dict[str, bytes]:
    """The files that are written below the agent's home, by their names in the Secret, and the list of them."""
    texts = {f"agent-file-{number}": text for number, text in enumerate(profile.files.values(), 1)}
    listed = "".join(f"{key}\t$HOME/{path}\n" for key, path in zip(texts, profile.files, strict=True))
    files = {key: rendered_file(text, values).encode() for key, text in texts.items()}
    return {**({AGENT_FILES_KEY: listed.encode()} if listed else {}), **files}


def agent_skills(profile: AgentProfile, prompt: PromptBundle) -> dict[str, bytes]:
    """The list of the skills that are linked into the folder where the agent looks for them, the folder first.

    A link has the name of its skill, as the agents want, or of the skill's folder where that is no name of a file. The
    list is there without skills, too, so that links of earlier runs go.
    """
    if not profile.skills:
        return {}
    links: dict[str, str] = {}
    for index, folder in enumerate(prompt.skill_paths):
        named = (*prompt.skill_names[index : index + 1], folder.rpartition("/")[2])
        name = next(filter(_FILE_NAME.fullmatch, named), None)
        if name and folder.isprintable():
            links.setdefault(name, folder)
    lines = (profile.skills, *(f"{name}\t{path}" for name, path in links.items()))
    return {AGENT_SKILLS_KEY: "".join(f"{line}\n" for line in lines).encode()}


def acp_servers(
    servers: Mapping[str, Any], profile: AgentProfile, variables: Mapping[str, str]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """MCP servers in the protocol's spelling, and warnings about those that the agent does not take.

    `{env:NAME}` is replaced by the variable of the agent's process. Only the address of the pod's API proxy is not
    known here: the driver replaces `{env:PAPERCLIP_API_URL}`.
    """
    known, _ = translate_mcp_servers(servers)
    found = {
        name: _acp_server(name, server, variables) for name, server in known.items() if server.get("enabled", True)
    }
    taken = [server for server in found.values() if server.get("type", "stdio") in profile.mcp_servers]
    left = [name[:60] for name, server in found.items() if server not in taken]
    if not left:
        return taken, ()
    kinds = f"takes only servers of type {', '.join(profile.mcp_servers)}" if profile.mcp_servers else "takes none"
    named = ", ".join(left[:NAMED]) + (" and others" if len(left) > NAMED else "")
    return taken, (f"MCP servers {named} are left out: {profile.name} {kinds}",)


def _acp_server(name: str, server: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    def text(value: object) -> str:
        return _REFERENCE.sub(lambda match: _value(match, variables), str(value))

    def pairs(block: object) -> list[dict[str, str]]:
        items = block.items() if isinstance(block, Mapping) else ()
        return [{"name": str(key), "value": text(value)} for key, value in items]

    if server.get("type") == "remote":
        return {
            "type": "http",
            "name": name,
            "url": text(server.get("url", "")),
            "headers": pairs(server.get("headers")),
        }
    words = server.get("command")
    program, *arguments = [text(word) for word in words] if isinstance(words, list) and words else [""]
    return {"name": name, "command": program, "args": arguments, "env": pairs(server.get("environment"))}


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    name = match[1]
    return match[0] if name == API_URL and name not in variables else variables.get(name, "")


def _replaced(profile: AgentProfile, variables: Mapping[str, str], own: Mapping[str, str]) -> Iterator[str]:
    """Variables whose value the profile replaces."""
    if names := [name for name, value in own.items() if variables.get(name, value) != value]:
        yield f"{', '.join(names[:NAMED])}: no effect: the profile of {profile.name} sets them for each run"


def _missing_values(input: CreateJob, profile: AgentProfile, variables: Mapping[str, str]) -> Iterator[str]:
    """Variables that the agent needs and does not get, as far as is known."""
    references = {each.name for each in input.profile.env_references}
    known = {*variables, *references}
    if profile.keys and not input.profile.env_from and known.isdisjoint(profile.keys):
        yield (
            f"{profile.title} gets no {' or '.join(profile.keys)}, so it has no key for its model's provider unless "
            "its image or a login in its home has one: add it to config.env"
        )
    address = profile.base_url.variable if profile.base_url else None
    if address in references and address not in variables:
        yield (
            f"{address} comes from a Secret or ConfigMap, whose value the worker does not read: "
            f"{profile.title} uses its default; set it in config.env"
        )


def profile_of(config: RunConfig, profiles: Mapping[str, AgentProfile]) -> AgentProfile:
    """The profile of the agent that the configuration names.

    Raises:
        InvalidRequest: there is none of this name.
    """
    if found := profiles.get(config.agent):
        return found
    raise InvalidRequest(f"config.agent: {unknown_agent(config.agent, profiles)}")


def capabilities_of(config: RunConfig, profiles: Mapping[str, AgentProfile]) -> Capabilities:
    """What the agent of a configuration can do; raises as `profile_of`."""
    if config.agent == OPENCODE:
        return opencode_capabilities(config)
    known = profile_of(config, profiles).capabilities
    asks = known.asks and _permissions(config) == "ask"
    return known.model_copy(update={"asks": asks})


def unknown_agent(name: str, profiles: Iterable[str]) -> str:
    """What is wrong with a name, and which ones there are."""
    return f"there is no agent {name}: choose one of {', '.join(['opencode', *sorted(profiles)])}"
