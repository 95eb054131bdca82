"""The workflow of one agent run: its attempts, its callers' updates, its outcome."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import updates
    from agent_runs.contracts.errors import AgentBusy, RunCancelled
    from agent_runs.contracts.identity import WORKFLOW_TYPE
    from agent_runs.contracts.messages import JoinedRun
    from agent_runs.contracts.outcome import Outcome
    from workflows import attempts, attributes, run_metrics
    from workflows.boundary import close_with, run_start
    from workflows.current_details import Phase
    from workflows.run_state import RunState
    from workflows.token_rotation import TokenRotation

_CANCEL_IS_SEEN: Final = timedelta(milliseconds=1)
"""A timer fires in a later workflow task. In one task, the SDK shows Updates to a workflow before a cancel, even if the
cancel came first (temporalio 1.35.0, observed: Updates and signals of an activation are applied before the rest)."""


@workflow.defn(name=WORKFLOW_TYPE)
class AgentRunWorkflow:
    """One run of one agent. Its id is `agent-run:<agent id>`: one run at a time per agent."""

    @workflow.init
    def __init__(self, start: RawValue) -> None:
        """Prepares the state, so that updates and the current details find it before `run` begins."""
        self._run = RunState.of(run_start(start))
        self._tokens = TokenRotation(self._run)
        self._joined: list[str] = []
        self._collected = False
        self._released = False
        self._cleaned_up = False

    @workflow.run
    async def run(self, start: RawValue) -> Outcome:  # noqa: ARG002 - Temporal passes what `__init__` has decoded
        """Makes attempts until one counts, then keeps the outcome until its caller has it.

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
        """Stops the run, or ends the keeping of its outcome: a cancel never changes one that callers may have."""
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
    async def outcome(self) -> Outcome:
        """The outcome, as soon as there is one. A caller that has received it sends `collected`."""
        await workflow.wait_condition(lambda: self._run.decided is not None)
        if self._run.decided is None:
            raise AssertionError("waited for it")
        return self._run.decided

    @workflow.signal(name=updates.COLLECTED)
    def collected(self) -> None:
        """The caller has the outcome, so it need not be kept any longer."""
        self._collected = True

    @workflow.update(name=updates.JOIN)
    async def join(self, input: updates.Join) -> updates.Joined:
        """Accepts a wake of the same task. A run that only keeps its outcome ends when another task needs the agent.

        One that still cleans up answers with the phase `finishing`: the agent is free as soon as the run has closed.
        """
        if self._run.decided is None:
            await workflow.sleep(_CANCEL_IS_SEEN, summary="a cancel before the join")
        joined = self._join_kind(input) == "joined"
        if not joined:
            self._released = True
        elif input.run_id not in self._joined:
            self._joined.append(input.run_id)
            workflow.upsert_search_attributes(
                [attributes.JOINED_RUN_IDS.value_set(self._joined[-attributes.MAX_JOINED_RUN_IDS :])]
            )
            if input.sealed and self._run.decided is None:
                self._tokens.use(JoinedRun(run_id=input.run_id, task=input.task, sealed=input.sealed))
        return updates.Joined(
            kind="joined" if joined else "released",
            run_id=self._run.start.run_id,
            phase=(self._run.details.phase if joined or self._cleaned_up else Phase.FINISHING).value,
            since=workflow.info().start_time,
            finished=self._run.decided is not None,
        )

    @join.validator
    def refuse_another_task(self, input: updates.Join) -> None:
        """Refuses another task and names the run that holds the agent; a refusal leaves no event in the history."""
        if self._join_kind(input) == "refused":
            start = self._run.start
            raise AgentBusy(
                f"agent {start.agent_id} is held by run {start.run_id}",
                holder=start.run_id,
                task=start.task,
                phase=self._run.details.phase.value,
                since=workflow.info().start_time.isoformat(),
            )

    @workflow.signal(name=updates.STEP_KEEPS_FAILING)
    def step_keeps_failing(self, input: updates.FailingStep) -> None:
        """A worker tries a step once more, whose tries so far the workflow has not seen."""
        self._run.show_failing(input)

    @workflow.signal(name=updates.STEP_GOES_ON)
    def step_goes_on(self, activity: str) -> None:
        """A step that kept failing works now."""
        self._run.forget_failing(activity)

    @workflow.query(name=updates.FAILING_STEPS)
    def failing_steps(self) -> list[str]:
        """The types of the activities that keep failing."""
        return list(self._run.details.failing)

    def step_began(self, activity: str) -> None:
        """See `OpenSteps`."""
        self._run.open_steps[activity] += 1

    def step_ended(self, activity: str) -> None:
        """See `OpenSteps`."""
        self._run.open_steps[activity] -= 1
        self._run.forget_failing(activity)

    def _join_kind(self, input: updates.Join) -> Literal["joined", "released", "refused"]:
        """An outcome is delivered once: a wake that comes after `collected` gets a run of its own.

        So does one that comes after a cancel, also while the run cleans up: Paperclip cancels for a comment, which is
        new work.
        """
        decided = self._run.decided
        ended = decided is not None
        same_task = bool(input.task) and input.task == self._run.start.task
        if not same_task or self._collected:
            return "released" if ended else "refused"
        cancelled = self._run.is_cancelled if decided is None else decided.error_code == RunCancelled.code
        return "released" if cancelled and input.run_id not in self._joined else "joined"
