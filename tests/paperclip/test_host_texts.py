"""What only Paperclip's own process knows: addresses, tool servers, the heartbeat's template, skills it has read."""

import json
from typing import Any

import pytest

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.start import HostTexts
from agent_runs.paperclip.preparation import prepare
from tests.paperclip.contexts import captured, minimal, opened

CANARY = "canary-3c"
SERVERS = [
    {"name": "Paperclip projects", "url": "http://127.0.0.1:3190/api/mcp/project-tools", "token": "run"},
    {"name": "Paperclip projects", "url": "http://localhost:3190/gateway?x=1", "token": f"{CANARY}-gateway"},
    {"name": "docs", "url": "https://mcp.example/sse", "token": f"{CANARY}-docs"},
    {"name": "***", "url": "https://open.example/"},
    {"name": "base", "url": "https://paperclip.example/base/api/mcp?y=2"},
    {"name": "beside", "url": "https://paperclip.example/basement"},
    {"name": "broken", "url": "http://[::1"},
    {"name": "no scheme", "url": "//127.0.0.1/mcp"},
    {"name": "no port", "url": "http://127.0.0.1:0/mcp"},
]


def api_url(host: dict[str, str], **config: str) -> str | None:
    request, _, _ = opened(minimal(**config), **host)
    return request.config.paperclip_api_url


def test_the_agents_own_address_comes_first_then_the_plugins_then_paperclips() -> None:
    theirs = {"address": "http://theirs"}
    ours = {"pods_address": "http://ours", **theirs}
    assert api_url(ours, paperclipApiUrl="http://agent") == "http://agent"
    assert api_url(ours, paperclipApiUrl=" ") == "http://ours"
    assert api_url(ours) == "http://ours"
    assert api_url(theirs) == "http://theirs"
    assert api_url({}) is None


@pytest.mark.parametrize(
    "address",
    [
        *("http://127.0.0.1:3100", "http://localhost:3100", "http://[::1]:3100", "http://0.0.0.0:1"),
        *("http://paperclip.localhost", "paperclip"),
    ],
)
def test_an_address_of_paperclips_that_a_pod_cannot_mean_is_left_to_the_workers_setting(address: str) -> None:
    assert api_url({"address": address}) is None


@pytest.mark.parametrize("url", ["paperclip", 5])
def test_a_wrong_address_of_the_agents_is_refused_also_where_the_plugin_has_a_right_one(url: object) -> None:
    with pytest.raises(InvalidRequest, match=r"config\.paperclipApiUrl"):
        prepare(minimal(paperclipApiUrl=url), HostTexts(pods_address="http://ours"))


def test_tool_servers_are_at_addresses_that_pods_reach_together_with_the_agents_own() -> None:
    context = {**minimal(mcpServers={"docs": {"url": "https://mine"}}), "authToken": "run"}
    request, secrets, _ = opened(context, tool_servers=SERVERS, address="https://paperclip.example/base/")
    bearer = {"Authorization": "Bearer {env:PAPERCLIP_API_KEY}"}
    assert secrets.mcp_servers == {
        "docs": {"url": "https://mine"},
        "paperclip-projects": {
            "type": "remote",
            "url": "{env:PAPERCLIP_API_URL}/api/mcp/project-tools",
            "headers": bearer,
        },
        "paperclip-projects-2": {
            "type": "remote",
            "url": "{env:PAPERCLIP_API_URL}/gateway?x=1",
            "headers": {"Authorization": f"Bearer {CANARY}-gateway"},
        },
        "docs-2": {
            "type": "remote",
            "url": "https://mcp.example/sse",
            "headers": {"Authorization": f"Bearer {CANARY}-docs"},
        },
        "paperclip": {"type": "remote", "url": "https://open.example/"},
        "base": {"type": "remote", "url": "{env:PAPERCLIP_API_URL}/api/mcp?y=2"},
        "beside": {"type": "remote", "url": "{env:PAPERCLIP_API_URL}/basement"},
        "broken": {"type": "remote", "url": "http://[::1"},
        "no-scheme": {"type": "remote", "url": "//127.0.0.1/mcp"},
        "no-port": {"type": "remote", "url": "http://127.0.0.1:0/mcp"},
    }
    assert CANARY not in request.model_dump_json()


@pytest.mark.parametrize(
    ("address", "url", "same"),
    [
        ("http://paperclip:3100", "http://paperclip:3100/mcp", True),
        ("http://paperclip:3100", "http://paperclip:4000/mcp", False),
        ("http://paperclip", "http://paperclip:80/mcp", True),
        ("https://paperclip:443", "https://paperclip/mcp", True),
        ("https://paperclip", "http://paperclip/mcp", False),
        ("https://paperclip", "https://paperclip:80/mcp", False),
    ],
)
def test_a_server_at_another_port_of_paperclips_host_is_not_paperclips(address: str, url: str, same: bool) -> None:
    _, secrets, _ = opened(minimal(), tool_servers=[{"name": "a", "url": url}], address=address)
    assert secrets.mcp_servers["a"]["url"] == ("{env:PAPERCLIP_API_URL}/mcp" if same else url)


def test_connection_tools_are_variables_with_addresses_that_pods_reach() -> None:
    addresses = {"address": "http://127.0.0.1:3190", "pods_address": "https://paperclip.example/base/"}
    _, secrets, _ = opened(captured("ctx-4"), **addresses)
    expected = {
        "PAPERCLIP_RUNTIME_TOOLS_MCP_URL": "https://paperclip.example/base/mcp/runtime-tools",
        "PAPERCLIP_RUNTIME_TOOLS_CONNECTIONS_SEARCH_URL": (
            "https://paperclip.example/base/runtime-tools/connections/search"
        ),
        "PAPERCLIP_RUNTIME_TOOLS_TOKEN": "<REDACTED_JWT>",
        "PAPERCLIP_RUNTIME_TOOLS_AVAILABLE": "connections_search,connection_request",
    }
    assert expected.items() <= secrets.paperclip_env.items()


def test_an_agent_without_a_template_of_its_own_gets_paperclips() -> None:
    def template(context: dict[str, Any], **host: object) -> str | None:
        return opened(context, **host)[2].prompt_template

    assert template(minimal(), heartbeat_template="Theirs.") == "Theirs."
    assert template(minimal(promptTemplate="Mine."), heartbeat_template="Theirs.") == "Mine."
    assert template(minimal()) is None


def test_a_wake_that_asks_for_a_repair_gets_no_heartbeat_if_it_says_so_itself() -> None:
    repair = {"repair_wake": True, "heartbeat_template": "Theirs."}
    assert opened(minimal(), wake_prompt={"fresh": "Repair."}, **repair)[2].prompt_template == " "
    assert opened(minimal(), **repair)[2].prompt_template == "Theirs."


def test_the_selected_skills_are_taken_from_what_the_host_has_read() -> None:
    config = {
        "paperclipRuntimeSkills": [
            {"key": "paperclipai/paperclip/paperclip", "source": "/s/one"},
            {"key": "company/two", "source": "/s/two"},
            {"key": "company/three", "source": "/s/three"},
            {"key": "company/four", "source": "/s/four", "sourceStatus": "missing"},
            {"key": "company/five", "source": "/s/five"},
        ],
        "paperclipSkillSync": {"desiredSkills": ["two", "three", "four", "six"]},
    }
    texts = {"paperclipai/paperclip/paperclip": "# One", "company/two": "# Two", "company/five": "# Five"}
    unread = "skill not readable: /s/three: No such file or directory"
    request, _, source = opened(minimal(**config), skills=texts, notes=[unread, "x" * 600])
    assert list((source.skills or {}).values()) == ["# One", "# Two"]
    assert request.notes == (
        unread,
        "x" * 500,
        'Skill "company/four" is left out: Paperclip reports that its source is missing.',
        'Desired skill "six" is not available from the Paperclip skills directory.',
    )


UNREAD = "only Paperclip's plugin reads files for a run"


def test_what_nobody_has_read_is_named_and_left_out() -> None:
    request, _, source = opened(captured("ctx-1"))
    assert (source.instructions, source.skills) == (None, {})
    assert len([note for note in request.notes if UNREAD in note]) == 2


def test_an_empty_text_of_the_host_counts_as_read() -> None:
    request, _, source = opened(captured("ctx-1"), instructions="", skills={})
    assert (source.instructions, source.skills) == ("", {})
    assert not [note for note in request.notes if UNREAD in note]


def test_no_text_of_the_host_is_in_the_request() -> None:
    texts = {"wake_prompt": {"fresh": CANARY}, "instructions": CANARY, "skills": {"a": CANARY}}
    request, _, _ = opened(captured("ctx-4"), heartbeat_template=CANARY, **texts)
    assert CANARY not in json.dumps(request.model_dump(mode="json"))
