"""The state of a run that its steps share: start, request, attempts so far, what has stopped it, what operators see."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.errors import Failure, RunCancelled
    from agent_runs.contracts.identity import RunKey
    from agent_runs.contracts.messages import BudgetLimit, QueuedMessage
    from agent_runs.contracts.outcome import Outcome, Report, Stop
    from agent_runs.contracts.request import RunConfig, RunRequest
    from agent_runs.contracts.start import RunStart
    from agent_runs.contracts.updates import BudgetWarning
    from agent_runs.paperclip import result
    from workflows import attributes, run_metrics
    from workflows.attempt import Attempt
    from workflows.current_details import CurrentDetails, Phase


@dataclass
class RunState:
    """The state of one run.

    Attributes:
        start: what the caller has started the run with.
        attempts: those whose agent has ended.
        current: the attempt that is being made.
        queued: messages that the agent has not answered yet, for its next prompt.
        stopped_by: why the run was stopped, such as a cancel: the first reason counts.
        failure_outside_attempts: why there was no attempt, or no further one.
        warned_limits: limits of the budget of which people have been warned.
        decided: the outcome that callers get, once there is one; it never changes.
    """

    start: RunStart
    details: CurrentDetails
    notes: tuple[str, ...] = ()
    attempts: list[Attempt] = field(default_factory=list)
    current: Attempt | None = None
    queued: tuple[QueuedMessage, ...] = ()
    stopped_by: Failure | None = None
    failure_outside_attempts: Failure | None = None
    warned_limits: set[BudgetLimit] = field(default_factory=set)
    decided: Outcome | None = None
    _request: RunRequest | None = None
    _stoppable: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, start: RunStart) -> Self:
        """The state of a run that no worker has begun."""
        return cls(start, CurrentDetails.of(start))

    @property
    def key(self) -> RunKey:
        """Identifies the run in everything it creates."""
        return self.start.key

    @property
    def request(self) -> RunRequest:
        """What the caller asks for, without secrets; known from the first attempt on."""
        if self._request is None:
            raise AssertionError("no attempt is made before the request is prepared")
        return self._request

    def use(self, request: RunRequest) -> None:
        """Takes the request, once it is opened, and shows its warnings."""
        self._request = request
        self.details = self.details.with_request(request)
        self.warn(*request.notes)

    @property
    def config(self) -> RunConfig:
        """The agent's configuration."""
        return self.request.config

    @property
    def grace(self) -> timedelta:
        """How long the agent may take to end after SIGTERM."""
        return timedelta(seconds=self.config.grace_sec)

    @property
    def retention(self) -> timedelta:
        """How long an outcome that nobody has fetched is kept."""
        return timedelta(seconds=self.start.outcome_retention_sec)

    @property
    def is_at_work(self) -> bool:
        """Whether an agent works."""
        attempt = self.current
        return attempt is not None and attempt.started_at is not None and self.stopped_by is None

    @property
    def asks(self) -> bool:
        """Whether people are asked what the agent asks."""
        capabilities = self.request.capabilities
        return capabilities is not None and capabilities.asks

    @property
    def takes_messages(self) -> bool:
        """Whether the agent takes messages while it works."""
        capabilities = self.request.capabilities
        return capabilities is None or capabilities.takes_messages

    @property
    def is_asking(self) -> bool:
        """Whether the agent waits for the answer of a person."""
        return self.details.phase is Phase.ASKING

    @property
    def has_ended(self) -> bool:
        """Whether no agent will work any more."""
        return self.decided is not None or self.stopped_by is not None or self.failure_outside_attempts is not None

    # stopping

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody has cancelled the run, which may still clean up."""
        return self.stopped_by is not None and self.stopped_by.code == RunCancelled.code

    def stop(self, reason: Failure) -> None:
        """Cancels the work of `until_stopped`. Parsing and cleanup go on; the run ends after them."""
        if self.stopped_by is None:
            self.stopped_by = reason
            if self._stoppable is not None:
                self._stoppable.cancel()

    async def until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work, unless the run is stopped.

        Raises:
            CancelledError: it was stopped before or meanwhile.
        """
        self._stoppable = asyncio.create_task(work)
        if self.stopped_by is not None:
            self._stoppable.cancel()
        try:
            await self._stoppable
        finally:
            self._stoppable = None

    def raise_if_stopped(self) -> None:
        """For use after a step that may end well although it is cancelled.

        Raises:
            CancelledError: the run was stopped.
        """
        if self.stopped_by is not None:
            raise asyncio.CancelledError

    def shield_from_stops(self) -> None:
        """The work is being stopped already, so a cancel has nothing to interrupt."""
        self._stoppable = None

    # what operators see

    def note(self, *notes: str) -> None:
        """Adds sentences for people to the outcome."""
        self.notes += notes

    def show(self, phase: Phase, **values: str | None) -> None:
        """Updates the current details, and the search attribute when the phase is one that operators filter by."""
        changed = phase is not self.details.phase
        self.details = self.details.in_phase(phase, **values)
        workflow.set_current_details(self.details.markdown)
        if changed and phase is Phase.SCHEDULING:
            attributes.publish({attributes.RUN_PHASE: phase.value, attributes.MODEL: self.config.model})
        elif changed and phase in {Phase.RUNNING, Phase.ASKING}:
            attributes.publish({attributes.RUN_PHASE: phase.value})

    def show_report(self, report: Report) -> None:
        """Adds what the transcript shows to the current details, which appear with the next phase."""
        self.details = self.details.with_report(report)

    def warn(self, *warnings: str) -> None:
        """Adds sentences for people to the outcome, and shows them at once. What is known already is not repeated."""
        if new := [warning for warning in dict.fromkeys(warnings) if warning not in self.notes]:
            self.note(*new)
            self.details = self.details.with_warnings(new)
            workflow.set_current_details(self.details.markdown)  # no command: any step may warn

    def warn_of_budget(self, warning: BudgetWarning) -> None:
        """Adds the warning, once for each limit: a worker that takes over from a killed one may send it again."""
        if warning.limit not in self.warned_limits:
            self.warned_limits.add(warning.limit)
            self.warn(warning.text)

    def decide(self) -> None:
        """Builds the outcome, unless it is built; operators see from now on that the run has ended."""
        if self.decided is not None:
            return
        for message in self._unsent():
            self.warn(f"the run ended before the agent got a message of {message.by}")
        self.decided = outcome = self._build_outcome()
        phase = _final_phase(outcome)
        now = workflow.now()
        kept_until = now + self.retention if self.retention else None
        shown = kept_until.isoformat(timespec="seconds") if kept_until else None
        self.show(phase, failure=outcome.error_message, **{"outcome kept until": shown})
        run_metrics.ended(outcome, phase, self.details.model)
        attributes.publish(
            {
                attributes.RUN_PHASE: phase.value,
                attributes.ENDED_AT: now,
                attributes.MODEL: self.details.model,
                attributes.OUTCOME_KEPT_UNTIL: kept_until,
                attributes.FAILURE_KIND: outcome.error_code,
            }
        )

    def _unsent(self) -> list[QueuedMessage]:
        sent = {message.id for attempt in self.attempts if attempt.started_at for message in attempt.messages}
        return [message for message in self.queued if message.id not in sent]

    @property
    def closing_outcome(self) -> Outcome:
        """The outcome that callers got, with the notes that the clean-up has added since."""
        if self.decided is None:
            raise AssertionError("a run closes with an outcome")
        return result.with_notes(self.decided, self.notes)

    def _build_outcome(self) -> Outcome:
        last = self.attempts[-1] if self.attempts else None
        return result.outcome(
            self._request,
            report=last.report if last else None,
            failure=self.failure_outside_attempts or (last.failure if last else None),
            end=last.end.container if last and last.end else None,
            earlier=[attempt.report for attempt in self.attempts[:-1] if attempt.report],
            receipt=last.end.receipt if last and last.end else None,
            attempts=tuple(attempt.summary for attempt in self.attempts),
            transcript=last.key.transcript if last else None,
            notes=self.notes,
            billing_type="metered_api" if last and last.report and last.report.cost_estimated else "unknown",
            stop=last.stop if last else Stop(agent_stopped=True),
            ended_at=workflow.now(),
        )


def _final_phase(outcome: Outcome) -> Phase:
    if outcome.failure is None:
        return Phase.SUCCEEDED
    if outcome.timed_out:
        return Phase.TIMED_OUT
    return Phase.CANCELLED if outcome.error_code == RunCancelled.code else Phase.FAILED
