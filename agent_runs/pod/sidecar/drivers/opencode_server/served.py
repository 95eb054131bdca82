"""One turn, from the prompt to its end, as far as it is the same for all versions of the server.

Live events are for speed; what the server has stored is for truth, and all lines but a few are made of that. A cut, a
quiet time or the end leads to it. What a killed driver had written is in its file; the next one goes on behind that.
The prompt has an identifier of our own, so sending it twice is the same as sending it once.

The turn is over when the server reports the session as idle, what it has stored is read up to then, and the last
message of the model is complete or has failed. No single event decides it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import string
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from agent_runs.pod.sidecar.drivers.folder import STATE, End, aborted, read_prompt, write_json
from agent_runs.pod.sidecar.drivers.growth import Growth
from agent_runs.pod.sidecar.drivers.inbox import Inbox, Message
from agent_runs.pod.sidecar.drivers.lines import (
    AGENT_VERSION,
    MAX_VERSION,
    Line,
    dictionary,
    integer,
    prose,
    text,
    unknown_session,
    user_message,
)
from agent_runs.pod.sidecar.drivers.opencode_server.address import Unusable, check_version
from agent_runs.pod.sidecar.drivers.opencode_server.stream import SILENCE_SECONDS, Stream
from agent_runs.pod.sidecar.drivers.opencode_server.turn import (
    LIVE,
    MAX_ERRORS,
    Answer,
    State,
    Turn,
    TurnRecord,
    UnknownSession,
)
from agent_runs.pod.sidecar.drivers.opencode_server.wire import ANSWER_SECONDS, NoAnswer, Wire
from agent_runs.pod.sidecar.drivers.questions import ASKED, LIMIT, Asked, answered
from agent_runs.pod.sidecar.drivers.versions import VERSION_UNSUPPORTED, Windows
from agent_runs.pod.sidecar.drivers.waiting import Aborted

QUIET_SECONDS = 5.0
"""Without a live event, until what is stored, the status and requests are looked at."""
GROWTH_SECONDS = 0.5
UNFINISHED_SECONDS, UNANSWERED_SECONDS, UNTAKEN_SECONDS = 5.0, 10.0, 60.0
"""For which a session must be idle, and what is stored still, before that is the end: with an answer that is not
complete, with none, and without even the prompt. A server on a busy machine takes its time between them."""
UNHEARD_SECONDS = 1.0
"""The same before the newest user message is sent again."""
ABORT_SECONDS = 10.0
"""For the end of an aborted turn and of its tools to be reported, which takes a busy machine some seconds."""
LOST_SECONDS = 2.0
"""For which nobody listens at the server's port before it is lost."""
RETRY_SECONDS, START_SECONDS = 0.1, 1.0
MAX_TEXT = 500


def not_answered(error: Unusable | NoAnswer, state: State, reason: str | None = None) -> End:
    """The end of a turn whose server does not answer; `reason`: why, if it has not got the prompt."""
    if state.sent:
        return End(1, "server_lost", str(error), state.session)
    own = error.reason if isinstance(error, Unusable) else "server_not_answering"
    return End(1, own if own == VERSION_UNSUPPORTED else reason or own, str(error), state.session or None)


class ServedTurn(ABC):
    """A turn of a server. Each call may raise NoAnswer or Aborted.

    Attributes:
        events, health: where the server's live events are, and its version.
        unusable: the one name of all reasons for which the server got no prompt.
    """

    events: str
    health: str
    unusable: str | None = None

    def __init__(self, folder: str, turn: Turn, state: State, wire: Wire) -> None:
        self._folder = folder
        self._waiter = wire.waiter
        self._wire = wire
        self._state = state
        self._turn = turn
        self._record: TurnRecord
        self._stream: Stream | None = None
        self._growth = Growth()
        self._inbox = Inbox(folder)
        self._asked: dict[str, Asked] = {}
        self._sent_again = 0
        self._status: tuple[Any, ...] = ()
        self._idle_since: float | None = None
        self._heard_at = self._looked_at = time.monotonic()
        self._look_now = self._state.sent
        self._was_idle = False
        self._taken_at = self._worked_at = time.monotonic()

    # what each version has of its own

    @abstractmethod
    def _session(self) -> dict[str, Any]:
        """Come to a session that is ready for the prompt; what is to be noted of it.

        Raises:
            UnknownSession: the one to resume does not exist.
            Unusable: there is none.
        """

    @abstractmethod
    def _open_record(self) -> TurnRecord:
        """Prepare for the session's events and messages."""

    @property
    @abstractmethod
    def _has_prompt(self) -> bool: ...

    @property
    @abstractmethod
    def _taken(self) -> AbstractSet[str]:
        """Identifiers of the user messages behind the prompt that are in the session."""

    @property
    @abstractmethod
    def _answer(self) -> Answer | None: ...

    @abstractmethod
    def _prompt(self, prompt: str) -> dict[str, Any]:
        """The prompt as the server takes it."""

    @abstractmethod
    def _post(self, prompt: dict[str, Any]) -> tuple[int, Any]:
        """Send it; status and answer."""

    @abstractmethod
    def _read(self) -> None:
        """Take what the server has stored and we have not."""

    @abstractmethod
    def _read_status(self) -> dict[str, Any]:
        """What the session does: an object with `type`, which is `idle` when it does nothing."""

    @abstractmethod
    def _requests(self) -> Iterable[Asked]:
        """What waits for an answer, of this session and its sub-agents."""

    @abstractmethod
    def _reply(self, asked: Asked, answers: list[list[str]] | None, by: str) -> int:
        """Answer a request in the agent's own words, or with a rejection; the status of the answer to that.

        Args:
            by: who rejects it; empty: nobody was there.
        """

    @abstractmethod
    def _live(self, payload: dict[str, Any]) -> None:
        """Take a live event."""

    @abstractmethod
    def _has_model(self, provider: str, model: str) -> bool: ...

    @abstractmethod
    def _tell(self, message: str, words: str) -> tuple[int, Any]:
        """Put a user message into the session, which may be at work; `message` identifies it."""

    @abstractmethod
    def _stop(self) -> None:
        """Ask the server to end the turn."""

    @abstractmethod
    def _tend(self, now: float) -> None:
        """What is to be done between live events."""

    @abstractmethod
    def _lose_events(self) -> None:
        """Live events may be missing."""

    # from the beginning to the end

    @classmethod
    def check(cls, wire: Wire, windows: Windows = ()) -> str:
        """Return the server's version.

        Raises:
            Unusable: it cannot be driven.
        """
        status, answer = wire.call("GET", cls.health)
        return check_version(status, text(dictionary(answer).get("version"), MAX_VERSION), windows)

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
        except UnknownSession as error:
            return self._unknown_session(str(error))
        except (Unusable, NoAnswer) as error:
            return not_answered(error, self._state, self.unusable)
        try:
            refused = None if self._state.sent and self._is_taken() else self._send()
            return refused or self._follow()
        except Aborted:
            return self._abort()
        except NoAnswer as error:
            return not_answered(error, self._state, self.unusable)

    def _start(self) -> None:
        """Come to a session that is ready for the prompt, and to a stream of its events."""
        version = self.check(self._wire, self._turn.versions)
        if not self._state.session:
            self._note(**self._session())
        self._record = self._open_record()
        self._record.write(Line(AGENT_VERSION, {"version": version}))
        self._reconnect()

    def _unknown_session(self, reason: str = "") -> End:
        """Write what makes the verdict: `opencode run` reports it on stderr only."""
        session, error = self._turn.session or "", unknown_session(reason)
        record = TurnRecord(self._folder, session, LIVE)
        if not record.errors:
            record.write(Line("error", {"error": error}))
        return End(1, None, error["data"]["message"], session)

    def _note(self, **changes: Any) -> None:
        self._state = self._state._replace(**changes)
        write_json(self._folder, STATE, self._state._asdict())

    # the prompt

    def _is_taken(self) -> bool:
        """Whether a prompt that may have been sent arrived."""
        self._read()
        return self._has_prompt

    def _send(self) -> End | None:
        """Send the prompt; an end if it was refused. Without an answer, the session shows whether it arrived."""
        prompt = self._prompt(read_prompt(self._folder))
        self._note(sent=True)
        try:
            status, answer = self._post(prompt)
        except NoAnswer:
            return None
        if status in (200, 204):
            return None
        if status == 404:
            return self._unknown_session()
        if 400 <= status < 500:
            error, message = dictionary(answer), text(dictionary(answer).get("message"), MAX_TEXT) or f"status {status}"
            self._error(error if "data" in error else {"name": "UnknownError", "data": {"message": message}})
            return End(1, None, f"the prompt was refused: status {status}", self._state.session)
        raise NoAnswer(f"the prompt was answered with the status {status}")

    # following the turn

    def _follow(self) -> End:
        self._worked_at = time.monotonic()
        end = None
        while end is None:
            self._pass_on()
            self._listen()
            now = time.monotonic()
            for line in self._growth.due(now):
                self._record.write(line)
            if self._look_now or now - self._looked_at >= self._look_seconds():
                end = self._look(now)
            else:
                self._tend(now)
        return end

    def _look_seconds(self) -> float:
        """How soon to look again: often while an end seems near."""
        if not self._has_prompt:
            return START_SECONDS
        return QUIET_SECONDS if self._idle_since is None else RETRY_SECONDS

    def _wait_seconds(self) -> float:
        """How long to wait for a live event."""
        return min(GROWTH_SECONDS, self._look_seconds())

    def _pass_on(self) -> None:
        """Give the server the next user message; it is the same one however often it is sent.

        Not before the prompt is in the session: the server may store them in another order than it gets them.
        """
        message = self._inbox.next() if self._has_prompt else None
        if message is None:
            return
        if message.question:
            try:
                self._give(message)
            except NoAnswer:
                self._disconnect()
            return
        known = self._state.messages
        if len(known) < message.number:
            newest = self._newest_message or self._state.message
            known = (*known, identifier("msg", int(time.time() * 1000), newest))
            self._note(messages=known)
        try:
            status, _ = self._tell(known[-1], message.text)
        except NoAnswer:
            self._disconnect()
            return
        if status in (200, 204):
            self._idle_since = None
            self._record.write(user_message(message.id, message.by, message.text))
            self._inbox.answer()
        else:
            self._note(messages=(*known[:-1], ""))
            self._inbox.answer(f"OpenCode has refused it: status {status}")

    @property
    def _newest_message(self) -> str:
        """The identifier of the newest user message behind the prompt, or nothing."""
        return next((each for each in reversed(self._state.messages) if each), "")

    def _tell_again(self) -> None:
        """Send the newest message again: OpenCode 1 leaves one without an answer that comes as its turn ends."""
        number = len(self._state.messages)
        if number > self._sent_again and self._state.messages[-1] and not self._waiter.stop_requested:
            self._sent_again = number
            with contextlib.suppress(NoAnswer):
                self._tell(self._state.messages[-1], self._inbox.read(number).text)

    def _listen(self) -> None:
        """Take the live events that come, for a short time."""
        if self._stream is None:
            self._reconnect()
            return
        try:
            payloads = self._stream.read(self._wait_seconds())
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
        self._lose_events()
        self._growth.stop()
        self._look_now = True

    def _reconnect(self) -> None:
        """Listen again; raises NoAnswer when the server is lost."""
        began = time.monotonic()
        while True:
            try:
                self._stream = Stream(self._wire, self.events)
            except NoAnswer as error:
                if time.monotonic() - began > (LOST_SECONDS if error.refused else ANSWER_SECONDS):
                    raise
                self._waiter.ready(None, 0, RETRY_SECONDS)
            else:
                self._heard_at = time.monotonic()
                return

    def _error(self, error: dict[str, Any]) -> None:
        if sum(self._record.errors.values()) < MAX_ERRORS:
            self._record.write(Line("error", {"error": error}))

    # what the agent asks

    def _take_requests(self) -> None:
        """Take what waits for an answer. What no longer does, OpenCode has ended itself: nobody can answer it."""
        waiting = {asked.id: asked for asked in self._requests()}
        for gone in self._asked.keys() - waiting.keys() - {self._state.answering}:
            del self._asked[gone]
            self._record.write(answered(gone, "", ()))
        for asked in waiting.values():
            self._ask(asked)

    def _ask(self, asked: Asked) -> None:
        """Put a request to people, or reject it where nobody can be asked."""
        if not asked.id:
            return
        by = LIMIT if self._turn.asks and asked.is_beyond_the_limit(self._record.once[ASKED]) else ""
        if self._turn.asks and asked.can_be_shown and not by and not self._waiter.stop_requested:
            self._asked[asked.id] = asked
            self._record.write(asked.line)
            return
        if asked.is_permission:
            self._record.write(asked.rejected(by))
        self._reply(asked, None, by)

    def _give(self, message: Message) -> None:
        """Give the agent somebody's answer. One that may have been given already is not given again."""
        asked, was_given = self._asked.get(message.question), self._state.answering == message.question
        if asked is None:
            self._take_requests()
            asked = self._asked.get(message.question)
        if asked is None and not was_given:
            self._inbox.answer("the agent does not ask this any more")
            return
        status = 204
        if asked is not None:
            try:
                answers = asked.chosen(message.answers) if message.answers else None
            except ValueError as error:
                self._inbox.answer(str(error))
                return
            self._note(answering=asked.id)
            status = self._reply(asked, answers, message.by)
            if answers is None and asked.is_permission:
                self._record.write(asked.rejected(message.by))
        if status in (200, 204) or (status == 404 and was_given):
            self._asked.pop(message.question, None)
            self._record.write(answered(message.question, message.by, message.answers))
            self._inbox.answer()
        else:
            self._inbox.answer(f"OpenCode has refused it: status {status}")

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
            status = self._read_status()
            self._read()
            if status.get("type") != "idle":
                self._take_requests()
        except NoAnswer:
            if now - self._worked_at > ANSWER_SECONDS:
                raise
            self._disconnect()
            self._waiter.ready(None, 0, RETRY_SECONDS)
            return None
        self._worked_at = now
        if status.get("type") == "idle":
            if self._idle_since is None:
                self._idle_since = now
            idle = now - max(self._idle_since, self._taken_at)
            if any(each and each not in self._taken for each in self._state.messages):
                return self._lost("a user message is not in the session") if idle > UNTAKEN_SECONDS else None
            return self._end_of_idle(idle)
        self._idle_since = None
        self._take_status(status)
        return None

    def _end_of_idle(self, idle: float) -> End | None:
        """The end of a session that has been idle, and what it has stored still, for so many seconds."""
        answer = self._answer
        if answer is not None and answer.message < self._newest_message:
            answer = None
            if idle > UNHEARD_SECONDS:
                self._tell_again()
        if answer is not None and (answer.completed or answer.error is not None):
            return self._ended()
        if self._record.errors and answer is None and idle > RETRY_SECONDS:  # a message would have come by now
            return self._ended()
        if not self._has_prompt:
            return self._lost("the prompt is not in the session") if idle > UNTAKEN_SECONDS else None
        if answer is not None and idle > UNFINISHED_SECONDS:
            return self._lost("the session is idle, but its last message is not complete")
        return self._without_answer() if answer is None and idle > UNANSWERED_SECONDS else None

    def _ended(self) -> End:
        self._take_status({"type": "idle"})
        failed = sum(self._record.errors.values())
        return End(1 if failed else 0, None, "", self._state.session)

    def _lost(self, detail: str) -> End:
        return End(1, "server_lost", detail, self._state.session)

    def _without_answer(self) -> End:
        """The prompt is there, and nothing else: OpenCode reports a bad model by a live event only."""
        provider, _, model = self._turn.model.partition("/")
        known = self._has_model(provider, model)
        message = "the turn ended without an answer" if known else f"Model not found: {self._turn.model}."
        self._error({"name": "UnknownError", "data": {"message": message}})
        return self._ended()

    def _abort(self) -> End:
        """Abort the turn and take what it still writes; an answer that was complete by then counts."""
        self._waiter.ignores_stop = True
        self._wire.seconds = ABORT_SECONDS
        end = time.monotonic() + ABORT_SECONDS
        found: End | None = None
        with contextlib.suppress(NoAnswer):
            while found is None and time.monotonic() < end:
                self._stop()
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
