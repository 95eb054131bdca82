"""Paperclip's tool servers for one run, in OpenCode's spelling and at addresses that a pod can reach.

Paperclip names them by its own address, which in a pod is often the pod's, and opens its own with the run's token,
which changes when a later run takes over. Both are variables of the agent's environment, so they are named as such:
OpenCode puts `{env:NAME}` in place when it reads its configuration, and where the pod has a proxy for Paperclip, that
one knows the current token. Source: opencode.ai/docs/config; Paperclip 2026.916.1.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import SplitResult, urlsplit

from agent_runs.contracts.start import HostTexts, ToolServer
from agent_runs.contracts.syntax import is_absolute_url
from agent_runs.paperclip.environment import is_loopback
from agent_runs.paperclip.javascript import trim

SERVERS_LIMIT: Final = 64
NAME_LIMIT: Final = 48
"""Characters of a server's name."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Addresses:
    """Where Paperclip is: as its own process knows it, and as pods reach it. Either may be unknown.

    Attributes:
        chosen: the agent's own configuration says how pods reach it.
    """

    host: str | None = None
    pods: str | None = None
    chosen: bool = False

    @classmethod
    def of(cls, host: HostTexts, configured: object) -> Self:
        """The agent's own setting, else that of Paperclip's process, else its own address unless a pod cannot mean it.

        Without one the worker's setting counts, of which nothing is known here.
        """
        if configured is not None and not (isinstance(configured, str) and not trim(configured)):
            return cls(host.address, configured if isinstance(configured, str) else None, chosen=True)
        own = host.address if host.address and is_absolute_url(host.address) else None
        if own is not None and is_loopback(urlsplit(own).hostname or ""):
            own = None
        return cls(host.address, host.pods_address or own)


def tool_servers(
    offered: Iterable[ToolServer], addresses: Addresses, taken: Collection[str], run_token: str | None
) -> dict[str, dict[str, Any]]:
    """The offered servers as remote MCP servers.

    Args:
        taken: names that the agent's own configuration uses: those stay the agent's.
        run_token: the run's own token; a server that it opens gets the agent's current one.
    """
    names = set(taken)
    servers: dict[str, dict[str, Any]] = {}
    for server in list(offered)[:SERVERS_LIMIT]:
        name = _free_name(server.name, names)
        names.add(name)
        servers[name] = _remote(server, addresses, run_token)
    return servers


def reachable_tools(tools: dict[str, Any], addresses: Addresses) -> dict[str, Any]:
    """Paperclip's connection tools, as its context names them, at addresses that pods reach."""
    moved = dict(tools)
    if "mcpEndpoint" in tools:
        moved["mcpEndpoint"] = _reachable(tools["mcpEndpoint"], addresses)
    if isinstance(rest := tools.get("rest"), dict):
        moved["rest"] = {name: _reachable(address, addresses) for name, address in rest.items()}
    return moved


def _reachable(address: object, addresses: Addresses) -> object:
    """`address` as pods reach it, if it is one of Paperclip's own and it is known where pods find those."""
    path = _path_at_paperclip(address, addresses.host) if isinstance(address, str) else None
    return address if path is None or addresses.pods is None else addresses.pods.rstrip("/") + path


def _remote(server: ToolServer, addresses: Addresses, run_token: str | None) -> dict[str, Any]:
    path = _path_at_paperclip(server.url, addresses.host)
    bearer = "{env:PAPERCLIP_API_KEY}" if server.token and server.token == run_token else server.token
    return {
        "type": "remote",
        "url": server.url if path is None else f"{{env:PAPERCLIP_API_URL}}{path}",
        **({"headers": {"Authorization": f"Bearer {bearer}"}} if bearer else {}),
    }


def _path_at_paperclip(address: str, host: str | None) -> str | None:
    """The part of `address` after Paperclip's base; None when it is somewhere else."""
    parts, base = _parsed(address), _parsed(host or "")
    if parts is None:
        return None
    same = base is not None and _origin(parts) == _origin(base)
    if not same and not is_loopback(parts.hostname or ""):
        return None
    prefix = base.path.rstrip("/") if same and base is not None else ""
    path = parts.path or "/"
    own = path[len(prefix) :] if path.startswith(f"{prefix}/") else path
    return own + (f"?{parts.query}" if parts.query else "")


def _parsed(address: str) -> SplitResult | None:
    try:
        parts = urlsplit(address)
        usable = bool(parts.scheme and parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(parts.scheme)


def _free_name(name: str, taken: Collection[str]) -> str:
    """OpenCode makes tool names of server names: letters, digits and dashes only."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:NAME_LIMIT] or "paperclip"
    free, again = slug, 2
    while free in taken:
        free, again = f"{slug}-{again}", again + 1
    return free
