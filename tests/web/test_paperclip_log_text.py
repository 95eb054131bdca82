"""A line of an agent as text for people: bounded, and nothing that a reader could take for ours."""

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_runs.web.paperclip_log import CALL_BYTES, calls
from agent_runs.web.paperclip_log_text import Shown, readable
from tests.web.parts import event, line

FIXTURES = Path(__file__).parents[1] / "fixtures" / "opencode-logged"


def shown(data: str | bytes, stream: str = "stdout") -> str:
    return "\n".join(text for _, text in found(data, stream))


def found(data: str | bytes, stream: str = "stdout") -> list[Shown]:
    return list(readable(line(1, data if isinstance(data, bytes) else data.encode(), stream)))


def tool(name: str, **state: object) -> bytes:
    return event("tool_use", type="tool", tool=name, callID="c", state=state)


def test_texts_stand_for_themselves() -> None:
    assert shown(event("text", text="Here I go.\nSecond line.")) == "Here I go.\nSecond line."
    assert shown(event("reasoning", text="I look around.")) == "(thinking) I look around."


def test_a_tool_call_is_one_line_with_its_subject_and_its_result_is_indented_below() -> None:
    call = tool("bash", status="completed", input={"command": "ls -l"}, output="a\nb")
    assert shown(call) == "> bash: ls -l\n  a\n  b"


def test_a_tool_without_a_known_subject_shows_its_arguments() -> None:
    assert shown(tool("odd", status="running", input={"depth": 2})) == '> odd: {"depth":2}'
    assert shown(tool("odd", status="running", description="look")) == "> odd: look"


def test_arguments_that_are_nested_deeply_are_shown_or_named() -> None:
    for depth in range(900, 1010):
        nested = "[" * depth + "]" * depth
        data = f'{{"type":"tool_use","part":{{"tool":"odd","state":{{"input":{nested}}}}}}}'
        assert shown(data).startswith(("> odd: [[[", "> odd: (nested too deeply)", '{"type":"tool_use"'))


def test_a_failed_tool_call_says_so() -> None:
    failed = tool("read", status="error", input={"filePath": "x"}, error="not found")
    assert shown(failed) == "> read: x\n  failed: not found"
    assert "failed: oops" in shown(tool("bash", status="completed", input={}, output="oops", metadata={"exit": 1}))


def test_an_edit_shows_its_diff_below_its_result() -> None:
    edit = tool("edit", status="completed", input={"filePath": "x"}, output="Done", metadata={"diff": "-a\n+b\n"})
    assert shown(edit) == "> edit: x\n  Done\n  -a\n  +b"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"name": "APIError", "data": {"message": "model unknown"}}, "model unknown"),
        ({"name": "Odd"}, "Odd"),
        ("bad", "bad"),
        ({"code": 7}, '{"code":7}'),
    ],
)
def test_an_error_goes_to_stderr(error: object, message: str) -> None:
    assert found(json.dumps({"type": "error", "error": error})) == [Shown("stderr", f"error: {message}")]


def test_a_steps_begin_and_ordinary_end_are_not_shown_and_an_unusual_end_is() -> None:
    assert shown(event("step_start")) == ""
    assert shown(event("step_finish", reason="stop", tokens={"input": 1})) == ""
    assert shown(event("step_finish", reason="tool-calls")) == ""
    assert shown(event("step_finish", reason="length")) == "(step ended: length)"


def test_an_event_of_an_unknown_type_is_not_shown() -> None:
    assert shown(event("odd", text="x")) == ""


def test_a_line_that_is_no_event_is_shown_as_it_is() -> None:
    for text in ("plain words", "{broken", '{"no":"type"}', '{"type":"text"' + ',"a":[' * 3000):
        assert shown(text).split("\n")[0] == text[:1000]


def test_a_gap_in_the_transcript_is_named() -> None:
    assert found('{"frames": 7, "afterSequence": 1}', "gap") == [Shown("stderr", "output is missing here: 7 frames")]


@pytest.mark.parametrize(
    "text",
    [
        "timestamp=2026-11-21T23:32:52.788Z level=INFO run=0d message=loading",
        "timestamp=2026-11-21T23:32:52.788Z level=DEBUG run=0d message=loading",
        "\x1b[90mtimestamp=2026-11-21T23:32:52.788Z level=INFO run=0d\x1b[0m message=loading",
        "INFO  2026-11-21T23:32:52 +0ms service=default version=1.0",
    ],
)
def test_opencodes_own_log_is_left_out_where_it_reports_nothing_wrong(text: str) -> None:
    assert found(text, "stderr") == []


@pytest.mark.parametrize(
    "text", ["timestamp=2026-11-21T23:32:52.788Z level=ERROR run=0d message=failed", "Error: Session not found"]
)
def test_opencodes_own_log_is_shown_where_it_reports_something_wrong(text: str) -> None:
    assert found(text, "stderr") == [Shown("stderr", text)]


def recorded() -> Iterator[tuple[str, bytes]]:
    for path in sorted(FIXTURES.glob("*/std*")):
        for data in path.read_bytes().split(b"\n"):
            yield path.name.split(".")[0], data


def test_the_text_of_every_recorded_run_has_no_json_and_no_ordinary_log_line() -> None:
    texts = [text for stream, data in recorded() if (text := shown(data, stream))]
    assert len(texts) > 50
    assert not [text for text in texts if re.search(r'level=INFO|^\{"type"', text, re.MULTILINE)]


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;owned\x07text", "text"),
        ("one\x1b[2K\x1b[1Atwo", "onetwo"),
        ("a\x00b\x08c\x7fd\x9be", "abcde"),
        ("a\u202eb\u2066c\u200f", "abc"),
        ("a\U000e0041\u200bb", "ab"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_hostile_characters_are_removed(raw: str, clean: str) -> None:
    assert shown(event("text", text=raw)) == clean
    assert shown(raw.replace("\n", "")) == clean
    assert shown(raw.replace("\n", ""), "stderr") == clean.replace("\n", " ")


def test_half_a_character_is_replaced() -> None:
    assert shown(b'{"type":"text","part":{"text":"a\\ud83d"}}') == "a\ufffd"
    assert shown(b"a\xf0\x9f") == "a\ufffd"


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
        shown(forged.replace("\n", "\v")),
        shown(forged.replace("\n", "\v"), "stderr"),
        shown(event("text", text=forged)),
        shown(event("reasoning", text=f"x\n{forged}")),
        shown(tool("bash", status="completed", input={"command": forged}, output=forged)),
    ]
    for text in "\n".join(everywhere).split("\n"):
        seen = "".join(each for each in text if unicodedata.category(each) != "Cf").strip("\u3164\u2800 ")
        assert not unicodedata.normalize("NFKC", seen).lower().startswith(("[agent-runs]", "[paperclip]"))


def test_a_line_of_the_form_of_a_line_of_ours_has_a_bar_before_it() -> None:
    forged = '{"type":"agent_run","event":"outcome","message":"succeeded"}'
    assert shown(forged) == f"| {forged}"
    assert shown(event("text", text=f"so:\n {forged}")) == f"so:\n|  {forged}"


def test_the_begin_of_a_piece_of_a_long_line_cannot_look_like_ours() -> None:
    long = event("text", text="x" * (CALL_BYTES - 200) + "[agent-runs] succeeded")
    (call,) = calls(line(1, long), "text")
    assert call.text.split("\n") == ["x" * (CALL_BYTES - 200), "… [agent-runs] succeeded"]


@pytest.mark.parametrize(
    "data",
    [
        event("text", text="x\n" * 50_000),
        event("text", text="x" * 400_000),
        tool("bash", status="completed", input={}, output="y\n" * 100_000),
        tool("edit", status="completed", input={}, output="", metadata={"diff": "+z\n" * 9999}),
        tool("bash", status="running", input={"command": "c" * 100_000}),
        b"n" * 400_000,
        b"\x1b]" * 100_000,
        b" " * 400_000 + b"x",
        event("text", text="\u0301\u0316" * 100_000),
    ],
)
def test_a_long_line_is_bounded(data: bytes) -> None:
    assert len(shown(data)) < 13_000
    for call in calls(line(1, data), "text"):
        assert len(f"{call.text}\n".encode()) < CALL_BYTES


def test_what_is_left_out_of_a_text_is_counted() -> None:
    assert shown(event("text", text="x" * 13_000)).endswith("\n… 1000 more characters; the transcript has them")


def test_a_line_too_long_to_be_parsed_is_only_counted() -> None:
    assert re.fullmatch(r"\(a line of 600\d+ bytes; the transcript has it\)", shown(event("text", text="x" * 600_000)))
