"""OpenCode's server: where it listens, and the calls that a turn needs.

Source: OpenCode 1.18.33, its `GET /doc`, and tried.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from agent_runs.pod.sidecar import shared
from agent_runs.pod.sidecar.drivers.lines import LEFT_OUT, dictionary, integer, text
from agent_runs.pod.sidecar.drivers.opencode_server.children import NEVER
from agent_runs.pod.sidecar.drivers.opencode_server.wire import NoAnswer, TooLarge, Wire, elements
from agent_runs.pod.sidecar.drivers.waiting import Waiter

OLDEST = (1, 18)
"""Versions before have no events with `seq`."""
MAX_OUTPUT = 64 * 1024
"""Bytes of the server's stdout that are read: its address is in one of the first lines."""
LOOK_SECONDS = 0.05
MAX_OTHERS = 10_000
MAX_ID = 128
_HEAD = re.compile(  # OpenCode writes an event's data last
    r'\{"id":"[^"]{1,128}","aggregate_id":"(?P<session>[^"]{1,128})","seq":(?P<seq>\d{1,15}),"type":"(?P<type>[^"]{1,128})"'
)
_LISTENING = re.compile(rb"^opencode server listening on http://127\.0\.0\.1:(\d{1,5})\r?$", re.MULTILINE)
_ENDED = re.compile(rb"^ended$", re.MULTILINE)
"""What `serve.sh` writes when there is no server any more."""
_SESSION = re.compile(r"ses[\w-]{1,125}")
NOT_ASKED = [{"permission": name, "action": "deny", "pattern": "*"} for name in ("question", "plan_enter", "plan_exit")]
"""Rules that `opencode run` gives its sessions, too: nobody is there to answer."""


class Unusable(Exception):
    """The server cannot be used; no prompt was sent. `reason` is its name."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class UnknownSession(Exception):
    """OpenCode does not know the session."""


def await_port(path: str, seconds: float, waiter: Waiter) -> int:
    """Return the port as soon as the server has written it.

    Raises:
        Unusable: it did not within that time, or has ended.
        Aborted: SIGTERM came.
    """
    end, (folder, _, name) = time.monotonic() + seconds, path.rpartition("/")
    while True:
        output = shared.read(folder, name, MAX_OUTPUT)
        found = _LISTENING.search(output)
        if found is None and _ENDED.search(output):
            raise Unusable("server_not_started", "the server ended before it wrote its address")
        if found is not None and 0 < int(found[1]) < 2**16:
            return int(found[1])
        if time.monotonic() >= end:
            raise Unusable("server_not_started", f"the server did not write its address within {seconds:g} s")
        waiter.ready(None, 0, LOOK_SECONDS)


def check(wire: Wire) -> None:
    """Look whether it is an OpenCode that is new enough.

    Raises:
        Unusable: it is not.
        NoAnswer, Aborted: see there.
    """
    status, health = wire.call("GET", "/global/health")
    if status in (401, 403):
        raise Unusable("server_refused", f"the server refuses the password: status {status}")
    version = text(dictionary(health).get("version"), 40)
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    if status != 200 or numbers is None:
        raise Unusable("server_unsupported", f"the server's health has the status {status}, version {version!r}")
    if (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise Unusable("server_unsupported", f"OpenCode {version} is too old for a driver")


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

    def create(self, title: str) -> str:
        """Return a new session.

        Raises:
            Unusable: there is none.
        """
        status, created = self.wire.call("POST", self._path("/session"), {"title": title, "permission": NOT_ASKED})
        session = text(dictionary(created).get("id"), MAX_ID)
        if status != 200 or not _SESSION.fullmatch(session):
            raise Unusable("server_unsupported", f"a new session was answered with the status {status}")
        return session

    def directory_of(self, session: str) -> str:
        """Return where a session works.

        Raises:
            UnknownSession: it does not exist.
            Unusable: the answer is not OpenCode's.
        """
        status, found = self.wire.call("GET", self._path(f"/session/{quote(session, safe='')}"))
        if status == 404 or (status == 500 and not _SESSION.fullmatch(session)):
            raise UnknownSession(session)
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

    def reject(self, kind: str, request: str) -> None:
        """Answer a question or a request for a permission by no."""
        name = quote(request, safe="")
        end, content = ("reply", {"reply": "reject"}) if kind == "permission" else ("reject", {})
        self.wire.call("POST", self._path(f"/{kind}/{name}/{end}"), content)

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
