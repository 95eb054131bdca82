"""The workflow of one agent run: its attempts, its callers' updates, its outcome."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Literal

from temporalio import exceptions, workflow
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import updates
    from agent_runs.contracts.errors import (
        AgentBusy,
        ClusterUnavailable,
        Failure,
        RunCancelled,
        RunTimeout,
        failure_of,
    )
    from agent_runs.contracts.identity import AttemptKey
    from agent_runs.contracts.messages import (
        AwaitSchedule,
        BundlePrompt,
        CleanUpPreviousRuns,
        CreateJob,
        Finish,
        IntrospectPod,
        JobRef,
        JoinedRun,
        ParseTranscript,
        PodProfile,
        PodRef,
        PromptBundle,
        RotateToken,
        StopAgent,
        StreamEnd,
        StreamLogs,
    )
    from agent_runs.contracts.outcome import Outcome, Report
    from agent_runs.contracts.request import SessionParams
    from agent_runs.paperclip import result
    from workflows import attributes, timers
    from workflows.attempt import Attempt
    from workflows.boundary import close_with, publish_end, run_request
    from workflows.current_details import CurrentDetails, Phase
    from workflows.retries import RetryDecision, next_attempt
    from workflows.steps import (
        AWAIT_SCHEDULE,
        BUNDLE_PROMPT,
        CLEAN_UP_PREVIOUS_RUNS,
        CREATE_JOB,
        FINISH,
        INTROSPECT_POD,
        PARSE_TRANSCRIPT,
        ROTATE_TOKEN,
        STOP_AGENT,
        STREAM_LOGS,
    )
    from workflows.timers import result_or_none, silence_failure, start_timeout_failure, wait_all

KILL_MARGIN: Final = timedelta(seconds=5)
"""Added to the grace: time for the kubelet to kill the container and for its last lines to arrive."""


@workflow.defn
class AgentRunWorkflow:
    """One run of one agent. Its id is `agent-run:<agent id>`: one run at a time per agent."""

    @workflow.init
    def __init__(self, start: RawValue) -> None:
        """Prepares the state, so that updates and the current details find it before `run` begins."""
        self._request = request = run_request(start)
        self._details = CurrentDetails.of(request)
        self._notes = request.notes
        self._attempts: list[Attempt] = []
        self._stopped_by: Failure | None = None
        self._stopped_before_retry: Failure | None = None
        self._interruptible: asyncio.Task[Any] | None = None
        self._outcome: Outcome | None = None
        self._joined: list[str] = []
        self._token_run: JoinedRun | None = None
        self._current_attempt: Attempt | None = None
        self._token_rotation: asyncio.Task[None] | None = None
        self._collected = False
        self._released = False

    @workflow.run
    async def run(self, start: RawValue) -> Outcome:  # noqa: ARG002 - Temporal passes what `__init__` has decoded
        """Makes attempts until one counts, then keeps the outcome until its caller has it."""
        attempts = asyncio.create_task(self._run_attempts())
        while not attempts.done():
            try:
                await workflow.wait([attempts])
            except asyncio.CancelledError:
                self._stop(RunCancelled.as_failure(workflow.cancellation_reason() or "Run cancelled"))
        self._outcome = outcome = self._build_outcome(attempts.result())
        await self._retain_outcome()
        return close_with(outcome)

    # updates and signals of callers

    @workflow.update(name=updates.JOIN)
    async def join(self, input: updates.Join) -> updates.Joined:
        """Accepts a wake of the same task. A run that only keeps its outcome ends when another task needs the agent."""
        joined = self._join_kind(input) == "joined"
        if not joined:
            self._released = True
        elif input.run_id not in self._joined:
            self._joined.append(input.run_id)
            workflow.upsert_search_attributes(
                [attributes.JOINED_RUN_IDS.value_set(self._joined[-attributes.MAX_JOINED_RUN_IDS :])]
            )
            if input.sealed_secrets and self._outcome is None:
                self._token_run = JoinedRun(run_id=input.run_id, sealed_secrets=input.sealed_secrets)
                self._start_token_rotation()
        return updates.Joined(
            kind="joined" if joined else "released",
            run_id=self._request.run_id,
            phase=self._details.phase.value,
            since=workflow.info().start_time,
            finished=self._outcome is not None,
        )

    @join.validator
    def refuse_another_task(self, input: updates.Join) -> None:
        """Refuses another task and names the run that holds the agent; a refusal leaves no event in the history."""
        if self._join_kind(input) == "refused":
            run = self._request
            raise AgentBusy(
                f"agent {run.agent.id} is held by run {run.run_id}",
                holder=run.run_id,
                task=run.task,
                phase=self._details.phase.value,
                since=workflow.info().start_time.isoformat(),
            )

    @workflow.update(name=updates.OUTCOME)
    async def outcome(self) -> Outcome:
        """The outcome, as soon as there is one. A caller that has received it sends `collected`."""
        return await self._wait_for_outcome()

    @workflow.signal(name=updates.COLLECTED)
    def collected(self) -> None:
        """The caller has the outcome, so it need not be kept any longer."""
        self._collected = True

    def _join_kind(self, input: updates.Join) -> Literal["joined", "released", "refused"]:
        """An outcome is delivered once: a wake that comes after `collected` gets a run of its own."""
        if input.task and input.task == self._request.task and not self._collected:
            return "joined"
        return "released" if self._outcome is not None else "refused"

    async def _wait_for_outcome(self) -> Outcome:
        await workflow.wait_condition(lambda: self._outcome is not None)
        if self._outcome is None:
            raise AssertionError("waited for it")
        return self._outcome

    async def _retain_outcome(self) -> None:
        """Keeps an outcome that nobody has fetched, for the next wake of the task.

        Ends early when another task needs the agent, or an operator cancels the workflow.
        """
        if self._retention:
            with suppress(TimeoutError, asyncio.CancelledError):
                await workflow.wait_condition(
                    lambda: self._collected or self._released,
                    timeout=self._retention,
                    timeout_summary="outcome retention",
                )
        while not workflow.all_handlers_finished():
            with suppress(asyncio.CancelledError):  # too late to change how the run closes
                await workflow.wait_condition(workflow.all_handlers_finished)

    def _stop(self, reason: Failure) -> None:
        """The first reason counts. Parsing and cleanup are not interrupted; the run sees the reason after them."""
        if self._stopped_by is None:
            self._stopped_by = reason
            if self._interruptible is not None:
                self._interruptible.cancel()

    # the token of a run that joined

    def _start_token_rotation(self) -> None:
        """Gives the running agent the token of the run that joined last; one rotation at a time."""
        attempt = self._current_attempt
        if attempt is not None and attempt.job is not None and self._token_rotation is None:
            self._token_rotation = asyncio.create_task(self._rotate_tokens(attempt, attempt.job))

    async def _rotate_tokens(self, attempt: Attempt, job: JobRef) -> None:
        """Repeats while newer runs join, until the attempt has the newest token or has ended."""
        while (
            self._current_attempt is attempt and (joined := self._token_run) and attempt.token_run_id != joined.run_id
        ):
            attempt.token_run_id = joined.run_id
            warning = await self._rotate_token(RotateToken(attempt=attempt.key, job=job, joined=joined))
            if warning:
                self._notes += (f"run {joined.run_id} joined, but {warning}",)
        self._token_rotation = None

    async def _rotate_token(self, input: RotateToken) -> str | None:
        """A note for people when the new token was not seen in the pod. It never fails a run."""
        if not input.job.has_api_proxy:
            return (
                "the agent keeps the old token, because it has it in its environment: "
                "set AGENT_RUNS_API_PROXY_IMAGE on the worker"
            )
        try:
            seen = await ROTATE_TOKEN(input, f"rotate token to run {input.joined.run_id}")
        except ActivityError as error:
            if is_cancelled_exception(error):
                return None
            return f"the agent keeps the old token: {str(error.cause)[:200]}"
        return None if seen else "its token was not seen in the pod"

    async def _end_token_rotation(self) -> None:
        """Ends a rotation when the agent has ended: nothing uses the token any longer."""
        self._current_attempt = None
        if self._token_rotation is not None:
            self._token_rotation.cancel()
            await workflow.wait([self._token_rotation])
            self._token_rotation = None

    # attempts

    async def _run_attempts(self) -> list[Attempt]:
        """Makes attempts until one counts or the run is stopped between two of them."""
        session = self._request.runtime.session_params
        while True:
            attempt = await self._run_attempt(len(self._attempts) + 1, session)
            self._attempts.append(attempt)
            retry = next_attempt(self._attempts, self._request.config)
            if retry is None:
                return self._attempts
            if self._stopped_by is not None or not await self._pause_before(retry):
                self._stopped_before_retry = self._stopped_by
                return self._attempts
            session = self._next_session(retry.session_id, attempt)

    async def _run_attempt(self, number: int, session: SessionParams | None) -> Attempt:
        """One Job, from its prompt to its cleanup. Cleanup follows each explicit end, never a bug in this code."""
        attempt = self._current_attempt = Attempt(AttemptKey(run=self._request.key, attempt=number), session)
        work = self._interruptible = asyncio.create_task(self._run_agent(attempt))
        if self._stopped_by is not None:
            work.cancel()
        try:
            await work
        except ActivityError as error:
            attempt.failure = self._failure_of_activity(error)
        except asyncio.CancelledError:
            attempt.failure = self._stopped_by
        finally:
            self._interruptible = None
        await self._end_token_rotation()
        attempt.run_time = workflow.now() - attempt.started_at if attempt.started_at else timedelta()
        await self._finalize(attempt)
        return attempt

    async def _pause_before(self, retry: RetryDecision) -> bool:
        """Waits before the next attempt; False when the run was stopped meanwhile."""
        if retry.pause:
            number = len(self._attempts)
            self._notes += (f"attempt {number} ended as {retry.reason}; another attempt follows",)
            self._update_details(Phase.PREPARING, attempt=f"{number + 1}, because of {retry.reason}")
            pause = self._interruptible = asyncio.create_task(
                workflow.sleep(retry.pause, summary=f"back-off after {retry.reason}")
            )
            await workflow.wait([pause])
            self._interruptible = None
        return self._stopped_by is None

    def _next_session(self, session_id: str | None, last: Attempt) -> SessionParams | None:
        if session_id is None or (last.session is not None and last.session.session_id == session_id):
            return None if session_id is None else last.session
        return result.stored_session(self._request, session_id)

    async def _run_agent(self, attempt: Attempt) -> None:
        """Prepare, create the Job, wait for its pod, follow its output."""
        profile, prompt = await self._prepare(attempt)
        job = await self._create_job(attempt, profile, prompt)
        pod = await self._wait_for_pod(attempt, job)
        attempt.started_at = workflow.now()
        self._update_details(Phase.RUNNING, pod=pod.name, node=pod.node)
        attempt.end = await self._follow_output(attempt, job, pod)
        attempt.failure = attempt.failure or (attempt.end.failure if attempt.end else None)

    async def _prepare(self, attempt: Attempt) -> tuple[PodProfile, PromptBundle]:
        """What a Job needs, gathered concurrently; before the first one, what previous runs left is removed."""
        config, key = self._request.config, attempt.key
        self._update_details(Phase.PREPARING, attempt=str(key.attempt) if key.attempt > 1 else None)
        profile = INTROSPECT_POD.start(IntrospectPod(run=key.run, config=config), "read the worker's pod")
        prompt = BUNDLE_PROMPT.start(
            BundlePrompt(attempt=key, config=config, resuming=attempt.session is not None), "build prompt Secret"
        )
        if key.attempt == 1:
            previous = CleanUpPreviousRuns(run=key.run, namespace=config.namespace, grace=self._grace)
            await wait_all(profile, prompt, CLEAN_UP_PREVIOUS_RUNS.start(previous, "clean up previous runs"))
        else:
            await wait_all(profile, prompt)
        return profile.result(), prompt.result()

    async def _create_job(self, attempt: Attempt, profile: PodProfile, prompt: PromptBundle) -> JobRef:
        request, key = self._request, attempt.key
        self._notes += prompt.warnings
        attempt.token_run_id = self._token_run.run_id if self._token_run else None
        creation = CREATE_JOB.start(
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
                joined=self._token_run,
            ),
            f"create Job {key.job_name}",
        )
        try:
            await wait_all(creation)
        finally:
            attempt.job = result_or_none(creation)  # also when the run was stopped meanwhile: cleanup needs it
        job = creation.result()
        self._notes += job.warnings
        self._start_token_rotation()
        self._update_details(Phase.SCHEDULING, job=f"{job.namespace}/{job.name}", transcript=job.page)
        return job

    async def _wait_for_pod(self, attempt: Attempt, job: JobRef) -> PodRef:
        """Waits for a node, then for the start of the agent's container; both limits are the activity's own."""
        config = self._request.config
        wait = AwaitSchedule(
            attempt=attempt.key,
            job=job,
            schedule_timeout=timedelta(seconds=config.schedule_timeout_sec),
            start_timeout=timedelta(seconds=config.start_timeout_sec),
        )
        limit = wait.schedule_timeout + wait.start_timeout + timers.START_MARGIN
        return await AWAIT_SCHEDULE.start(wait, "wait for start", schedule_to_close=limit)

    async def _follow_output(self, attempt: Attempt, job: JobRef, pod: PodRef) -> StreamEnd | None:
        """Follows the agent's output to its end. At a limit or a cancel the agent is stopped first; its last output
        counts."""
        config = self._request.config
        input = StreamLogs(
            attempt=attempt.key,
            job=job,
            pod=pod,
            first_output_timeout=timedelta(seconds=config.first_output_timeout_sec),
            silence_timeout=timedelta(seconds=config.silence_timeout_sec),
        )
        stream = STREAM_LOGS.start(input, f"stream logs of {pod.name}")
        limits = self._start_limits()
        try:
            await workflow.wait([stream, *limits], return_when=asyncio.FIRST_COMPLETED)
            silence = stream.result().silence if stream.done() else None
            if stream.done() and silence is None:
                return stream.result()
            attempt.failure = next((limit.result() for limit in limits if limit.done()), None)
            if silence is not None:
                attempt.failure = attempt.failure or silence_failure(silence)
                rest = StreamLogs(attempt=attempt.key, job=job, pod=pod, resume=silence.progress)
                stream = STREAM_LOGS.start(rest, "follow until the agent has stopped")
        except asyncio.CancelledError:
            attempt.failure = self._stopped_by
        finally:
            for limit in limits:
                limit.cancel()
        self._interruptible = None  # the agent is being stopped already, so a cancel has nothing to interrupt
        self._update_details(Phase.RUNNING, stopping=attempt.failure.message if attempt.failure else "")
        return await self._stop_gracefully(attempt, stream, StopAgent(job=job, pod=pod))

    def _start_limits(self) -> list[asyncio.Task[Failure]]:
        """The limits of a running agent that the workflow measures; the result is the failure of exceeding it."""
        timeout = timedelta(seconds=self._request.config.timeout_sec)
        run_time = sum((earlier.run_time for earlier in self._attempts), timedelta())
        return [asyncio.create_task(_run_timeout(timeout, run_time))] if timeout else []

    async def _stop_gracefully(
        self, attempt: Attempt, stream: workflow.ActivityHandle[StreamEnd], input: StopAgent
    ) -> StreamEnd | None:
        """SIGTERM, then the grace: the stream ends with the container. After the grace the stream is cancelled, and
        `finish` kills the container."""
        stop = STOP_AGENT.start(input, "send SIGTERM", schedule_to_close=self._grace + KILL_MARGIN)
        grace = asyncio.create_task(workflow.sleep(self._grace + KILL_MARGIN, summary="grace"))
        await workflow.wait([stream, grace], return_when=asyncio.FIRST_COMPLETED)
        attempt.killed = not stream.done()
        for pending in (stream, stop, grace):
            pending.cancel()
        await workflow.wait([stream, stop])
        return result_or_none(stream)

    @property
    def _grace(self) -> timedelta:
        return timedelta(seconds=self._request.config.grace_sec)

    async def _finalize(self, attempt: Attempt) -> None:
        """Judges what was written, whatever ended the attempt, then deletes what the attempt created."""
        self._update_details(Phase.FINISHING)
        if attempt.job is not None:
            attempt.report = await self._parse_transcript(attempt)
        finish = Finish(
            attempt=attempt.key,
            namespace=attempt.job.namespace if attempt.job else self._request.config.namespace,
            job=attempt.job,
            retain=self._request.config.retain_jobs,
            grace=timedelta() if attempt.killed else self._grace,
        )
        try:
            attempt.agent_started = (await FINISH(finish, "delete Job and Secrets")).agent_started
        except ActivityError as error:
            self._notes += (f"cleanup of attempt {attempt.key.attempt} is incomplete: {str(error.cause)[:200]}",)
            workflow.logger.warning("finish.incomplete", extra={"failure": str(error.cause)})
        else:
            attempt.pods_deleted = True

    async def _parse_transcript(self, attempt: Attempt) -> Report | None:
        """The report of the stored transcript. An attempt without one still has its own failure."""
        input = ParseTranscript(
            attempt=attempt.key,
            end=attempt.end or StreamEnd.unknown(),
            resumed_session=attempt.session.session_id if attempt.session else None,
            stopped=attempt.failure,
            model=self._request.config.model,
        )
        try:
            report = await PARSE_TRANSCRIPT(input, "parse transcript")
        except ActivityError as error:
            attempt.failure = attempt.failure or self._failure_of_activity(error)
            return None
        self._details = self._details.with_report(report)
        return report

    def _build_outcome(self, attempts: list[Attempt]) -> Outcome:
        last = attempts[-1]
        outcome = result.outcome(
            self._request,
            report=last.report,
            failure=self._stopped_before_retry or last.failure,
            end=last.end.container if last.end else None,
            earlier=[attempt.report for attempt in attempts[:-1] if attempt.report],
            receipt=last.end.receipt if last.end else None,
            attempts=tuple(attempt.summary for attempt in attempts),
            transcript=last.key.transcript,
            notes=self._notes,
            billing_type="metered_api" if last.report and last.report.cost_estimated else "unknown",
            stop=last.stop,
        )
        phase = _final_phase(outcome)
        kept_until = (workflow.now() + self._retention).isoformat(timespec="seconds") if self._retention else None
        self._update_details(phase, failure=outcome.error_message, **{"outcome kept until": kept_until})
        publish_end(outcome, phase.value, self._retention)
        return outcome

    def _failure_of_activity(self, error: ActivityError) -> Failure:
        """The named failure that made an activity fail."""
        cause = error.cause
        if is_cancelled_exception(error):
            return self._stopped_by or RunCancelled.as_failure("Run cancelled")
        if isinstance(cause, exceptions.TimeoutError):
            cause = cause.cause or cause
        if isinstance(cause, ApplicationError):
            return failure_of(cause)
        if error.activity_type == AWAIT_SCHEDULE.name:
            return start_timeout_failure(self._request.config, cause)
        return ClusterUnavailable.as_failure(f"{error.activity_type} did not end in time: {cause}")

    @property
    def _retention(self) -> timedelta:
        return timedelta(seconds=self._request.outcome_retention_sec)

    def _update_details(self, phase: Phase, **values: str | None) -> None:
        """Updates the current details, and the search attribute when the phase is one that operators filter by."""
        changed = phase is not self._details.phase
        self._details = self._details.in_phase(phase, **values)
        workflow.set_current_details(self._details.markdown)
        if changed and phase in {Phase.SCHEDULING, Phase.RUNNING}:
            workflow.upsert_search_attributes([attributes.RUN_PHASE.value_set(phase.value)])


async def _run_timeout(limit: timedelta, run_time: timedelta) -> Failure:
    """Enforces `timeoutSec`: the agents' run time in all attempts together; waiting for a node does not count."""
    await workflow.sleep(max(limit - run_time, timedelta(milliseconds=1)), summary="run timeout")
    return RunTimeout.as_failure(f"Timed out after {int(limit.total_seconds())}s")


def _final_phase(outcome: Outcome) -> Phase:
    if outcome.failure is None:
        return Phase.SUCCEEDED
    if outcome.timed_out:
        return Phase.TIMED_OUT
    return Phase.CANCELLED if outcome.error_code == RunCancelled.code else Phase.FAILED
