"""The story of one agent run."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar, cast

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from contracts.errors import ClusterUnavailable, Failure, RunCancelled, RunTimeout, failure_of
    from contracts.identity import AttemptKey
    from contracts.messages import (
        AwaitSchedule,
        BundlePrompt,
        CreateJob,
        Finish,
        IntrospectPod,
        JobRef,
        ParseTranscript,
        StreamEnd,
        StreamLogs,
    )
    from contracts.outcome import AttemptReport, Outcome, OutputReceipt, Report
    from contracts.request import RunRequest, SessionParams
    from paperclip import result
    from workflows import attributes
    from workflows.card import Card, Phase
    from workflows.steps import (
        AWAIT_SCHEDULE,
        BUNDLE_PROMPT,
        CREATE_JOB,
        FINISH,
        INTROSPECT_POD,
        PARSE_TRANSCRIPT,
        STREAM_LOGS,
    )

One = TypeVar("One")
Other = TypeVar("Other")

SLACK: Final = timedelta(minutes=1)
"""Over an order's own clocks, so that the activity reports its patience by name before Temporal ends it."""


@dataclass
class Attempt:
    """One attempt while it happens: what it has made and learned so far."""

    key: AttemptKey
    session: SessionParams | None
    job: JobRef | None = None
    end: StreamEnd | None = None
    report: Report | None = None
    failure: Failure | None = None

    @property
    def session_refused(self) -> bool:
        """OpenCode does not know the session this attempt was to resume."""
        return self.session is not None and self.report is not None and self.report.unknown_session

    @property
    def summary(self) -> AttemptReport:
        """As the outcome lists it."""
        failure = self.failure or (self.report.failure if self.report else None)
        return AttemptReport(
            attempt=self.key.attempt,
            job_name=self.key.job_name,
            failure_code=failure.code if failure else None,
            receipt=self.end.receipt if self.end else OutputReceipt(),
        )


@workflow.defn
class AgentRunWorkflow:
    """One run of one agent. Its id is `agent-run:<agent id>`: one run at a time per agent."""

    @workflow.init
    def __init__(self, request: RunRequest) -> None:
        """Every run starts with a card, so that the first look in the Web UI shows one."""
        self._request = request
        self._card = Card.of(request)
        self._notes = request.notes

    @workflow.run
    async def run(self, request: RunRequest) -> Outcome:
        """Attempts until one counts: a refused session is followed by a fresh attempt in the same run."""
        attempts = [await self._attempt(1, request.runtime.session_params)]
        if attempts[-1].session_refused and not attempts[-1].failure:
            attempts.append(await self._attempt(2, session=None))
        return self._outcome(attempts)

    async def _attempt(self, number: int, session: SessionParams | None) -> Attempt:
        """One Job, from its prompt to its cleanup. Cleanup follows each explicit end, never a bug in this code."""
        attempt = Attempt(AttemptKey(run=self._request.key, attempt=number), session)
        try:
            await self._agent(attempt)
        except ActivityError as error:
            attempt.failure = self._failure(error)
        except asyncio.CancelledError:
            attempt.failure = self._cancelled()
        await self._aftermath(attempt)
        return attempt

    async def _agent(self, attempt: Attempt) -> None:
        """Prepare, create, wait, follow."""
        request, key = self._request, attempt.key
        self._show(self._card.at(Phase.PREPARING, attempt=str(key.attempt) if key.attempt > 1 else None))
        profile, prompt = await both(
            INTROSPECT_POD(IntrospectPod(run=key.run, config=request.config), "what the agent's pod inherits"),
            BUNDLE_PROMPT(
                BundlePrompt(attempt=key, config=request.config, resuming=attempt.session is not None),
                "instructions, skills and wake into a Secret",
            ),
        )
        self._notes += prompt.warnings
        attempt.job = await CREATE_JOB(
            CreateJob(
                attempt=key,
                agent_name=request.agent.name,
                task_id=request.task_id,
                task_key=request.runtime.task_key,
                config=request.config,
                workspace=request.context.paperclip_workspace,
                profile=profile,
                prompt=prompt,
                session=attempt.session,
            ),
            key.job_name,
        )
        self._notes += attempt.job.warnings
        self._show(self._card.at(Phase.SCHEDULING, job=f"{attempt.job.namespace}/{attempt.job.name}"))
        wait = AwaitSchedule(attempt=key, job=attempt.job)
        pod = await AWAIT_SCHEDULE(wait, "node, image, volumes", attempt=wait.patience + wait.start_patience + SLACK)
        self._show(self._card.at(Phase.RUNNING, pod=pod.name, node=pod.node))
        attempt.end = await self._output(attempt, StreamLogs(attempt=key, job=attempt.job, pod=pod))
        attempt.failure = attempt.failure or (attempt.end.failure if attempt.end else None)

    async def _output(self, attempt: Attempt, order: StreamLogs) -> StreamEnd | None:
        """Follows the agent's output to its end, or to the run's time-out, whichever comes first."""
        following = STREAM_LOGS.start(order, f"output of {order.pod.name}")
        limit = self._request.config.timeout_sec
        if not limit:
            return await following
        clock = asyncio.create_task(workflow.sleep(timedelta(seconds=limit), summary="run timeout"))
        try:
            await workflow.wait([following, clock], return_when=asyncio.FIRST_COMPLETED)
        finally:
            clock.cancel()
        if following.done():
            return await following
        attempt.failure = RunTimeout.as_failure(f"Timed out after {limit}s")
        following.cancel()
        await workflow.wait([following])
        return None

    async def _aftermath(self, attempt: Attempt) -> None:
        """Judges what was written, whatever ended the attempt, then leaves nothing behind."""
        self._show(self._card.at(Phase.FINISHING))
        if attempt.job is not None:
            attempt.report = await self._parsed(attempt)
        finish = Finish(
            attempt=attempt.key,
            namespace=attempt.job.namespace if attempt.job else self._request.config.namespace,
            job=attempt.job,
            retain=self._request.config.retain_jobs,
            grace=timedelta(seconds=self._request.config.grace_sec),
        )
        try:
            await FINISH(finish, "Job and Secrets")
        except ActivityError as error:
            workflow.logger.warning("finish.incomplete", extra={"failure": str(error.cause)})

    async def _parsed(self, attempt: Attempt) -> Report | None:
        """The fold over the stored transcript. An attempt without it still has its own failure."""
        order = ParseTranscript(
            attempt=attempt.key,
            end=attempt.end or StreamEnd.unknown(),
            resumed_session=attempt.session.session_id if attempt.session else None,
            stopped=attempt.failure,
            model=self._request.config.model,
        )
        try:
            report = await PARSE_TRANSCRIPT(order, "session, usage, cost, verdict")
        except ActivityError as error:
            attempt.failure = attempt.failure or self._failure(error)
            return None
        self._card = self._card.reporting(report)
        return report

    def _outcome(self, attempts: list[Attempt]) -> Outcome:
        last = attempts[-1]
        outcome = result.outcome(
            self._request,
            report=last.report,
            failure=last.failure,
            end=last.end.container if last.end else None,
            earlier=[attempt.report for attempt in attempts[:-1] if attempt.report],
            receipt=last.end.receipt if last.end else None,
            attempts=tuple(attempt.summary for attempt in attempts),
            transcript=last.key.transcript,
            notes=self._notes,
            billing_type="metered_api" if last.report and last.report.cost_estimated else "unknown",
        )
        self._show(self._card.at(_final_phase(outcome), failure=outcome.error_message), outcome.error_code)
        return outcome

    def _failure(self, error: ActivityError) -> Failure:
        """The named failure behind a step that ended in an error."""
        cause = error.cause
        if is_cancelled_exception(error):
            return self._cancelled()
        if isinstance(cause, exceptions.TimeoutError):
            cause = cause.cause or cause
        if isinstance(cause, ApplicationError):
            return failure_of(cause)
        return ClusterUnavailable.as_failure(f"{error.activity_type} did not end in time: {cause}")

    @staticmethod
    def _cancelled() -> Failure:
        return RunCancelled.as_failure(workflow.cancellation_reason() or "Run cancelled")

    def _show(self, card: Card, failure_code: str | None = None) -> None:
        """Updates the card, and the search attributes when the phase is one that operators filter by."""
        changed = card.phase is not self._card.phase
        self._card = card
        workflow.set_current_details(card.markdown)
        if changed and card.phase not in {Phase.PREPARING, Phase.FINISHING}:
            updates = [attributes.RUN_PHASE.value_set(card.phase.value)]
            if failure_code:
                updates.append(attributes.FAILURE_KIND.value_set(failure_code))
            workflow.upsert_search_attributes(updates)


async def both(one: Awaitable[One], other: Awaitable[Other]) -> tuple[One, Other]:
    """The results of two steps side by side. When one fails the other is waited for: it may still make something that
    has to be cleaned up."""
    first, second = await asyncio.gather(one, other, return_exceptions=True)
    for ended in (first, second):
        if isinstance(ended, BaseException):
            raise ended
    return cast("One", first), cast("Other", second)


def _final_phase(outcome: Outcome) -> Phase:
    if outcome.failure is None:
        return Phase.SUCCEEDED
    if outcome.timed_out:
        return Phase.TIMED_OUT
    return Phase.CANCELLED if outcome.error_code == RunCancelled.code else Phase.FAILED
