"""From the agent's messages of one turn to the lines of the run.

The same messages make the same lines again, so a driver that was killed knows from their number how many it had
written; only times differ. A step begins with what the model says or does first, and ends with the last of the tools
that it called.
Sources: the protocol's schema, version 1; claude-agent-acp 0.101, codex-acp 2.6, gemini-cli 0.61, qwen-code 0.24 and
pi-acp 0.0.34, observed.
"""

from __future__ import annotations

import json
import re
import time
from collections import OrderedDict
from typing import Any

from agent_runs.pod.sidecar.drivers.acp.messages import Message, request_id, tool_word
from agent_runs.pod.sidecar.drivers.acp.usage import Tokens, of_chunk
from agent_runs.pod.sidecar.drivers.lines import (
    MAX_INPUT,
    MAX_NAME,
    MAX_TITLE,
    MAX_TOOLS,
    Line,
    dictionary,
    integer,
    last_word,
    prose,
    text,
    whole_words,
)
from agent_runs.pod.sidecar.drivers.questions import Asked, field

MAX_PART = 1024 * 1024
"""Characters of a text; a longer one becomes several."""
MAX_OUTPUT = 256 * 1024
"""Characters of a tool's output."""
MAX_ENVELOPES = 64
"""Different envelopes that are kept of the chunks of one text."""
CHUNKS = {"agent_message_chunk": "text", "agent_thought_chunk": "reasoning"}
TOOLS = frozenset({"tool_call", "tool_call_update"})
HISTORY = frozenset({*CHUNKS, *TOOLS, "user_message_chunk", "plan"})
"""Updates that repeat a session when it is loaded."""
GROWING = frozenset({"content", "rawInput", "rawOutput"})
"""What a later update of the same tool, or its end, repeats whole."""
REASONS = {
    "end_turn": "stop",
    "max_tokens": "length",
    "max_turn_requests": "max_turns",
    "refusal": "content-filter",
}
"""Finish reasons as OpenCode has them."""
REJECTED = "The user rejected permission to use this specific tool call."
ALLOWING = ("allow_once", "allow_always")
"""Kinds of a request's options."""
"""OpenCode's words for it."""
UNFINISHED = "The turn ended before this tool did."
_OUTPUTS = ("formatted_output", "aggregated_output", "output", "text", "stdout", "error")
_CHANGING = re.compile(r"_(?:id|ms)$")
"""Names of what differs between two calls that are the same."""


class _Text:
    """A text of the model, or of its reasoning, that may still grow."""

    def __init__(self, kind: str, name: str, message: str) -> None:
        self.kind, self.name, self.message = kind, name, message
        self.pieces: list[str] = []
        self.size = 0
        self.envelopes: list[dict[str, Any]] = []
        self.began = _now()

    def add(self, piece: str, envelope: dict[str, Any]) -> None:
        self.pieces.append(piece)
        self.size += len(piece)
        if envelope not in self.envelopes[-1:] and len(self.envelopes) < MAX_ENVELOPES:
            self.envelopes.append(envelope)

    def take_last_word(self) -> str:
        """Return the word at its end, which may go on; nothing if that is all there is."""
        whole = "".join(self.pieces)
        at = last_word(whole) or len(whole)
        self.pieces = [whole[:at]]
        return whole[at:]


class _Tool:
    """A tool call that has not ended."""

    def __init__(self, call: str, part: str) -> None:
        self.call, self.part = call, part
        self.name = ""
        self.title = ""
        self.input: dict[str, Any] = {}
        self.output = self.printed = ""
        self.exit: int | None = None
        self.is_shown = False
        self.began = _now()

    def take(self, update: dict[str, Any]) -> None:
        """Take what an update says of it; what it leaves out stays."""
        meta = dictionary(update.get("_meta"))
        self.name = _name(update, meta) or self.name
        self.title = prose(update.get("title"), MAX_TITLE) or self.title
        raw = dictionary(update.get("rawInput"))
        if raw:
            self.input = _input(raw)
        printed = dictionary(meta.get("terminal_output")).get("data")
        self.printed = _ending(self.printed + printed) if isinstance(printed, str) else self.printed
        self.output = _output(update) or self.output
        for holder, name in (
            (dictionary(meta.get("terminal_exit")), "exit_code"),
            (dictionary(update.get("rawOutput")), "exit_code"),
            (dictionary(update.get("rawOutput")), "exitCode"),
        ):
            if isinstance(holder.get(name), int):
                self.exit = integer(holder[name])


class Mapping:
    """Takes what the agent sends after the prompt.

    Args:
        informational: texts of the agent that are no answer of the model.
        usage: where its tokens are, see `usage`.

    Attributes:
        has_answered: the model said or did something.
    """

    def __init__(self, session: str, informational: list[re.Pattern[str]], usage: str | None) -> None:
        self.has_answered = False
        self._session = session
        self._informational = informational
        self._usage = usage
        self._step = self._parts = 0
        self._is_open = self._was_rejected = False
        self._text: _Text | None = None
        self._tools: OrderedDict[str, _Tool] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._tokens: Tokens | None = None
        self._context = 0

    @property
    def growing(self) -> tuple[str, str, str] | None:
        """Kind, part and message of the text that may still grow."""
        return (self._text.kind, self._text.name, self._text.message) if self._text else None

    def add(self, message: Message) -> list[Line]:
        """Take the next message and return the lines that it makes. Never raises."""
        update = message.update
        kind = update.get("sessionUpdate")
        if not update or message.session != self._session:
            return [_kept(message)]
        if kind == "usage_update":
            self._context = max(integer(update.get("used")), 0)
        if isinstance(kind, str) and kind in CHUNKS:
            return self._chunk(CHUNKS[kind], update, message)
        return self._tool(update, message) if kind in TOOLS else [_kept(message)]

    # texts

    def _chunk(self, kind: str, update: dict[str, Any], message: Message) -> list[Line]:
        content = dictionary(update.get("content"))
        piece = content.get("text")
        if self._usage == "message_meta":
            self._count(of_chunk(update))
        if not isinstance(piece, str) or not piece or self._is_informational(piece, update):
            return [Line("acp_update", {"acp": message.kept})]
        self.has_answered, self._was_rejected = True, False
        name = text(update.get("messageId"), MAX_NAME)
        lines: list[Line] = []
        word = ""
        if self._text is not None and (self._text.kind, self._text.message) != (kind, name):
            lines = self._end_text()
        elif self._text is not None and self._text.size + len(piece) > MAX_PART:
            word = self._text.take_last_word()
            lines = self._end_text()
        lines = [*lines, *self._begin_step()]
        if self._text is None:
            self._text = _Text(kind, self._part(), name)
        self._text.add(
            word + piece, {**update, "content": {key: each for key, each in content.items() if key != "text"}}
        )
        return lines

    def _is_informational(self, piece: str, update: dict[str, Any]) -> bool:
        meta = dictionary(dictionary(update.get("_meta")).get("claudeCode"))
        return meta.get("kind") == "informational" or any(each.search(piece[:1000]) for each in self._informational)

    def _end_text(self) -> list[Line]:
        ended, self._text = self._text, None
        if ended is None:
            return []
        part = {
            "id": ended.name,
            "type": ended.kind,
            **self._ids(),
            "text": "".join(ended.pieces),
            "time": {"start": ended.began, "end": _now()},
        }
        return [Line(ended.kind, {"part": part, "acp": ended.envelopes})]

    # steps

    def _begin_step(self) -> list[Line]:
        if self._is_open:
            return []
        self._is_open = True
        self._step += 1
        return [Line("step_start", {"part": {"id": self._part(), "type": "step-start", **self._ids()}})]

    def _end_step(self, reason: str, cost: float | None = None) -> Line:
        self._is_open = False
        tokens, self._tokens = self._tokens, None
        used: dict[str, Any] = {} if tokens is None else {"tokens": tokens.content()}
        if self._context:
            used["context"] = self._context
        if cost is not None:
            used["cost"] = cost
        part = {"id": self._part(), "type": "step-finish", **self._ids(), "reason": reason, **used}
        return Line("step_finish", {"part": part})

    def _count(self, tokens: Tokens | None) -> None:
        if tokens is not None:
            self._tokens = tokens if self._tokens is None else self._tokens.plus(tokens)

    def _ids(self) -> dict[str, str]:
        return {"messageID": f"msg_{self._step}", "sessionID": self._session}

    def _part(self) -> str:
        self._parts += 1
        return f"prt_{self._parts}"

    # tools

    def _tool(self, update: dict[str, Any], message: Message) -> list[Line]:
        call, status = text(update.get("toolCallId"), MAX_NAME), update.get("status")
        known = call in self._tools
        has_begun = update.get("sessionUpdate") == "tool_call" or (status is not None and call not in self._ended)
        if not call or (not known and (not has_begun or len(self._tools) >= MAX_TOOLS)):
            return [_kept(message)]
        self.has_answered, self._was_rejected = True, False
        # a tool that works while the model goes on cuts no text in two
        lines = [*([] if known else self._end_text()), *self._begin_step()]
        tool = self._tools[call] if known else self._tools.setdefault(call, _Tool(call, self._part()))
        tool.take(update)
        if status in ("completed", "failed"):
            kept = _without_growing(message, frozenset())
            return [*lines, *self._end_tool(tool, failed=status == "failed", acp=kept)]
        if tool.is_shown or not (tool.input or status == "in_progress"):
            return [*lines, _kept(message)]
        return [*lines, self._show(tool, message)]

    def _show(self, tool: _Tool, message: Message) -> Line:
        tool.is_shown = True
        shown = prose(json.dumps(tool.input, ensure_ascii=False, default=str), MAX_INPUT)
        return Line("tool_running", {"part": {**self._tool_part(tool), "input": shown, "title": tool.title},
                                     "acp": _without_growing(message)})  # fmt: skip

    def _tool_part(self, tool: _Tool) -> dict[str, Any]:
        return {"id": tool.part, "type": "tool", "tool": tool.name or "tool", "callID": tool.call, **self._ids()}

    def _end_tool(self, tool: _Tool, *, failed: bool, acp: Any, why: str = "") -> list[Line]:
        """The lines of a tool that ends, and of the step if it was the last one."""
        del self._tools[tool.call]
        self._ended[tool.call] = None
        if len(self._ended) > MAX_TOOLS:
            self._ended.popitem(last=False)
        output = tool.output or tool.printed
        printed = {"printed": tool.printed} if tool.printed not in output else {}
        state: dict[str, Any] = {
            "status": "error" if failed else "completed",
            "input": tool.input or {"title": tool.title},
            "error" if failed else "output": why or output or ("no reason given" if failed else ""),
            "title": tool.title,
            "metadata": printed if tool.exit is None else {"exit": tool.exit, **printed},
            "time": {"start": tool.began, "end": _now()},
        }
        line = Line("tool_use", {"part": {**self._tool_part(tool), "state": state}, "acp": acp})
        return [line] if self._tools or self._text is not None else [line, self._end_step("tool-calls")]

    # permissions

    def asked(self, message: Message) -> tuple[Asked, list[Line]]:
        """Take a request for a permission. The agent takes the identifiers of its options that allow it."""
        call = _call(message)
        shown = self._tool({**call, "sessionUpdate": "tool_call_update", "status": "in_progress"}, message)
        tool, wanted = self._tools.get(text(call.get("toolCallId"), MAX_NAME)), _asked_for(call)
        name = tool_word(call.get("kind")) or (tool.name if tool else "tool")
        options = dictionary(message.content.get("params")).get("options")
        allowing = [each for each in map(dictionary, _first(options, 32)) if each.get("kind") in ALLOWING]
        asked = field(f"{name}: {wanted}", [{"label": each.get("name"), **each} for each in allowing], "optionId")
        fields = (asked,) if asked and allowing else ()
        return Asked(request_id(message.content.get("id")), "", "permission", name, wanted, fields), shown

    def rejected(self, message: Message) -> list[Line]:
        """Take the rejection of a request; the lines of the tool that asked for it."""
        self._was_rejected = True
        tool = self._tools.get(text(_call(message).get("toolCallId"), MAX_NAME))
        return [] if tool is None else self._end_tool(tool, failed=True, acp=None, why=REJECTED)

    # the end

    def finish(self, message: Message, reason: str, tokens: Tokens | None, cost: float | None) -> list[Line]:
        """Take the end of the turn.

        Args:
            reason: the protocol's, why it ended.
            tokens: of the whole turn, if no step had its own.
        """
        self._count(tokens)
        named = "tool-calls" if self._was_rejected else REASONS.get(reason, tool_word(reason) or "unknown")
        lines = [*self._end_all(), *self._begin_step()]
        end = self._end_step(named, cost)
        return [*lines, Line(end.type, {**end.content, "acp": message.kept})]

    def fail(self, tokens: Tokens | None, cost: float | None) -> list[Line]:
        """Take the end of a turn by an error."""
        self._count(tokens)
        lines = self.abandon()
        if self._is_open or self._tokens is not None or cost is not None:
            lines = [*lines, *self._begin_step(), self._end_step("error", cost)]
        return lines

    def abandon(self) -> list[Line]:
        """Return the lines of what has begun and was cut."""
        if self._text is not None:
            self._text.pieces = [whole_words("".join(self._text.pieces))]
        for tool in self._tools.values():
            tool.output, tool.printed = whole_words(tool.output), whole_words(tool.printed)
        return self._end_all()

    def _end_all(self) -> list[Line]:
        lines = self._end_text()
        for tool in [*self._tools.values()]:
            lines += self._end_tool(tool, failed=True, acp=None, why=tool.output or tool.printed or UNFINISHED)
        return lines


def _kept(message: Message) -> Line:
    return Line("acp_update", {"acp": _without_growing(message)})


def _without_growing(message: Message, growing: frozenset[str] = GROWING) -> dict[str, Any]:
    """What is kept of a message, without texts in pieces: of half a secret nobody knows that it is one."""
    kept, update = message.kept, message.update
    if update.get("sessionUpdate") not in HISTORY:
        return kept
    if "leftOut" in kept:
        return {name: value for name, value in kept.items() if name != "beginning"}
    left = {name: value for name, value in update.items() if name not in growing}
    if "terminal_output" in dictionary(left.get("_meta")):
        left["_meta"] = {name: value for name, value in left["_meta"].items() if name != "terminal_output"}
    if left == update:
        return kept
    return {**kept, "params": {**dictionary(kept.get("params")), "update": left}, "leftOut": "texts in pieces"}


def _ending(printed: str) -> str:
    """The end of an output, without the word in which it is cut."""
    if len(printed) <= MAX_OUTPUT:
        return printed
    _, *rest = re.split(r"(?=\s)", printed[-MAX_OUTPUT:], maxsplit=1)
    return "\N{HORIZONTAL ELLIPSIS}" + "".join(rest)


def _now() -> int:
    return int(time.time() * 1000)


def _name(update: dict[str, Any], meta: dict[str, Any]) -> str:
    """The tool's name where the agent has one, else what kind of tool it is."""
    named = [update.get("name"), meta.get("toolName"), *(dictionary(each).get("toolName") for each in meta.values())]
    return next((word for word in map(tool_word, [*named, update.get("kind")]) if word), "")


def _call(message: Message) -> dict[str, Any]:
    """The tool call for which a permission is asked."""
    return dictionary(dictionary(message.content.get("params")).get("toolCall"))


def _asked_for(call: dict[str, Any]) -> str:
    """For what a permission is asked: the title, and the files that it does not name."""
    title, locations = prose(call.get("title"), MAX_TITLE), call.get("locations")
    paths = [prose(dictionary(each).get("path"), MAX_TITLE) for each in _first(locations, 8)]
    unnamed = ", ".join(path for path in paths if path.rpartition("/")[2] not in title)
    return prose(f"{title}: {unnamed}" if unnamed else title, MAX_TITLE)


def _first(value: object, number: int) -> list[Any]:
    return value[:number] if isinstance(value, list) else []


def _input(raw: dict[str, Any]) -> dict[str, Any]:
    """What the tool is called with; a command as one text, as in the lines of OpenCode."""
    called = {name: value for name, value in raw.items() if not _CHANGING.search(name)}
    command = called.get("command")
    if isinstance(command, list) and all(isinstance(word, str) for word in command):
        is_shell = len(command) == 3 and command[1] in ("-c", "-lc")
        called["command"] = command[2] if is_shell else " ".join(command)
    return called


def _output(update: dict[str, Any]) -> str:
    """What the tool says of its end: its own output, else what is shown of it."""
    raw = update.get("rawOutput")
    if isinstance(raw, str):
        return prose(raw, MAX_OUTPUT)
    fields = dictionary(raw)
    own = next((fields[name] for name in _OUTPUTS if isinstance(fields.get(name), str) and fields[name]), "")
    if own:
        return prose(own, MAX_OUTPUT)
    blocks = map(_block, _first(update.get("content"), 64))
    return prose("\n".join(filter(None, blocks)), MAX_OUTPUT)


def _block(block: object) -> str:
    fields = dictionary(block)
    if fields.get("type") == "diff":
        return f"{prose(fields.get('path'), MAX_TITLE)}\n{prose(fields.get('newText'), MAX_OUTPUT)}"
    return prose(dictionary(fields.get("content")).get("text"), MAX_OUTPUT)
