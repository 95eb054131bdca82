"""Secrets that Paperclip passed to a run are redacted in the agent's output."""

import base64
import itertools
import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from ahocorasick_rs import BytesAhoCorasick
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.contracts.request import Secrets
from agent_runs.paperclip.redaction import CHUNK, HEAD_LIMIT, SEARCH_LIMIT, Redaction
from agent_runs.paperclip.secret_values import MIN_LENGTH, secret_values
from tests.support.cases import case

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
REDACTION = Redaction.of(secret_values(SECRETS))
MARKER = re.compile(rb"\[\[secret:[^]]*\]\]")


def keeps_all_else(hidden: bytes, line: bytes) -> bool:
    """Whether what is between the markers is of the line, in its order, from its beginning to its end."""
    first, *others = MARKER.split(hidden)
    last = others.pop() if others else b""
    if not line.startswith(first) or not line.endswith(last):
        return False
    at, end = len(first), len(line) - len(last)
    for piece in others:
        found = line.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


def test_a_secret_is_redacted_in_any_position_and_spelling() -> None:
    for value in VALUES:
        with case(value):
            event = json.dumps({"type": "text", "part": {"text": f"it is {value}, I think"}}, ensure_ascii=False)
            escaped = json.dumps({"text": f"it is {value}"})
            nested = json.dumps({"output": json.dumps({"env": value}, ensure_ascii=False)}, ensure_ascii=False)
            for line in (value, f"X={value};", event, escaped, nested):
                hidden = REDACTION.redact(line.encode())
                assert value.encode() not in hidden
                assert json.dumps(value)[1:-1].encode() not in hidden
                assert b"[[secret:" in hidden
                assert keeps_all_else(hidden, line.encode())
            assert json.loads(REDACTION.redact(event.encode()))["type"] == "text"


def test_no_character_of_a_spelled_secret_is_left() -> None:
    for value, plain in itertools.product(VALUES, (False, True)):
        with case(value, plain):
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
    redaction = Redaction.of(secret_values(Secrets(run_id="r", env={"PASSWORD": value})))
    assert (value.encode() not in redaction.redact(f"it is {value}.".encode())) is redacted


@pytest.mark.parametrize(("line", "redacted"), [("0123456789abcdef", True), ("0123456789abcde", False)])
def test_a_line_of_sixteen_characters_of_a_secret_is_redacted_and_a_shorter_one_is_not(
    line: str, redacted: bool
) -> None:
    secrets = Secrets(run_id="r", env={"DEPLOY_KEY": f"begin\n{line}\nend"}, secret_env=("DEPLOY_KEY",))
    redaction = Redaction.of(secret_values(secrets))
    assert (line.encode() not in redaction.redact(f"it is {line}.".encode())) is redacted


def test_the_marker_names_the_variable_and_which_of_its_secrets_it_is() -> None:
    assert REDACTION.redact(b"token ghp_0123456789abcdef") == b"token [[secret:GITHUB_TOKEN]]"
    assert REDACTION.redact(b"postgres://ada:s3cret-pass@db/agents") == b"[[secret:DATABASE]]"
    assert REDACTION.redact(b"s3cret-pass") == b"[[secret:DATABASE.2]]"


def test_a_secret_is_redacted_also_beside_a_marker_that_the_agent_wrote() -> None:
    redaction = Redaction.of(secret_values(Secrets(run_id="r", env={"PASSWORD": "12345678"})))
    line = b"[[secret:PASSWORD]] is 12345678"
    assert redaction.redact(line) == b"[[secret:PASSWORD]] is [[secret:PASSWORD]]"


def test_a_secret_that_begins_with_another_one_is_redacted_whole() -> None:
    redaction = Redaction.of(
        secret_values(Secrets(run_id="r", env={"A_TOKEN": "12345678", "B_TOKEN": "12345678-and-more"}))
    )
    assert redaction.redact(b"it is 12345678-and-more") == b"it is [[secret:B_TOKEN]]"


def test_without_secrets_nothing_is_redacted() -> None:
    nothing = Redaction.of(())
    line = b"[[secret:x]] ghp_0123456789abcdef"
    assert nothing.redact(line) is line


def test_the_repr_of_a_redaction_shows_no_secret() -> None:
    assert "ghp_" not in repr(REDACTION)
    assert "12345678" not in repr(Redaction.of(secret_values(Secrets(run_id="r", env={"PASSWORD": "12345678"}))))


# spellings


def test_a_secret_in_base64_is_redacted_but_for_the_characters_that_its_neighbours_change() -> None:
    for value, before, after, encode in itertools.product(
        VALUES, ("", "a", "ab", "ada:"), ("", "\n", ":x"), (base64.b64encode, base64.urlsafe_b64encode)
    ):
        with case(value, before, after, encode):
            encoded = encode(f"{before}{value}{after}".encode())
            hidden = REDACTION.redact(b'{"header":"Basic ' + encoded + b'"}')
            left = len(re.sub(rb"\[\[secret:[^]]*\]\]", b"", hidden)) - len('{"header":"Basic "}')
            assert left <= -(-len(before) * 4 // 3) + -(-len(after) * 4 // 3) + 3
            assert keeps_all_else(hidden, b'{"header":"Basic ' + encoded + b'"}')


def test_no_character_of_a_percent_encoded_secret_is_left() -> None:
    for value, safe, lower in itertools.product(VALUES, ("", "/", "!'()*"), (False, True)):
        with case(value, safe, lower):
            encoded = quote(value, safe=safe)
            encoded = re.sub("%..", lambda match: match[0].lower(), encoded) if lower else encoded
            hidden = REDACTION.redact(f"GET /?q={encoded}&x".encode())
            assert re.sub(rb"\[\[secret:[^]]*\]\]", b"", hidden) == b"GET /?q=&x"


# long output, long secrets, many secrets

LONG = "".join(f"{number:04x}" for number in range(500))


def test_a_secret_across_two_pieces_of_a_long_line_is_redacted() -> None:
    for begin in range(CHUNK - 40, CHUNK + 3):
        line = b"x" * begin + b"ghp_0123456789abcdef" + b"y" * CHUNK
        hidden = REDACTION.redact(line)
        assert hidden == b"x" * begin + b"[[secret:GITHUB_TOKEN]]" + b"y" * CHUNK


@pytest.mark.parametrize("length", [HEAD_LIMIT, HEAD_LIMIT + 1, 300, 1999, 2000])
def test_a_long_secret_that_is_cut_off_is_redacted(length: int) -> None:
    redaction = Redaction.of([("KEY", LONG)])
    line = f"it is {LONG[:length]}... and more".encode()
    hidden = redaction.redact(line)
    assert re.sub(rb"\[\[secret:[^]]*\]\]", b"", hidden) == b"it is ... and more"


def test_of_long_secrets_with_the_same_beginning_the_one_that_is_there_is_named() -> None:
    redaction = Redaction.of([(f"KEY_{number}", f"{LONG[:500]}{number:03}{LONG}") for number in range(100)])
    for number in (0, 42, 99):
        assert redaction.redact(f"<{LONG[:500]}{number:03}{LONG}>".encode()) == f"<[[secret:KEY_{number}]]>".encode()


def test_what_an_overlapping_secret_has_beyond_the_first_is_redacted_too() -> None:
    redaction = Redaction.of([("ONE", "abcdefghijklmnop"), ("TWO", LONG), ("THREE", LONG[-20:] + "qrstuvwxyz")])
    line = f"<{LONG}qrstuvwxyz>".encode()
    assert redaction.redact(line) == b"<[[secret:TWO]][[secret:THREE]]>"


def test_what_an_overlapping_secret_has_beyond_the_first_stays_if_it_is_too_short_to_be_a_secret() -> None:
    for tail in (MIN_LENGTH - 1, MIN_LENGTH):
        redaction = Redaction.of([("ONE", LONG), ("TWO", LONG[-20:] + "z" * tail)])
        rest = "z" * tail if tail < MIN_LENGTH else "[[secret:TWO]]"
        assert redaction.redact(f"<{LONG}{'z' * tail}>".encode()) == f"<[[secret:ONE]]{rest}>".encode()


def test_hundreds_of_secrets_in_several_searches_are_all_redacted() -> None:
    values = [(f"V{number}", f"{number:03}-{LONG[number:]}") for number in range(400)]
    redaction = Redaction.of(values)
    assert sum(min(len(value), HEAD_LIMIT) for _, value in values) * 4 > SEARCH_LIMIT
    line = " ".join(value for _, value in values).encode()
    assert redaction.redact(line) == " ".join(f"[[secret:{name}]]" for name, _ in values).encode()


def test_python_waits_only_for_a_small_search_and_for_a_small_piece_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    searched: list[int] = []

    class Recorded:
        def __init__(self, patterns: list[bytes], **options: Any) -> None:
            built.append(sum(map(len, patterns)))
            self._search = BytesAhoCorasick(patterns, **options)

        def find_matches_as_indexes(self, data: bytes) -> list[tuple[int, int, int]]:
            searched.append(len(data))
            return self._search.find_matches_as_indexes(data)

    monkeypatch.setattr("agent_runs.paperclip.redaction.BytesAhoCorasick", Recorded)
    values = [f"{number:03}-{LONG[number:]}" for number in range(500)]
    redaction = Redaction.of((value, value) for value in values)
    line = " ".join(values).encode()
    assert values[7].encode() not in redaction.redact(line)
    assert len(built) > 1
    assert max(built) <= SEARCH_LIMIT
    assert len(searched) > len(line) / CHUNK
    assert max(searched) < CHUNK + HEAD_LIMIT


def test_a_short_secret_with_a_long_name_makes_a_line_at_most_four_times_as_long() -> None:
    redaction = Redaction.of([(f"{number}{'N' * 246}", f"{number:08}") for number in range(500)])
    line = b"".join(b"%08d" % number for number in range(500)) * 100
    hidden = redaction.redact(line)
    assert b"00000499" not in hidden
    assert len(hidden) <= 4 * len(line)


def test_equal_names_get_different_markers() -> None:
    redaction = Redaction.of([("A", "first-value"), ("A.2", "second-value"), ("A", "third-value"), ("A!", "4th-value")])
    markers = redaction.redact(b"first-value second-value third-value 4th-value").split()
    assert len(set(markers)) == 4
    assert all(MARKER.fullmatch(marker) for marker in markers)


# texts about a run


def test_a_text_is_hidden_without_a_change_of_the_markers_in_it() -> None:
    assert REDACTION.hide("[[secret:X]] ghp_0123456789abcdef") == "[[secret:X]] [[secret:GITHUB_TOKEN]]"
    assert REDACTION.hide("nothing [[secret:X]]") == "nothing [[secret:X]]"
    assert Redaction.of(()).hide("ghp_0123456789abcdef") == "ghp_0123456789abcdef"


@pytest.mark.parametrize("length", [8, 12, 19])
def test_the_beginning_of_a_secret_at_the_end_of_a_text_is_hidden(length: int) -> None:
    assert REDACTION.hide("it is ghp_0123456789abcdef"[: 6 + length]) == "it is [[secret:GITHUB_TOKEN]]"


def test_a_text_with_half_a_character_is_hidden() -> None:
    assert "ghp_" not in REDACTION.hide("\ud800 ghp_0123456789abcdef")


def test_a_secret_is_redacted_in_json_as_other_languages_write_it() -> None:
    value = "p<a>&s/w='\"+`é\u2028x"
    redaction = Redaction.of([("KEY", value)])
    written = {
        "Go": r"p\u003ca\u003e\u0026s/w='\"+`é\u2028x",
        "Gson": r"p\u003ca\u003e\u0026s/w\u003d\u0027\"+`é\u2028x",
        "PHP": r"p<a>&s\/w='\"+`\u00e9\u2028x",
        "PHP, JSON_UNESCAPED_UNICODE": r"p<a>&s\/w='\"+`é\u2028x",
        ".NET": r"p\u003Ca\u003E\u0026s/w=\u0027\u0022\u002B\u0060\u00E9\u2028x",
        "Jackson, ESCAPE_NON_ASCII": r"p<a>&s/w='\"+`\u00E9\u2028x",
    }
    for library, text in written.items():
        assert json.loads(f'"{text}"') == value
        for line in (f'{{"k":"{text}"}}', json.dumps({"output": f'{{"k":"{text}"}}'}, ensure_ascii=False)):
            with case(library, line):
                hidden = redaction.redact(line.encode())
                assert b"[[secret:KEY]]" in hidden
                assert b"p<a" not in hidden
                assert b"u003" not in hidden
                assert keeps_all_else(hidden, line.encode())


# every text

OVERLAPPING = Redaction.of(
    [
        *secret_values(SECRETS),
        *(("LONG", LONG), ("PART", LONG[40:80]), ("NEXT", LONG[-30:] + "and-on"), ("BRACKETS", "ret:]][[secret:[[")),
        *((f"MANY{number}", f"{number:03}{LONG[number : number + 90]}") for number in range(300)),
    ]
)
PIECES = st.sampled_from(
    [
        *(value.encode() for value in VALUES),
        *(b"[[secret:", b"]]", b"[", b"]", b"[[sec", b"secret:", b"[[secret:GITHUB_TOKEN]]"),
        *(LONG.encode(), LONG[:70].encode(), LONG[:300].encode(), LONG[-30:].encode(), b"and-on", b"ret:]][[secret:[["),
    ]
)
LINES = st.lists(PIECES | st.binary(max_size=6), max_size=8).map(b"".join)


@given(LINES)
def test_all_of_a_line_but_its_secrets_is_kept(line: bytes) -> None:
    assert keeps_all_else(REDACTION.redact(line), line)


@given(LINES, st.integers(CHUNK - 2100, CHUNK))
def test_all_of_a_long_line_but_secrets_that_overlap_is_kept(line: bytes, before: int) -> None:
    whole = b"." * before + line + b"." * CHUNK + line
    for data in (line, whole):
        hidden = OVERLAPPING.redact(data)
        assert keeps_all_else(hidden, data)
        assert LONG[:HEAD_LIMIT].encode() not in hidden
