"""What of a run counts as secret: by its name, or by where it is."""

import base64
from typing import Any

import pytest

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.request import Secrets
from agent_runs.paperclip.secret_values import MAX_BYTES, MAX_LINES, MAX_VALUES, MIN_LENGTH, secret_values, warnings

TOKEN = "tok-4f1e8c2ab90d7f6e5a31"


def values(inherited: dict[str, str] | None = None, provider: Any = None, **sealed: Any) -> set[str]:
    return {value for _, value in secret_values(Secrets(run_id="r", **sealed), inherited, {"provider": provider})}


def server(**settings: Any) -> set[str]:
    return values(mcp_servers={"docs": settings})


@pytest.mark.parametrize(
    ("variable", "value", "secret"),
    [
        ("ANTHROPIC_API_KEY", "sk-ant-012345", "sk-ant-012345"),
        ("PGPASSWORD", "hunter22", "hunter22"),
        ("AZURE_SUBSCRIPTION_KEY", "0123abcd", "0123abcd"),
        ("AccountKey", "0123abcd", "0123abcd"),
        ("LITELLM_MASTER_KEY", "sk-0123ab", "sk-0123ab"),
        ("DATABASE", "postgres://ada:p%40ssword@db/x", "p@ssword"),
        ("REPOSITORY", f"https://{TOKEN}@git.example/x", TOKEN),
        ("ENDPOINT", "https://api.example/?api_key=abcdefgh", "abcdefgh"),
        ("SENTRY_DSN", f"https://{TOKEN}@sentry.example/1", TOKEN),
        ("BASIC_AUTH", base64.b64encode(b"ada:s3cret-pass").decode(), "s3cret-pass"),
    ],
)
def test_a_variable_that_is_named_like_a_secret_or_holds_a_password_is_secret(
    variable: str, value: str, secret: str
) -> None:
    assert secret in values(env={variable: value})
    assert secret in values(inherited={variable: value})
    assert secret in values(paperclip_env={variable: value})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PATH", "/usr/local/bin:/usr/bin"),
        ("PWD", "/workspace/project"),
        ("MODEL", "anthropic/claude-sonnet-4-6"),
        ("HOMEPAGE", "https://paperclip.example/issues?page=production"),
        ("AUTHOR", "Ada Lovelace"),
        ("PATTERN", "something-long"),
    ],
)
def test_an_ordinary_variable_stays_readable(variable: str, value: str) -> None:
    assert values(env={variable: value}, inherited={variable: value}) == set()


SERVERS: list[tuple[dict[str, Any], str]] = [
    ({"url": "https://ada:s3cret-pass@mcp.example"}, "s3cret-pass"),
    ({"url": "https://mcp.example/?key=abcdefgh"}, "abcdefgh"),
    ({"url": f"https://mcp.example/?profile=x&token={TOKEN}"}, TOKEN),
    ({"url": f"https://mcp.example/?anything={TOKEN}"}, TOKEN),
    ({"url": f"https://mcp.example/s/{TOKEN}/mcp"}, TOKEN),
    ({"url": "https://mcp.example/token/only-letters-here/mcp"}, "only-letters-here"),
    ({"headers": {"X-Anything": f"Bearer {TOKEN}"}}, TOKEN),
    ({"headers": {"Authorization": "Basic " + base64.b64encode(b"ada:s3cret-pass").decode()}}, "s3cret-pass"),
    ({"env": {"API_TOKEN": TOKEN}}, TOKEN),
    ({"env": {"DB": "postgres://ada:s3cret-pass@db"}}, "s3cret-pass"),
    ({"oauth": {"clientSecret": TOKEN}}, TOKEN),
    ({"command": "npx", "args": ["server", "--api-key", "abcdefgh"]}, "abcdefgh"),
    ({"command": ["npx", "server", "--api-key=abcdefgh"]}, "abcdefgh"),
    ({"command": ["npx", "--header", "Authorization: Bearer abcdefgh"]}, "abcdefgh"),
    ({"command": ["npx", "--header=Authorization: Bearer abcdefgh"]}, "abcdefgh"),
    ({"command": ["docker", "run", "-e", "API_TOKEN=abcdefgh"]}, "abcdefgh"),
    ({"command": ["docker", "run", "--env=API_TOKEN=abcdefgh"]}, "abcdefgh"),
    ({"command": ["npx", "postgres://ada:s3cret-pass@db"]}, "s3cret-pass"),
    ({"command": ["npx", f"--url=https://mcp.example/s/{TOKEN}"]}, TOKEN),
    ({"command": ["npx", TOKEN]}, TOKEN),
]


def test_a_secret_of_an_mcp_server_is_found() -> None:
    assert [settings for settings, secret in SERVERS if secret not in server(**settings)] == []


@pytest.mark.parametrize(
    "settings",
    [
        {"url": "https://mcp.example/auth/callback/sse?page=2"},
        {"url": "https://mcp.example/v3/2f1c7a52-9a0e-4d35-8c0d-0123456789ab/mcp"},
        {"url": "{env:PAPERCLIP_API_URL}/api/mcp/connection-12345678901234567890"},
        {"headers": {"Authorization": "Bearer {env:PAPERCLIP_API_KEY}"}},
        {"headers": {"Accept": "application/json", "MCP-Protocol-Version": "2026-06-18", "User-Agent": "our-agents"}},
        {"command": ["npx", "a=" * 100_000]},
        {"command": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/workspace/some-project-1"]},
        {"command": ["uvx", "mcp-server-fetch==2026.1.14", "--ignore-robots-txt"]},
    ],
)
def test_ordinary_settings_of_an_mcp_server_stay_readable(settings: dict[str, Any]) -> None:
    assert server(**settings) == set()


@pytest.mark.parametrize(
    "block",
    [
        {"acme": {"options": {"apiKey": TOKEN}}},
        {"acme": {"options": {"headers": {"X-Tenant": TOKEN}}}},
        {"acme": {"options": {"baseURL": f"https://gateway:{TOKEN}@llm.example/v1"}}},
        {"acme": {"models": {"m": {"headers": {"Authorization": f"Bearer {TOKEN}"}}}}},
        {"acme": {"options": {"tokens": [{"value": TOKEN}]}}},
    ],
)
def test_a_secret_of_the_provider_file_is_found(block: dict[str, Any]) -> None:
    assert values(provider=block) == {TOKEN}


@pytest.mark.parametrize(
    "block", [None, "nonsense", {"acme": {"options": {"apiKey": "{env:ACME_API_KEY}", "maxTokens": 8192}}}]
)
def test_a_provider_file_without_secrets_hides_nothing(block: Any) -> None:
    assert values(provider=block) == set()


def test_what_is_added_to_a_run_leaves_the_order_of_the_rest() -> None:
    sealed = Secrets(run_id="r", auth_token=TOKEN, env={"A_TOKEN": "abcdefgh"}, mcp_servers={"m": {"url": "x"}})
    alone = secret_values(sealed)
    assert (
        secret_values(sealed, {"B_TOKEN": "ijklmnop"}, {"provider": {"p": {"apiKey": "qrstuvwx"}}})[: len(alone)]
        == alone
    )


def test_more_secrets_than_can_be_searched_for_are_refused_without_a_value() -> None:
    headers = {f"X-{number}": f"header-{number:06}" for number in range(MAX_VALUES + 1)}
    with pytest.raises(InvalidRequest, match=f"{MAX_VALUES + 1} secret values") as refused:
        server(headers=headers)
    assert "header-0" not in refused.value.message
    headers.popitem()
    assert len(server(headers=headers)) == MAX_VALUES


def test_larger_secrets_than_can_be_kept_in_memory_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="bytes"):
        values(env={"A_TOKEN": "a" * MAX_BYTES, "B_TOKEN": "b" * MIN_LENGTH})
    assert values(env={"A_TOKEN": "a" * MAX_BYTES})


def test_of_too_many_lines_the_last_ones_are_left_to_the_search_for_the_whole_value() -> None:
    text = "\n".join(f"line {number:015}" for number in range(MAX_LINES + 7))
    assert len(values(env={"BUNDLE": text}, secret_env=("BUNDLE",))) == 1 + MAX_LINES
    secrets = Secrets(run_id="r", env={"BUNDLE": text}, secret_env=("BUNDLE",))
    assert warnings(secrets) == (
        "7 lines of long secrets (BUNDLE) are hidden in the transcript only where the whole secret is",
    )
    assert warnings(Secrets(run_id="r", env={"A_TOKEN": TOKEN})) == ()


@pytest.mark.parametrize(
    "config",
    [
        {"mcp": {"docs": {"type": "remote", "url": "https://x", "headers": {"Authorization": f"Bearer {TOKEN}"}}}},
        {"mcp": {"docs": {"type": "local", "command": ["x", "--token", TOKEN]}}},
        {"provider": {"p": {"options": {"apiKey": TOKEN}}}},
        {"plugin": [["opencode-x", {"apiKey": TOKEN}]]},
        {"agent": {"review": {"options": {"headers": {"X-Key": TOKEN}}}}},
        {"experimental": {"password": TOKEN}},
    ],
)
def test_a_secret_of_an_opencode_configuration_is_found_in_the_agents_own_and_the_operators(config: Any) -> None:
    assert values(opencode=config) == {TOKEN}
    assert {value for _, value in secret_values(Secrets(run_id="r"), None, config)} == {TOKEN}


def test_names_of_tools_and_agents_hide_nothing_of_an_opencode_configuration() -> None:
    config = {
        "permission": {"bash": {"read-token *": "allow"}, "token_tool": "deny"},
        "agent": {"token-auditor": {"prompt": "Look for leaked tokens.", "model": "anthropic/claude-sonnet-4-6"}},
        "small_model": "anthropic/claude-haiku-4-5",
    }
    assert values(opencode=config) == set()


def test_a_variable_that_a_profile_names_is_secret_whatever_it_is_called() -> None:
    sealed, inherited = Secrets(run_id="r", env={"GOOSE_TICKET": "12345678"}), {"GOOSE_TICKET": "abcdefgh"}
    assert secret_values(sealed, inherited) == ()
    assert {value for _, value in secret_values(sealed, inherited, None, {"GOOSE_TICKET"})} == {"12345678", "abcdefgh"}
