"""OpenCode's server: where it listens, and the calls that a turn needs.

Source: OpenCode 1.18.33, its `GET /doc`, and tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from agent_runs.pod.sidecar.drivers.lines import LEFT_OUT, dictionary, integer, text
from agent_runs.pod.sidecar.drivers.opencode_server.address import Unusable
from agent_runs.pod.sidecar.drivers.opencode_server.turn import SESSION_ID, UnknownSession
from agent_runs.pod.sidecar.drivers.opencode_server.v1.children import NEVER
from agent_runs.pod.sidecar.drivers.opencode_server.wire import NoAnswer, TooLarge, Wire, elements
from agent_runs.pod.sidecar.drivers.questions import Asked

MAX_OTHERS = 10_000
MAX_ID = 128
_HEAD = re.compile(  # OpenCode writes an event's data last
    r'\{"id":"[^"]{1,128}","aggregate_id":"(?P<session>[^"]{1,128})","seq":(?P<seq>\d{1,15}),"type":"(?P<type>[^"]{1,128})"'
)


def _head(event: TooLarge) -> dict[str, Any]:
    """What comes before the data of an event."""
    found = _HEAD.match(event.beginning)
    if found is None:
        raise NoAnswer("its journal has an event that is too large")
    return {"aggregate_id": found["session"], "seq": int(found["seq"]), "type": found["type"], "data": LEFT_OUT}


class Server:
    """The calls. Each may raise NoAnswer or Aborted."""

    def __init__(self, wire: Wire, directory: str) -> None:
        self.wire = wire
        self.directory = directory
        self._others: dict[str, int] = {}

    def has_agent(self, name: str) -> bool:
        """Return whether it is an agent that can be given a prompt."""
        _, agents = self.wire.call("GET", self._path("/agent"))
        found = [each for each in agents if dictionary(each).get("name") == name] if isinstance(agents, list) else []
        return bool(found) and found[0].get("mode") != "subagent"

    def has_model(self, provider: str, model: str) -> bool:
        _, answer = self.wire.call("GET", self._path("/config/providers"))
        providers = dictionary(answer).get("providers")
        return isinstance(providers, list) and any(
            dictionary(each).get("id") == provider and model in dictionary(dictionary(each).get("models"))
            for each in providers
        )

    def create(self, title: str, without: list[str]) -> str:
        """Return a new session, without these tools.

        Raises:
            Unusable: there is none.
        """
        rules = [{"permission": name, "action": "deny", "pattern": "*"} for name in without]
        status, created = self.wire.call("POST", self._path("/session"), {"title": title, "permission": rules})
        session = text(dictionary(created).get("id"), MAX_ID)
        if status != 200 or not SESSION_ID.fullmatch(session):
            raise Unusable("server_unsupported", f"a new session was answered with the status {status}")
        return session

    def directory_of(self, session: str) -> str:
        """Return where a session works.

        Raises:
            UnknownSession: it does not exist.
            Unusable: the answer is not OpenCode's.
        """
        status, found = self.wire.call("GET", self._path(f"/session/{quote(session, safe='')}"))
        if status == 404 or (status == 500 and not SESSION_ID.fullmatch(session)):
            raise UnknownSession
        directory = text(dictionary(found).get("directory"), 4096)
        if status != 200 or not directory:
            raise Unusable("server_unsupported", f"the session was answered with the status {status}")
        return directory

    def parent_of(self, session: str) -> str:
        """Return the session of which this is a sub-agent's."""
        _, found = self.wire.call("GET", self._path(f"/session/{quote(session, safe='')}"))
        return text(dictionary(found).get("parentID"), MAX_ID)

    def newest_message(self, session: str) -> str:
        _, messages = self.wire.call("GET", self._path(f"/session/{session}/message", "&limit=1"))
        newest = messages[-1] if isinstance(messages, list) and messages else None
        return text(dictionary(dictionary(newest).get("info")).get("id"), MAX_ID)

    def prompt(self, session: str, content: dict[str, Any]) -> tuple[int, Any]:
        """Send the prompt; 204 means that it was accepted."""
        return self.wire.call("POST", self._path(f"/session/{session}/prompt_async"), content)

    def abort(self, session: str) -> None:
        self.wire.call("POST", self._path(f"/session/{session}/abort"), {})

    def sessions(self) -> dict[str, str]:
        """Return the sessions of this directory, each with its parent, or an empty text."""
        _, known = self.wire.call("GET", self._path("/session", f"&limit={MAX_OTHERS}"))
        found = map(dictionary, known) if isinstance(known, list) else ()
        return {text(each.get("id"), MAX_ID): text(each.get("parentID"), MAX_ID) for each in found if each.get("id")}

    def skip(self, session: str) -> None:
        """From now on the journal is not asked for this session's events."""
        if len(self._others) < MAX_OTHERS:
            self._others[session] = NEVER

    def status(self, session: str) -> dict[str, Any]:
        """Return what the session does: an object with `type`."""
        status, sessions = self.wire.call("GET", self._path("/session/status"))
        if status != 200 or not isinstance(sessions, dict):
            raise NoAnswer(f"the sessions' status was answered with the status {status}")
        return dictionary(sessions.get(session)) or {"type": "idle"}

    def asked(self, kind: str) -> list[dict[str, Any]]:
        """Return what waits for an answer: `permission` or `question`."""
        _, waiting = self.wire.call("GET", self._path(f"/{kind}"))
        return [dictionary(each) for each in waiting] if isinstance(waiting, list) else []

    def reply(self, asked: Asked, answers: list[list[str]] | None, words: str) -> int:
        """Answer a question or a request for a permission; without answers by no.

        Args:
            words: for the model, which goes on without the permission; empty: the turn ends, as with `opencode run`.
        """
        end, content = "reply", dict[str, Any]()
        if not asked.is_permission:
            end, content = ("reject", {}) if answers is None else ("reply", {"answers": answers})
        elif answers is None:
            content = {"reply": "reject", **({"message": words} if words else {})}
        else:
            content = {"reply": answers[0][0]}
        status, _ = self.wire.call("POST", self._path(f"/{asked.kind}/{quote(asked.id, safe='')}/{end}"), content)
        return status

    def history(self, after: dict[str, int]) -> Iterator[tuple[str, int, str, object]]:
        """Return what the journal has: session, `seq`, type and data of each event, a session's in order.

        The server sends the events of every session that is not named: those that are new to us.

        Args:
            after: by the session, the `seq` after which its events are wanted.
        """
        known = {**self._others, **{session: seq for session, seq in after.items() if seq >= 0}}
        exchange = self.wire.open("POST", self._path("/sync/history"), known)
        try:
            status = exchange.status()
            if status != 200:
                raise NoAnswer(f"the journal was answered with the status {status}")
            for element in elements(exchange.body()):
                event = _head(element) if isinstance(element, TooLarge) else dictionary(element)
                owner, kind = text(event.get("aggregate_id"), MAX_ID), text(event.get("type"), MAX_ID)
                yield owner, integer(event.get("seq")), kind, event.get("data")
        finally:
            exchange.close()

    def _path(self, path: str, more: str = "") -> str:
        return f"{path}?directory={quote(self.directory, safe='')}{more}"
