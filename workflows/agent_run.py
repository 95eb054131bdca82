"""The workflow of one agent run: its attempts, its callers' updates, its outcome."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal, TypeVar

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import updates
    from agent_runs.contracts.errors import AgentBusy, InvalidRequest, MessageNotDelivered, RunCancelled
    from agent_runs.contracts.identity import WORKFLOW_TYPE
    from agent_runs.contracts.messages import JoinedRun
    from agent_runs.contracts.outcome import Outcome
    from workflows import attempts, attributes, run_metrics, telling
    from workflows.asking import Asking
    from workflows.boundary import Unreadable, close_with, decode, one_argument, run_start
    from workflows.current_details import Phase
    from workflows.run_state import RunState
    from workflows.token_rotation import TokenRotation

_NEXT_WORKFLOW_TASK: Final = timedelta(milliseconds=1)
"""A timer of this length fires in a later workflow task. In one task, the SDK shows updates to a workflow before a
cancel, even if the cancel came first (temporalio 1.35.0, observed: updates and signals are applied before the rest)."""
MAX_JOINS: Final = 500
"""Temporal accepts 2,000 updates of one run, and the last must be left for its outcome."""
MAX_ANSWERS: Final = 500
"""Of one run, for the same reason. An answer that the validator refuses does not count."""
_Sent = TypeVar("_Sent", updates.Tell, updates.Answer)


@workflow.defn(name=WORKFLOW_TYPE)
class AgentRunWorkflow:
    """One run of one agent. Its id is `agent-run:<agent id>`: one run at a time per agent."""

    @workflow.init
    @one_argument
    def __init__(self, start: RawValue) -> None:
        """Prepares the state, so that updates and the current details find it before `run` begins."""
        self._run = RunState.of(run_start(start))
        self._tokens = TokenRotation(self._run)
        self._joined: list[str] = []
        self._joins = self._messages = self._answers = 0
        self._asking = Asking(self._run)
        self._collected = False
        self._released = False
        self._cleaned_up = False

    @workflow.run
    @one_argument
    async def run(self, start: RawValue) -> Outcome:  # noqa: ARG002 - Temporal passes what `__init__` has decoded
        """Makes attempts until one decides the outcome, then keeps that until its caller has it.

        Callers may have the outcome before the attempt is cleaned up; the run closes only after that, so that the
        agent's next run never overlaps with a pod of this one.
        """
        run_metrics.begun()
        making_attempts = asyncio.create_task(attempts.make_attempts(self._run, self._tokens))
        while not making_attempts.done():
            try:
                await workflow.wait([making_attempts])
            except asyncio.CancelledError:
                self._cancel()
        making_attempts.result()
        self._cleaned_up = True
        self._run.decide()
        await self._retain_outcome()
        return close_with(self._run.closing_outcome)

    def _cancel(self) -> None:
        """Stops the run. One that has its outcome no longer keeps it: callers may have it, so it never changes."""
        if self._run.decided is None:
            self._run.stop(RunCancelled.as_failure(workflow.cancellation_reason() or "Run cancelled"))
        else:
            self._released = True

    async def _retain_outcome(self) -> None:
        """Keeps an outcome that nobody has fetched, for the next wake of the task.

        Ends early when another task needs the agent, or an operator cancels the workflow.
        """
        if self._run.retention:
            with suppress(TimeoutError, asyncio.CancelledError):
                await workflow.wait_condition(
                    lambda: self._collected or self._released,
                    timeout=self._run.retention,
                    timeout_summary="outcome retention",
                )
        while not workflow.all_handlers_finished():
            with suppress(asyncio.CancelledError):  # too late to change how the run closes
                await workflow.wait_condition(workflow.all_handlers_finished)

    # updates and signals of callers

    @workflow.update(name=updates.OUTCOME)
    @one_argument
    async def outcome(self, _: RawValue) -> Outcome:
        """The outcome, as soon as there is one. A caller that has received it sends `collected`."""
        await workflow.wait_condition(lambda: self._run.decided is not None)
        if self._run.decided is None:
            raise AssertionError("waited for it")
        return self._run.decided

    @workflow.signal(name=updates.COLLECTED)
    @one_argument
    def collected(self, _: RawValue) -> None:
        """The caller has the outcome, so it need not be kept any longer."""
        self._collected = True

    @workflow.signal(name=updates.BUDGET_WARNING)
    @one_argument
    def warn_of_budget(self, raw: RawValue) -> None:
        """Much of the run's budget is used. What is no such warning is ignored."""
        with suppress(Unreadable):
            self._run.warn_of_budget(decode(raw, updates.BudgetWarning))

    @workflow.query(name=updates.OUTCOME)
    @one_argument
    def outcome_so_far(self, _: RawValue) -> Outcome | None:
        """The outcome, for a caller of a run that takes no more updates; None: there is none yet."""
        return self._run.decided

    @workflow.update(name=updates.JOIN)
    @one_argument
    async def join(self, raw: RawValue) -> updates.Joined:
        """Accepts a wake of the same task. A run that only keeps its outcome ends when another task needs the agent.

        One that still cleans up answers with the phase `finishing`: the agent is free as soon as the run has closed.
        """
        input = decode(raw, updates.Join)
        self._joins += 1
        if self._run.decided is None:
            await workflow.sleep(_NEXT_WORKFLOW_TASK, summary="a cancel before the join")
        joined = self._join_kind(input) == "joined"
        if not joined:
            self._released = True
        elif input.run_id not in self._joined:
            self._refuse_if_full(input)  # once more: others may have joined in the meantime
            self._joined.append(input.run_id)
            attributes.publish({attributes.JOINED_RUN_IDS: self._joined})
            if input.sealed and self._run.decided is None:
                self._tokens.use(JoinedRun(run_id=input.run_id, task=input.task, sealed=input.sealed))
        return updates.Joined(
            kind="joined" if joined else "released",
            run_id=self._run.start.run_id,
            phase=(self._run.details.phase if joined or self._cleaned_up else Phase.FINISHING).value,
            since=workflow.info().start_time,
            finished=self._run.decided is not None,
        )

    @workflow.update(name=updates.TELL)
    @one_argument
    async def tell(self, raw: RawValue) -> updates.Delivery:
        """Tells the agent something while it works; returns once it has the message."""
        self._messages += 1
        return await telling.tell(self._run, decode(raw, updates.Tell))

    @tell.validator
    @one_argument
    def refuse_to_tell(self, raw: RawValue) -> None:
        """Refuses what is for another run, or too much for one; a refusal leaves no event in the history."""
        self._for_this_run(raw, updates.Tell, "message")
        if self._run.has_ended:
            raise MessageNotDelivered("the run has ended")
        if self._messages >= telling.MAX_MESSAGES:
            raise MessageNotDelivered(f"it has {telling.MAX_MESSAGES} messages in this run, which is the most")

    @workflow.signal(name=updates.ASKED)
    @one_argument
    async def ask(self, raw: RawValue) -> None:
        """The agent asks something and waits. What is no such question is ignored."""
        with suppress(Unreadable):
            await self._asking.ask(decode(raw, updates.Question))

    @workflow.query(name=updates.QUESTIONS)
    @one_argument
    def questions(self, _: RawValue) -> list[updates.Question]:
        """What the agent asks and waits for."""
        return self._asking.shown

    @workflow.update(name=updates.ANSWER)
    @one_argument
    async def answer(self, raw: RawValue) -> updates.Delivery:
        """Answers a question of the agent; returns once it has the answer. The first answer counts."""
        self._answers += 1
        return await self._asking.answer(decode(raw, updates.Answer))

    @answer.validator
    @one_argument
    def refuse_answer(self, raw: RawValue) -> None:
        """Refuses what answers nothing; a refusal leaves no event in the history."""
        self._asking.check(self._for_this_run(raw, updates.Answer, "answer"))
        if self._answers >= MAX_ANSWERS:
            raise MessageNotDelivered(f"it has {MAX_ANSWERS} answers in this run, which is the most")

    def _for_this_run(self, raw: RawValue, wanted: type[_Sent], what: str) -> _Sent:
        """What somebody sends the agent of this run."""
        try:
            input = decode(raw, wanted)
        except Unreadable as error:
            raise InvalidRequest(f"the {what} {error}") from None
        if input.run_id != self._run.start.run_id:
            raise MessageNotDelivered(f"run {input.run_id} does not have the agent")
        return input

    @join.validator
    @one_argument
    def refuse_join(self, raw: RawValue) -> None:
        """Refuses another task, and more joins than a run can remember; a refusal leaves no event in the history."""
        try:
            input = decode(raw, updates.Join)
        except Unreadable as error:
            raise InvalidRequest(f"the join {error}") from None
        kind = self._join_kind(input)
        if kind == "refused" or self._joins >= MAX_JOINS:
            raise self._busy()
        if kind == "joined":
            self._refuse_if_full(input)

    def _join_kind(self, input: updates.Join) -> Literal["joined", "released", "refused"]:
        """Whether a wake joins this run, waits for the agent to be free (`released`), or is refused.

        An outcome is delivered once, so a wake that comes after `collected` gets a run of its own. So does one that
        comes after a cancel, also while the run cleans up: Paperclip cancels for a comment, which is new work.
        """
        decided = self._run.decided
        ended = decided is not None
        start = self._run.start
        same_task = bool(input.task) and (input.task, input.company_id) == (start.task, start.company_id)
        if not same_task or self._collected:
            return "released" if ended else "refused"
        cancelled = self._run.is_cancelled if decided is None else decided.error_code == RunCancelled.code
        return "released" if cancelled and input.run_id not in self._joined else "joined"

    def _refuse_if_full(self, input: updates.Join) -> None:
        """Refuses a wake whose id can no longer be kept: Paperclip may repeat it, and then it would start the agent."""
        if input.run_id not in self._joined and not attributes.fits([*self._joined, input.run_id]):
            raise self._busy(f"{len(self._joined)} wakes have joined it, and it can remember no more")

    def _busy(self, note: str | None = None) -> AgentBusy:
        start = self._run.start
        return AgentBusy(
            f"agent {start.agent_id} is held by run {start.run_id}",
            holder=start.run_id,
            task=start.task,
            phase=self._run.details.phase.value,
            since=workflow.info().start_time.isoformat(),
            note=note,
        )
