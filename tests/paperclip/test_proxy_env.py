"""The environment and MCP servers of an agent that reaches Paperclip through the proxy in its pod."""

from typing import Any

import pytest

from agent_runs.paperclip.proxy_env import Placeholders, ProxiedAgent, route_through_proxy

PLACEHOLDERS = Placeholders(key="the-key", tools="the-tools")
BASE = {"PAPERCLIP_API_URL": "http://paperclip:3100/", "PAPERCLIP_API_KEY": "canary-token"}
TOOLS = {
    "PAPERCLIP_RUNTIME_TOOLS_MCP_URL": "http://127.0.0.1:3190/mcp/runtime-tools",
    "PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL": "http://paperclip:3100/runtime-tools/connections/search?a=1",
    "PAPERCLIP_RUNTIME_TOOLS_TOKEN": "canary-tools",
}


def routed_agent(servers: dict[str, Any] | None = None, /, **more: str) -> ProxiedAgent:
    return route_through_proxy({**BASE, **more}, servers or {}, PLACEHOLDERS)


def test_the_agent_has_a_placeholder_instead_of_its_token() -> None:
    found = routed_agent(HOME="/paperclip")
    assert found.environment == {"HOME": "/paperclip", "PAPERCLIP_API_KEY": "the-key"}
    assert (found.upstream, found.token, found.tools_token) == ("http://paperclip:3100", "canary-token", None)
    assert "canary" not in repr(found)


def test_the_addresses_of_connection_tools_become_paths() -> None:
    found = routed_agent(**TOOLS)
    assert found.environment["PAPERCLIP_RUNTIME_TOOLS_MCP_URL"] == "/mcp/runtime-tools"
    search = "PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL"
    assert found.environment[search] == "/runtime-tools/connections/search?a=1"
    assert found.path_variables == ("PAPERCLIP_RUNTIME_TOOLS_MCP_URL", search)
    assert (found.environment["PAPERCLIP_RUNTIME_TOOLS_TOKEN"], found.tools_token) == ("the-tools", "canary-tools")


def test_a_base_path_is_left_to_the_proxy() -> None:
    url = {
        "PAPERCLIP_API_URL": "https://x/base",
        "PAPERCLIP_RUNTIME_TOOLS_MCP_URL": "https://x/base/mcp/runtime-tools",
    }
    assert routed_agent(**url).environment["PAPERCLIP_RUNTIME_TOOLS_MCP_URL"] == "/mcp/runtime-tools"


@pytest.mark.parametrize("url", ["", "/relative", "stdio:x", "http://[", "ftp://paperclip/x"])
def test_a_value_that_is_no_url_stays_as_it_is(url: str) -> None:
    found = routed_agent(PAPERCLIP_RUNTIME_TOOLS_MCP_URL=url, PAPERCLIP_RUNTIME_TOOLS_TOKEN="mine")
    assert found.path_variables == ()
    assert found.environment["PAPERCLIP_RUNTIME_TOOLS_MCP_URL"] == url
    assert found.environment["PAPERCLIP_RUNTIME_TOOLS_TOKEN"] == "mine"


@pytest.mark.parametrize(
    ("url", "token", "expected"),
    [
        (
            "http://127.0.0.1:3190/api/mcp/project-tools",
            "canary-token",
            "{env:PAPERCLIP_API_URL}/api/mcp/project-tools",
        ),
        ("https://known.elsewhere.as/api/mcp/x", "canary-token", "{env:PAPERCLIP_API_URL}/api/mcp/x"),
        ("http://paperclip:3100/api/mcp/x", "other", "{env:PAPERCLIP_API_URL}/api/mcp/x"),
        ("http://localhost:3190/api/mcp/x", "other", "{env:PAPERCLIP_API_URL}/api/mcp/x"),
        ("http://localhost:9000/mcp", "other", "http://localhost:9000/mcp"),
        ("http://paperclip:31000/api/mcp/x", "other", "http://paperclip:31000/api/mcp/x"),
        ("https://mcp.example/api/mcp/x", "other", "https://mcp.example/api/mcp/x"),
    ],
)
def test_an_mcp_server_of_paperclips_is_reached_through_the_proxy(url: str, token: str, expected: str) -> None:
    server = {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {token}", "X": 1}}
    (found,) = routed_agent({"it": server}).mcp_servers.values()
    placeholder = "the-key" if token == "canary-token" else token
    assert found == {"type": "http", "url": expected, "headers": {"Authorization": f"Bearer {placeholder}", "X": 1}}


@pytest.mark.parametrize("server", [None, [], {"command": "x"}, {"url": 5}, {"url": "http://paperclip:3100/x"}])
def test_any_other_mcp_server_stays_as_it_is(server: Any) -> None:
    (found,) = routed_agent({"it": server}).mcp_servers.values()
    assert found == ({"url": "{env:PAPERCLIP_API_URL}/x"} if server == {"url": "http://paperclip:3100/x"} else server)


def test_a_forward_proxy_is_bypassed_for_the_pods_loopback_address() -> None:
    assert "NO_PROXY" not in routed_agent().environment
    found = routed_agent(https_proxy="http://squid", NO_PROXY="corp").environment
    assert (found["NO_PROXY"], found["no_proxy"]) == ("corp,127.0.0.1,localhost",) * 2
