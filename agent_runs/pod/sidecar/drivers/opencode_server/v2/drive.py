"""A turn of OpenCode 2, whose server has no journal: lines are made of the session's messages.

They are read when a live event shows that something has changed, after a cut and in quiet times. A live event itself
makes a line only of what no message has: the growth of a text, a request that waits for an answer, and why a turn
failed before its first step.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from agent_runs.pod.sidecar.drivers.folder import End
from agent_runs.pod.sidecar.drivers.growth import MAX_TEXT as MAX_GROWTH
from agent_runs.pod.sidecar.drivers.lines import LEFT_OUT_TYPE, MAX_NAME, Line, dictionary, integer, text
from agent_runs.pod.sidecar.drivers.opencode_server.address import Unusable
from agent_runs.pod.sidecar.drivers.opencode_server.served import (
    MAX_TEXT,
    QUIET_SECONDS,
    UNFINISHED_SECONDS,
    ServedTurn,
    identifier,
)
from agent_runs.pod.sidecar.drivers.opencode_server.turn import LIVE, STEP, Answer, State, Turn, TurnRecord
from agent_runs.pod.sidecar.drivers.opencode_server.v2.messages import Messages, error_of, is_settled, spent, text_id
from agent_runs.pod.sidecar.drivers.opencode_server.v2.server import NOBODY, Server
from agent_runs.pod.sidecar.drivers.opencode_server.wire import NoAnswer, Wire
from agent_runs.pod.sidecar.drivers.questions import Asked, field, permission, question

READ_SECONDS = 0.2
"""Between two readings of the messages: many events come together."""
MAX_CHILDREN = 1024
_MADE = frozenset({"step_start", "text", "reasoning", "tool_running", "tool_use", "step_finish", STEP})


class MessageRecord(TurnRecord):
    """The lines that are written are known by the identifiers of their parts."""

    def __init__(self, folder: str, session: str) -> None:
        """Raises OSError if it cannot be read and written."""
        self._made: set[tuple[str, str]] = set()
        super().__init__(folder, session, LIVE | _MADE | {LEFT_OUT_TYPE})

    def has(self, line: Line) -> bool:
        return self.has_part(line.type, self._part(line.content))

    def has_part(self, kind: str, part: str) -> bool:
        return (kind, part) in self._made

    def note(self, kind: str, line: bytes) -> None:
        super().note(kind, line)
        if kind in _MADE or kind == LEFT_OUT_TYPE:
            content = json.loads(line)
            self._made.add((content.get("leftOut", kind), self._part(content)))

    @staticmethod
    def _part(content: dict[str, Any]) -> str:
        return text(dictionary(content.get("part")).get("id"), 2 * MAX_NAME + 1)


class TurnOfMessages(ServedTurn):
    """See `ServedTurn`."""

    events = "/api/event"
    health = "/api/info"
    unusable = "agent_not_started"

    def __init__(self, folder: str, turn: Turn, state: State, wire: Wire) -> None:
        super().__init__(folder, turn, state, wire)
        self._written: MessageRecord
        self._server = Server(wire)
        self._messages: Messages
        self._settled = ""
        self._children: dict[str, str] = {}  # the newest message of each that makes no more lines
        self._changed: dict[str, None] = {}  # sessions of which something has changed
        self._read_at = 0.0
        self._failure: dict[str, Any] = {}
        self._has_lost_events = state.sent

    @property
    def _has_prompt(self) -> bool:
        return self._messages.has_prompt

    @property
    def _taken(self) -> AbstractSet[str]:
        return self._messages.taken

    @property
    def _answer(self) -> Answer | None:
        return self._messages.answer

    # the session and the prompt

    def _session(self) -> dict[str, Any]:
        turn, server = self._turn, self._server
        directory = server.directory_of(turn.session) if turn.session else turn.directory
        if turn.config and not server.has_configuration(directory, turn.config):
            raise Unusable("server_unsupported", "OpenCode did not take the configuration of the run")
        agents = server.agents(directory)
        agent = turn.agent if turn.agent in agents else None  # as OpenCode 1, which takes the default agent otherwise
        provider, _, name = turn.model.partition("/")
        model = {"providerID": provider, "id": name, **({"variant": turn.variant} if turn.variant else {})}
        if turn.session:
            session, newest = turn.session, server.newest_message(turn.session)
            server.choose(session, model, agent or next(iter(agents), "build"))
        else:
            session, newest = server.create(directory, turn.title, model, agent, turn.without), ""
        message = identifier("msg", int(time.time() * 1000), newest)
        return {"session": session, "directory": directory, "message": message, "before": newest}

    def _open_record(self) -> MessageRecord:
        state = self._state
        record = self._written = MessageRecord(self._folder, state.session)
        self._messages, self._settled = Messages(state.session, state.message), state.before
        return record

    def _is_taken(self) -> bool:
        return super()._is_taken() or self._server.has_in_inbox(self._state.session, self._state.message)

    def _prompt(self, prompt: str) -> dict[str, Any]:
        return {"id": self._state.message, "text": prompt, "delivery": "queue"}

    def _tell(self, message: str, words: str) -> tuple[int, Any]:
        return self._server.prompt(self._state.session, {"id": message, "text": words, "delivery": "steer"})

    def _post(self, prompt: dict[str, Any]) -> tuple[int, Any]:
        return self._server.prompt(self._state.session, prompt)

    # live events

    def _live(self, payload: dict[str, Any]) -> None:
        kind, data = text(payload.get("type"), MAX_NAME), dictionary(payload.get("data"))
        data = dictionary(data.get("form")) or data
        session = text(data.get("sessionID"), MAX_TEXT)
        if kind == "session.created" and self._is_ours(text(data.get("parentID"), MAX_TEXT)):
            self._add_child(session)
        if not self._is_ours(session):
            return
        if kind in ("permission.asked", "form.created"):
            self._ask(_asked(session, kind.partition(".")[0], data))
            return
        if kind not in ("session.text.delta", "session.reasoning.delta"):
            self._changed[session] = None
        if session == self._state.session:
            self._grow(kind, data)
            if kind.startswith("session.execution."):
                self._failure = dictionary(data.get("error"))
                self._look_now = self._look_now or kind != "session.execution.started"

    def _grow(self, kind: str, data: dict[str, Any]) -> None:
        what, _, change = kind.removeprefix("session.").partition(".")
        if what not in ("text", "reasoning"):
            return
        message = text(data.get("assistantMessageID"), MAX_NAME)
        part = text_id(message, what, integer(data.get("ordinal")))
        if self._written.has_part(what, part):
            return
        if change == "started":
            self._growth.begin(part, message, what, time.monotonic())
        elif change == "delta":
            self._growth.add(part, text(data.get("delta"), MAX_GROWTH))

    # messages

    def _tend(self, now: float) -> None:
        if self._changed and now - self._read_at >= READ_SECONDS:
            try:
                self._read()
            except NoAnswer:
                self._disconnect()

    def _look_seconds(self) -> float:
        """What runs in the background may take hours, and its end is an event."""
        return QUIET_SECONDS if self._messages.background else super()._look_seconds()

    def _wait_seconds(self) -> float:
        return READ_SECONDS if self._changed else super()._wait_seconds()

    def _lose_events(self) -> None:
        self._has_lost_events = True

    def _read(self) -> None:
        self._read_at = time.monotonic()
        session = self._state.session
        if self._has_lost_events:
            self._find_children()
        changed, self._changed = self._changed, {}
        self._settled = self._take(session, self._settled)
        for child in self._messages.children:
            self._add_child(child)
        for child in [child for child in self._children if child in changed or child in self._changed]:
            self._children[child] = self._take(child, self._children[child])

    def _find_children(self) -> None:
        found = [self._state.session]
        for session in found:
            self._add_child(session)
            if len(found) < MAX_CHILDREN:
                found += [child for child in self._server.children_of(session) if child not in found]
        self._changed.update(dict.fromkeys(self._children))
        self._has_lost_events = False

    def _take(self, session: str, settled: str) -> str:
        """Write what a session has done since that message, and return the newest that makes no more lines."""
        before = True
        for message in self._server.messages(session, settled):
            for line in self._lines(session, message):
                self._write(line)
            before = before and is_settled(message)
            settled = text(message.get("id"), MAX_NAME) if before else settled
        return settled

    def _lines(self, session: str, message: dict[str, Any]) -> Iterable[Line]:
        if session == self._state.session:
            return self._messages.add(message)
        is_new = integer(dictionary(message.get("time")).get("created")) >= self._messages.began
        return spent(session, message) if is_new and message.get("type") == "assistant" else ()

    def _write(self, line: Line) -> None:
        if not self._written.has(line):
            self._taken_at = time.monotonic()
            self._record.write(line)
        if line.type in ("text", "reasoning"):
            self._growth.end(text(line.content["part"].get("id"), 2 * MAX_NAME))

    # sub-agents, and what waits for an answer

    def _is_ours(self, session: str) -> bool:
        return session == self._state.session or session in self._children

    def _add_child(self, session: str) -> None:
        if session and not self._is_ours(session) and len(self._children) < MAX_CHILDREN:
            self._children[session] = ""
            self._changed[session] = None

    def _requests(self) -> Iterable[Asked]:
        for session in (self._state.session, *self._children):
            for kind in ("permission", "form"):
                for each in self._server.asked(session, kind):
                    yield _asked(session, kind, each)

    def _reply(self, asked: Asked, answers: list[list[str]] | None, by: str) -> int:
        return self._server.reply(asked, answers, f"{by} has rejected this. Go on without it." if by else NOBODY)

    # the end

    def _read_status(self) -> dict[str, Any]:
        if not self._server.is_active(self._state.session):
            self._changed.update(dict.fromkeys(self._children))  # their last steps may be new
            return {"type": "idle"}
        retry = self._messages.retry
        if not retry:
            return {"type": "busy"}
        message = text(dictionary(retry.get("error")).get("message"), MAX_TEXT)
        return {"type": "retry", "attempt": retry.get("attempt"), "message": message, "next": retry.get("at")}

    def _end_of_idle(self, idle: float) -> End | None:
        if self._works_in_background(idle):
            return None
        return self._ended() if self._messages.outcome or self._failure else super()._end_of_idle(idle)

    def _works_in_background(self, idle: float) -> bool:
        """Whether the session goes on by itself when something has ended that a tool has left running."""
        left = self._messages.background
        if not left:
            return False
        running = self._server.commands(self._state.directory)
        return idle < UNFINISHED_SECONDS or any(each in running or self._server.is_active(each) for each in left)

    def _ended(self) -> End:
        if self._messages.outcome != "succeeded" and not self._record.errors:
            error = (self._answer.error if self._answer else None) or self._failure
            if error:
                self._error(error_of(error))
            elif self._answer is None:
                return self._without_answer()
        return super()._ended()

    def _has_model(self, provider: str, model: str) -> bool:
        return self._server.has_model(self._state.directory, provider, model)

    def _stop(self) -> None:
        self._server.interrupt(self._state.session, self._state.message)


def _asked(session: str, kind: str, request: dict[str, Any]) -> Asked:
    """A request as the server has it, for a permission or with a form."""
    if kind == "permission":
        name = text(request.get("action"), MAX_TEXT)
        return permission(request.get("id"), session, name, request.get("resources"), ("once", "always"))
    raw = request.get("fields")
    parts = [*map(dictionary, raw if isinstance(raw, list) else ())]
    fields = [
        field(
            text(each.get("description"), MAX_TEXT) or text(each.get("title"), MAX_TEXT),
            each.get("options"),
            "value",
            many=each.get("type") != "string",
            own_words=each.get("custom") is True,
        )
        for each in parts
    ]
    return question(request.get("id"), session, kind, fields, [text(each.get("key"), MAX_NAME) for each in parts])
