"""Makes an agent use the Paperclip API proxy in its pod: placeholders instead of tokens, paths instead of addresses.

The proxy (`agent_runs/pod/sidecar/api_proxy.py`) replaces a placeholder by the current token. So a run that a later
wake has joined uses that wake's token, and no token is in the agent's environment or configuration. The proxy's port is
known only in the pod: the runner puts its address before each path in the environment, and OpenCode's configuration
names it as `{env:PAPERCLIP_API_URL}`. An address that is not Paperclip's stays as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from agent_runs.paperclip.environment import is_loopback

API_URL: Final = "PAPERCLIP_API_URL"
API_KEY: Final = "PAPERCLIP_API_KEY"
TOOLS_TOKEN: Final = "PAPERCLIP_RUNTIME_TOOLS_TOKEN"  # noqa: S105 - the name of a variable
TOOLS_URLS: Final = (
    "PAPERCLIP_RUNTIME_TOOLS_MCP_URL",
    "PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL",
    "PAPERCLIP_RUNTIME_TOOLS_CONNECTION_REQUEST_URL",
)
FORWARD_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
LOOPBACK_HOSTS: Final = "127.0.0.1,localhost"


@dataclass(frozen=True)
class Placeholders:
    """Fixed texts that the agent has instead of the run's API key and of its tools token."""

    key: str
    tools: str


@dataclass(frozen=True)
class ProxiedAgent:
    """Environment and MCP servers of an agent that uses the proxy, and what the proxy itself needs.

    Attributes:
        environment, mcp_servers: as the agent gets them, without tokens.
        path_variables: names of variables that hold a path; the runner puts the proxy's address before it.
        upstream: Paperclip's address.
        token, tools_token: the tokens that the placeholders replace.
    """

    environment: dict[str, str] = field(repr=False)
    mcp_servers: dict[str, Any] = field(repr=False)
    path_variables: tuple[str, ...]
    upstream: str
    token: str = field(repr=False)
    tools_token: str | None = field(repr=False)


def route_through_proxy(
    environment: Mapping[str, str], mcp_servers: Mapping[str, Any], placeholders: Placeholders
) -> ProxiedAgent:
    """An agent's environment and MCP servers, changed so that they reach Paperclip through the proxy.

    Args:
        environment: has Paperclip's address and token.
        mcp_servers: OpenCode's MCP servers by name.
        placeholders: what replaces the tokens.
    """
    upstream, token = environment[API_URL].rstrip("/"), environment[API_KEY]
    own = {name: path for name in TOOLS_URLS if (path := _path(environment.get(name), upstream, certain=True))}
    tools = environment.get(TOOLS_TOKEN) if own else None
    changed = {name: value for name, value in environment.items() if name != API_URL}
    changed |= {**own, API_KEY: placeholders.key, **({TOOLS_TOKEN: placeholders.tools} if tools else {})}
    known = {token: placeholders.key, **({tools: placeholders.tools} if tools else {})}
    return ProxiedAgent(
        environment=_bypass_forward_proxies(changed),
        mcp_servers={name: _route_server(server, upstream, known) for name, server in mcp_servers.items()},
        path_variables=tuple(own),
        upstream=upstream,
        token=token,
        tools_token=tools,
    )


def _bypass_forward_proxies(environment: dict[str, str]) -> dict[str, str]:
    """Excludes the pod's loopback address from the agent's forward proxy, if it has one."""
    if not any(environment.get(name) or environment.get(name.lower()) for name in FORWARD_PROXIES):
        return environment
    known = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    excepted = f"{known},{LOOPBACK_HOSTS}" if known else LOOPBACK_HOSTS
    return {**environment, "NO_PROXY": excepted, "no_proxy": excepted}


def _path(url: str | None, upstream: str, *, certain: bool) -> str | None:
    """The path of a URL below Paperclip's address; None when it is the address of something else.

    Paperclip names its own address as it knows it, by default a loopback address, which in a pod is the pod.

    Args:
        certain: the URL is Paperclip's, whatever its host.
    """
    if not url:
        return None
    if url == upstream or url.startswith((f"{upstream}/", f"{upstream}?")):
        return url[len(upstream) :] or "/"
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    if not certain and not (is_loopback(host) and parts.path.startswith("/api/mcp/")):
        return None
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _route_server(server: Any, upstream: str, known: Mapping[str, str]) -> Any:
    """A remote MCP server of Paperclip's with the proxy's address; any other as it is."""
    if not isinstance(server, Mapping) or not isinstance(server.get("url"), str):
        return server
    headers = server.get("headers")
    placeholders = {f"Bearer {token}": f"Bearer {placeholder}" for token, placeholder in known.items()}
    ours = isinstance(headers, Mapping) and any(
        value in placeholders for value in headers.values() if isinstance(value, str)
    )
    path = _path(server["url"], upstream, certain=ours)
    if path is None:
        return server
    changed = {**server, "url": f"{{env:{API_URL}}}{path}"}
    if isinstance(headers, Mapping):
        changed["headers"] = {
            name: placeholders.get(value, value) if isinstance(value, str) else value for name, value in headers.items()
        }
    return changed
