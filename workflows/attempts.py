"""Makes the attempts of a run, one after the other: each is one Job, from its prompt to its cleanup."""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts.identity import AttemptKey
    from agent_runs.contracts.request import SessionParams
    from workflows import finalization, following, preparation, run_metrics
    from workflows.activity_calls import failure_of_activity
    from workflows.attempt import Attempt
    from workflows.current_details import Phase
    from workflows.retries import RetryDecision, next_attempt, next_session
    from workflows.run_state import RunState
    from workflows.token_rotation import TokenRotation


async def make_attempts(run: RunState, tokens: TokenRotation) -> None:
    """Makes attempts until none is to follow, or the run is stopped. A run without a valid request has no attempt."""
    if not await _prepare_run(run):
        return
    session = run.request.runtime.session_params
    while True:
        attempt = await _make_attempt(run, tokens, session)
        if attempt.succeeded:
            run.queued = run.queued[len(attempt.messages) :]
        retry = next_attempt(run.attempts, run.config, has_message=bool(run.queued))
        if retry is None:
            return
        if run.stopped_by is not None or not await _pause_before(run, retry):
            run.failure_outside_attempts = run.stopped_by
            return
        if not attempt.succeeded:
            run_metrics.retried(attempt.known_failure)
        session = next_session(run.request, attempt)


async def _prepare_run(run: RunState) -> bool:
    """Opens and checks the request; False if it is not valid. Nothing has been created then."""
    try:
        await run.until_stopped(preparation.prepare_run(run))
    except ActivityError as error:
        run.failure_outside_attempts = failure_of_activity(run, error)
    except asyncio.CancelledError:
        run.failure_outside_attempts = run.stopped_by
    return run.failure_outside_attempts is None


async def _make_attempt(run: RunState, tokens: TokenRotation, session: SessionParams | None) -> Attempt:
    """Makes one attempt. There is no `finally`: a bug in this code must not delete the Job of a healthy agent."""
    attempt = run.current = Attempt(AttemptKey(run=run.key, attempt=len(run.attempts) + 1), session, run.queued)
    try:
        await run.until_stopped(_run_agent(run, tokens, attempt))
    except ActivityError as error:
        attempt.failure = failure_of_activity(run, error)
    except asyncio.CancelledError:
        attempt.failure = run.stopped_by
    run.current = None
    await tokens.end()
    attempt.run_time = workflow.now() - attempt.started_at - attempt.waiting_time if attempt.started_at else timedelta()
    run.attempts.append(attempt)
    await finalization.finalize(run, attempt)
    return attempt


async def _run_agent(run: RunState, tokens: TokenRotation, attempt: Attempt) -> None:
    """Prepares and creates the Job, waits for its pod, follows its output."""
    profile, prompt = await preparation.profile_and_prompt(run, attempt)
    job = await preparation.create_job(run, tokens, attempt, profile, prompt)
    pod = await following.wait_for_pod(run, attempt, job)
    attempt.started_at = workflow.now()
    run.show(Phase.RUNNING, pod=pod.name, node=pod.node)
    run.note(
        *(
            f"{each.by} sent the agent a message, the prompt of attempt {attempt.key.attempt}"
            for each in attempt.messages
        )
    )
    if attempt.key.attempt == 1:
        run_metrics.agent_started(pod)
    attempt.end = await following.follow_output(run, attempt, job, pod)
    if attempt.end is not None:
        run.warn(*attempt.end.warnings)
    attempt.failure = attempt.failure or (attempt.end.failure if attempt.end else None)


async def _pause_before(run: RunState, retry: RetryDecision) -> bool:
    """Waits before the next attempt; False when the run was stopped meanwhile."""
    if retry.pause:
        number = len(run.attempts)
        run.note(f"attempt {number} ended as {retry.reason}; another attempt follows")
        run.show(Phase.PREPARING, attempt=f"{number + 1}, because of {retry.reason}")
        try:
            await run.until_stopped(workflow.sleep(retry.pause, summary=f"back-off after {retry.reason}"))
        except asyncio.CancelledError:
            return False
    return run.stopped_by is None
