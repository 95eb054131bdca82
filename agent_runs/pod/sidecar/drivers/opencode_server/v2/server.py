"""The server of OpenCode 2: the calls that a turn needs.

Source: OpenCode 2.0.15, its `GET /openapi.json`, and tried.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from agent_runs.pod.sidecar.drivers.lines import dictionary, text
from agent_runs.pod.sidecar.drivers.opencode_server.address import Unusable
from agent_runs.pod.sidecar.drivers.opencode_server.turn import SESSION_ID, UnknownSession
from agent_runs.pod.sidecar.drivers.opencode_server.wire import NoAnswer, TooLong, Wire
from agent_runs.pod.sidecar.drivers.questions import Asked

PAGE = 20
MAX_MESSAGES = 10_000
"""Of one session, in one turn."""
MAX_PAGE = 16 * 1024 * 1024
MAX_ID = 128
NOBODY = "Nobody is there to answer: this permission is not given. Go on without it."
"""With a reason, a rejection is an error of the tool; without one it ends the turn."""


class Server:
    """The calls. Each may raise NoAnswer or Aborted."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def has_configuration(self, directory: str, path: str) -> bool:
        """Return whether the configuration of this file holds, with permissions: one that cannot be read is ignored."""
        _, sources = self._wire.call("GET", _at("/api/config", directory))
        for each in map(dictionary, sources if isinstance(sources, list) else ()):
            if each.get("path") == path:
                return bool(dictionary(each.get("info")).get("permissions"))
        return False

    def agents(self, directory: str) -> list[str]:
        """Return the agents that can be given a prompt; the first is the default."""
        _, answer = self._wire.call("GET", _at("/api/agent", directory))
        return [
            text(each.get("id"), MAX_ID)
            for each in _data(answer)
            if each.get("mode") != "subagent" and not each.get("hidden")
        ]

    def has_model(self, directory: str, provider: str, model: str) -> bool:
        _, answer = self._wire.call("GET", _at("/api/model", directory))
        return any(each.get("providerID") == provider and each.get("id") == model for each in _data(answer))

    def create(self, directory: str, title: str, model: dict[str, str], agent: str | None, without: list[str]) -> str:
        """Return a new session, without these tools.

        Raises:
            Unusable: there is none.
        """
        rules = [{"action": name, "resource": "*", "effect": "deny"} for name in without]
        content = {"title": title, "model": model, "location": {"directory": directory}, "permissions": rules}
        status, created = self._wire.call("POST", "/api/session", {**content, **({"agent": agent} if agent else {})})
        session = text(_object(created).get("id"), MAX_ID)
        if status != 200 or not SESSION_ID.fullmatch(session):
            raise Unusable("server_unsupported", f"a new session was answered with the status {status}")
        return session

    def directory_of(self, session: str) -> str:
        """Return where a session works.

        Raises:
            UnknownSession: it does not exist.
            Unusable: the answer is not OpenCode's.
        """
        status, found = self._wire.call("GET", _of(session))
        if status == 404 or not SESSION_ID.fullmatch(session):
            raise UnknownSession
        directory = text(dictionary(_object(found).get("location")).get("directory"), 4096)
        if status != 200 or not directory:
            raise Unusable("server_unsupported", f"the session was answered with the status {status}")
        return directory

    def choose(self, session: str, model: dict[str, str], agent: str) -> None:
        """Set model and agent of a session that does nothing."""
        for name, value in (("model", model), ("agent", agent)):
            status, _ = self._wire.call("POST", _of(session, name), {name: value})
            if status >= 400:
                raise NoAnswer(f"the session's {name} was answered with the status {status}")

    def prompt(self, session: str, content: dict[str, Any]) -> tuple[int, Any]:
        """Send the prompt; 200 means that it was accepted."""
        return self._wire.call("POST", _of(session, "prompt"), content)

    def has_in_inbox(self, session: str, message: str) -> bool:
        """Return whether the prompt waits to be delivered."""
        _, answer = self._wire.call("GET", _of(session, "inbox"))
        return any(each.get("id") == message for each in _data(answer))

    def interrupt(self, session: str, message: str) -> None:
        """End the session's turn; the prompt, if it is not delivered yet, never is."""
        self._wire.call("DELETE", _of(session, f"inbox/{quote(message, safe='')}"))
        self._wire.call("POST", _of(session, "interrupt"), {})

    def is_active(self, session: str) -> bool:
        status, answer = self._wire.call("GET", "/api/session/active")
        if status != 200 or not isinstance(answer, dict):
            raise NoAnswer(f"the active sessions were answered with the status {status}")
        return session in _object(answer)

    def commands(self, directory: str) -> set[str]:
        """Return the ids of the commands that run."""
        _, answer = self._wire.call("GET", _at("/api/shell", directory))
        return {text(each.get("id"), MAX_ID) for each in _data(answer) if each.get("status") == "running"}

    def children_of(self, session: str) -> list[str]:
        """Return the sessions of a session's sub-agents."""
        _, answer = self._wire.call("GET", f"/api/session?parentID={quote(session, safe='')}&limit=200")
        return [name for each in _data(answer) if (name := text(each.get("id"), MAX_ID))]

    def messages(self, session: str, after: str) -> list[dict[str, Any]]:
        """Return the messages behind that one, or all, oldest first."""
        found: list[dict[str, Any]] = []
        page, limit = "&order=desc", PAGE
        while len(found) < MAX_MESSAGES:
            target = f"{_of(session, 'message')}?limit={limit}{page}"
            try:
                status, answer = self._wire.call("GET", target, max_answer=MAX_PAGE)
            except TooLong:
                if limit == 1:
                    raise
                limit = 1
                continue
            if status != 200:
                raise NoAnswer(f"the session's messages were answered with the status {status}")
            messages = _data(answer)
            for each in messages:
                if each.get("id") == after:
                    return found[::-1]
                found.append(each)
            following = text(dictionary(dictionary(answer).get("cursor")).get("next"), 4096)
            if len(messages) < limit or not following:
                break
            page = f"&cursor={quote(following, safe='')}"
        return found[::-1]

    def newest_message(self, session: str) -> str:
        _, answer = self._wire.call("GET", f"{_of(session, 'message')}?limit=1&order=desc", max_answer=MAX_PAGE)
        return next((text(each.get("id"), MAX_ID) for each in _data(answer)), "")

    def asked(self, session: str, kind: str) -> list[dict[str, Any]]:
        """Return what waits for an answer: `permission` or `form`."""
        _, answer = self._wire.call("GET", _of(session, kind))
        return _data(answer)

    def reply(self, asked: Asked, answers: list[list[str]] | None, words: str) -> int:
        """Answer a form or a request for a permission; without answers by no, which ends the turn of a form.

        Args:
            words: for the model, which goes on without the permission.
        """
        path = f"{asked.kind}/{quote(asked.id, safe='')}"
        if asked.is_permission:
            decided = {"decision": "reject", "message": words} if answers is None else {"decision": answers[0][0]}
            return self._wire.call("POST", _of(asked.session, f"{path}/reply"), decided)[0]
        if answers is None:
            return self._wire.call("DELETE", _of(asked.session, path))[0]
        values = {
            key: given if field.many else given[0]
            for key, field, given in zip(asked.keys, asked.fields, answers, strict=True)
        }
        return self._wire.call("POST", _of(asked.session, f"{path}/reply"), {"answer": values})[0]


def _at(path: str, directory: str) -> str:
    return f"{path}?{quote('location[directory]')}={quote(directory, safe='')}"


def _of(session: str, path: str = "") -> str:
    return f"/api/session/{quote(session, safe='')}{'/' if path else ''}{path}"


def _object(answer: object) -> dict[str, Any]:
    return dictionary(dictionary(answer).get("data"))


def _data(answer: object) -> list[dict[str, Any]]:
    found = dictionary(answer).get("data")
    return [dictionary(each) for each in found] if isinstance(found, list) else []
