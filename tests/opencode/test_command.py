"""Command line, configuration and environment of one run."""

import json
from typing import Any

import pytest

from agent_runs.agents.opencode import VERSIONS
from agent_runs.agents.opencode.command import (
    RESERVED_OPTIONS,
    SERVER_CAPABILITIES,
    capabilities,
    command_line,
    run_title,
    served_turn,
)
from agent_runs.agents.opencode.config import (
    OVERRIDING_VARIABLES,
    deep_merge,
    environment,
    translate_mcp_servers,
)
from agent_runs.agents.opencode.merge import merge
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.request import RunConfig
from tests.support.cases import case

MODEL = "anthropic/claude-sonnet-4-6"


def test_the_whole_command_line() -> None:
    assert command_line(
        model=MODEL,
        directory="/paperclip/work",
        title="Ada run-1",
        session_id="ses_1",
        variant="high",
        extra_args=["--agent", "plan", "-f", "notes.md", "--file=a b.md"],
    ) == [
        *("opencode", "run", "--format", "json", "--session", "ses_1", "--model", MODEL, "--variant", "high"),
        *("--title", "Ada run-1", "--dir", "/paperclip/work", "--print-logs", "--log-level", "INFO", "--thinking"),
        *("--agent", "plan", "-f", "notes.md", "--file=a b.md"),
    ]


def test_thinking_is_requested_once() -> None:
    line = command_line(model=MODEL, directory="/w", title="t", extra_args=["--thinking"])
    assert line.count("--thinking") == 1


def test_a_fresh_run_names_no_session_and_no_variant() -> None:
    line = command_line(model=MODEL, directory="/w", title="t", session_id="", variant="")
    assert "--session" not in line
    assert "--variant" not in line


CONFLICTING = [
    *RESERVED_OPTIONS,
    *("--format=default", "--session=x", "-s", "-sx", "-c", "-m", "-p", "-xs", "--no-print-logs"),
    *("--logLevel", "--printLogs=false", "--session.id", "-i", "--noPrintLogs"),
]


def test_an_argument_that_conflicts_with_ours_is_refused_by_name() -> None:
    for argument in CONFLICTING:
        with case(argument):
            with pytest.raises(InvalidRequest, match=r"config\.extraArgs\[1\]: remove") as refused:
                command_line(model=MODEL, directory="/w", title="t", extra_args=["--thinking", argument, "x"])
            assert refused.value.non_retryable


@pytest.mark.parametrize(
    "extra", [["do it"], ["--"], ["-"], ["--thinking", "words"], ["--agent", "plan", "words"], [""]]
)
def test_words_never_become_part_of_the_prompt(extra: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=r"config\.extraArgs\[\d\]: remove it"):
        command_line(model=MODEL, directory="/w", title="t", extra_args=extra)


def test_an_option_without_its_value_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"config\.extraArgs: --agent lacks its value"):
        command_line(model=MODEL, directory="/w", title="t", extra_args=["--agent"])
    with pytest.raises(InvalidRequest, match=r"config\.extraArgs\[1\]: must not"):
        command_line(model=MODEL, directory="/w", title="t", extra_args=["--agent", "--thinking"])


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("config.model", {"model": "-m"}),
        ("config.variant", {"variant": "--help"}),
        ("config.cwd", {"directory": ""}),
        ("runtime.sessionParams.sessionId", {"session_id": "--continue"}),
    ],
)
def test_a_value_that_reads_as_an_option_is_refused_by_name(field: str, values: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match=field.replace(".", r"\.")):
        command_line(**{"model": MODEL, "directory": "/w", "title": "t", **values})


def test_a_title_is_one_bounded_line_that_is_no_option() -> None:
    assert run_title("Ada", None, "PAP-1:  fix\nit") == "Ada PAP-1: fix it"
    assert run_title("--help") == "help"
    assert run_title("\x1b[31m\x00") == "�"
    assert run_title("", " - ") == "agent run"
    assert len(run_title("x" * 5000)) == 100


def configuration(**settings: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"model": MODEL, "agent": {}, "operator": {}, **settings}
    return merge(**values).config


def test_no_permission_asks_and_no_data_leaves() -> None:
    config = configuration(agent={"small_model": "openai/gpt-5.4-mini"})
    assert config["model"] == MODEL
    assert config["small_model"] == "openai/gpt-5.4-mini"
    assert config["enabled_providers"] == ["anthropic", "openai"]
    assert config["share"] == "disabled"
    for switched_off in ("autoupdate", "snapshot", "lsp", "formatter"):
        assert config[switched_off] is False
    assert "mcp" not in config
    for skip in (True, False):
        assert '"ask"' not in json.dumps(configuration(skip_permissions=skip))


def test_the_small_model_is_the_model_itself_when_none_is_named() -> None:
    config = configuration()
    assert config["small_model"] == MODEL
    assert config["enabled_providers"] == ["anthropic"]


@pytest.mark.parametrize(("skip", "outside"), [(True, "allow"), (False, "deny")])
def test_leaving_the_directory_follows_the_configuration_with_and_without_mcp(skip: bool, outside: str) -> None:
    for servers in ({}, {"s": {"command": "x"}}):
        config = configuration(skip_permissions=skip, mcp_servers=servers)
        assert config["permission"]["external_directory"] == outside


def test_environment_dumps_are_denied_after_everything_else_is_allowed() -> None:
    bash = configuration()["permission"]["bash"]
    assert next(iter(bash.items())) == ("*", "allow")
    assert {bash[pattern] for pattern in ("env", "printenv", "set", "export -p *", "cat /proc/*/environ")} == {"deny"}


def test_a_provider_block_is_kept_and_gets_only_the_timeouts_it_lacks() -> None:
    own = {
        "fake": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "http://127.0.0.1:1/v1", "apiKey": "{file:/run/key}", "headerTimeout": 5000},
            "models": {"a": {}},
        }
    }
    provider = configuration(model="fake/a", operator={"provider": own})["provider"]["fake"]
    assert provider["options"].pop("chunkTimeout") == 240_000
    assert provider == own["fake"]
    assert "chunkTimeout" not in own["fake"]["options"]


def test_mcp_servers_are_translated_and_what_is_not_understood_is_named() -> None:
    servers = {
        "verbatim": {"type": "remote", "url": "http://x", "oauth": False, "enabled": True},
        "local": {"type": "local", "command": ["a"]},
        "command": {"command": "npx", "args": ["-y", 7, "tool"], "env": {"TOKEN": "t", "N": 1}},
        "bare": {"command": "npx"},
        "url": {"type": "http", "url": "https://x", "headers": {"Authorization": "Bearer t"}},
        "empty": {},
        "odd": "text",
        "blank": {"command": ""},
    }
    known, unknown = translate_mcp_servers(servers)
    assert known == {
        "verbatim": servers["verbatim"],
        "local": servers["local"],
        "command": {"type": "local", "command": ["npx", "-y", "tool"], "environment": {"TOKEN": "t"}},
        "bare": {"type": "local", "command": ["npx"]},
        "url": {"type": "remote", "url": "https://x", "headers": {"Authorization": "Bearer t"}},
    }
    assert unknown == ("empty", "odd", "blank")
    assert configuration(mcp_servers=servers)["mcp"] == known


def test_a_merge_goes_into_objects_only_and_leaves_its_inputs_alone() -> None:
    base, over = {"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"c": [3], "e": {}}, "d": {"f": 1}}
    assert deep_merge(base, over) == {"a": {"b": 1, "c": [3], "e": {}}, "d": {"f": 1}}
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": 1}


def test_the_environment_is_fixed_and_names_the_directory() -> None:
    fixed = environment(config_file="/run/opencode.json", directory="/w")
    assert fixed["PWD"] == "/w"
    assert fixed["OPENCODE_CONFIG"] == "/run/opencode.json"
    assert fixed["OPENCODE_DISABLE_PROJECT_CONFIG"] == fixed["OPENCODE_PURE"] == "1"
    assert not OVERRIDING_VARIABLES & set(fixed)


def turn(**config: object) -> dict[str, object] | None:
    run = RunConfig.model_validate({"model": MODEL, **config})
    return served_turn(run, title="Ada", session_id="ses_1")


def test_a_server_gets_what_the_command_line_would_say() -> None:
    known = turn(variant="high", extraArgs=["--agent", "plan", "--thinking"])
    assert known == {
        "title": "Ada",
        "model": MODEL,
        "variant": "high",
        "agent": "plan",
        "session": "ses_1",
        "start_timeout": 240.0,
        "versions": VERSIONS,
    }
    assert turn(extraArgs=["--agent=plan"]) == {**known, "variant": None}


def test_options_that_only_the_command_line_has_choose_it_or_are_refused() -> None:
    arguments = ["--file", "notes.md"]
    assert turn(extraArgs=arguments) is None
    assert turn(transport="run") is None
    for config in ({"extraArgs": arguments}, {"transport": "run"}):
        can = capabilities(RunConfig.model_validate({"model": MODEL, **config}))
        assert (can.resumes, can.rests, can.takes_messages, can.asks) == (True, False, False, False)
    assert capabilities(RunConfig(model=MODEL)) == SERVER_CAPABILITIES
    assert not capabilities(RunConfig(model=MODEL, ask_timeout_sec=0)).asks
    with pytest.raises(InvalidRequest, match=r"config.extraArgs: OpenCode's server has no --file: .* transport: run"):
        turn(extraArgs=arguments, transport="serve")
