"""One configuration of the agent's, the operator's and ours: who wins, and what the notes name."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.agents.opencode.merge import NOTES_LIMIT, Merged, merge, similar_models, unset_variables
from agent_runs.contracts.opencode import SIZE_LIMIT, problems

MODEL = "anthropic/claude-sonnet-4-6"
CANARY = "canary-5d1f"


def merged(agent: dict[str, Any] | None = None, operator: dict[str, Any] | None = None, **more: Any) -> Merged:
    return merge(model=MODEL, agent=agent or {}, operator=operator or {}, **more)


def wrong(config: dict[str, Any]) -> list[str]:
    return [f"{path} {remedy}".strip() for path, remedy in problems(config)]


def test_what_agent_and_operator_configure_reaches_opencode() -> None:
    agent = {
        "mcp": {"docs": {"type": "remote", "url": "https://docs"}},
        "agent": {"review": {"prompt": "Review.", "mode": "subagent"}},
        "instructions": ["style.md"],
        "compaction": {"prune": True},
        "plugin": ["opencode-a"],
        "command": {"deploy": {"template": "Deploy."}},
    }
    operator = {"instructions": ["/rules.md"], "compaction": {"auto": True, "prune": False}, "plugin": ["opencode-b"]}
    config = merged(agent, operator).config
    assert config["mcp"] == agent["mcp"]
    assert config["agent"] == agent["agent"]
    assert config["command"] == agent["command"]
    assert config["instructions"] == ["/rules.md", "style.md"]
    assert config["plugin"] == ["opencode-b", "opencode-a"]
    assert config["compaction"] == {"auto": True, "prune": True}
    assert merged(agent, operator).notes == ()


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("model", "openai/gpt", MODEL),
        ("share", "auto", "disabled"),
        ("autoupdate", True, False),
        ("snapshot", True, False),
        ("lsp", {}, False),
        ("formatter", {}, False),
        ("enabled_providers", ["openai"], ["anthropic"]),
        ("disabled_providers", ["anthropic"], None),
        ("autoshare", True, None),
    ],
)
def test_each_key_that_we_replace_is_named(key: str, value: Any, kept: Any) -> None:
    result = merged({key: value}, {key: value})
    assert result.config.get(key) == kept
    assert [note.partition(" is set by us: ")[0] for note in result.notes] == [
        f"AGENT_RUNS_OPENCODE_CONFIG.{key}",
        f"config.opencode.{key}",
    ]


def test_our_own_value_needs_no_note() -> None:
    assert merged({"share": "disabled", "$schema": "https://opencode.ai/config.json"}).notes == ()


def test_an_unknown_key_is_named_and_passed_on_to_a_newer_opencode() -> None:
    result = merged({"compactoin": {"auto": True}})
    assert result.config["compactoin"] == {"auto": True}
    assert result.notes == ("config.opencode.compactoin is not known to OpenCode 1.18: correct its name or remove it",)


def test_the_operators_keys_go_to_no_address_that_an_agent_names() -> None:
    operator = {
        "provider": {"anthropic": {"options": {"baseURL": "https://proxy", "apiKey": CANARY}}},
        "mcp": {"docs": {"type": "remote", "url": "https://docs", "headers": {"Authorization": CANARY}}},
    }
    agent = {
        "provider": {"anthropic": {"options": {"baseURL": "https://elsewhere", "timeout": 5}}},
        "mcp": {"docs": {"type": "remote", "url": "https://elsewhere"}},
    }
    result = merged(agent, operator)
    options = result.config["provider"]["anthropic"]["options"]
    assert (options["baseURL"], options["apiKey"], options["timeout"]) == ("https://proxy", CANARY, 5)
    assert result.config["mcp"] == agent["mcp"]
    assert result.notes == (
        "config.opencode.provider.anthropic.options.baseURL is set by the operator (AGENT_RUNS_OPENCODE_CONFIG)",
    )


def test_an_agent_may_switch_off_a_server_of_the_operators() -> None:
    server = {"type": "local", "command": ["docs"]}
    assert merged({"mcp": {"docs": {"enabled": False}}}, {"mcp": {"docs": server}}).config["mcp"] == {
        "docs": {**server, "enabled": False}
    }


def test_paperclips_own_servers_win_and_the_replaced_one_is_named() -> None:
    result = merged(
        {"mcp": {"tools": {"type": "local", "command": ["x"]}}}, mcp_servers={"tools": {"url": "https://p"}}
    )
    assert result.config["mcp"] == {"tools": {"type": "remote", "url": "https://p"}}
    assert result.notes == ("config.opencode.mcp.tools is replaced by the server of this name in config.mcpServers",)


def test_the_providers_of_the_models_of_agents_are_enabled() -> None:
    config = merged({"agent": {"review": {"model": "openai/gpt"}}, "small_model": "groq/s"}).config
    assert config["enabled_providers"] == ["anthropic", "groq", "openai"]
    assert config["small_model"] == "groq/s"


def test_a_model_that_its_own_provider_does_not_declare_is_named_with_the_nearest_ones() -> None:
    provider = {"own": {"npm": "@ai-sdk/openai-compatible", "models": {"big-model": {}, "small-model": {}, "x": {}}}}
    (note,) = merge(model="own/big-modle", agent={}, operator={"provider": provider}).notes
    assert note.startswith("model own/big-modle: provider own declares no such model")
    assert note.endswith("; similar ones are big-model")
    assert merge(model="own/big-model", agent={}, operator={"provider": provider}).notes == ()
    built_in: dict[str, Any] = {"anthropic": {"models": {"mine": {}}}}
    assert merged(operator={"provider": built_in}).notes == ()


def test_only_a_model_with_a_similar_name_is_suggested_also_by_its_last_part() -> None:
    known = ("scenario/text", "scenario/hang:600", "scenario/error:500")
    assert similar_models("txt", known) == "similar ones are scenario/text"
    assert similar_models("vendor/error:50", known) == "similar ones are scenario/error:500"
    assert similar_models("http500", known) == f"it has 3 others, such as {', '.join(known)}"


# --- permissions ---


def test_ask_becomes_deny_wherever_it_is_and_is_named() -> None:
    agent = {
        "permission": {"bash": {"rm *": "ask"}, "webfetch": "ask"},
        "agent": {"build": {"permission": {"edit": "ask"}}},
        "mode": {"plan": {"permission": "ask"}},
    }
    result = merged(agent, {"permission": "ask"})
    assert '"ask"' not in json.dumps(result.config)
    assert {note.partition(":")[0] for note in result.notes} == {
        "config.opencode.permission.bash",
        "config.opencode.permission.webfetch",
        "config.opencode.agent.build.permission.edit",
        "config.opencode.mode.plan.permission",
        "AGENT_RUNS_OPENCODE_CONFIG.permission",
    }


def test_what_the_operator_denies_no_agent_allows() -> None:
    permission = merged({"permission": {"webfetch": "allow"}}, {"permission": {"webfetch": "deny"}}).config[
        "permission"
    ]
    assert permission["webfetch"] == "deny"


@pytest.mark.parametrize(
    ("denied", "permission"),
    [
        ({"webfetch": "deny"}, {"webfetch": "deny", "edit": "deny"}),
        ({"*": "deny", "read": "allow"}, {"*": "deny", "read": "allow", "edit": "deny"}),
    ],
)
def test_what_the_operator_denies_no_agent_of_opencode_allows(denied: Any, permission: Any) -> None:
    own = {"permission": {"webfetch": "allow", "edit": "deny"}}
    found = merged({"agent": {"build": own}}, {"permission": denied}).config["agent"]["build"]["permission"]
    assert {tool: action for tool, action in found.items() if tool not in ("bash", "doom_loop")} == permission


def test_what_the_operator_denies_to_an_agent_of_opencode_stays_denied() -> None:
    def build(permission: dict[str, str]) -> dict[str, Any]:
        return {"agent": {"build": {"permission": permission}}}

    found = merged(build({"webfetch": "allow"}), build({"webfetch": "deny"})).config["agent"]["build"]["permission"]
    assert found["webfetch"] == "deny"


def test_an_agent_may_deny_itself_everything_but_a_few_tools() -> None:
    permission = merged({"permission": {"*": "deny", "read": "allow"}}).config["permission"]
    assert (permission["*"], permission["read"]) == ("deny", "allow")
    assert "external_directory" not in permission


def test_tools_that_are_switched_off_stay_off() -> None:
    assert merged({"tools": {"bash": False, "write": False}}).config["permission"]["bash"]["*"] == "deny"
    assert merged({"tools": {"bash": False, "write": False}}).config["permission"]["edit"] == "deny"


@pytest.mark.parametrize(
    "agent",
    [
        {"permission": {"external_directory": "allow"}},
        {"agent": {"build": {"permission": {"external_directory": {"*": "allow"}}}}},
        {"agent": {"build": {"permission": "allow"}}},
        {"mode": {"build": {"tools": {"external_directory": True}}}},
    ],
)
def test_no_configuration_leaves_the_directory_when_permissions_are_not_skipped(agent: dict[str, Any]) -> None:
    result = merged(agent, skip_permissions=False, readable=["/paperclip/skill"])
    inside = {"*": "deny", "/paperclip/skill/*": "allow"}
    assert result.config["permission"]["external_directory"] == inside
    for kind in ("agent", "mode"):
        for settings in result.config.get(kind, {}).values():
            assert settings["permission"]["external_directory"] == inside


# --- variables ---


def test_variables_that_the_pod_does_not_get_are_named_with_their_place_and_no_value() -> None:
    config = {
        "mcp": {
            "docs": {"headers": {"Authorization": f"Bearer {{env:DOCS_TOKEN}} {CANARY}", "X": "{env:SET} {env:PATH}"}}
        },
        "instructions": ["{env:}", "{file:/etc/x}"],
    }
    notes = unset_variables(config, {"SET"}, "config.opencode")
    assert [note.partition(" is not set")[0] for note in notes] == [
        "config.opencode.instructions[0]: {env:...} has no variable's name",
        "config.opencode.mcp.docs.headers.Authorization: {env:DOCS_TOKEN}",
    ]
    assert CANARY not in str(notes)


# --- what is wrong ---


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"mcp": [1]}, "mcp must be an object"),
        ({"mcp": {"a": "x"}}, "mcp.a must be an object"),
        ({"agent": "x"}, "agent must be an object"),
        ({"plugin": "x"}, "plugin must be a list"),
        ({"small_model": "gpt"}, "small_model must be '<provider>/<model>'"),
        ({"small_model": 1}, "small_model must be '<provider>/<model>'"),
        ({"permission": 1}, "permission must be an object, or one of: allow, ask, deny"),
        ({"permission": {"bash": {"x": 1}}}, "permission.bash must be allow, ask or deny, or an object"),
        ({"agent": {"a": {"permission": {"x": []}}}}, "agent.a.permission.x must be allow, ask or deny"),
        ({"agent": {"a": {"tools": 1}}}, "agent.a.tools must be an object"),
        ({"skills": {"paths": "x"}}, "skills.paths must be a list of texts"),
        ({"instructions": ["x" * SIZE_LIMIT]}, "has 131094 bytes as JSON"),
    ],
)
def test_a_wrong_part_is_named_with_its_remedy(config: dict[str, Any], message: str) -> None:
    (found,) = wrong(config)
    assert found.startswith(message)


def test_a_configuration_that_is_nested_too_deeply_is_refused() -> None:
    config: dict[str, Any] = {}
    for _ in range(20):
        config = {"experimental": config}
    assert wrong(config) == ["must not be nested deeper than 16 levels"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["ask", "allow", "deny", "{env:X}", "a/b", "ask "]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["*", "bash", "a", "permission"]), inner)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(["permission", "agent", "mode", "tools", "mcp", "provider", "skills", "plugin", "share", "odd"])


@given(st.dictionaries(KEYS, JSON), st.dictionaries(KEYS, JSON), st.booleans())
def test_whatever_passes_the_checks_merges_without_a_question(
    agent: dict[str, Any], operator: dict[str, Any], skip: bool
) -> None:
    if wrong(agent) or wrong(operator):
        return
    result = merged(agent, operator, skip_permissions=skip)
    permissions = [result.config["permission"]]
    permissions += [
        settings.get("permission", {})
        for kind in ("agent", "mode")
        for settings in result.config.get(kind, {}).values()
    ]
    assert '"ask"' not in json.dumps(permissions)
    assert len(result.notes) <= NOTES_LIMIT + 1
    if not skip:
        assert result.config["permission"]["external_directory"] == "deny"
