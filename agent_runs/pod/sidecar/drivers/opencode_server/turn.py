"""What the driver of OpenCode's server is to do, and how far it is."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.drivers.folder import EVENTS, TURN, read_json, read_state
from agent_runs.pod.sidecar.drivers.lines import dictionary, integer, text
from agent_runs.pod.sidecar.drivers.opencode_server.children import MAX_CHILDREN, STEP
from agent_runs.pod.sidecar.drivers.record import Record

LIVE = frozenset({"error", "permission_rejected", "session_status", "text_growth", STEP})
"""Types of the lines that are not made of the session's journal."""
MAX_ERRORS = 100
"""Errors that are remembered, and that are written."""
MAX_MESSAGE, MAX_REJECTED = 2000, 1000


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
    """

    session: str = ""
    directory: str = ""
    message: str = ""
    part: str = ""
    sent: bool = False
    start: int | None = None

    @classmethod
    def read(cls, folder: str) -> State:
        """Read it; what never was written is the beginning.

        Raises:
            OSError, ValueError, TypeError: it cannot be read.
        """
        return cls(**read_state(folder))


class TurnRecord(Record):
    """The lines of a turn, and what earlier drivers of it have written of what no journal has.

    Attributes:
        errors: how many there are of each.
        rejected: requests for a permission.
        children: sub-agents' sessions, each with the `seq` of its newest line.
    """

    def __init__(self, folder: str, session: str) -> None:
        """Raises OSError if it cannot be read and written."""
        self.errors: Counter[tuple[str, str]] = Counter()
        self.rejected: set[str] = set()
        self.children: dict[str, int] = {}
        super().__init__(f"{folder}/{EVENTS}", session, LIVE)

    def note(self, kind: str, line: bytes) -> None:
        if kind == "error" and len(self.errors) < MAX_ERRORS:
            self.errors[error_key(json.loads(line).get("error"))] += 1
        elif kind == "permission_rejected" and len(self.rejected) < MAX_REJECTED:
            self.rejected.add(str(json.loads(line).get("requestID")))
        elif kind == STEP and len(self.children) < MAX_CHILDREN:
            step = json.loads(line)
            self.children[text(step.get("child"), MAX_MESSAGE)] = integer(step.get("seq"))


def error_key(error: object) -> tuple[str, str]:
    """Return by what two reports of one error are the same."""
    fields: dict[str, Any] = dictionary(error)
    data = dictionary(fields.get("data"))
    return text(fields.get("name"), 200), text(data.get("message"), MAX_MESSAGE)
