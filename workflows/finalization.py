"""What follows an attempt, whatever ended it: its output is judged, and what it created is deleted.

A success whose agent's process was seen to end is the run's outcome as soon as its output is judged: its container's
status and the deletion are not waited for. Should that status then contradict, this is noted; the outcome stays.
"""

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import activities
    from agent_runs.contracts.messages import Ended, EndJob, EndUnreportedJob, Finish, KeepJob, ParseTranscript
    from workflows import run_metrics
    from workflows.activity_calls import HEARTBEAT_TIMEOUT, RETRIES, WAIT_CANCELLATION_COMPLETED, failure_of_activity
    from workflows.attempt import Attempt
    from workflows.current_details import Phase
    from workflows.run_state import RunState


async def finalize(run: RunState, attempt: Attempt) -> None:
    """Judges the output, and deletes what the attempt created. A cancel interrupts neither."""
    run.show(Phase.FINISHING)
    if attempt.job is None:
        await _finish(run, attempt)
    else:
        await asyncio.gather(_parse_transcript(run, attempt), _finish(run, attempt))


async def _parse_transcript(run: RunState, attempt: Attempt) -> None:
    """Adds the report of the stored transcript. An attempt without one still has its own failure."""
    input = ParseTranscript(
        attempt=attempt.key,
        agent=run.config.agent,
        end=attempt.end or Ended(),
        resumed_session=attempt.session.session_id if attempt.session else None,
        stopped=attempt.failure,
        model=run.config.model,
        joined=attempt.job.joined if attempt.job else None,
    )
    try:
        report = await workflow.execute_activity(
            activities.parse_transcript,
            input,
            summary="parse transcript",
            start_to_close_timeout=timedelta(minutes=10),
            schedule_to_close_timeout=timedelta(hours=24),  # a store that is away for longer holds no agent
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
            cancellation_type=WAIT_CANCELLATION_COMPLETED,
        )
    except ActivityError as error:
        attempt.failure = attempt.failure or failure_of_activity(run, error)
    else:
        attempt.report = report
        attempt.failure = None if report.stayed else attempt.failure
        run.show_report(report)
        if attempt.decided_early and not _has_queued_messages(run, attempt):
            run.decide()


async def _finish(run: RunState, attempt: Attempt) -> None:
    try:
        finished = await workflow.execute_activity(
            activities.finish,
            _what_to_finish(run, attempt),
            summary="delete Job and Secrets",
            start_to_close_timeout=timedelta(minutes=5) + run.grace,
            schedule_to_close_timeout=timedelta(hours=1) + run.grace,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
            cancellation_type=WAIT_CANCELLATION_COMPLETED,
        )
    except ActivityError as error:
        run.note(f"cleanup of attempt {attempt.key.attempt} is incomplete: {str(error.cause)[:200]}")
        workflow.logger.warning("finish.incomplete", extra={"failure": str(error.cause)})
    else:
        attempt.agent_started = finished.agent_started
        attempt.pods_deleted = True
        if finished.contradiction is not None:
            _report_contradiction(run, attempt, finished.contradiction)


def _what_to_finish(run: RunState, attempt: Attempt) -> Finish:
    key, retain = attempt.key, run.config.retain_jobs
    grace = timedelta() if attempt.killed else run.grace
    if attempt.job is None:
        namespace = attempt.namespace or run.config.namespace
        return EndUnreportedJob(attempt=key, namespace=namespace, retain=retain, grace=grace)
    if attempt.rests and attempt.failure is None and not _has_queued_messages(run, attempt):
        return KeepJob(attempt=key, job=attempt.job, retain=retain, grace=grace)
    confirm = attempt.ended_early and not attempt.rests
    return EndJob(attempt=key, job=attempt.job, retain=retain, grace=grace, confirm=confirm)


def _has_queued_messages(run: RunState, attempt: Attempt) -> bool:
    """Whether messages have come in the attempt, for the next one."""
    return len(run.queued) > len(attempt.messages)


def _report_contradiction(run: RunState, attempt: Attempt, contradiction: str) -> None:
    """Names it where people look: in the outcome, unless callers have that already, in the details, log and metrics."""
    run.warn(f"attempt {attempt.key.attempt}: {contradiction}")
    workflow.logger.warning("finish.contradicted", extra={"contradiction": contradiction})
    run_metrics.contradicted()
