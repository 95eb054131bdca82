"""A secret that an agent writes in pieces is in no transcript, neither whole nor in halves."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_runs.logs.stored_output import StoredOutput
from agent_runs.paperclip.redaction import Redaction
from agent_runs.paperclip.secret_values import MIN_LENGTH
from agent_runs.pod.sidecar.drivers.acp import mapping as acp
from agent_runs.pod.sidecar.drivers.acp.agent import RawLine
from agent_runs.pod.sidecar.drivers.acp.messages import MAX_BEGINNING, MAX_KEPT, message
from agent_runs.pod.sidecar.drivers.growth import Growth
from agent_runs.pod.sidecar.drivers.lines import MAX_INPUT, MAX_TITLE, Line, encoded
from agent_runs.pod.sidecar.drivers.opencode_server.v1.journal import Journal
from tests.support.cases import case
from tests.support.lines import log_line

SESSION = "ses_1"
SECRET = "sk-live-4f9a1c7e2b6d8035-9c1e"
REDACTION = Redaction.of([("API_KEY", SECRET)])
FILLER = "word " * 210_000
"""More than a text of one part may have."""


def shown(lines: Iterable[Line]) -> str:
    """The lines as the transcript has them."""
    return b"".join(REDACTION.redact(encoded(line, 1, SESSION)) for line in lines).decode()


def halves(text: str) -> list[str]:
    """Pieces of the secret that can be read in a text."""
    pieces = (SECRET[at : at + MIN_LENGTH] for at in range(len(SECRET) - MIN_LENGTH + 1))
    return [piece for piece in pieces if piece in text]


def pieces(text: str, sizes: Iterable[int]) -> Iterator[str]:
    for size in sizes:
        yield text[:size]
        text = text[size:]
    yield text


def updates(*each: dict[str, Any], session: str = SESSION, ends: bool = True) -> list[Line]:
    """What the driver of an agent that speaks ACP makes of these updates."""
    mapping = acp.Mapping(SESSION, [], None)
    lines: list[Line] = []
    for update in each:
        content = {"method": "session/update", "params": {"sessionId": session, "update": update}}
        data = json.dumps(content).encode()
        lines += mapping.add(message(RawLine(data, len(data), 0)))
    return [*lines, *(mapping.abandon() if ends else [])]


def chunks(kind: str, texts: Iterable[str]) -> list[dict[str, Any]]:
    return [{"sessionUpdate": kind, "content": {"type": "text", "text": each}} for each in texts]


def tool(**content: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": "call_1", "status": "in_progress", **content}


def terminal(text: str) -> dict[str, Any]:
    return {"_meta": {"terminal_output": {"data": text}}}


def block(text: str) -> dict[str, Any]:
    return {"content": [{"type": "content", "content": {"type": "text", "text": text}}]}


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.booleans())
def test_no_half_of_a_secret_that_an_agent_writes_in_pieces_is_stored(sizes: list[int], whole: bool) -> None:
    text = f"The key is {SECRET}" + (" there." if whole else "")
    parts = list(pieces(text, sizes))
    growing = [text[: sum(sizes[:count])] for count in range(len(sizes) + 1)]
    began = tool(rawInput={"command": "env"})
    done = tool(status="completed", rawOutput=text)
    ways = {
        "text": updates(*chunks("agent_message_chunk", parts)),
        "reasoning": updates(*chunks("agent_thought_chunk", parts)),
        "text while a tool works": updates(
            began,
            *(each for part in parts for each in (*chunks("agent_message_chunk", [part]), tool(**terminal("x ")))),
        ),
        "text while a tool ends": updates(
            began, *chunks("agent_message_chunk", parts[:1]), done, *chunks("agent_message_chunk", parts[1:])
        ),
        "prompt": updates(*chunks("user_message_chunk", parts)),
        "other session": updates(*chunks("agent_message_chunk", parts), session="ses_2"),
        "terminal": updates(began, *(tool(**terminal(each)) for each in parts)),
        "terminal that ends": updates(began, *(tool(**terminal(each)) for each in parts), done),
        "output": updates(began, *(tool(rawOutput=each) for each in growing), done),
        "content": updates(began, *(tool(**block(each)) for each in growing)),
        "first content": updates(*(tool(rawInput={"command": "env"}, **block(each)) for each in growing), done),
    }
    for name, lines in ways.items():
        with case(name, parts):
            assert not halves(shown(lines))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_a_text_of_opencode_is_written_once_and_whole(sizes: list[int], ends: bool, lost: bool) -> None:
    text, growth, now = f"The key is {SECRET} there.", Growth(), 0.0
    growth.begin("prt_1", "msg_1", "text", now)
    lines: list[Line] = []
    for piece in pieces(text, sizes):
        now += 2
        growth.add("prt_1", piece)
        lines += growth.due(now)
        assert not halves(shown(lines))
    if lost:
        growth.stop()
    if ends:
        growth.end("prt_1")
    assert [line.content["length"] for line in lines] == sorted({line.content["length"] for line in lines})
    assert all("text" not in line.content for line in lines)
    unfinished = list(growth.unfinished())
    assert [line.content["text"] for line in unfinished] == ([] if ends else [text])
    assert not halves(shown([*lines, *unfinished]))


def test_what_the_turns_end_cuts_shows_no_half_of_a_secret() -> None:
    text = f"The key is {SECRET}"
    for at in range(len(text)):
        growth = Growth()
        growth.begin("prt_1", "msg_1", "text", 0)
        growth.add("prt_1", text[:at])
        with case(text[:at]):
            assert not halves(shown(growth.unfinished()))
            for content in (terminal(text[:at]), block(text[:at]), {"rawOutput": text[:at]}):
                assert not halves(shown(updates(tool(rawInput={"command": "env"}), tool(**content))))
            assert not halves(shown(updates(*chunks("agent_message_chunk", [text[:at]]))))


def test_no_bound_of_the_sidecar_cuts_a_secret_so_that_half_of_it_is_stored() -> None:
    for before in range(-2, len(SECRET) + 2, 3):
        near = {size: "x " * ((size - before) // 2 + 1) + f" {SECRET} " for size in (MAX_TITLE, MAX_INPUT, 4000)}
        cut = "x" * (acp.MAX_OUTPUT - before) + f" {SECRET}"
        output = f"{SECRET} " + "x" * (acp.MAX_OUTPUT - len(SECRET) + before)
        running = {"callID": "c", "state": {"status": "running", "input": near[MAX_INPUT], "title": near[MAX_TITLE]}}
        opencode = Journal(SESSION, "msg")
        opencode.add(0, "message.updated.1", {"info": {"id": "msg"}})
        large = tool(rawInput={"command": "x"}, title="x" * (MAX_BEGINNING - 160 - before) + f" {SECRET}")
        ways = {
            "running": opencode.add(
                1, "message.part.updated.1", {"part": {"type": "tool", "sessionID": SESSION, **running}}
            ),
            "title": updates(tool(rawInput={"command": near[MAX_INPUT]}, title=near[MAX_TITLE]), ends=False)[1:],
            "terminal": updates(tool(rawInput={"command": "x"}), tool(**terminal(output))),
            "output": updates(tool(rawInput={"command": "x"}), tool(status="completed", rawOutput=cut)),
            "beginning": updates(large | {"more": "x" * MAX_KEPT}, session="ses_2"),
        }
        for name, lines in ways.items():
            with case(name, before):
                text = "".join(json.dumps(line.content, ensure_ascii=False) for line in lines)
                assert not halves(REDACTION.redact(text.encode()).decode())


def test_a_text_of_more_than_one_part_shows_no_half_of_a_secret_and_loses_nothing() -> None:
    for at in (1, 5, 12, len(SECRET) - 1):
        text = FILLER[: acp.MAX_PART - 20] + SECRET[:at], SECRET[at:] + " " + FILLER[:1000]
        lines = updates(*chunks("agent_message_chunk", text), ends=False)
        mapping = acp.Mapping(SESSION, [], None)
        for each in chunks("agent_message_chunk", [*text, "x" * 100]):
            content = {"method": "session/update", "params": {"sessionId": SESSION, "update": each}}
            data = json.dumps(content).encode()
            lines += mapping.add(message(RawLine(data, len(data), 0)))
        lines += mapping.finish(message(RawLine(b"{}", 2, 0)), "end_turn", None, None)
        texts = [line.content["part"]["text"] for line in lines if line.type == "text"]
        with case(at):
            assert "".join(texts[-2:]) == "".join(text) + "x" * 100
            assert not halves(shown(lines))


def test_a_line_whose_end_is_missing_shows_no_half_of_a_secret() -> None:
    state = StoredOutput(REDACTION)
    for at in range(len(SECRET) + 1):
        for terminated, whole in ((False, True), (True, False), (False, False)):
            data = f"it is {SECRET[:at]}".encode()
            line = log_line(1, "stdout", data, terminated, whole)
            stored = state.redact(line)
            with case(data):
                assert not halves(stored.decode())
                assert data.startswith(stored.partition(b"[[secret:")[0])
