"""What the driver makes of the updates of an agent that speaks ACP, without an agent."""

import json
import re
from typing import Any

from agent_runs.pod.sidecar.drivers.acp.agent import RawLine
from agent_runs.pod.sidecar.drivers.acp.mapping import Mapping
from agent_runs.pod.sidecar.drivers.acp.messages import Message, message
from agent_runs.pod.sidecar.drivers.lines import Line
from tests.support.cases import case

SESSION = "ses_1"
LETTER = "\N{CJK UNIFIED IDEOGRAPH-4E00}"
"""A word of its own, so that a text of many may be cut after any of them."""


def update(kind: str, **content: Any) -> Message:
    params = {"sessionId": SESSION, "update": {"sessionUpdate": kind, **content}}
    data = json.dumps({"method": "session/update", "params": params}).encode()
    return message(RawLine(data, len(data), 0))


def chunk(text: str) -> Message:
    return update("agent_message_chunk", content={"type": "text", "text": text})


def tool(call: str, status: str = "completed", **content: Any) -> Message:
    return update("tool_call", toolCallId=call, status=status, **content)


def request_for(call: str) -> Message:
    content = {"id": 1, "params": {"sessionId": SESSION, "toolCall": {"toolCallId": call, "title": "write"}}}
    data = json.dumps({"method": "session/request_permission", **content}).encode()
    return message(RawLine(data, len(data), 0))


def state(lines: list[Line]) -> dict[str, Any]:
    """The state of the one tool that has ended."""
    [ended] = [line.content["part"]["state"] for line in lines if line.type == "tool_use"]
    return dict(ended)


def test_a_turn_ends_for_the_protocols_reason_unless_it_ends_with_a_rejected_permission() -> None:
    endings: list[tuple[str, list[Message]]] = [
        ("tool-calls", []),
        ("stop", [tool("call_2", rawInput={"command": "ls"})]),
        ("stop", [chunk("Then without.")]),
    ]
    for reason, after in endings:
        mapping = Mapping(SESSION, [], None)
        mapping.asked(request_for("call_1"))
        mapping.rejected(request_for("call_1"))
        for each in after:
            mapping.add(each)
        last = mapping.finish(update("end"), "end_turn", None, None)[-1]
        with case(reason, after):
            assert last.content["part"]["reason"] == reason


def test_a_command_is_shown_as_a_person_would_write_it() -> None:
    commands = {
        "make test": (["bash", "-lc", "make test"], ["bash", "-c", "make test"], ["make", "test"], "make test"),
        "ls": (["ls"],),
        "bash -c": (["bash", "-c"],),
        "sh -c ls one": (["sh", "-c", "ls", "one"],),
        "git -C web": (["git", "-C", "web"],),
    }
    for shown, ways in commands.items():
        for command in ways:
            with case(command):
                lines = Mapping(SESSION, [], None).add(tool("call_1", rawInput={"command": command}))
                assert state(lines)["input"] == {"command": shown}


def test_256_ki_characters_of_a_tools_output_are_kept() -> None:
    whole = LETTER * 256 * 1024
    for output, kept in ((whole, whole), (f"{whole}{LETTER}", whole)):
        blocks = [{"type": "content", "content": {"type": "text", "text": output}}]
        for content in ({"rawOutput": output}, {"rawOutput": {"output": output}}, {"content": blocks}):
            lines = Mapping(SESSION, [], None).add(tool("call_1", rawInput={"command": "x"}, **content))
            with case(len(output), list(content)):
                assert state(lines)["output"] == kept


def test_a_text_of_the_agent_itself_is_known_by_its_first_thousand_characters() -> None:
    for before, is_answer in ((999, False), (1000, True)):
        mapping = Mapping(SESSION, [re.compile("!")], None)
        lines = mapping.add(chunk("x" * before + "!"))
        assert mapping.has_answered is is_answer
        assert [line.type for line in lines] == (["step_start"] if is_answer else ["acp_update"])
