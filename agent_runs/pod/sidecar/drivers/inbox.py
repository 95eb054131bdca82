"""What people send an agent that works: in the driver's folder, a file for each message, and one for its delivery.

The sidecar writes the first, the driver the second, so that both survive the end of a driver.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from agent_runs.pod.sidecar.drivers.folder import read_json, write_json


class Message(NamedTuple):
    """A message to the agent, or the answer to a question of it.

    Attributes:
        number: counts from 1.
        by: who sends it, for people.
        question: the request that this answers; empty: none.
        answers: for each of its fields what was chosen; empty: it is rejected.
    """

    number: int
    id: str
    by: str
    text: str
    question: str = ""
    answers: Sequence[Sequence[str]] = ()


class Inbox:
    """The messages of a turn, as its driver takes them, in order."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._number = 1
        while answer_to(folder, self._number):
            self._number += 1

    def next(self) -> Message | None:
        """Return the message that is to be delivered.

        Raises:
            OSError, ValueError, TypeError: it cannot be read.
        """
        return self.read(self._number) if os.path.exists(f"{self._folder}/{_file(self._number)}") else None

    def read(self, number: int) -> Message:
        """Return a message that is there; raises as `next`."""
        content = read_json(self._folder, _file(number))
        own = {name: content[name] for name in Message._fields if name in content}
        return Message(number, **own)

    def answer(self, reason: str = "") -> None:
        """The message has reached the agent; with a reason, it has not and never will."""
        write_json(self._folder, _file(self._number) + ".answer", {"delivered": not reason, "reason": reason})
        self._number += 1


def put(folder: str, number: int, message: dict[str, Any]) -> None:
    """Give the driver a message.

    Raises:
        OSError: the disk is full.
    """
    write_json(folder, _file(number), message)


def answer_to(folder: str, number: int) -> dict[str, Any]:
    """Return what came of a message: `delivered`, and the `reason` if it was not; nothing while it is on its way."""
    try:
        return read_json(folder, f"{_file(number)}.answer")
    except (OSError, ValueError):
        return {}


def _file(number: int) -> str:
    return f"message-{number}"
