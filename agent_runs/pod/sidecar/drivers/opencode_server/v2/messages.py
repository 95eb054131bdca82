"""From the messages of a session to the lines that `opencode run --format json --thinking` of OpenCode 1 writes of it.

A message is read again and again while it grows. Each line has an identifier of its own, made of the message and of
what in it the line is about, so a reader knows which it has written. Source: OpenCode 2.0.15, observed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from agent_runs.pod.sidecar.drivers.lines import MAX_NAME, MAX_TITLE, MAX_TOOLS, Line, dictionary, integer, prose, text
from agent_runs.pod.sidecar.drivers.opencode_server.turn import STEP, Answer, begun, paid, used

MAX_MESSAGE = 2000
_TITLES = ("description", "path", "command", "url", "pattern", "query", "name")
"""Arguments that tell a person what a tool is to do, the best first."""
_ENDED = ("completed", "error")
_NAMES = {
    "provider.content-filter": "ContentFilterError",
    "compaction.failed": "ContextOverflowError",
    "aborted": "MessageAbortedError",
}
"""OpenCode 1's names of errors. All others of a provider are its `APIError`."""
_STATUS = {"provider.auth": 401, "provider.rate-limit": 429, "provider.quota": 402, "provider.internal": 500}
"""Where an error has none of its own: one of a stream has that of its beginning, 200."""


class Messages:
    """Takes the messages of a turn, in order.

    Attributes:
        has_prompt: the turn's prompt is delivered.
        taken: user messages behind it that are, too.
        answer: the newest message of the model.
        outcome: `succeeded`, `failed` or `interrupted` if nothing follows the end of a turn; else empty.
        retry: why the newest request to the model is repeated.
        children: sub-agents' sessions.
        began: when the prompt was delivered, by the server's clock; 0: it is not.
    """

    def __init__(self, session: str, prompt: str) -> None:
        self.has_prompt = False
        self.taken: set[str] = set()
        self.answer: Answer | None = None
        self.outcome = ""
        self.retry: dict[str, Any] = {}
        self.children: dict[str, None] = {}
        self.began = 0
        self._session = session
        self._prompt = prompt
        self._background: dict[str, None] = {}

    @property
    def background(self) -> tuple[str, ...]:
        """What tools have left running and has not been reported as ended: commands, and sub-agents' sessions."""
        return tuple(self._background)

    def add(self, message: dict[str, Any]) -> Iterator[Line]:
        """Take a message, and return the lines that it makes so far. Never raises."""
        kind = message.get("type")
        if kind == "idle":
            self.outcome = text(message.get("outcome"), MAX_NAME)
            return
        self.outcome = ""
        if message.get("id") == self._prompt:
            self.has_prompt = True
            self.began = integer(dictionary(message.get("time")).get("created"))
        elif kind == "user" and self.has_prompt and len(self.taken) < MAX_TOOLS:
            self.taken.add(text(message.get("id"), MAX_NAME))
        elif kind == "assistant":
            yield from self._assistant(message)
        elif kind == "synthetic":
            metadata = dictionary(message.get("metadata"))
            for name in ("jobID", "shellID", "sessionID"):
                self._background.pop(text(metadata.get(name), MAX_NAME), None)
        elif kind == "compaction":
            yield from spent(self._session, message)

    def _assistant(self, message: dict[str, Any]) -> Iterator[Line]:
        name, time = text(message.get("id"), MAX_NAME), dictionary(message.get("time"))
        completed, error = bool(integer(time.get("completed"))), dictionary(message.get("error")) or None
        self.answer = Answer(name, completed, error)
        self.retry = {} if completed else dictionary(message.get("retry"))
        own = {"messageID": name, "sessionID": self._session}
        yield Line("step_start", {"part": {"id": f"{name}.start", **own, "type": "step-start"}})
        whole = completed or bool(integer(time.get("streamed")))
        content = message.get("content")
        yield from self._content(content if isinstance(content, list) else [], own, whole=whole)
        if completed and (error is None or message.get("tokens") is not None):
            part = {"id": f"{name}.finish", **own, "type": "step-finish"}
            part["reason"] = text(message.get("finish"), MAX_NAME)
            yield Line("step_finish", {"part": {**part, **_costs(message)}})

    def _content(self, content: list[Any], own: dict[str, str], *, whole: bool) -> Iterator[Line]:
        """The lines of texts and tools, in order: what follows a text that is not whole waits."""
        seen: Counter[str] = Counter()
        for each in map(dictionary, content):
            kind = text(each.get("type"), MAX_NAME)
            if kind == "tool":
                yield from self._tool(each, own)
            elif kind in ("text", "reasoning"):
                if not whole:
                    return
                number = seen[kind]
                seen[kind] += 1
                if isinstance(each.get("text"), str) and each["text"]:
                    part = {"id": text_id(own["messageID"], kind, number), **own, "type": kind, "text": each["text"]}
                    yield Line(kind, {"part": {**part, "time": _times(each)}})

    def _tool(self, tool: dict[str, Any], own: dict[str, str]) -> Iterator[Line]:
        state, call = dictionary(tool.get("state")), text(tool.get("id"), MAX_NAME)
        status, given = state.get("status"), dictionary(state.get("input"))
        title = next((prose(given[name], MAX_TITLE) for name in _TITLES if isinstance(given.get(name), str)), "")
        part = {"id": f"{own['messageID']}.{call}", **own, "type": "tool", "callID": call}
        part["tool"] = text(tool.get("name"), MAX_NAME)
        metadata = dictionary(state.get("metadata"))
        child, command = text(metadata.get("sessionID"), MAX_NAME), text(metadata.get("shellID"), MAX_NAME)
        if child and len(self.children) < MAX_TOOLS:
            self.children[child] = None
        left = child or command
        if status in _ENDED and metadata.get("status") == "running" and left and len(self._background) < MAX_TOOLS:
            self._background[left] = None
        shown: dict[str, Any] = {"status": status, "input": given, "title": title, "time": _times(tool)}
        if status in ("running", *_ENDED):  # one that has ended since the last reading has begun, too
            yield Line("tool_running", {"part": begun(part, shown, call)})
        if status == "completed":
            yield Line(
                "tool_use", {"part": {**part, "state": {**shown, "output": _output(state), "metadata": metadata}}}
            )
        elif status == "error":
            error = text(dictionary(state.get("error")).get("message"), MAX_MESSAGE)
            yield Line("tool_use", {"part": {**part, "state": {**shown, "error": error, "metadata": metadata}}})


def is_settled(message: dict[str, Any]) -> bool:
    """Whether a message makes no more lines than now."""
    if message.get("type") == "compaction":
        return message.get("status") in ("completed", "failed")
    return message.get("type") != "assistant" or bool(integer(dictionary(message.get("time")).get("completed")))


def spent(session: str, message: dict[str, Any]) -> Iterator[Line]:
    """The line of what a message of the model has cost that is no step of the turn's own: a sub-agent's, a summary."""
    if message.get("tokens") is not None and is_settled(message):
        part = {"id": f"{text(message.get('id'), MAX_NAME)}.finish", "type": "step-finish"}
        part["reason"] = text(message.get("finish"), MAX_NAME)
        yield Line(STEP, {"child": session, "part": {**part, **_costs(message)}})


def text_id(message: str, kind: str, number: int) -> str:
    """The identifier of a text or reasoning; `number` counts those of its kind in the message, from 0."""
    return f"{message}.{kind}.{number}"


def error_of(error: dict[str, Any]) -> dict[str, Any]:
    """An error as OpenCode 1 writes it."""
    kind, message = text(error.get("type"), MAX_NAME), text(error.get("message"), MAX_MESSAGE)
    status = integer(error.get("status"))
    if kind == "provider.no-route":
        return {"name": "UnknownError", "data": {"message": f"Model not found: {message.rpartition(': ')[2]}."}}
    name = _NAMES.get(kind) or ("APIError" if kind.startswith("provider.") else "UnknownError")
    code = status if status >= 400 else _STATUS.get(kind)
    data: dict[str, Any] = {"message": message or kind, "type": kind}
    return {"name": name, "data": {**data, **({"statusCode": code} if code and name == "APIError" else {})}}


def _costs(message: dict[str, Any]) -> dict[str, Any]:
    return {"cost": paid(message.get("cost")), "tokens": used(message.get("tokens"))}


def _times(value: dict[str, Any]) -> dict[str, int]:
    time = dictionary(value.get("time"))
    return {"start": integer(time.get("ran") or time.get("created")), "end": integer(time.get("completed"))}


def _output(state: dict[str, Any]) -> str:
    content = state.get("content")
    pieces = map(dictionary, content if isinstance(content, list) else ())
    return "\n".join(each["text"] for each in pieces if isinstance(each.get("text"), str))
