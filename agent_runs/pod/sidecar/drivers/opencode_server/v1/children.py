"""The sessions of a turn's sub-agents: `opencode run` writes nothing of them, but their steps cost as much as others.

Each step that a sub-agent finishes makes one line. The line has the `seq` of its event, so a driver that was killed
knows from its file where to go on in each session. A session may be older than the turn, because a sub-agent can be
resumed; what its journal has of earlier turns is known by the identifiers of messages, which sort by time.
"""

from __future__ import annotations

from typing import Any

from agent_runs.pod.sidecar.drivers.lines import LEFT_OUT, MAX_NAME, Line, dictionary, text
from agent_runs.pod.sidecar.drivers.opencode_server.turn import STEP, paid, used

MAX_CHILDREN = 1024
NEVER = 2**53 - 1
"""As the newest `seq`: nothing of the session is to be read."""


class Children:
    """The sub-agents' sessions, theirs included, and the steps that they finish.

    Attributes:
        after: the newest `seq` of each that is known; for one that has done nothing in this turn, `NEVER`.
    """

    def __init__(self, session: str, prompt: str, written: dict[str, int]) -> None:
        """Begin with what earlier drivers of this turn have written: the newest `seq` of each session."""
        self.after = dict(written)
        self._session = session
        self._prompt = prompt

    def __contains__(self, session: object) -> bool:
        return session in self.after

    def add_session(self, session: str, parent: str, after: int = -1) -> None:
        """Take note of one, if it is a sub-agent's of this turn."""
        if session and session not in self.after and len(self.after) < MAX_CHILDREN and self._is_ours(parent):
            self.after[session] = after

    def add_older(self, parents: dict[str, str]) -> None:
        """Take note of those that were there before the turn, each with its parent, in any order."""
        found = True
        while found:
            known = len(self.after)
            for session, parent in parents.items():
                self.add_session(session, parent, NEVER)
            found = len(self.after) > known

    def reconsider_older(self) -> None:
        """After a cut, one that had done nothing may have done something: all of it is read."""
        self.after.update({session: -1 for session, after in self.after.items() if after == NEVER})

    def misses(self, session: str, seq: int) -> bool:
        """Return whether a live event shows that others before it are not known."""
        if self.after[session] == NEVER:
            self.after[session] = seq - 1
        return seq > self.after[session] + 1

    def add(self, session: str, seq: int, kind: str, data: object) -> list[Line]:
        """Take an event of any session but the turn's, and return the lines it makes. Never raises."""
        fields = {} if data is LEFT_OUT else dictionary(data)
        if kind == "session.created.1":
            self.add_session(session, text(dictionary(fields.get("info")).get("parentID"), MAX_NAME))
        if not self.after.get(session, NEVER) < seq:
            return []
        self.after[session] = seq
        part = dictionary(fields.get("part")) if kind == "message.part.updated.1" else {}
        is_step = part.get("type") == "step-finish" and text(part.get("messageID"), MAX_NAME) > self._prompt
        return [Line(STEP, {"child": session, "seq": seq, "part": _step(part)})] if is_step else []

    def _is_ours(self, parent: str) -> bool:
        return bool(parent) and (parent == self._session or parent in self.after)


def _step(part: dict[str, Any]) -> dict[str, Any]:
    """What a step has used, bounded."""
    return {
        "id": text(part.get("id"), MAX_NAME),
        "type": "step-finish",
        "reason": text(part.get("reason"), MAX_NAME),
        "cost": paid(part.get("cost")),
        "tokens": used(part.get("tokens")),
    }
