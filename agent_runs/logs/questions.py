"""The questions of an agent, as they are stored: each is put to people until the run has it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from agent_runs.contracts.updates import Question
from agent_runs.transcript.events import QUESTION_ANSWERED, QUESTION_ASKED
from agent_runs.transcript.lines import Line

PAUSE: Final = timedelta(seconds=1)
"""Before Temporal is asked again."""
_ASKED, _ANSWERED = (f'{{"type":"{kind}",'.encode() for kind in (QUESTION_ASKED, QUESTION_ANSWERED))


class Questions:
    """Those of one attempt that wait for an answer.

    Args:
        ask: sends one to the run; False: it cannot be sent now.
    """

    def __init__(self, attempt: int, ask: Callable[[Question], Awaitable[bool]]) -> None:
        self._attempt = attempt
        self._ask = ask
        self._open: dict[str, Question] = {}
        self._withdrawn: dict[str, Question] = {}
        self._sent: set[Question] = set()
        self._changed = asyncio.Event()

    def add(self, lines: Iterable[Line]) -> None:
        """Take lines as they are stored: without secrets."""
        for line in lines:
            if line.stream == "stdout" and line.data.startswith((_ASKED, _ANSWERED)):
                self._take(line)

    def _take(self, line: Line) -> None:
        with suppress(ValueError, KeyError, TypeError):  # what the redaction has made unreadable cannot be shown
            content = json.loads(line.data)["question"]
            name = f"{self._attempt}-{content['id']}"
            if line.data.startswith(_ANSWERED):
                asked = self._open.pop(name, None)
                if asked is not None and not content.get("by"):
                    self._withdrawn[name] = asked.model_copy(update={"withdrawn": True})
            else:
                self._open[name] = Question.model_validate({**content, "id": name, "attempt": self._attempt})
            self._changed.set()

    async def send(self) -> None:
        """Send each to the run, once, and that the agent has withdrawn one; does not end.

        A question that is answered by then is not sent.
        """
        while True:
            await self._changed.wait()
            self._changed.clear()
            for question in (*self._open.values(), *self._withdrawn.values()):
                if question in self._sent:
                    continue
                if await self._ask(question):
                    self._sent.add(question)
                else:
                    self._changed.set()
            if self._changed.is_set():
                await asyncio.sleep(PAUSE.total_seconds())
