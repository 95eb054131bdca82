"""A turn of OpenCode 1, whose server has a journal: lines are written in the order of its `seq`, and a gap in it, a cut
or a quiet time leads to it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from agent_runs.pod.sidecar.drivers.folder import End
from agent_runs.pod.sidecar.drivers.growth import MAX_TEXT as MAX_GROWTH
from agent_runs.pod.sidecar.drivers.growth import Growth
from agent_runs.pod.sidecar.drivers.lines import MAX_NAME, dictionary, integer, text
from agent_runs.pod.sidecar.drivers.opencode_server.served import MAX_TEXT, ServedTurn, identifier
from agent_runs.pod.sidecar.drivers.opencode_server.turn import (
    LIVE,
    STEP,
    Answer,
    State,
    Turn,
    TurnRecord,
    UnknownSession,
    error_key,
)
from agent_runs.pod.sidecar.drivers.opencode_server.v1.children import MAX_CHILDREN, Children
from agent_runs.pod.sidecar.drivers.opencode_server.v1.journal import Journal
from agent_runs.pod.sidecar.drivers.opencode_server.v1.server import Server
from agent_runs.pod.sidecar.drivers.opencode_server.wire import Wire
from agent_runs.pod.sidecar.drivers.questions import Asked, field, permission, question

FAR_PARENTS = 8


class JournalRecord(TurnRecord):
    """`children` are sub-agents' sessions, each with the `seq` of its newest line."""

    def __init__(self, folder: str, session: str) -> None:
        """Raises OSError if it cannot be read and written."""
        self.children: dict[str, int] = {}
        super().__init__(folder, session, LIVE)

    def note(self, kind: str, line: bytes) -> None:
        super().note(kind, line)
        if kind == STEP and len(self.children) < MAX_CHILDREN:
            step = json.loads(line)
            self.children[text(step.get("child"), MAX_NAME)] = integer(step.get("seq"))


class TurnOfJournal(ServedTurn):
    """See `ServedTurn`."""

    events = "/global/event"
    health = "/global/health"

    def __init__(self, folder: str, turn: Turn, state: State, wire: Wire) -> None:
        super().__init__(folder, turn, state, wire)
        self._server = Server(wire, state.directory or turn.directory)
        self._journal: Journal
        self._live_errors: Counter[tuple[str, str]] = Counter()
        self._journal_errors: Counter[tuple[str, str]] = Counter()
        self._failed_message = ""
        self._children: Children

    @property
    def _has_prompt(self) -> bool:
        return self._journal.has_prompt

    @property
    def _taken(self) -> AbstractSet[str]:
        return self._journal.taken

    @property
    def _answer(self) -> Answer | None:
        return self._journal.answer

    def _open_record(self) -> TurnRecord:
        state = self._state
        record = JournalRecord(self._folder, state.session)
        self._children = Children(state.session, state.message, record.children)
        self._skip_others()
        self._live_errors = record.errors.copy()
        self._journal = Journal(state.session, state.message, state.start, self._turn.read_to)
        return record

    def _session(self) -> dict[str, str]:
        turn, server = self._turn, self._server
        if turn.session and turn.session_version:
            raise UnknownSession(f"OpenCode {turn.session_version} has continued it, and this is OpenCode 1")
        if turn.session:
            session = turn.session
            server.directory = server.directory_of(session)
            newest = server.newest_message(session)
        else:
            session, newest = server.create(turn.title, turn.without), ""
        now = int(time.time() * 1000)
        message, part = identifier("msg", now, newest), identifier("prt", now)
        return {"session": session, "directory": server.directory, "message": message, "part": part}

    def _skip_others(self) -> None:
        """See to it that the journal is asked for this session's events, and for those of its sub-agents.

        Sessions of other directories are not listed; the first read of the journal has them. After a restart nobody
        knows whether a sub-agent's session is of this turn, so all of it is read.
        """
        parents = self._server.sessions()
        self._children.add_older(parents)
        if self._state.sent:
            self._children.reconsider_older()
        for other in parents:
            if other != self._state.session and other not in self._children:
                self._server.skip(other)

    def _prompt(self, prompt: str) -> dict[str, Any]:
        return self._message(self._state.message, self._state.part, prompt)

    def _tell(self, message: str, words: str) -> tuple[int, Any]:
        return self._post(self._message(message, message.replace("msg", "prt", 1), words))

    def _message(self, message: str, part: str, words: str) -> dict[str, Any]:
        turn = self._turn
        provider, _, model = turn.model.partition("/")
        content: dict[str, Any] = {
            "messageID": message,
            "model": {"providerID": provider, "modelID": model},
            "parts": [{"id": part, "type": "text", "text": words}],
        }
        if turn.variant:
            content["variant"] = turn.variant
        if turn.agent and self._server.has_agent(turn.agent):  # as `run`, which takes the default agent otherwise
            content["agent"] = turn.agent
        return content

    def _post(self, prompt: dict[str, Any]) -> tuple[int, Any]:
        return self._server.prompt(self._state.session, prompt)

    def _has_model(self, provider: str, model: str) -> bool:
        return self._server.has_model(provider, model)

    def _read_status(self) -> dict[str, Any]:
        return self._server.status(self._state.session)

    def _stop(self) -> None:
        self._server.abort(self._state.session)

    def _ended(self) -> End:
        return super()._ended()._replace(seq=self._journal.seq)

    def _tend(self, now: float) -> None:
        """Events are lines at once."""

    def _lose_events(self) -> None:
        self._children.reconsider_older()

    def _live(self, payload: dict[str, Any]) -> None:
        kind = payload.get("type")
        if kind == "sync":
            self._live_event(dictionary(payload.get("syncEvent")))
            return
        properties = dictionary(payload.get("properties"))
        session = text(properties.get("sessionID"), MAX_TEXT)
        if kind == "session.created":
            info = dictionary(properties.get("info"))
            self._children.add_session(text(info.get("id"), MAX_TEXT), text(info.get("parentID"), MAX_TEXT))
        elif kind in ("permission.asked", "question.asked"):
            if self._is_ours(session):
                self._ask(_asked(str(kind).partition(".")[0], properties))
        elif session != self._state.session:
            return
        elif kind == "session.error":
            self._live_error(dictionary(properties.get("error")))
        elif kind == "session.status":
            self._take_status(dictionary(properties.get("status")))
            self._look_now = self._look_now or self._was_idle
        else:
            grow(self._growth, kind, properties, time.monotonic())

    def _live_event(self, event: dict[str, Any]) -> None:
        session, seq = text(event.get("aggregateID"), MAX_TEXT), integer(event.get("seq"))
        if session != self._state.session:
            self._live_event_of_child(session, seq, event)
        elif self._journal.start is None or seq > self._journal.seq + 1:
            self._read()
        elif seq == self._journal.seq + 1:
            self._take(seq, text(event.get("type"), MAX_TEXT), event.get("data"))

    def _live_event_of_child(self, session: str, seq: int, event: dict[str, Any]) -> None:
        if session in self._children and self._children.misses(session, seq):
            self._read()
        else:
            self._take_of_child(session, seq, text(event.get("type"), MAX_TEXT), event.get("data"))

    def _read(self) -> None:
        """Take what the journal has and we have not."""
        session, journal = self._state.session, self._journal
        for owner, seq, kind, data in self._server.history({**self._children.after, session: journal.seq}):
            if owner != session:
                self._take_of_child(owner, seq, kind, data)
                if owner not in self._children:
                    self._server.skip(owner)
            elif seq > journal.seq:
                self._take(seq, kind, data)

    def _take_of_child(self, session: str, seq: int, kind: str, data: object) -> None:
        for line in self._children.add(session, seq, kind, data):
            self._record.write(line)

    def _take(self, seq: int, kind: str, data: object) -> None:
        journal, self._taken_at = self._journal, time.monotonic()
        for line in journal.add(seq, kind, data):
            self._record.write(line)
            if line.type in ("text", "reasoning"):
                self._growth.end(text(line.content["part"].get("id"), MAX_NAME))
        if journal.start is not None and self._state.start is None:
            self._note(start=journal.start)
        answer = journal.answer
        if answer is not None and answer.error is not None and answer.message != self._failed_message:
            self._failed_message = answer.message
            self._count_error(self._journal_errors, answer.error)

    # errors

    def _live_error(self, error: dict[str, Any]) -> None:
        """An error while the session works; of those that come later, as for a bad model, the first has said it."""
        if error and not (self._was_idle and self._record.errors):
            self._count_error(self._live_errors, error)

    def _count_error(self, counted: Counter[tuple[str, str]], error: dict[str, Any]) -> None:
        """Write it unless the other of the two sources has already brought it."""
        key = error_key(error)
        counted[key] += 1
        if counted[key] > self._record.errors[key]:
            self._error(error)

    def _requests(self) -> Iterable[Asked]:
        for kind in ("permission", "question"):
            for each in self._server.asked(kind):
                if self._is_ours(text(each.get("sessionID"), MAX_TEXT)):
                    yield _asked(kind, each)

    def _reply(self, asked: Asked, answers: list[list[str]] | None, by: str) -> int:
        return self._server.reply(asked, answers, f"{by} has rejected this. Go on without it." if by else "")

    def _is_ours(self, session: str) -> bool:
        """Whether it is this session or one of its sub-agents'."""
        asked = session
        for _ in range(FAR_PARENTS):
            if asked == self._state.session or asked in self._children:
                return True
            if not asked or not (asked := self._server.parent_of(asked)):
                return False
        return False


def _asked(kind: str, request: dict[str, Any]) -> Asked:
    """A request as the server has it, of `/permission` or `/question`."""
    session = text(request.get("sessionID"), MAX_TEXT)
    if kind == "permission":
        name = text(request.get("permission"), MAX_TEXT)
        return permission(request.get("id"), session, name, request.get("patterns"), ("once", "always"))
    raw = request.get("questions")
    fields = [
        field(
            text(each.get("question"), MAX_TEXT) or text(each.get("header"), MAX_TEXT),
            each.get("options"),
            "label",
            many=each.get("multiple") is True,
            own_words=each.get("custom") is not False,
        )
        for each in map(dictionary, raw if isinstance(raw, list) else ())
    ]
    return question(request.get("id"), session, kind, fields)


def grow(growth: Growth, kind: object, properties: dict[str, Any], now: float) -> None:
    """Take note of a text that grows: a live event of its session shows that, and nothing else does."""
    part = dictionary(properties.get("part"))
    name = text(part.get("id"), MAX_NAME)
    if kind == "message.part.delta" and properties.get("field") == "text":
        growth.add(text(properties.get("partID"), MAX_NAME), text(properties.get("delta"), MAX_GROWTH))
    elif kind == "message.part.updated" and dictionary(part.get("time")).get("end"):
        growth.end(name)
    elif kind == "message.part.updated" and part.get("type") in ("text", "reasoning") and part.get("text") == "":
        growth.begin(name, text(part.get("messageID"), MAX_NAME), part["type"], now)
