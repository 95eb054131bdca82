"""One turn, from the prompt to its end.

Live events are for speed, the journal is for truth: lines are written in the order of the journal's `seq`, and a gap in
it, a cut or a quiet time leads to the journal. What a killed driver had written is in its file; the next one goes on
behind that. The prompt has an identifier of our own, so sending it twice is the same as sending it once.

The turn is over when the server reports the session as idle, the journal is read up to then, and the last message of
the model is complete or has failed. No single event decides it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import string
import time
from collections import Counter
from typing import Any

from agent_runs.pod.sidecar.drivers.folder import STATE, End, aborted, drive_to_end, read_prompt, write_json
from agent_runs.pod.sidecar.drivers.growth import Growth
from agent_runs.pod.sidecar.drivers.lines import MAX_NAME, UNKNOWN_SESSION, Line, dictionary, integer, prose, text
from agent_runs.pod.sidecar.drivers.opencode_server.children import Children
from agent_runs.pod.sidecar.drivers.opencode_server.journal import Journal
from agent_runs.pod.sidecar.drivers.opencode_server.server import Server, UnknownSession, Unusable, await_port, check
from agent_runs.pod.sidecar.drivers.opencode_server.stream import SILENCE_SECONDS, Stream, grow
from agent_runs.pod.sidecar.drivers.opencode_server.turn import MAX_ERRORS, State, Turn, TurnRecord, error_key
from agent_runs.pod.sidecar.drivers.opencode_server.wire import ANSWER_SECONDS, NoAnswer, Wire
from agent_runs.pod.sidecar.drivers.waiting import Aborted, Waiter

QUIET_SECONDS = 5.0
"""Without a live event, until journal, status and requests are looked at."""
GROWTH_SECONDS = 0.5
UNFINISHED_SECONDS, UNANSWERED_SECONDS, UNTAKEN_SECONDS = 5.0, 10.0, 60.0
"""For which a session must be idle, and its journal still, before that is the end: with an answer that is not complete,
with none, and without even the prompt. A server on a busy machine takes its time between them."""
ABORT_SECONDS = 10.0
"""For the end of an aborted turn and of its tools to be reported, which takes a busy machine some seconds."""
LOST_SECONDS = 2.0
"""For which nobody listens at the server's port before it is lost."""
RETRY_SECONDS, START_SECONDS = 0.1, 1.0
FAR_PARENTS = 8
MAX_TEXT = 500


def drive(folder: str) -> None:
    """Do the turn in `folder`, or the rest of it. Returns when there is an end. Never raises.

    SIGTERM to this process aborts the turn.
    """
    drive_to_end(folder, lambda: _Drive(folder).run(), lambda error: _failed(folder, error))


def _failed(folder: str, error: Exception) -> End:
    """The end after a fault of our own or a full disk. What cannot be read may have been sent."""
    detail = f"{type(error).__name__}: {error}"
    try:
        state = State.read(folder)
    except (OSError, ValueError, TypeError):
        return End(1, "driver_failed", detail)
    return End(1, "driver_failed" if state.sent else "server_not_started", detail, state.session or None)


class _Drive:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._waiter = Waiter()
        self._state = State.read(folder)
        self._turn = Turn.read(folder)
        self._record: TurnRecord
        self._server: Server
        self._stream: Stream | None = None
        self._journal: Journal
        self._growth = Growth()
        self._live_errors: Counter[tuple[str, str]] = Counter()
        self._journal_errors: Counter[tuple[str, str]] = Counter()
        self._failed_message = ""
        self._children: Children
        self._status: tuple[Any, ...] = ()
        self._idle_since: float | None = None
        self._heard_at = self._looked_at = time.monotonic()
        self._look_now = self._state.sent
        self._was_idle = False
        self._taken_at = self._worked_at = time.monotonic()

    # from the beginning to the end

    def run(self) -> End:
        try:
            end = self._run()
        except Aborted:
            return aborted(self._state.session, sent=self._state.sent)
        for line in self._growth.unfinished():
            self._record.write(line)
        return end

    def _run(self) -> End:
        try:
            self._start()
        except UnknownSession:
            return self._unknown_session()
        except (Unusable, NoAnswer) as error:
            return self._not_answered(error)
        try:
            refused = None if self._state.sent and self._is_taken() else self._send()
            return refused or self._follow()
        except Aborted:
            return self._abort()
        except NoAnswer as error:
            return self._not_answered(error)

    def _start(self) -> None:
        """Come to a session that is ready for the prompt, and to a stream of its events."""
        turn = self._turn
        port = await_port(turn.server, turn.start_timeout, self._waiter)
        wire = Wire(port, turn.password, self._waiter)
        check(wire)
        self._server = Server(wire, self._state.directory or turn.directory)
        if not self._state.session:
            self._note(**self._session())
        state = self._state
        self._record = TurnRecord(self._folder, state.session)
        self._children = Children(state.session, state.message, self._record.children)
        self._skip_others()
        self._live_errors = self._record.errors.copy()
        self._journal = Journal(state.session, state.message, state.start, self._turn.read_to)
        self._reconnect()

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

    def _session(self) -> dict[str, str]:
        turn, server = self._turn, self._server
        if turn.session:
            session = turn.session
            server.directory = server.directory_of(session)
            newest = server.newest_message(session)
        else:
            session, newest = server.create(turn.title), ""
        now = int(time.time() * 1000)
        message, part = identifier("msg", now, newest), identifier("prt", now)
        return {"session": session, "directory": server.directory, "message": message, "part": part}

    def _unknown_session(self) -> End:
        """Write what makes the verdict: `opencode run` reports it on stderr only."""
        session = self._turn.session or ""
        record = TurnRecord(self._folder, session)
        if not record.errors:
            record.write(Line("error", {"error": UNKNOWN_SESSION}))
        return End(1, None, "Session not found", session)

    def _not_answered(self, error: Unusable | NoAnswer) -> End:
        if self._state.sent:
            return End(1, "server_lost", str(error), self._state.session)
        reason = error.reason if isinstance(error, Unusable) else "server_not_answering"
        return End(1, reason, str(error), self._state.session or None)

    def _note(self, **changes: Any) -> None:
        self._state = self._state._replace(**changes)
        write_json(self._folder, STATE, self._state._asdict())

    # the prompt

    def _is_taken(self) -> bool:
        """Whether a prompt that may have been sent arrived."""
        self._read_journal()
        return self._journal.has_prompt

    def _send(self) -> End | None:
        """Send the prompt; an end if it was refused. Without an answer, the session shows whether it arrived."""
        content = self._content()
        self._note(sent=True)
        try:
            status, answer = self._server.prompt(self._state.session, content)
        except NoAnswer:
            return None
        if status == 204:
            return None
        if status == 404:
            return self._unknown_session()
        if 400 <= status < 500:
            self._error(dictionary(answer) or {"name": "UnknownError", "data": {"message": f"status {status}"}})
            return End(1, None, f"the prompt was refused: status {status}", self._state.session)
        raise NoAnswer(f"the prompt was answered with the status {status}")

    def _content(self) -> dict[str, Any]:
        turn, state = self._turn, self._state
        provider, _, model = turn.model.partition("/")
        content: dict[str, Any] = {
            "messageID": state.message,
            "model": {"providerID": provider, "modelID": model},
            "parts": [{"id": state.part, "type": "text", "text": read_prompt(self._folder)}],
        }
        if turn.variant:
            content["variant"] = turn.variant
        if turn.agent and self._server.has_agent(turn.agent):  # as `run`, which takes the default agent otherwise
            content["agent"] = turn.agent
        return content

    # following the turn

    def _follow(self) -> End:
        self._worked_at = time.monotonic()
        end = None
        while end is None:
            self._listen()
            now = time.monotonic()
            for line in self._growth.due(now):
                self._record.write(line)
            if self._look_now or now - self._looked_at >= self._look_seconds():
                end = self._look(now)
        return end

    def _look_seconds(self) -> float:
        """How soon to look again: often while an end seems near."""
        if not self._journal.has_prompt:
            return START_SECONDS
        return QUIET_SECONDS if self._idle_since is None else RETRY_SECONDS

    def _listen(self) -> None:
        """Take the live events that come, for a short time."""
        if self._stream is None:
            self._reconnect()
            return
        try:
            payloads = self._stream.read(min(GROWTH_SECONDS, self._look_seconds()))
            for payload in payloads:
                self._live(payload)
        except NoAnswer:
            self._disconnect()
            return
        now = time.monotonic()
        if payloads:
            self._heard_at = now
        elif now - self._heard_at > SILENCE_SECONDS:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = None
        self._children.reconsider_older()
        self._growth.stop()
        self._look_now = True

    def _reconnect(self) -> None:
        """Listen again; raises NoAnswer when the server is lost."""
        began = time.monotonic()
        while True:
            try:
                self._stream = Stream(self._server.wire)
            except NoAnswer as error:
                if time.monotonic() - began > (LOST_SECONDS if error.refused else ANSWER_SECONDS):
                    raise
                self._waiter.ready(None, 0, RETRY_SECONDS)
            else:
                self._heard_at = time.monotonic()
                return

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
            self._reject(str(kind).partition(".")[0], properties)
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
            self._read_journal()
        elif seq == self._journal.seq + 1:
            self._take(seq, text(event.get("type"), MAX_TEXT), event.get("data"))

    def _live_event_of_child(self, session: str, seq: int, event: dict[str, Any]) -> None:
        if session in self._children and self._children.misses(session, seq):
            self._read_journal()
        else:
            self._take_of_child(session, seq, text(event.get("type"), MAX_TEXT), event.get("data"))

    def _read_journal(self) -> None:
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

    def _error(self, error: dict[str, Any]) -> None:
        if sum(self._record.errors.values()) < MAX_ERRORS:
            self._record.write(Line("error", {"error": error}))

    # what waits for an answer

    def _is_ours(self, session: str) -> bool:
        """Whether it is this session or one of its sub-agents'."""
        asked = session
        for _ in range(FAR_PARENTS):
            if asked == self._state.session or asked in self._children:
                return True
            if not asked or not (asked := self._server.parent_of(asked)):
                return False
        return False

    def _reject(self, kind: str, asked: dict[str, Any]) -> None:
        request = text(asked.get("id"), MAX_TEXT)
        if not request or not self._is_ours(text(asked.get("sessionID"), MAX_TEXT)):
            return
        if kind == "permission" and request not in self._record.rejected:
            patterns = asked.get("patterns")
            shown = ", ".join(prose(each, MAX_TEXT) for each in patterns[:8]) if isinstance(patterns, list) else ""
            content = {"requestID": request, "permission": text(asked.get("permission"), MAX_TEXT)}
            self._record.write(Line("permission_rejected", {**content, "patterns": prose(shown, MAX_TEXT)}))
        self._server.reject(kind, request)

    # the end

    def _take_status(self, status: dict[str, Any]) -> None:
        kind = text(status.get("type"), MAX_TEXT)
        self._was_idle = kind == "idle"
        content: dict[str, Any] = {"status": kind}
        if kind == "retry":
            content["attempt"] = integer(status.get("attempt"))
            content["message"] = prose(status.get("message"), MAX_TEXT)
            content["next"] = integer(status.get("next"))
        shown = tuple(content.values())
        if shown != self._status:
            self._status = shown
            self._record.write(Line("session_status", content))

    def _look(self, now: float) -> End | None:
        """Ask the server what is true, and return the end if there is one."""
        self._looked_at, self._look_now = now, False
        try:
            status = self._server.status(self._state.session)
            self._read_journal()
            if status.get("type") != "idle":
                for kind in ("permission", "question"):
                    for asked in self._server.asked(kind):
                        self._reject(kind, asked)
        except NoAnswer:
            if now - self._worked_at > ANSWER_SECONDS:
                raise
            self._disconnect()
            self._waiter.ready(None, 0, RETRY_SECONDS)
            return None
        self._worked_at = now
        if status.get("type") == "idle":
            return self._end_of_idle(now)
        self._idle_since = None
        self._take_status(status)
        return None

    def _end_of_idle(self, now: float) -> End | None:
        if self._idle_since is None:
            self._idle_since = now
        idle, answer = now - max(self._idle_since, self._taken_at), self._journal.answer
        if answer is not None and (answer.completed or answer.error is not None):
            return self._ended()
        if self._record.errors and answer is None and idle > RETRY_SECONDS:  # a message would have come by now
            return self._ended()
        if not self._journal.has_prompt:
            return self._lost("the prompt is not in the session") if idle > UNTAKEN_SECONDS else None
        if answer is not None and idle > UNFINISHED_SECONDS:
            return self._lost("the session is idle, but its last message is not complete")
        return self._without_answer() if answer is None and idle > UNANSWERED_SECONDS else None

    def _ended(self) -> End:
        self._take_status({"type": "idle"})
        failed = sum(self._record.errors.values())
        return End(1 if failed else 0, None, "", self._state.session, self._journal.seq)

    def _lost(self, detail: str) -> End:
        return End(1, "server_lost", detail, self._state.session)

    def _without_answer(self) -> End:
        """The prompt is there, and nothing else: OpenCode reports a bad model by a live event only."""
        provider, _, model = self._turn.model.partition("/")
        known = self._server.has_model(provider, model)
        message = "the turn ended without an answer" if known else f"Model not found: {self._turn.model}."
        self._error({"name": "UnknownError", "data": {"message": message}})
        return self._ended()

    def _abort(self) -> End:
        """Abort the turn and take what it still writes; an answer that was complete by then counts."""
        self._waiter.ignores_stop = True
        self._server.wire.seconds = ABORT_SECONDS
        end = time.monotonic() + ABORT_SECONDS
        found: End | None = None
        with contextlib.suppress(NoAnswer):
            while found is None and time.monotonic() < end:
                self._server.abort(self._state.session)
                found = self._look(time.monotonic())
                if found is None:
                    self._waiter.ready(None, 0, RETRY_SECONDS)
        if found is not None and found.reason is None and found.code == 0:
            return found
        return aborted(self._state.session, sent=True)


_LETTERS = string.digits + string.ascii_letters
_MESSAGE = re.compile(r"msg_([0-9a-f]{12})[0-9A-Za-z]{14}")
_BITS = 48


def identifier(prefix: str, milliseconds: int, after: str = "") -> str:
    """Return a new one that sorts behind `after`, a message's, even if the clock is late."""
    time = (milliseconds << 12) % (1 << _BITS)
    newest = _MESSAGE.fullmatch(after)
    if newest is not None:
        time = min(max(time, int(newest[1], 16) + 1), (1 << _BITS) - 1)
    return f"{prefix}_{time:012x}{''.join(secrets.choice(_LETTERS) for _ in range(14))}"
