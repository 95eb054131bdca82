"""The story of one agent run."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal

from temporalio import exceptions, workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from contracts import talk
    from contracts.errors import (
        AgentBusy,
        ClusterUnavailable,
        Failure,
        PodScheduleFailed,
        PodStartFailed,
        RunCancelled,
        RunTimeout,
        failure_of,
    )
    from contracts.identity import AttemptKey
    from contracts.messages import (
        AwaitSchedule,
        BundlePrompt,
        CreateJob,
        Finish,
        IntrospectPod,
        JobRef,
        JoinedRun,
        ParseTranscript,
        PodRef,
        ReapLeftovers,
        RotateToken,
        StopAgent,
        StreamEnd,
        StreamLogs,
    )
    from contracts.outcome import Outcome, Report
    from contracts.request import RunRequest, SessionParams
    from paperclip import result
    from workflows import attributes, clocks
    from workflows.attempt import Attempt
    from workflows.budgets import Again, another
    from workflows.card import Card, Phase
    from workflows.clocks import Overdue, made, settled, until_silent, within
    from workflows.steps import (
        AWAIT_SCHEDULE,
        BUNDLE_PROMPT,
        CREATE_JOB,
        FINISH,
        INTROSPECT_POD,
        PARSE_TRANSCRIPT,
        REAP_LEFTOVERS,
        ROTATE_TOKEN,
        STOP_AGENT,
        STREAM_LOGS,
    )

KILLED: Final = timedelta(seconds=5)
"""After the grace: for the kubelet to kill the container and for its last lines to arrive."""
PROMISES: Final = "deadlines, budgets and lingering"
"""Runs that were started before these were built are told to their end without them."""
PROXY_IMAGE: Final = "AGENT_RUNS_API_PROXY_IMAGE on the worker"
TOKENS: Final = "a join brings its token"
"""A run that was joined before this was built is told to its end with the token it had."""


@workflow.defn
class AgentRunWorkflow:
    """One run of one agent. Its id is `agent-run:<agent id>`: one run at a time per agent."""

    @workflow.init
    def __init__(self, request: RunRequest) -> None:
        """Every run starts with a card, so that the first look in the Web UI shows one."""
        self._request = request
        self._card = Card.of(request)
        self._notes = request.notes
        self._promises = False
        self._attempts: list[Attempt] = []
        self._stopped_by: Failure | None = None
        self._cut_short: Failure | None = None
        self._interruptible: asyncio.Task[Any] | None = None
        self._outcome: Outcome | None = None
        self._joined: list[str] = []
        self._speaks_for: JoinedRun | None = None
        self._working: Attempt | None = None
        self._exchange: asyncio.Task[None] | None = None
        self._collected = False
        self._released = False

    @workflow.run
    async def run(self, request: RunRequest) -> Outcome:
        """Attempts until one counts, then the outcome, kept until its caller has it."""
        self._promises = workflow.patched(PROMISES)
        story = asyncio.create_task(self._story())
        while not story.done():
            try:
                await workflow.wait([story])
            except asyncio.CancelledError:
                self._stop(RunCancelled.as_failure(workflow.cancellation_reason() or "Run cancelled"))
        self._outcome = outcome = self._told(story.result())
        if self._promises:
            await self._linger(timedelta(seconds=request.linger_sec))
        return outcome

    # what callers may say

    @workflow.update(name=talk.CANCEL)
    async def cancel(self, order: talk.Cancel) -> talk.Cancelled:
        """Stops the agent, whatever phase it is in, and answers once its work is judged and its pods are gone."""
        if self._outcome is None:
            self._stop(RunCancelled.as_failure(order.reason))
        outcome = await self._decided()
        cancelled = outcome.error_code == RunCancelled.code
        return talk.Cancelled(
            outcome="cancelled" if cancelled else "ended before",
            stop=self._attempts[-1].stop,
            session_id=outcome.session_id,
            failure_code=outcome.error_code,
        )

    @workflow.update(name=talk.JOIN)
    async def join(self, order: talk.Join) -> talk.Joined:
        """Takes the next wake of the same task; a run that only waits for a lost caller gives way to any other."""
        joined = self._joining(order) == "joined"
        if not joined:
            self._released = True
        elif order.run_id not in self._joined:
            self._joined.append(order.run_id)
            workflow.upsert_search_attributes(
                [attributes.JOINED_RUN_IDS.value_set(self._joined[-attributes.LONGEST :])]
            )
            if order.sealed_secrets and self._outcome is None and workflow.patched(TOKENS):
                self._speaks_for = JoinedRun(run_id=order.run_id, sealed_secrets=order.sealed_secrets)
                self._exchange_token()
        return talk.Joined(
            kind="joined" if joined else "released",
            run_id=self._request.run_id,
            phase=self._card.phase.value,
            since=workflow.info().start_time,
            finished=self._outcome is not None,
        )

    @join.validator
    def refuse_another_task(self, order: talk.Join) -> None:
        """Another task is told who holds the agent; a refusal leaves no event."""
        if self._joining(order) == "refused":
            run = self._request
            raise AgentBusy(
                f"agent {run.agent.id} is held by run {run.run_id}",
                holder=run.run_id,
                task=run.task,
                phase=self._card.phase.value,
                since=workflow.info().start_time.isoformat(),
            )

    @workflow.update(name=talk.OUTCOME)
    async def outcome(self) -> Outcome:
        """The outcome, as soon as there is one. Its caller then says `collected`."""
        return await self._decided()

    @workflow.signal(name=talk.COLLECTED)
    def collected(self) -> None:
        """The outcome has arrived."""
        self._collected = True

    def _joining(self, order: talk.Join) -> Literal["joined", "released", "refused"]:
        if order.task and order.task == self._request.task:
            return "joined"
        return "released" if self._outcome is not None else "refused"

    async def _decided(self) -> Outcome:
        await workflow.wait_condition(lambda: self._outcome is not None)
        if self._outcome is None:
            raise AssertionError("waited for it")
        return self._outcome

    async def _linger(self, patience: timedelta) -> None:
        """Keeps an outcome that nobody has fetched, for the next wake of the task.

        It ends early when somebody else needs the agent, or an operator cancels the workflow.
        """
        if patience:
            with suppress(TimeoutError, asyncio.CancelledError):
                await workflow.wait_condition(
                    lambda: self._collected or self._released,
                    timeout=patience,
                    timeout_summary="outcome waits for its caller",
                )
        await workflow.wait_condition(workflow.all_handlers_finished)

    def _stop(self, why: Failure) -> None:
        """The first reason counts. What may not be interrupted (judging, cleaning up) sees it when it looks."""
        if self._stopped_by is None:
            self._stopped_by = why
            if self._interruptible is not None:
                self._interruptible.cancel()

    # the token of a run that joins

    def _exchange_token(self) -> None:
        """Lets the agent at work speak for the run that joined last; one exchange at a time, the newest one counts."""
        if self._working is not None and self._working.job is not None and self._exchange is None:
            self._exchange = asyncio.create_task(self._exchanged(self._working, self._working.job))

    async def _exchanged(self, attempt: Attempt, job: JobRef) -> None:
        while self._working is attempt and (joined := self._speaks_for) and attempt.speaks_for != joined.run_id:
            attempt.speaks_for = joined.run_id
            trouble = await self._rotated(RotateToken(attempt=attempt.key, job=job, joined=joined))
            if trouble:
                self._notes += (f"run {joined.run_id} joined, but {trouble}",)
        self._exchange = None

    async def _rotated(self, order: RotateToken) -> str | None:
        """What people should know of an exchange that was not seen to succeed. It never ends a run."""
        if not order.job.rotates:
            return "the agent has its token in its environment and goes on with the old one: set " + PROXY_IMAGE
        try:
            seen = await ROTATE_TOKEN(order, f"the token of run {order.joined.run_id}")
        except ActivityError as error:
            if is_cancelled_exception(error):
                return None
            return f"the agent goes on with the old token: {str(error.cause)[:200]}"
        return None if seen else "nobody saw that its token has arrived in the pod"

    async def _end_exchange(self) -> None:
        """The agent has ended: nobody needs the token any more."""
        self._working = None
        if self._exchange is not None:
            self._exchange.cancel()
            await workflow.wait([self._exchange])
            self._exchange = None

    # the story

    async def _story(self) -> list[Attempt]:
        """Attempts until one counts."""
        session = self._request.runtime.session_params
        while True:
            attempt = await self._attempt(len(self._attempts) + 1, session)
            self._attempts.append(attempt)
            again = another(self._attempts, self._request.config)
            if again is None:
                return self._attempts
            if self._stopped_by is not None or not await self._paused(again):
                self._cut_short = self._stopped_by
                return self._attempts
            session = self._session(again.resume, attempt)

    async def _attempt(self, number: int, session: SessionParams | None) -> Attempt:
        """One Job, from its prompt to its cleanup. Cleanup follows each explicit end, never a bug in this code."""
        attempt = self._working = Attempt(AttemptKey(run=self._request.key, attempt=number), session)
        work = self._interruptible = asyncio.create_task(self._agent(attempt))
        if self._stopped_by is not None:
            work.cancel()
        try:
            await work
        except Overdue as overdue:
            attempt.failure = overdue.failure
        except ActivityError as error:
            attempt.failure = self._failure(error)
        except asyncio.CancelledError:
            attempt.failure = self._stopped_by
        finally:
            self._interruptible = None
        await self._end_exchange()
        attempt.worked = workflow.now() - attempt.began if attempt.began else timedelta()
        await self._aftermath(attempt)
        return attempt

    async def _paused(self, again: Again) -> bool:
        """Waits before another attempt; False when the run was stopped meanwhile."""
        if again.pause:
            self._notes += (f"attempt {len(self._attempts)} ended as {again.why}; another one follows",)
            self._show(self._card.at(Phase.PREPARING, attempt=f"{len(self._attempts) + 1}, because of {again.why}"))
            pause = self._interruptible = asyncio.create_task(
                workflow.sleep(again.pause, summary=f"back-off after {again.why}")
            )
            await workflow.wait([pause])
            self._interruptible = None
        return self._stopped_by is None

    def _session(self, resume: str | None, last: Attempt) -> SessionParams | None:
        if resume is None or (last.session is not None and last.session.session_id == resume):
            return None if resume is None else last.session
        return result.stored_session(self._request, resume)

    async def _agent(self, attempt: Attempt) -> None:
        """Prepare, create, wait, follow."""
        job = await self._job(attempt)
        pod = await self._pod(attempt, job)
        attempt.began = workflow.now()
        self._show(self._card.at(Phase.RUNNING, pod=pod.name, node=pod.node))
        attempt.end = await self._output(attempt, job, pod)
        attempt.failure = attempt.failure or (attempt.end.failure if attempt.end else None)

    async def _job(self, attempt: Attempt) -> JobRef:
        request, key = self._request, attempt.key
        self._show(self._card.at(Phase.PREPARING, attempt=str(key.attempt) if key.attempt > 1 else None))
        profiling = INTROSPECT_POD.start(
            IntrospectPod(run=key.run, config=request.config), "what the agent's pod inherits"
        )
        bundling = BUNDLE_PROMPT.start(
            BundlePrompt(attempt=key, config=request.config, resuming=attempt.session is not None),
            "instructions, skills and wake into a Secret",
        )
        if self._promises and key.attempt == 1:
            leftovers = ReapLeftovers(run=key.run, namespace=request.config.namespace, grace=self._grace)
            await settled(profiling, bundling, REAP_LEFTOVERS.start(leftovers, "what earlier runs left"))
        else:
            await settled(profiling, bundling)
        prompt = bundling.result()
        self._notes += prompt.warnings
        attempt.speaks_for = self._speaks_for.run_id if self._speaks_for else None
        creating = CREATE_JOB.start(
            CreateJob(
                attempt=key,
                agent_name=request.agent.name,
                task_id=request.task_id,
                task_key=request.runtime.task_key,
                config=request.config,
                workspace=request.context.paperclip_workspace,
                profile=profiling.result(),
                prompt=prompt,
                session=attempt.session,
                joined=self._speaks_for,
            ),
            key.job_name,
        )
        try:
            await settled(creating)
        finally:
            attempt.job = made(creating)  # also when the run was stopped meanwhile: it has to be cleaned up
        job = creating.result()
        self._notes += job.warnings
        self._exchange_token()
        self._show(self._card.at(Phase.SCHEDULING, job=f"{job.namespace}/{job.name}", transcript=job.page))
        return job

    async def _pod(self, attempt: Attempt, job: JobRef) -> PodRef:
        """Two clocks: one until a node has taken the pod, one until the agent's container runs there."""
        config = self._request.config
        wait = AwaitSchedule(
            attempt=attempt.key,
            job=job,
            patience=timedelta(seconds=config.schedule_timeout_sec),
            start_patience=timedelta(seconds=config.start_timeout_sec),
        )
        if not self._promises:
            patience = wait.patience + wait.start_patience + clocks.SLACK
            return await AWAIT_SCHEDULE(wait, "node, image, volumes", attempt=patience)
        await within(
            wait.patience + clocks.SLACK,
            "scheduling patience",
            AWAIT_SCHEDULE.start(wait.model_copy(update={"until": "scheduled"}), "a node"),
            PodScheduleFailed.as_failure(
                f"no node took the pod within {wait.patience}, and the cluster does not say why"
            ),
        )
        return await within(
            wait.start_patience + clocks.SLACK,
            "start patience",
            AWAIT_SCHEDULE.start(wait, "image, volumes"),
            PodStartFailed.as_failure(
                f"the agent's container did not run within {wait.start_patience}, and the cluster does not say why"
            ),
        )

    async def _output(self, attempt: Attempt, job: JobRef, pod: PodRef) -> StreamEnd | None:
        """Follows the agent's output to its end. A clock or a cancel stops the agent first; its last words count."""
        following = STREAM_LOGS.start(StreamLogs(attempt=attempt.key, job=job, pod=pod), f"output of {pod.name}")
        limits = self._limits(attempt, job, pod)
        try:
            await workflow.wait([following, *limits], return_when=asyncio.FIRST_COMPLETED)
            expired = next((limit.result() for limit in limits if limit.done()), None)
            if following.done() or expired is None:
                return await following
            attempt.failure = expired
        except asyncio.CancelledError:
            attempt.failure = self._stopped_by
        finally:
            for limit in limits:
                limit.cancel()
        self._interruptible = None  # it is being stopped already: nothing could interrupt that to any purpose
        if self._promises:
            why = attempt.failure.message if attempt.failure else ""
            self._show(self._card.at(Phase.RUNNING, stopping=why))
            return await self._last_words(attempt, following, StopAgent(job=job, pod=pod))
        following.cancel()
        await workflow.wait([following])
        return None

    def _limits(self, attempt: Attempt, job: JobRef, pod: PodRef) -> list[asyncio.Task[Failure]]:
        """What may end an agent that goes on: each clock's result says why."""
        config = self._request.config
        limits: list[asyncio.Task[Failure]] = []
        if config.timeout_sec:
            worked = sum((earlier.worked for earlier in self._attempts), timedelta())
            limits.append(asyncio.create_task(_total(timedelta(seconds=config.timeout_sec), worked)))
        if self._promises and (config.first_output_timeout_sec or config.silence_timeout_sec):
            limits.append(asyncio.create_task(until_silent(config, attempt.key, job, pod)))
        return limits

    async def _last_words(
        self, attempt: Attempt, following: workflow.ActivityHandle[StreamEnd], order: StopAgent
    ) -> StreamEnd | None:
        """SIGTERM, then the grace: the stream ends with the container. What has not ended by then is cut off; cleanup
        kills it."""
        stopping = STOP_AGENT.start(order, "SIGTERM", altogether=self._grace + KILLED)
        grace = asyncio.create_task(workflow.sleep(self._grace + KILLED, summary="grace"))
        await workflow.wait([following, grace], return_when=asyncio.FIRST_COMPLETED)
        attempt.forced = not following.done()
        for other in (following, stopping, grace):
            other.cancel()
        await workflow.wait([following, stopping])
        return made(following)

    @property
    def _grace(self) -> timedelta:
        return timedelta(seconds=self._request.config.grace_sec)

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
            grace=timedelta() if attempt.forced else self._grace,
        )
        try:
            attempt.ran = (await FINISH(finish, "Job and Secrets")).agent_started
        except ActivityError as error:
            attempt.gone = not self._promises
            self._notes += (f"cleanup of attempt {attempt.key.attempt} is incomplete: {str(error.cause)[:200]}",)
            workflow.logger.warning("finish.incomplete", extra={"failure": str(error.cause)})
        else:
            attempt.gone = True

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

    def _told(self, attempts: list[Attempt]) -> Outcome:
        last = attempts[-1]
        outcome = result.outcome(
            self._request,
            report=last.report,
            failure=self._cut_short or last.failure,
            end=last.end.container if last.end else None,
            earlier=[attempt.report for attempt in attempts[:-1] if attempt.report],
            receipt=last.end.receipt if last.end else None,
            attempts=tuple(attempt.summary for attempt in attempts),
            transcript=last.key.transcript,
            notes=self._notes,
            billing_type="metered_api" if last.report and last.report.cost_estimated else "unknown",
            stop=last.stop if last.failure or self._cut_short else None,
        )
        self._show(self._card.at(_final_phase(outcome), failure=outcome.error_message), outcome.error_code)
        return outcome

    def _failure(self, error: ActivityError) -> Failure:
        """The named failure behind a step that ended in an error."""
        cause = error.cause
        if is_cancelled_exception(error):
            return self._stopped_by or RunCancelled.as_failure("Run cancelled")
        if isinstance(cause, exceptions.TimeoutError):
            cause = cause.cause or cause
        if isinstance(cause, ApplicationError):
            return failure_of(cause)
        return ClusterUnavailable.as_failure(f"{error.activity_type} did not end in time: {cause}")

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


async def _total(limit: timedelta, worked: timedelta) -> Failure:
    """`timeoutSec`: the agent's own time, all attempts together; waiting for a node does not count."""
    await workflow.sleep(max(limit - worked, timedelta(milliseconds=1)), summary="run timeout")
    return RunTimeout.as_failure(f"Timed out after {int(limit.total_seconds())}s")


def _final_phase(outcome: Outcome) -> Phase:
    if outcome.failure is None:
        return Phase.SUCCEEDED
    if outcome.timed_out:
        return Phase.TIMED_OUT
    return Phase.CANCELLED if outcome.error_code == RunCancelled.code else Phase.FAILED
