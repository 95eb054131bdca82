"""Questions of the agent: each waits for the first answer, or for the end of the time for it."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import MessageNotDelivered
    from agent_runs.contracts.updates import Answer, Delivery, Question
    from workflows.attempt import Attempt
    from workflows.current_details import Phase
    from workflows.following import LONGEST_STREAM
    from workflows.run_state import RunState
    from workflows.telling import deliver

MAX_QUESTIONS: Final = 100
"""Of one run: each is in its history."""
MAX_SHOWN: Final = 1024 * 1024
"""Bytes of the questions that are shown at a time: Temporal ends a run whose answer to a query has more than 4 MiB.
Source: Temporal server 1.32, observed."""


@dataclass
class Pending:
    """A question that waits.

    Attributes:
        by: whose answer is on its way.
    """

    question: Question
    attempt: Attempt
    by: str | None = None
    is_over: bool = False


class Asking:
    """The questions of a run, oldest first."""

    def __init__(self, run: RunState) -> None:
        self._run = run
        self._known: dict[str, Pending] = {}

    @property
    def open(self) -> list[Question]:
        return [pending.question for pending in self._known.values() if self._waits(pending)]

    @property
    def shown(self) -> list[Question]:
        """Those that are open, oldest first, as far as an answer of Temporal can hold them."""
        asked = self.open
        ends = accumulate(len(question.model_dump_json().encode()) for question in asked)
        return [question for question, end in zip(asked, ends, strict=True) if end <= MAX_SHOWN]

    async def ask(self, question: Question) -> None:
        """Takes a question, and rejects it when its time is over. A worker may send it again, or as withdrawn."""
        attempt = self._run.current
        if question.withdrawn:
            self._end(self._known.get(question.id))
            return
        if attempt is None or question.attempt != attempt.key.attempt or question.id in self._known:
            return
        limit = timedelta(seconds=self._run.config.ask_timeout_sec)
        nobody = f"askTimeoutSec: nobody answered within {int(limit.total_seconds())} s"
        if len(self._known) >= MAX_QUESTIONS:
            limit, nobody = timedelta(), f"the limit of {MAX_QUESTIONS} questions of one run"
        question = question.model_copy(update={"asked_at": workflow.now()})
        pending = self._known[question.id] = Pending(question, attempt)
        self._show()
        try:
            await workflow.wait_condition(
                lambda: not self._waits(pending), timeout=limit, timeout_summary=f"answer to {question.id}"
            )
        except TimeoutError:
            await workflow.wait_condition(lambda: pending.by is None or not self._waits(pending))
            if self._waits(pending):
                with suppress(MessageNotDelivered):  # then the agent does not ask this any more
                    await self._give(pending, self._rejection(question, nobody))
                self._end(pending)

    async def answer(self, answer: Answer) -> Delivery:
        """Gives the agent an answer, however long its pod cannot be reached.

        Raises:
            MessageNotDelivered: it does not ask this, somebody else has answered, or this is no answer to it.
        """
        return await self._give(self.check(answer), answer)

    def check(self, answer: Answer) -> Pending:
        """The question that waits for this answer; raises as `answer`."""
        pending = self._known.get(answer.question_id)
        if pending is not None and pending.by is not None:
            raise MessageNotDelivered(f"it has an answer already, from {pending.by}")
        if pending is None or not self._waits(pending):
            raise MessageNotDelivered("the run has ended" if self._run.has_ended else "the agent does not ask this")
        return pending

    async def _give(self, pending: Pending, answer: Answer) -> Delivery:
        pending.by = answer.by
        try:
            delivery = await deliver(self._run, answer, LONGEST_STREAM)
        except MessageNotDelivered:
            pending.by = None
            raise
        self._run.note(f"{answer.by} answered a question of the agent in attempt {delivery.attempt}")
        self._end(pending)
        return delivery

    def _end(self, pending: Pending | None) -> None:
        if pending is not None and not pending.is_over:
            pending.is_over = True
            self._show()

    def _waits(self, pending: Pending) -> bool:
        return not pending.is_over and self._run.current is pending.attempt and self._run.is_at_work

    def _rejection(self, question: Question, by: str) -> Answer:
        run_id = self._run.start.run_id
        return Answer(message_id=f"{question.id}-nobody", run_id=run_id, question_id=question.id, by=by)

    def _show(self) -> None:
        """Shows what waits for an answer; nothing once the agent has ended."""
        if self._run.is_at_work:
            asked = self.open
            self._run.details = self._run.details.without("question")
            phase = Phase.ASKING if asked else Phase.RUNNING
            self._run.show(phase, question=asked[0].title if asked else None)
