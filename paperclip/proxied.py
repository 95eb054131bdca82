"""What an agent gets that reaches Paperclip through the proxy in its pod: fixed words instead of tokens, and paths.

The proxy puts the current token in place of a word (`cluster/api_proxy.py`), so a run that goes on for a later one of
Paperclip's speaks with that one's token, and no token is in the agent's environment or configuration. Its port is known
only in the pod: in the environment the runner puts the address before a path, in OpenCode's configuration
`{env:PAPERCLIP_API_URL}` does. An address that is not Paperclip's stays as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from paperclip.environment import is_loopback

API_URL: Final = "PAPERCLIP_API_URL"
API_KEY: Final = "PAPERCLIP_API_KEY"
TOOLS_TOKEN: Final = "PAPERCLIP_RUNTIME_TOOLS_TOKEN"  # noqa: S105 - the name of a variable
TOOLS_URLS: Final = (
    "PAPERCLIP_RUNTIME_TOOLS_MCP_URL",
    "PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL",
    "PAPERCLIP_RUNTIME_TOOLS_CONNECTION_REQUEST_URL",
)
FORWARD_PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
HERE: Final = "127.0.0.1,localhost"


@dataclass(frozen=True)
class Words:
    """What the agent knows instead of tokens."""

    key: str
    tools: str


@dataclass(frozen=True)
class Proxied:
    """Of one agent.

    Attributes:
        environment, mcp_servers: as the agent gets them.
        rebased: variables that hold a path for the runner to put the proxy's address before.
        upstream: Paperclip's address.
        token, tools_token: what the proxy needs.
    """

    environment: dict[str, str] = field(repr=False)
    mcp_servers: dict[str, Any] = field(repr=False)
    rebased: tuple[str, ...]
    upstream: str
    token: str = field(repr=False)
    tools_token: str | None = field(repr=False)


def proxied(environment: Mapping[str, str], mcp_servers: Mapping[str, Any], words: Words) -> Proxied:
    """What becomes of an agent's environment and MCP servers. `environment` has Paperclip's address and token."""
    upstream, token = environment[API_URL].rstrip("/"), environment[API_KEY]
    own = {name: path for name in TOOLS_URLS if (path := _path(environment.get(name), upstream, certain=True))}
    tools = environment.get(TOOLS_TOKEN) if own else None
    changed = {name: value for name, value in environment.items() if name != API_URL}
    changed |= {**own, API_KEY: words.key, **({TOOLS_TOKEN: words.tools} if tools else {})}
    known = {token: words.key, **({tools: words.tools} if tools else {})}
    return Proxied(
        environment=_past_forward_proxies(changed),
        mcp_servers={name: _server(server, upstream, known) for name, server in mcp_servers.items()},
        rebased=tuple(own),
        upstream=upstream,
        token=token,
        tools_token=tools,
    )


def _past_forward_proxies(environment: dict[str, str]) -> dict[str, str]:
    """A forward proxy must not be asked for the pod's own loopback."""
    if not any(environment.get(name) or environment.get(name.lower()) for name in FORWARD_PROXIES):
        return environment
    known = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    excepted = f"{known},{HERE}" if known else HERE
    return {**environment, "NO_PROXY": excepted, "no_proxy": excepted}


def _path(url: str | None, upstream: str, *, certain: bool) -> str | None:
    """The path of a URL below Paperclip's address; None when it is another's.

    Paperclip gives out addresses as it knows itself, by default its own loopback, which in a pod is the pod.

    Args:
        certain: it is Paperclip's, whatever its host is called there.
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


def _server(server: Any, upstream: str, known: Mapping[str, str]) -> Any:
    """A remote MCP server of Paperclip's, led through the proxy; any other as it is."""
    if not isinstance(server, Mapping) or not isinstance(server.get("url"), str):
        return server
    headers = server.get("headers")
    words = {f"Bearer {token}": f"Bearer {word}" for token, word in known.items()}
    ours = isinstance(headers, Mapping) and any(value in words for value in headers.values() if isinstance(value, str))
    path = _path(server["url"], upstream, certain=ours)
    if path is None:
        return server
    changed = {**server, "url": f"{{env:{API_URL}}}{path}"}
    if isinstance(headers, Mapping):
        changed["headers"] = {
            name: words.get(value, value) if isinstance(value, str) else value for name, value in headers.items()
        }
    return changed
