"""What earlier drivers of the turn have written of what no journal has."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from agent_runs.pod.sidecar.drivers.lines import dictionary, integer, text
from agent_runs.pod.sidecar.drivers.opencode_server.children import MAX_CHILDREN, STEP
from agent_runs.pod.sidecar.drivers.record import Record

LIVE = frozenset({"error", "permission_rejected", "session_status", "text_growth", STEP})
"""Types of the lines that are not made of the session's journal."""
MAX_ERRORS = 100
"""Errors that are remembered, and that are written."""
MAX_MESSAGE, MAX_REJECTED = 2000, 1000


class TurnRecord(Record):
    """The lines of a turn.

    Attributes:
        errors: how many there are of each.
        rejected: requests for a permission.
        children: sub-agents' sessions, each with the `seq` of its newest line.
    """

    def __init__(self, path: str, session: str) -> None:
        """Raises OSError if it cannot be read and written."""
        self.errors: Counter[tuple[str, str]] = Counter()
        self.rejected: set[str] = set()
        self.children: dict[str, int] = {}
        super().__init__(path, session, LIVE)

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
