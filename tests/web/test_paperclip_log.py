"""A line of an agent in Paperclip's log: in order, within the limits of a call, and without forged lines."""

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runs.web.paperclip_log import CALL_BYTES, FORMATS, Call, LogFormat, calls, session_id
from tests.web.parts import event, line

FIXTURES = Path(__file__).parents[1] / "fixtures"
MARKED = re.compile(r"\s*\[(agent-runs|paperclip)\]", re.IGNORECASE)


def written(data: str | bytes, stream: str = "stdout", log_format: LogFormat = "events") -> list[Call]:
    raw = data.encode() if isinstance(data, str) else data
    return list(calls(line(7, raw, stream), log_format))


def shown(data: str | bytes) -> dict[str, Any]:
    """The event that a parser reads."""
    (call,) = written(data)
    assert call.stream == "stdout"
    assert len(f"{call.text}\n".encode()) < CALL_BYTES
    found: dict[str, Any] = json.loads(call.text)
    return found


def text(data: str | bytes, stream: str = "stdout") -> str:
    return "\n".join(call.text for call in written(data, stream, "text"))


def said(words: str) -> bytes:
    return event("text", text=words)


def tool(name: str, **state: object) -> bytes:
    return event("tool_use", type="tool", tool=name, callID="c", state=state)


def failed(error: object) -> str:
    return json.dumps({"type": "error", "error": error})


def recorded() -> Iterator[bytes]:
    """Every event that the real OpenCode printed."""
    for path in sorted((FIXTURES / "opencode").glob("*/*events.jsonl")):
        for raw in path.read_bytes().split(b"\n"):
            if raw.startswith(b'{"type"') and raw.endswith(b"}"):
                yield raw


# as events


def test_what_happened_is_an_event_of_opencodes_form() -> None:
    assert shown(said("hi")) == {"type": "text", "part": {"type": "text", "text": "hi"}}
    assert shown(event("reasoning", text=" hm ")) == {"type": "reasoning", "part": {"type": "reasoning", "text": "hm"}}
    assert written(said("")) == written(event("step_start")) == []
    tokens = {"input": 1, "output": 3, "reasoning": 2, "cache": {"read": 7, "write": 0}}
    end = {"reason": "stop", "cost": 0.5, "tokens": tokens}
    assert shown(event("step_finish", **end)) == {"type": "step_finish", "part": end}
    assert written("hello") == [Call("stdout", "hello")]
    assert written(event("odd")) == [Call("stdout", "odd event")]


def test_each_recorded_tool_call_is_an_event_with_its_id_and_how_it_ended() -> None:
    tools = [raw for raw in recorded() if json.loads(raw)["type"] == "tool_use"]
    assert len(tools) > 50
    for raw in tools:
        original, part = json.loads(raw)["part"], shown(raw)["part"]
        assert (part["callID"], part["state"]["status"] == "error") == (
            original["callID"],
            original["tool"] == "invalid"
            or original["state"]["status"] == "error"
            or bool(original["state"].get("metadata", {}).get("exit")),
        )


def test_a_recorded_edit_shows_what_has_changed() -> None:
    edit = next(raw for raw in recorded() if b'"tool":"edit"' in raw and b'"diff"' in raw)
    assert re.search(r"^-.*\n\+", shown(edit)["part"]["state"]["output"], re.MULTILINE)


@pytest.mark.parametrize(
    ("state", "result"),
    [
        ({"status": "running"}, {"status": "running"}),
        ({"status": "completed", "output": " x "}, {"status": "completed", "output": "x"}),
        ({"status": "completed", "output": "x", "metadata": {"exit": 1}}, {"status": "error", "error": "x"}),
        ({"status": "error", "error": "no"}, {"status": "error", "error": "no"}),
    ],
)
def test_a_tool_call_has_its_arguments_and_its_result(state: dict[str, Any], result: dict[str, str]) -> None:
    given_ = {"command": "ls", "timeout": 7, "deep": {"a": [1]}}
    arguments = {"command": "ls", "timeout": 7, "deep": '{"a": [1]}'}
    part = {"type": "tool", "tool": "bash", "callID": "c", "state": {"input": arguments, **result}}
    assert shown(tool("bash", input=given_, **state))["part"] == part


@pytest.mark.parametrize("words", ["x" * 50_000, "é漢🦀" * 5000, '"\\' * 9000, "x" * CALL_BYTES])
def test_a_text_too_long_for_a_call_is_shortened_and_what_is_missing_counted(words: str) -> None:
    begin, _, more = shown(said(words))["part"]["text"].rpartition("\n… ")
    assert len(begin) >= 700
    assert words.startswith(begin)
    assert more == f"{len(words) - len(begin)} more characters; the transcript has them"


def test_a_long_tool_call_keeps_its_fields_and_a_long_result_its_outcome() -> None:
    given_ = {"timeout": 7, "command": "c" * 50_000}
    call = tool("bash", status="completed", input=given_, output="o" * 50_000, metadata={"exit": 1})
    state = shown(call)["part"]["state"]
    assert state["input"]["timeout"] == 7
    assert set(state["input"]["command"]) == {"c"}
    assert state["status"] == "error"
    assert state["error"].endswith("more characters; the transcript has them")


def test_of_many_arguments_the_number_of_the_others_is_shown() -> None:
    arguments = {str(number): "x" for number in range(40)}
    found = shown(tool("odd", status="completed", input=arguments))["part"]["state"]["input"]
    assert (len(found), found["…"]) == (13, "28 more")


# as text


def test_texts_stand_for_themselves() -> None:
    assert text(said("Here I go.\nSecond line.")) == "Here I go.\nSecond line."
    assert text(event("reasoning", text="I look around.")) == "(thinking) I look around."


def test_a_tool_call_is_one_line_with_its_subject_and_its_result_is_indented_below() -> None:
    call = tool("bash", status="completed", input={"command": "ls -l"}, output="a\nb")
    assert text(call) == "> bash: ls -l\n  a\n  b"
    assert text(tool("odd", status="running", input={"depth": 2})) == '> odd: {"depth": 2}'
    edit = tool("edit", status="completed", input={"filePath": "x"}, output="Done", metadata={"diff": "-a\n+b\n"})
    assert text(edit) == "> edit: x\n  Done\n  -a\n  +b"


def test_a_failed_tool_call_says_so() -> None:
    unknown = tool("read", status="error", input={"filePath": "x"}, error="not found")
    assert text(unknown) == "> read: x\n  failed: not found"
    assert "failed: oops" in text(tool("bash", status="completed", input={}, output="oops", metadata={"exit": 1}))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"name": "APIError", "data": {"message": "model unknown"}}, "APIError: model unknown"),
        ("bad", "bad"),
        ({"code": 7}, '{"code": 7}'),
    ],
)
def test_an_error_goes_to_stderr(error: object, message: str) -> None:
    assert written(failed(error), log_format="text") == [Call("stderr", f"error: {message}")]
    assert shown(failed(error))["error"]["data"]["message"] == message


def test_a_steps_begin_and_ordinary_end_are_not_shown_and_an_unusual_end_is() -> None:
    assert text(event("step_start")) == ""
    assert text(event("step_finish", reason="stop", tokens={"input": 1})) == ""
    assert text(event("step_finish", reason="length")) == "(step ended: length)"


def test_a_gap_in_the_transcript_is_named() -> None:
    gap, name = '{"frames": 7, "afterSequence": 1}', "output is missing here: 7 frames"
    for log_format in FORMATS:
        assert written(gap, "gap", log_format) == [Call("stderr", name)]


@pytest.mark.parametrize("log_format", FORMATS)
def test_what_is_written_to_stderr_is_text_without_opencodes_ordinary_log(log_format: LogFormat) -> None:
    for ordinary in (
        "timestamp=2026-11-21T23:32:52.788Z level=INFO run=0d message=loading",
        "\x1b[90mtimestamp=2026-11-21T23:32:52.788Z level=DEBUG run=0d\x1b[0m message=loading",
        "INFO  2026-11-21T23:32:52 +0ms service=default version=1.0",
    ):
        assert written(ordinary, "stderr", log_format) == []
    for wrong in ("timestamp=2026-11-21T23:32:52.788Z level=ERROR run=0d message=failed", "Error: Session not found"):
        assert written(wrong, "stderr", log_format) == [Call("stderr", wrong)]
    (long,) = written("e" * 20_000, "stderr", log_format)
    assert long.text == "e" * 999 + "…\n… 19000 more characters; the transcript has them"


def test_the_text_of_every_recorded_run_has_no_json_and_no_ordinary_log_line() -> None:
    texts = [
        found
        for path in sorted((FIXTURES / "opencode-logged").glob("*/std*"))
        for raw in path.read_bytes().split(b"\n")
        if (found := text(raw, path.name.split(".")[0]))
    ]
    assert len(texts) > 50
    assert not [found for found in texts if re.search(r'level=INFO|^\{"type"', found, re.MULTILINE)]


# hostile output


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;owned\x07text", "text"),
        ("one\x1b[2K\x1b[1Atwo", "onetwo"),
        ("a\x01b\x08c\x7fd\x9be", "abcde"),
        ("a\u202eb\u2066c\u200f", "abc"),
        ("a\U000e0041\u200bb", "ab"),
    ],
)
def test_hostile_characters_are_removed(raw: str, clean: str) -> None:
    assert text(said(raw)) == text(raw) == text(raw, "stderr") == clean
    assert shown(said(raw))["part"]["text"] == clean


def test_half_a_character_is_replaced() -> None:
    half = b'{"type":"text","part":{"text":"a\\ud83d"}}'
    assert text(half) == text(b"a\xf0\x9f") == "a\ufffd"
    assert shown(half)["part"]["text"] == "a\ufffd"


@pytest.mark.parametrize(
    "forged",
    [
        "[agent-runs] succeeded",
        "  [AGENT-RUNS] succeeded",
        "[agent\u200c-runs] succeeded",
        "\u200b[agent-runs] succeeded",
        "\uff3bagent-runs] succeeded",
        "hello\n[agent-runs] succeeded",
        "hello\r[agent-runs] succeeded",
        "hello\u2028[agent-runs] succeeded",
        "[paperclip] Run finished",
        "[" + "\u200c" * 500 + "agent-runs] succeeded",
        "\u200c  [agent-runs] succeeded",
        "\u3164\u2800[agent-runs] succeeded",
    ],
)
def test_no_line_begins_as_ours_or_paperclips(forged: str) -> None:
    everywhere = [
        text(forged.replace("\n", "\v")),
        text(forged.replace("\n", "\v"), "stderr"),
        text(said(forged)),
        text(event("reasoning", text=f"x\n{forged}")),
        text(tool("bash", status="completed", input={"command": forged}, output=forged)),
    ]
    for each in "\n".join(everywhere).split("\n"):
        seen = "".join(sign for sign in each if unicodedata.category(sign) != "Cf").strip("\u3164\u2800 ")
        assert not unicodedata.normalize("NFKC", seen).lower().startswith(("[agent-runs]", "[paperclip]"))


def test_the_begin_of_a_piece_of_a_long_line_cannot_look_like_ours() -> None:
    first, second = written(said("x" * (CALL_BYTES - 200) + "[agent-runs] succeeded"), log_format="text")
    assert (first.text, second.text) == ("x" * (CALL_BYTES - 200), "… [agent-runs] succeeded")


@pytest.mark.parametrize(
    "data",
    [
        said("x\n" * 50_000),
        said("x" * 400_000),
        tool("bash", status="completed", input={}, output="y\n" * 100_000),
        tool("edit", status="completed", input={}, output="", metadata={"diff": "+z\n" * 9999}),
        tool("bash", status="running", input={"command": "c" * 100_000}),
        b"n" * 400_000,
        b"\x1b]" * 100_000,
        b" " * 400_000 + b"x",
        said("\u0301\u0316" * 100_000),
    ],
)
def test_a_long_line_is_bounded(data: bytes) -> None:
    assert len(text(data)) < 13_000


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (said("x"), "ses_1"),
        (b'{"type":"text","sessionID":"' + b"s" * 500 + b'"}', "s" * 127 + "…"),
        (b'{"type":"text","sessionID":""}', None),
        (b'{"type":"text","sessionID":7}', None),
        (b"plain", None),
    ],
)
def test_the_session_is_the_one_that_an_event_names(data: bytes, found: str | None) -> None:
    assert session_id(line(1, data)) == found
    assert session_id(line(1, data, "stderr")) is None


FRAGMENTS = st.sampled_from(
    [
        *(
            '{"type":',
            '"agent_run"',
            '"\\u0061gent_run"',
            ',"event":"outcome"',
            "}",
            "{",
            '"',
            "\\",
            "\\ud83d",
            "[",
            ",",
        ),
        *("\r", "\v", "\u2028", "\ufeff", "\u200b", "\u200c", "\u3164", " ", "\t", "\x1b[31m", "\x1b]", "\x00", "\x1c"),
        *(
            "[agent-runs] ok",
            "[paperclip] ok",
            "\uff3b",
            "agent-runs]",
            "x" * 4000,
            "é漢🦀" * 900,
            '"sessionID"',
        ),
        *(
            "1" * 4400,
            "[" * 1500,
            "NaN",
            "1e999",
            '{"type":"text","part":{"text":"',
            '"}}',
            '{"type":"tool_use","part":',
        ),
    ]
)
HOSTILE = st.one_of(
    st.lists(FRAGMENTS, max_size=12).map(lambda parts: "".join(parts).encode("utf-8", "replace")),
    st.lists(st.one_of(FRAGMENTS.map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=40)), max_size=8)
    .map(b"".join)
    .map(lambda data: data.replace(b"\n", b"")),
)
STREAMS = st.sampled_from(["stdout", "stderr", "gap", "odd"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), FRAGMENTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["text", "content", "type", "output", "input", "error", "message"]), inner),
    ),
    max_leaves=8,
)
EVENTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "reasoning", "tool_use", "step_start", "step_finish", "error"])},
    optional={"part": VALUES, "error": VALUES, "message": VALUES, "sessionID": VALUES},
).map(lambda found: json.dumps(found).encode())
"""Events of the right types with anything in them."""


@given(data=st.one_of(HOSTILE, EVENTS), stream=STREAMS, log_format=st.sampled_from(FORMATS))
def test_whatever_an_agent_prints_fits_into_calls(data: bytes, stream: str, log_format: LogFormat) -> None:
    for call in written(data, stream, log_format):
        assert len(f"{call.text}\n".encode()) < CALL_BYTES


@given(data=st.one_of(HOSTILE, EVENTS), stream=STREAMS, log_format=st.sampled_from(FORMATS))
def test_no_line_begins_like_one_of_ours_or_of_paperclips(data: bytes, stream: str, log_format: LogFormat) -> None:
    for call in written(data, stream, log_format):
        assert not any(map(MARKED.match, call.text.split("\n")))
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", call.text)
