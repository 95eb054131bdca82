import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agent_runs.cli.terminal import render
from agent_runs.transcript.entries import TERMINAL_LIMITS, Entry, entry
from tests.support.cases import case

CAPTURES = sorted((Path(__file__).parents[1] / "fixtures" / "opencode").glob("*/events.jsonl"))
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ufeff\ud800-\udfff]"
)
TEXT = st.text(st.characters(), max_size=200)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
TYPES = ["step_start", "text", "reasoning", "tool_use", "step_finish", "error", "something-new"]


def screen_text(parsed: Entry) -> str:
    """As a terminal without colours gets it."""
    console = Console(width=100, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(render(parsed), markup=False, highlight=False, emoji=False)
    return capture.get()


def event(kind: str, **part: object) -> bytes:
    return json.dumps({"type": kind, "sessionID": "ses_1", "part": part}).encode()


def tool(**state: object) -> bytes:
    return event("tool_use", tool="bash", callID="c", state=state)


def test_every_captured_line_is_shown_or_means_nothing() -> None:
    assert CAPTURES
    for capture in CAPTURES:
        with case(capture.parent.name):
            for raw in capture.read_bytes().splitlines(keepends=False)[:200]:
                parsed = entry(raw)
                if parsed is None:
                    continue
                text = screen_text(parsed)
                assert text.strip()
                assert not UNSAFE.search(text)


@given(st.binary(max_size=400))
def test_any_bytes_are_shown_without_control_characters(raw: bytes) -> None:
    for stream in ("stdout", "stderr"):
        if (parsed := entry(raw, stream)) is not None:
            assert not UNSAFE.search(screen_text(parsed))


@given(
    st.sampled_from(TYPES),
    st.dictionaries(
        st.sampled_from(["text", "tool", "state", "tokens", "cost", "reason", "id"]),
        JSON | st.dictionaries(st.sampled_from(["status", "input", "output", "error", "metadata", "time"]), JSON),
        max_size=6,
    ),
    JSON,
)
def test_an_event_of_any_shape_is_shown(kind: str, part: dict[str, object], error: object) -> None:
    raw = json.dumps({"type": kind, "part": part, "error": error}).encode()
    if (parsed := entry(raw)) is not None:
        assert not UNSAFE.search(screen_text(parsed))


def test_terminal_codes_of_the_agent_never_reach_the_terminal() -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\x9b5n \u202eback\u202c \x08\x08 \ud83d"
    for raw in (event("text", text=hostile), tool(status="completed", input={"command": hostile}, output=hostile)):
        parsed = entry(raw)
        assert parsed is not None
        text = screen_text(parsed)
        assert "red" in text
        assert "back" in text
        assert not UNSAFE.search(text)


def test_markup_and_html_are_text_and_links_are_shown() -> None:
    parsed = entry(event("text", text="[bold]x[/bold] :smile: <script>y</script> [innocent](http://evil.example)"))
    assert parsed is not None
    text = screen_text(parsed)
    assert "[bold]x[/bold]" in text
    assert ":smile:" in text
    assert "<script>y</script>" in text
    assert "http://evil.example" in text


def test_a_tool_call_shows_what_it_was_called_with_and_how_it_ended() -> None:
    parsed = entry(
        tool(
            status="completed",
            input={"command": "make\ntest", "description": "try"},
            output="oops\n",
            metadata={"exit": 3},
            time={"start": 1000, "end": 3500},
        )
    )
    assert parsed is not None
    assert parsed.failed
    assert screen_text(parsed).splitlines()[0].rstrip() == "✗ bash  make test  (exit 3)  2.5 s"


def test_entries_are_bounded_and_say_what_is_left_out() -> None:
    text = entry(event("text", text="x" * (TERMINAL_LIMITS.text + 1000)))
    result = entry(tool(status="completed", input={"command": "yes"}, output="yes\n" * 100_000))
    assert text is not None
    assert result is not None
    assert text.left_out == 1000
    assert "1,000 more characters" in screen_text(text)
    assert len(result.body) <= TERMINAL_LIMITS.result
    assert result.body.count("\n") < TERMINAL_LIMITS.result_lines
    assert len(result.body) + result.left_out == len("yes\n" * 100_000) - 1


def test_an_error_shows_its_name_status_and_text() -> None:
    data = {"message": "Incorrect API key provided.", "statusCode": 401, "responseBody": "secret"}
    parsed = entry(json.dumps({"type": "error", "error": {"name": "APIError", "data": data}}).encode())
    assert parsed is not None
    assert parsed.title == "APIError 401"
    assert screen_text(parsed).split() == ["✗", "APIError", "401", "Incorrect", "API", "key", "provided."]


def test_what_was_asked_and_answered_is_one_line_each() -> None:
    sizes = {"text": "Sizes\x1b[31m?", "options": [{"label": "S"}, {"label": "L"}]}
    shown: dict[str, tuple[str, dict[str, object]]] = {
        "question: Sizes? [S, L]; Why? []": ("asked", {"fields": [sizes, {"text": "Why?"}]}),
        "answer of Ada: S, L; because": ("answered", {"by": "Ada", "answers": [["S", "L"], ["because"]]}),
        "answer of Ada: rejected": ("answered", {"by": "Ada", "answers": []}),
        "the agent does not ask this any more": ("answered", {"by": ""}),
    }
    for text, (kind, question) in shown.items():
        with case(text):
            line = json.dumps({"type": f"question_{kind}", "question": {"id": "1", **question}}).encode()
            assert screen_text(entry(line) or Entry("log", "")).strip() == text


@given(JSON)
def test_a_question_of_any_shape_is_shown(question: object) -> None:
    for kind in ("question_asked", "question_answered"):
        parsed = entry(json.dumps({"type": kind, "question": question}).encode())
        assert parsed is not None
        assert not UNSAFE.search(screen_text(parsed))


def test_a_steps_usage_is_one_line() -> None:
    tokens = {"input": 1000, "output": 20, "reasoning": 0, "cache": {"read": 9000, "write": 200}}
    parsed = entry(event("step_finish", tokens=tokens, cost=0.0006, reason="stop"))
    assert parsed is not None
    assert screen_text(parsed).strip() == "── 1,200 in, 9,000 cached, 20 out, $0.0006, stop"


def test_a_line_that_is_no_event_is_shown_as_text() -> None:
    parsed = entry(b"panic: \xff\xfe broken")
    assert parsed is not None
    assert parsed.kind == "log"
    assert "panic:" in screen_text(parsed)
