"""One turn of an agent, from `initialize` to the answer to its prompt.

What the agent writes is in a file that stays, so a driver that takes the place of a killed one reads it from its
beginning and makes the same lines; those that are written already it counts and leaves out. The prompt is never sent
twice: that it may have been is noted before its first byte is written, and that it was, after the last.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

from agent_runs.pod.sidecar.drivers.acp.agent import Agent, AgentEnded, NotProtocol, RawLine
from agent_runs.pod.sidecar.drivers.acp.mapping import ALLOWING, CHUNKS, HISTORY, Mapping
from agent_runs.pod.sidecar.drivers.acp.messages import (
    Message,
    Refusal,
    answer,
    message,
    notification,
    request,
    request_id,
)
from agent_runs.pod.sidecar.drivers.acp.turn import State, Turn
from agent_runs.pod.sidecar.drivers.acp.usage import Used, cost_of, of_file, of_result
from agent_runs.pod.sidecar.drivers.folder import EVENTS, STATE, End, aborted, drive_to_end, read_prompt, write_json
from agent_runs.pod.sidecar.drivers.growth import Growth
from agent_runs.pod.sidecar.drivers.inbox import Inbox
from agent_runs.pod.sidecar.drivers.inbox import Message as Sent
from agent_runs.pod.sidecar.drivers.lines import (
    AGENT_VERSION,
    MAX_VERSION,
    Line,
    dictionary,
    text,
    unknown_session,
    user_message,
)
from agent_runs.pod.sidecar.drivers.questions import ASKED, LIMIT, REJECTED, Asked, answered
from agent_runs.pod.sidecar.drivers.record import Record
from agent_runs.pod.sidecar.drivers.versions import VERSION_UNSUPPORTED, refusal
from agent_runs.pod.sidecar.drivers.waiting import Aborted, Waiter

ANSWERED = "answered"
"""Name in the driver's folder: requests of the agent that are answered."""
LISTEN_SECONDS = 0.5
QUIET_SECONDS, MAX_QUIET_SECONDS = 0.5, 3.0
"""For which an agent must be quiet, and is waited for: Gemini repeats a loaded session even after its answer, and
pi-acp ends a text after the answer to its prompt (https://github.com/svkozak/pi-acp/issues/59)."""
PROOF_SECONDS = 10.0
"""For a prompt of which nobody knows whether it was sent whole to show that it was."""
ABORT_SECONDS = 10.0
"""For the answer to a cancel, which takes a busy machine some seconds."""
WRITING_SECONDS = 1.0
"""For a session's file to have what the agent writes of the turn after its answer."""
MAX_SESSION = 128
MAX_ANSWERED = 10_000
LIVE = frozenset({"text_growth"})
"""Types of the lines whose number is another one each time."""
PROMPT: Final = "prompt"
NUMBERS: Final = {
    name: number
    for number, name in enumerate(("initialize", "authenticate", "session", "mode", "model", "title", PROMPT), 1)
}
"""Of the requests, so that a later driver knows their answers."""
STEERING: Final = 1000
"""The requests that deliver user messages have the numbers above it."""
REJECTING: Final = ("reject_once", "reject_always")
UNKNOWN_METHOD: Final = {"code": -32601, "message": "Method not found"}
NOT_UNDERSTOOD: Final = frozenset({-32700, -32600, -32601, -32602})
"""Codes of an agent that does not accept what the protocol has."""
VERSION: Final = 1
CAPABILITIES: Final = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
CLIENT: Final = {"name": "agent-runs", "version": "1"}
NOT_STARTED, PROTOCOL, LOST = "agent_not_started", "agent_protocol", "agent_lost"
ERRORS: Final = {
    NOT_STARTED: "AgentNotStarted",
    PROTOCOL: "AgentProtocolError",
    LOST: "AgentLost",
    VERSION_UNSUPPORTED: "AgentVersionUnsupported",
}
"""Names of the error lines for what the driver found out."""


class Refused(Exception):
    """The agent answered a request before the prompt with an error."""

    def __init__(self, name: str, error: object, kept: Any) -> None:
        super().__init__(name)
        self.name, self.kept = name, kept
        self.refusal = Refusal.of(error)


class Unsupported(Exception):
    """The agent has a version that is not driven."""


class NotAnswered(Exception):
    """The agent did not answer a request before the prompt in time, or a prompt that may have been cut."""


def drive(folder: str) -> None:
    """Do the turn in `folder`, or the rest of it. Returns when there is an end. Never raises.

    SIGTERM to this process cancels the turn.
    """
    drive_to_end(
        folder,
        lambda: _Drive(folder).run(),
        lambda error: End(1, "driver_failed", f"{type(error).__name__}: {error}"),
    )


class _Drive:
    """See the module."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._waiter = Waiter()
        self._state, self._turn = State.read(folder), Turn.read(folder)
        self._profile = self._turn.profile
        self._session = self._state.session
        self._record = Record(f"{folder}/{EVENTS}", "", LIVE)
        self._agent = Agent(self._turn.output, self._waiter)
        self._answers: dict[int, Message] = {}
        self._history = 0
        self._mapping: Mapping | None = None
        self._result: Message | None = None
        self._growth, self._growing = Growth(), ""
        self._is_live = PROMPT not in self._state.asked
        self._cost: float | None = None
        self._cost_before = 0.0
        self._answered = self._read_answered()
        self._questions: dict[str, tuple[Asked, Message]] = {}
        self._inbox = Inbox(folder)
        self._takes_messages = False
        self._late = 0

    # from the beginning to the end

    def run(self) -> End:
        try:
            return self._run()
        except Aborted:
            return self._abort()
        except NotProtocol as error:
            return self._failed(PROTOCOL, str(error))

    def _run(self) -> End:
        try:
            self._agent.connect()
            self._open()
        except NotAnswered as error:
            return self._failed(NOT_STARTED, str(error))
        except Unsupported as error:
            return self._failed(VERSION_UNSUPPORTED, str(error))
        except AgentEnded as error:
            return self._failed(
                LOST if PROMPT in self._state.asked else NOT_STARTED, f"{error} before it got the prompt"
            )
        except Refused as error:
            return self._refused(error)
        try:
            self._prompt()
            return self._follow()
        except AgentEnded as error:
            return self._failed(LOST, f"{error} in its turn")
        except NotAnswered as error:
            return self._failed(LOST, str(error))

    def _open(self) -> None:
        """Come to a session that is ready for the prompt."""
        turn, profile = self._turn, self._profile
        meta = {"_meta": profile.client_meta} if profile.client_meta else {}
        client = {"protocolVersion": VERSION, "clientCapabilities": {**CAPABILITIES, **meta}, "clientInfo": CLIENT}
        answered = self._request("initialize", "initialize", client)
        if refused := refusal(profile.title, _version_in(answered), profile.versions):
            raise Unsupported(refused)
        if (version := answered.get("protocolVersion", VERSION)) != VERSION:
            raise NotProtocol(f"it speaks protocol version {text(str(version), 20)}, and the driver {VERSION} only")
        capabilities = dictionary(answered.get("agentCapabilities"))
        self._takes_messages = dictionary(dictionary(answered.get("_meta")).get("steering")).get("supported") is True
        if profile.authenticate:
            self._request("authenticate", "authenticate", {"methodId": profile.authenticate})
        place = {"cwd": turn.directory, "mcpServers": turn.mcp_servers()}
        if turn.session and not capabilities.get("loadSession"):
            raise Refused("session", {"message": "Session not found"}, None)
        if turn.session:
            opened = self._request("session", "session/load", {"sessionId": turn.session, **place})
        else:
            opened = self._request("session", "session/new", place)
        self._session = turn.session or text(opened.get("sessionId"), MAX_SESSION)
        if not self._session:
            raise NotProtocol("session/new was answered without a session")
        self._configure(opened)

    def _configure(self, opened: dict[str, Any]) -> None:
        """Choose mode, model and title, as far as they are not chosen in other ways."""
        turn, profile, session = self._turn, self._profile, {"sessionId": self._session}
        if profile.mode and dictionary(opened.get("modes")).get("currentModeId") != profile.mode:
            self._request("mode", "session/set_mode", {**session, "modeId": profile.mode})
        if profile.model_option == "session/set_model":
            self._request("model", "session/set_model", {**session, "modelId": turn.model})
        elif profile.model_option:
            option = {"configId": profile.model_option, "value": turn.model}
            self._request("model", "session/set_config_option", {**session, **option})
        if turn.title and not turn.session:
            with contextlib.suppress(Refused):  # it works as well without one
                self._request("title", "session/set_title", {**session, "title": turn.title})

    # requests before the prompt

    def _request(self, name: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a request, which an earlier driver may have sent."""
        number, end = NUMBERS[name], time.monotonic() + self._turn.start_timeout
        line = request(number, method, params)
        if name in self._state.asked and name not in self._state.written:
            self._read_all()
            line = b"\n" + line  # after what may be half a line
        if number not in self._answers and name not in self._state.written:
            self._note(asked=(*self._state.asked, name))
            self._agent.send(line)
            self._note(written=(*self._state.written, name))
        while number not in self._answers:
            if time.monotonic() > end:
                raise NotAnswered(f"{method} was not answered within {self._turn.start_timeout:g} s")
            self._listen()
        answered = self._answers[number]
        if "error" in answered.content:
            raise Refused(name, answered.content["error"], answered.kept)
        return dictionary(answered.content.get("result"))

    def _refused(self, error: Refused) -> End:
        """The end after an error before the prompt."""
        refusal, session = error.refusal, self._turn.session
        self._record.session = session or ""
        if session and error.name == "session" and (
            error.kept is None or refusal.is_one_of(self._profile.unknown_session)
        ):  # fmt: skip
            kept = {"acp": error.kept} if error.kept else {}
            self._record.write(Line("error", {"error": unknown_session(), **kept}))
            return End(1, None, "Session not found", session)
        known = refusal.known(self._profile.errors) or {}
        if known:
            self._record.write(Line("error", {"error": known, "acp": error.kept}))
            return End(1, None, refusal.shown, session)
        return self._failed(PROTOCOL, f"{error.name} was answered with the error {refusal.code}: {refusal.shown}")

    def _note(self, **changes: Any) -> None:
        self._state = self._state._replace(**changes)
        write_json(self._folder, STATE, self._state._asdict())

    # the prompt

    def _prompt(self) -> None:
        """Send it, unless an earlier driver has."""
        if PROMPT not in self._state.asked:
            self._send_prompt()
        elif PROMPT not in self._state.written:
            self._await_proof()
        self._begin_turn()

    def _send_prompt(self) -> None:
        if self._turn.session:
            self._await_quiet()
        blocks = [{"type": "text", "text": read_prompt(self._folder)}]
        line = request(NUMBERS[PROMPT], "session/prompt", {"sessionId": self._session, "prompt": blocks})
        self._note(asked=(*self._state.asked, PROMPT), mark=self._agent.at, session=self._session)
        self._begin_turn()
        self._agent.send(line)
        self._note(written=(*self._state.written, PROMPT))

    def _await_quiet(self) -> None:
        end = time.monotonic() + MAX_QUIET_SECONDS
        quiet_at = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < min(quiet_at, end):
            if self._listen():
                quiet_at = time.monotonic() + QUIET_SECONDS

    def _await_proof(self) -> None:
        """Wait until the agent shows that it has the prompt."""
        end = time.monotonic() + PROOF_SECONDS
        while not (self._result or (self._mapping and self._mapping.has_answered)):
            if time.monotonic() > end:
                raise NotAnswered("nobody knows whether the whole prompt reached it, and it does not answer")
            self._listen()

    def _begin_turn(self) -> None:
        """What the agent writes from here on is of the turn."""
        if self._mapping is not None:
            return
        self._record.session = self._session
        self._mapping = Mapping(self._session, self._profile.informational, self._profile.usage)
        self._cost_before = self._cost or 0.0
        self._cost = None
        self._record.write(Line("session_status", {"status": "busy"}))
        if self._history:
            self._record.write(
                Line("acp_update", {"acp": {"leftOut": "updates that repeat the session", "count": self._history}})
            )

    # what the agent writes

    def _read_all(self) -> None:
        while self._listen(0):
            pass

    def _listen(self, seconds: float = LISTEN_SECONDS) -> bool:
        """Take the next lines; whether there were any."""
        lines = self._agent.lines(seconds)
        for line in lines:
            self._take(line)
        self._is_live = self._is_live or not lines
        return bool(lines)

    def _take(self, line: RawLine) -> None:
        end = self._state.end
        if end is not None and line.begin >= end:
            self._late += message(line).update.get("sessionUpdate") in HISTORY
            return  # what a driver reads of the time after the turn is chance
        mark = self._state.mark
        if mark is not None and line.begin >= mark:
            self._begin_turn()
        taken = message(line)
        if taken.is_request:
            self._asked(taken)
        elif taken.answers is not None and taken.answers > STEERING:
            self._answers.setdefault(taken.answers, taken)
            self._record.write(Line("acp_update", {"acp": taken.kept}))
        elif self._mapping is None:
            self._take_before(taken)
        elif taken.answers == NUMBERS[PROMPT]:
            self._result = self._result or taken
        else:
            self._take_update(self._mapping, taken)

    def _take_before(self, taken: Message) -> None:
        """A message before the prompt."""
        number = taken.answers
        if number is not None and number in NUMBERS.values():
            self._answers.setdefault(number, taken)
        if taken.update.get("sessionUpdate") in HISTORY:
            self._history += 1
            return
        self._note_cost(taken)
        self._record.write(Line("acp_update", {"acp": taken.kept}))
        if number == NUMBERS["initialize"] and (version := _version_in(dictionary(taken.content.get("result")))):
            self._record.write(Line(AGENT_VERSION, {"version": version}))

    def _take_update(self, mapping: Mapping, taken: Message) -> None:
        self._note_cost(taken)
        for line in mapping.add(taken):
            self._record.write(line)
        self._grow(mapping, taken)

    def _note_cost(self, taken: Message) -> None:
        cost = cost_of(taken.update)
        if cost is not None:
            self._cost = cost

    def _grow(self, mapping: Mapping, taken: Message) -> None:
        """Show a text that grows; one that an earlier driver has begun is shown when it is whole."""
        growing, now = mapping.growing, time.monotonic()
        name = growing[1] if growing else ""
        if name != self._growing:
            self._growth.end(self._growing)
            self._growing = name
            if growing and self._is_live:
                self._growth.begin(name, growing[2], growing[0], now)
        if name and taken.update.get("sessionUpdate") in CHUNKS:
            delta = text(dictionary(taken.update.get("content")).get("text"), 2**20)
            self._growth.add(name, delta)

    # what the agent asks

    def _asked(self, taken: Message) -> None:
        if taken.content["method"] != "session/request_permission" or self._mapping is None:
            self._record.write(Line("acp_update", {"acp": taken.kept}))
            self._answer(taken, error=UNKNOWN_METHOD)
            return
        asked, lines = self._mapping.asked(taken)
        for line in lines:
            self._record.write(line)
        asks = self._profile.permissions == "ask"
        if asks and asked.is_beyond_the_limit(self._record.once[ASKED]):
            self._reject(self._mapping, asked, taken, LIMIT)
        elif asks and asked.can_be_shown:
            self._record.write(asked.line)
            if asked.id not in self._answered:
                self._questions[asked.id] = (asked, taken)
            elif asked.id in self._record.once[REJECTED]:
                self._mapping.rejected(taken)
        elif self._profile.permissions == "allow":
            self._choose(taken, _option(taken, ALLOWING))
        else:
            self._reject(self._mapping, asked, taken, "")

    def _reject(self, mapping: Mapping, asked: Asked, taken: Message, by: str) -> None:
        self._record.write(asked.rejected(by))
        for line in mapping.rejected(taken):
            self._record.write(line)
        self._choose(taken, _option(taken, REJECTING))

    def _choose(self, taken: Message, option: str | None) -> None:
        cancelled = option is None or self._waiter.stop_requested
        outcome = {"outcome": "cancelled"} if cancelled else {"outcome": "selected", "optionId": option}
        self._answer(taken, result={"outcome": outcome})

    def _give(self, mapping: Mapping, message: Sent) -> None:
        """Give the agent somebody's answer; an earlier driver may have."""
        asked, taken = self._questions.get(message.question, (None, None))
        if asked is None or taken is None:
            if message.question not in self._answered:
                self._inbox.answer("the agent does not ask this any more")
                return
        elif message.answers:
            try:
                chosen = asked.chosen(message.answers)[0][0]
            except ValueError as error:
                self._inbox.answer(str(error))
                return
            self._choose(taken, chosen)
        else:
            self._reject(mapping, asked, taken, message.by)
        self._questions.pop(message.question, None)
        self._record.write(answered(message.question, message.by, message.answers))
        self._inbox.answer()

    def _answer(self, taken: Message, **content: Any) -> None:
        """Answer, unless an earlier driver has."""
        asked = taken.content["id"]
        key = request_id(asked)
        if key in self._answered or len(self._answered) >= MAX_ANSWERED:
            return
        self._agent.send(answer(asked, **content))
        self._answered.add(key)
        with open(f"{self._folder}/{ANSWERED}", "a", encoding="utf-8") as file:
            file.write(key + "\n")

    def _read_answered(self) -> set[str]:
        try:
            with open(f"{self._folder}/{ANSWERED}", encoding="utf-8") as file:
                return set(file.read().splitlines())
        except FileNotFoundError:
            return set()

    # user messages

    def _pass_on(self) -> None:
        """Deliver the next message to an agent that takes one in its turn."""
        message = self._inbox.next()
        if message is None:
            return
        if message.question:
            self._give(self._the_mapping, message)
            return
        if not self._takes_messages:
            self._inbox.answer(f"{self._profile.title} takes no message while it works")
            return
        number = STEERING + message.number
        name = str(number)
        if name not in self._state.asked:
            self._note(asked=(*self._state.asked, name))
            self._agent.send(request(number, "_session/steering", self._steering(message.text)))
            self._note(written=(*self._state.written, name))
        elif answer := self._answers.get(number):
            self._take_delivery(message, answer)
        elif name not in self._state.written and not self._listen(PROOF_SECONDS):
            self._inbox.answer("nobody knows whether it has reached the agent")

    def _steering(self, words: str) -> dict[str, Any]:
        """Source: codex-acp 2.6.0: without this behaviour it begins a turn of its own after the end of ours."""
        behaviour = {"steering": {"idleBehavior": "promptRequired"}}
        return {"sessionId": self._session, "prompt": [{"type": "text", "text": words}], "_meta": behaviour}

    def _take_delivery(self, message: Sent, answer: Message) -> None:
        outcome = text(dictionary(answer.content.get("result")).get("outcome"), MAX_SESSION)
        if outcome == "injected":
            self._record.write(user_message(message.id, message.by, message.text))
            self._inbox.answer()
        elif outcome == "promptRequired":
            self._inbox.answer("its turn had ended")
        else:
            self._inbox.answer(f"{self._profile.title} has refused it: the transcript has its answer")

    # the end

    def _follow(self) -> End:
        while self._result is None:
            self._pass_on()
            self._listen()
            for line in self._growth.due(time.monotonic()):
                self._record.write(line)
        with contextlib.suppress(AgentEnded, NotProtocol):  # it may, now
            self._settle()
        return self._ended(self._result)

    def _settle(self) -> None:
        """Take what the agent sends of the turn after its answer; of a turn with an end, all that is before it."""
        if self._state.end is None:
            self._await_quiet()
        while self._agent.at < (self._state.end or 0):
            self._listen()

    def _ended(self, result: Message) -> End:
        """The end of a turn that the agent has answered. A later driver takes the same messages for it."""
        if self._state.end is None:
            self._note(end=self._agent.at)
        end = self._end_of(result)
        with contextlib.suppress(AgentEnded, NotProtocol, Aborted):
            self._listen(0)
        if self._late:
            left_out = {"leftOut": "updates after the end of the turn", "count": self._late}
            self._record.write(Line("acp_update", {"acp": left_out}))
        return end

    def _end_of(self, result: Message) -> End:
        if "error" in result.content:
            return self._turn_failed(result, self._used(), result.content["error"])
        content, mapping = dictionary(result.content.get("result")), self._the_mapping
        reason = text(content.get("stopReason"), MAX_SESSION)
        used = self._used()
        used = used._replace(tokens=of_result(self._profile.usage, content) or used.tokens)
        if failure := self._failure(content) or (used.error and {"message": used.error}):
            return self._turn_failed(result, used, failure)
        for line in mapping.finish(result, reason, used.tokens, self._spent(used)):
            self._record.write(line)
        self._record.write(Line("session_status", {"status": "idle"}))
        return End(0, None, "", self._session)

    def _failure(self, content: dict[str, Any]) -> dict[str, Any] | None:
        """The error in an answer that says nothing else of it."""
        found = dictionary(content.get("_meta")) if self._profile.failure else {}
        for name in self._profile.failure:
            found = dictionary(found.get(name))
        is_error = found and found.get("severity") != "warning"
        return {"message": found.get("title"), "data": found} if is_error else None

    def _turn_failed(self, result: Message, used: Used, error: object) -> End:
        refusal = Refusal.of(error)
        for line in self._the_mapping.fail(used.tokens, self._spent(used)):
            self._record.write(line)
        known = refusal.known(self._profile.errors)
        if known is None and refusal.code in NOT_UNDERSTOOD:
            return self._failed(PROTOCOL, f"the prompt was answered with the error {refusal.code}: {refusal.shown}")
        self._record.write(Line("error", {"error": known or refusal.unknown(), "acp": result.kept}))
        return End(1, None, refusal.shown, self._session)

    @property
    def _the_mapping(self) -> Mapping:
        if self._mapping is None:
            raise NotProtocol("the turn has not begun")
        return self._mapping

    def _used(self) -> Used:
        """What a file of the session says; the agent may still be writing it."""
        glob = self._profile.usage_files
        if self._profile.usage != "pi_session" or not glob:
            return Used()
        end, used = time.monotonic() + WRITING_SECONDS, Used()
        with contextlib.suppress(Aborted):
            used = of_file(self._agent.session_file(self._session, glob))
            while used.tokens is None and not used.error and time.monotonic() < end:
                self._waiter.ready(None, 0, 0.1)
                used = of_file(self._agent.session_file(self._session, glob))
        return used

    def _spent(self, used: Used) -> float | None:
        """What the turn has cost; None: not known."""
        if self._profile.cost == "usage_update":
            return None if self._cost is None else max(round(self._cost - self._cost_before, 9), 0.0)
        return used.cost if self._profile.cost == "pi_session" else None

    def _failed(self, reason: str, detail: str) -> End:
        """The end by one of the reasons that have a name."""
        for line in self._mapping.abandon() if self._mapping else ():
            self._record.write(line)
        self._record.write(
            Line("error", {"error": {"name": ERRORS[reason], "data": {"message": f"{reason}: {detail}"}}})
        )
        return End(1, reason, detail, self._session or None)

    def _abort(self) -> End:
        """Cancel the turn and take what the agent still writes; a turn that was complete by then counts."""
        self._waiter.ignores_stop = True
        mapping = self._mapping
        if mapping is None or PROMPT not in self._state.written:
            return aborted(self._session, sent=PROMPT in self._state.asked)
        end = time.monotonic() + ABORT_SECONDS
        with contextlib.suppress(AgentEnded, NotProtocol):
            if self._result is None:
                self._agent.send(notification("session/cancel", {"sessionId": self._session}))
                for _, taken in self._questions.values():
                    self._choose(taken, None)
            while self._result is None and time.monotonic() < end:
                self._listen()
        result = dictionary(self._result.content.get("result")) if self._result else {}
        reason = text(result.get("stopReason"), MAX_SESSION)
        if self._result and reason == "end_turn":
            return self._ended(self._result)
        for line in self._aborted_lines(mapping, result):
            self._record.write(line)
        return aborted(self._session, sent=True)

    def _aborted_lines(self, mapping: Mapping, result: dict[str, Any]) -> list[Line]:
        if self._result is None:
            return mapping.abandon()
        used = self._used()
        tokens = of_result(self._profile.usage, result) or used.tokens
        return mapping.finish(self._result, "cancelled", tokens, self._spent(used))


def _version_in(answer: dict[str, Any]) -> str:
    """The agent's version, in the answer to `initialize`."""
    return text(dictionary(answer.get("agentInfo")).get("version"), MAX_VERSION)


def _option(taken: Message, kinds: tuple[str, ...]) -> str | None:
    """The option of the first of these kinds that is offered."""
    options = dictionary(taken.content.get("params")).get("options")
    offered = {
        dictionary(each).get("kind"): dictionary(each).get("optionId")
        for each in (options[:32] if isinstance(options, list) else ())
        if isinstance(dictionary(each).get("kind"), str)
    }
    return next((chosen for kind in kinds if isinstance(chosen := offered.get(kind), str)), None)
