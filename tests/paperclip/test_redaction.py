"""Secrets that Paperclip passed to a run are redacted in the agent's output."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.contracts.request import Secrets
from agent_runs.paperclip.redaction import Redaction

SECRETS = Secrets(
    run_id="r",
    auth_token="eyJhbGciOi.run-token",
    env={
        "DATABASE": "postgres://ada:s3cret-pass@db/agents",
        "GREETING": "good morning",
        "BOUND": 'with "quotes", \\ and ünïcode',
        "DEPLOY_KEY": "-----BEGIN KEY-----\nMIIBVAIBADANBgkqhkiG9w\n-----END KEY-----\n",
        "GITHUB_TOKEN": "ghp_0123456789abcdef",
        "API_KEY": "short",
    },
    secret_env=("BOUND", "DEPLOY_KEY"),
    paperclip_env={"PAPERCLIP_RUNTIME_TOOLS_TOKEN": "tools-bearer-1", "PAPERCLIP_TASK_ID": "a-task-to-be-seen"},
    mcp_servers={
        "docs": {
            "headers": {"Authorization": "Bearer mcp-header-token"},
            "environment": {"X_SECRET": "local-mcp-value"},
        }
    },
)
VALUES = [
    *("eyJhbGciOi.run-token", "postgres://ada:s3cret-pass@db/agents", "s3cret-pass", "ghp_0123456789abcdef"),
    *("tools-bearer-1", "mcp-header-token", "local-mcp-value", "MIIBVAIBADANBgkqhkiG9w"),
    'with "quotes", \\ and ünïcode',
]
REDACTION = Redaction.from_secrets(SECRETS)


@pytest.mark.parametrize("value", VALUES)
def test_a_secret_is_redacted_in_any_position_and_spelling(value: str) -> None:
    event = json.dumps({"type": "text", "part": {"text": f"it is {value}, I think"}}, ensure_ascii=False)
    escaped = json.dumps({"text": f"it is {value}"})
    nested = json.dumps({"output": json.dumps({"env": value}, ensure_ascii=False)}, ensure_ascii=False)
    for line in (value, f"X={value};", event, escaped, nested):
        hidden = REDACTION.redact(line.encode())
        assert value.encode() not in hidden
        assert json.dumps(value)[1:-1].encode() not in hidden
        assert b"[[secret:" in hidden
        assert REDACTION.restore(hidden) == line.encode()
    assert json.loads(REDACTION.redact(event.encode()))["type"] == "text"


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("plain", [False, True])
def test_no_character_of_a_spelled_secret_is_left(value: str, plain: bool) -> None:
    line, empty = value, ""
    for _ in range(2):
        line, empty = json.dumps(line, ensure_ascii=plain), json.dumps(empty)
        hidden = REDACTION.redact(line.encode()).decode()
        assert re.sub(r"\[\[secret:[^]]*\]\]", "", hidden) == empty


@pytest.mark.parametrize("line", [b"good morning", b"a-task-to-be-seen", b"short", b"", b"\xff\x00"])
def test_a_line_without_a_secret_stays_as_it_is(line: bytes) -> None:
    assert REDACTION.redact(line) is line


@pytest.mark.parametrize(("value", "redacted"), [("12345678", True), ("1234567", False)])
def test_a_secret_of_eight_characters_is_redacted_and_a_shorter_one_would_hide_ordinary_text(
    value: str, redacted: bool
) -> None:
    redaction = Redaction.from_secrets(Secrets(run_id="r", env={"PASSWORD": value}))
    assert (value.encode() not in redaction.redact(f"it is {value}.".encode())) is redacted


@pytest.mark.parametrize(("line", "redacted"), [("0123456789abcdef", True), ("0123456789abcde", False)])
def test_a_line_of_sixteen_characters_of_a_secret_is_redacted_and_a_shorter_one_is_not(
    line: str, redacted: bool
) -> None:
    secrets = Secrets(run_id="r", env={"DEPLOY_KEY": f"begin\n{line}\nend"}, secret_env=("DEPLOY_KEY",))
    redaction = Redaction.from_secrets(secrets)
    assert (line.encode() not in redaction.redact(f"it is {line}.".encode())) is redacted


def test_the_marker_names_the_variable_and_which_of_its_secrets_it_is() -> None:
    assert REDACTION.redact(b"token ghp_0123456789abcdef") == b"token [[secret:GITHUB_TOKEN]]"
    assert REDACTION.redact(b"postgres://ada:s3cret-pass@db/agents") == b"[[secret:DATABASE]]"
    assert REDACTION.redact(b"s3cret-pass") == b"[[secret:DATABASE.2]]"


def test_a_secret_is_redacted_also_beside_a_marker_that_the_agent_wrote() -> None:
    redaction = Redaction.from_secrets(Secrets(run_id="r", env={"PASSWORD": "12345678"}))
    line = b"[[secret:PASSWORD]] is 12345678"
    assert redaction.redact(line) == b"[[secret:]]PASSWORD]] is [[secret:PASSWORD]]"
    assert redaction.restore(redaction.redact(line)) == line


def test_a_secret_that_begins_with_another_one_is_redacted_whole() -> None:
    redaction = Redaction.from_secrets(Secrets(run_id="r", env={"A_TOKEN": "12345678", "B_TOKEN": "12345678-and-more"}))
    assert redaction.redact(b"it is 12345678-and-more") == b"it is [[secret:B_TOKEN]]"


def test_without_secrets_nothing_is_redacted() -> None:
    nothing = Redaction.from_secrets(Secrets(run_id="r"))
    line = b"[[secret:x]] ghp_0123456789abcdef"
    assert nothing.redact(line) is line
    assert nothing.restore(line) is line


def test_the_repr_of_a_redaction_shows_no_secret() -> None:
    assert "ghp_" not in repr(REDACTION)
    assert "12345678" not in repr(Redaction.from_secrets(Secrets(run_id="r", env={"PASSWORD": "12345678"})))


PIECES = st.sampled_from(
    [*(value.encode() for value in VALUES), b"[[secret:", b"]]", b"[", b"]", b"secret:", b"[[secret:GITHUB_TOKEN]]"]
)


@given(st.lists(PIECES | st.binary(max_size=6), max_size=8).map(b"".join))
def test_a_redacted_line_is_restored_byte_for_byte(line: bytes) -> None:
    assert REDACTION.restore(REDACTION.redact(line)) == line
