"""What the driver of OpenCode's server is to do, and how far it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.drivers.folder import EVENTS, TURN, read_json, read_state
from agent_runs.pod.sidecar.drivers.lines import MAX_INPUT, MAX_NAME, MAX_TITLE, dictionary, integer, prose, text
from agent_runs.pod.sidecar.drivers.record import Record
from agent_runs.pod.sidecar.drivers.versions import Windows

STEP = "subagent_step"
LIVE = frozenset({"error", "session_status", "text_growth", STEP})
"""Types of the lines that are not made again by every driver of a turn."""
PLANS = ("plan_enter", "plan_exit")
SESSION_ID = re.compile(r"ses[\w-]{1,125}")
MAX_ERRORS = 100
"""Errors that are remembered, and that are written."""
MAX_MESSAGE = 2000


class UnknownSession(Exception):
    """OpenCode does not know the session."""


class Answer(NamedTuple):
    """The newest message of the model in this turn."""

    message: str
    completed: bool
    error: dict[str, Any] | None


class Turn(NamedTuple):
    """What is to be done.

    Attributes:
        server: the file with the server's stdout, which the agent can write, too.
        directory: absolute; where the agent works.
        model: `<provider>/<model>`.
        session: the one to resume.
        read_to: the `seq` of that session's newest event before the turn, or of an older one; -1: not known. A journal
            can be long, so it is read from there.
        start_timeout: seconds for the server to come up.
        config: the file of the run's configuration.
        session_version: of the OpenCode 2 or later that has used the session last.
        versions: of OpenCode that are driven.
        asks: whether people answer what the agent asks; otherwise it is rejected.
        asks_questions: whether the agent may ask anything else than for a permission.
    """

    server: str
    password: str
    directory: str
    title: str
    model: str
    start_timeout: float
    variant: str | None
    agent: str | None
    session: str | None
    read_to: int = -1
    config: str = ""
    session_version: str | None = None
    versions: Windows = ()
    asks: bool = False
    asks_questions: bool = False

    @property
    def without(self) -> list[str]:
        """Tools that `opencode run` takes from its sessions, too; of those, the question tool needs somebody."""
        return [*PLANS, *(() if self.asks and self.asks_questions else ("question",))]

    @classmethod
    def read(cls, folder: str) -> Turn:
        """Read it.

        Raises:
            OSError, ValueError, TypeError: there is none, or it lacks something.
        """
        raw = read_json(folder, TURN)
        return cls(**{name: raw[name] for name in cls._fields if name in raw})


class State(NamedTuple):
    """How far it is. A prompt has identifiers of its own, so that it is the same one however often it is sent.

    Attributes:
        session: OpenCode's.
        message, part: identifiers of the prompt.
        sent: whether the prompt may have reached the server.
        start: the `seq` before the prompt's first event, once it is known.
        before: the session's newest message before the prompt.
        messages: identifiers of the later user messages, in order; empty for one that the server refused.
        answering: the newest request whose answer may have reached the server.
    """

    session: str = ""
    directory: str = ""
    message: str = ""
    part: str = ""
    sent: bool = False
    start: int | None = None
    before: str = ""
    messages: Sequence[str] = ()
    answering: str = ""

    @classmethod
    def read(cls, folder: str) -> State:
        """Read it; what never was written is the beginning.

        Raises:
            OSError, ValueError, TypeError: it cannot be read.
        """
        return cls(**read_state(folder))


class TurnRecord(Record):
    """The lines of a turn, and what earlier drivers of it have written of what is stored nowhere.

    Attributes:
        errors: how many there are of each.
    """

    def __init__(self, folder: str, session: str, live: AbstractSet[str]) -> None:
        """Raises OSError if it cannot be read and written."""
        self.errors: Counter[tuple[str, str]] = Counter()
        super().__init__(f"{folder}/{EVENTS}", session, live)

    def note(self, kind: str, line: bytes) -> None:
        if kind == "error" and len(self.errors) < MAX_ERRORS:
            self.errors[error_key(json.loads(line).get("error"))] += 1


def begun(part: dict[str, Any], state: dict[str, Any], call: str) -> dict[str, Any]:
    """The beginning of a tool call, bounded: its whole input is in the line of its end."""
    began = {name: text(part.get(name), MAX_NAME) for name in ("id", "messageID", "sessionID")}
    shown = prose(json.dumps(state.get("input"), ensure_ascii=False, default=str), MAX_INPUT)
    title = prose(state.get("title"), MAX_TITLE)
    return {
        **began,
        "type": "tool",
        "tool": text(part.get("tool"), MAX_NAME),
        "callID": call,
        "input": shown,
        "title": title,
    }


def used(tokens: object) -> dict[str, Any]:
    """The tokens of a step, bounded."""
    found = dictionary(tokens)
    cache = dictionary(found.get("cache"))
    own = {name: integer(found.get(name)) for name in ("input", "output", "reasoning")}
    return {**own, "cache": {name: integer(cache.get(name)) for name in ("read", "write")}}


def paid(cost: object) -> float | None:
    """The cost of a step, in dollars, if it is one."""
    return cost if isinstance(cost, (int, float)) and not isinstance(cost, bool) and 0 <= cost < 2**53 else None


def error_key(error: object) -> tuple[str, str]:
    """Return by what two reports of one error are the same."""
    fields: dict[str, Any] = dictionary(error)
    data = dictionary(fields.get("data"))
    return text(fields.get("name"), 200), text(data.get("message"), MAX_MESSAGE)
