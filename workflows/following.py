"""From the creation of the Job to the end of its agent: the wait for its pod, its output, its stop."""

import asyncio
from datetime import timedelta
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import activities
    from agent_runs.contracts.errors import (
        AgentSilent,
        AgentStartHung,
        Failure,
        NoProgress,
        OutputQuotaExceeded,
        ProviderHung,
        RunError,
        RunTimeout,
        ToolHung,
    )
    from agent_runs.contracts.messages import (
        AwaitSchedule,
        Budget,
        Ended,
        JobRef,
        LimitReached,
        OverBudget,
        OverQuota,
        PodRef,
        Silence,
        StopAgent,
        StreamEnd,
        StreamLogs,
    )
    from agent_runs.contracts.request import RunConfig
    from workflows.activity_calls import (
        HEARTBEAT_TIMEOUT,
        RETRIES,
        RETRIES_AT_ONCE,
        SHORT_HEARTBEAT_TIMEOUT,
        WAIT_CANCELLATION_COMPLETED,
        result_or_none,
    )
    from workflows.attempt import Attempt
    from workflows.current_details import Phase
    from workflows.run_state import RunState

LONGEST_WAIT: Final = timedelta(days=30)
"""For a node or a place in a queue. An `await_schedule` whose worker hangs or dies ends by its heartbeat time-out."""
KILL_MARGIN: Final = timedelta(seconds=5)
"""Added to the grace: time for the kubelet to kill the container and for its last lines to arrive."""
ANSWERED_TIMEOUT: Final = timedelta(seconds=30)
"""For an agent to end after its last step. OpenCode's command line does within 0.2 s, or sometimes not at all:
https://github.com/anomalyco/opencode/issues/17516"""
LONGEST_STREAM: Final = timedelta(days=30)
"""The longest run that a configuration allows. A stream whose worker hangs or dies ends by its heartbeat time-out."""


async def wait_for_pod(run: RunState, attempt: Attempt, job: JobRef) -> PodRef:
    """Waits for a node, then for the start of the agent's container.

    Both limits are the activity's own: only it knows for how long a queue has held the Job back.
    """
    wait = AwaitSchedule(
        attempt=attempt.key,
        job=job,
        schedule_timeout=timedelta(seconds=run.config.schedule_timeout_sec),
        start_timeout=timedelta(seconds=run.config.start_timeout_sec),
    )
    return await workflow.execute_activity(
        activities.await_schedule,
        wait,
        summary="wait for start",
        start_to_close_timeout=LONGEST_WAIT,
        schedule_to_close_timeout=LONGEST_WAIT,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        retry_policy=RETRIES_AT_ONCE,
        cancellation_type=WAIT_CANCELLATION_COMPLETED,
    )


async def follow_output(run: RunState, attempt: Attempt, job: JobRef, pod: PodRef) -> Ended | None:
    """Follows the agent's output to its end. At a limit or a cancel the agent is stopped first; its last output
    counts."""
    input = StreamLogs(
        attempt=attempt.key,
        job=job,
        pod=pod,
        first_output_timeout=timedelta(seconds=run.config.first_output_timeout_sec),
        silence_timeout=timedelta(seconds=run.config.silence_timeout_sec),
        answered_timeout=ANSWERED_TIMEOUT,
        model=run.config.model,
        budget=_budget(run.config),
        asks=run.asks,
    )
    stream = _stream_logs(input, f"stream logs of {pod.name}")
    limits = _start_limits(run, attempt)
    reached: LimitReached | None = None
    try:
        run.raise_if_stopped()  # the wait for the start may have taken a cancel, and ended well all the same
        await workflow.wait([stream, *limits], return_when=asyncio.FIRST_COMPLETED)
        end = stream.result() if stream.done() else None
        if isinstance(end, Ended):
            return end
        attempt.failure = next((limit.result() for limit in limits if limit.done()), None)
        if end is not None:
            reached = end
            attempt.failure = attempt.failure or _stop_failure(end)
            stream = _follow_rest(input, end)
    except asyncio.CancelledError:
        attempt.failure = run.stopped_by
    finally:
        for limit in limits:
            limit.cancel()
    run.shield_from_stops()
    run.show(Phase.RUNNING, stopping=attempt.failure.message if attempt.failure else "")
    return await _stop_gracefully(run, attempt, input, stream, reached)


def _budget(config: RunConfig) -> Budget | None:
    """What the run may use; None without any limit."""
    budget = Budget(
        model=config.model,
        max_cost_usd=config.max_cost_usd,
        max_tokens=config.max_tokens,
        max_steps=config.max_steps,
        max_repeated_calls=config.max_repeated_calls,
    )
    return budget if budget != Budget(model=config.model) else None


def _stream_logs(input: StreamLogs, summary: str) -> workflow.ActivityHandle[StreamEnd]:
    return workflow.start_activity(
        activities.stream_logs,
        input,
        summary=summary,
        start_to_close_timeout=LONGEST_STREAM,
        heartbeat_timeout=SHORT_HEARTBEAT_TIMEOUT,
        retry_policy=RETRIES_AT_ONCE,
        cancellation_type=WAIT_CANCELLATION_COMPLETED,
    )


def _start_limits(run: RunState, attempt: Attempt) -> list[asyncio.Task[Failure]]:
    """The limits of a running agent that the workflow measures; the result is the failure of exceeding it."""
    timeout = timedelta(seconds=run.config.timeout_sec)
    run_time = sum((earlier.run_time for earlier in run.attempts), timedelta())
    return [asyncio.create_task(_run_timeout(run, attempt, timeout, timeout - run_time))] if timeout else []


async def _run_timeout(run: RunState, attempt: Attempt, limit: timedelta, left: timedelta) -> Failure:
    """Enforces `timeoutSec`: the agents' run time in all attempts together; waits for a node or a person do not
    count."""
    while True:
        began = workflow.now()
        try:
            await workflow.wait_condition(
                lambda: run.is_asking, timeout=max(left, timedelta(milliseconds=1)), timeout_summary="run timeout"
            )
        except TimeoutError:
            return RunTimeout.as_failure(f"Timed out after {int(limit.total_seconds())}s")
        asked_at = workflow.now()
        left -= asked_at - began
        await workflow.wait_condition(lambda: not run.is_asking)
        attempt.waiting_time += workflow.now() - asked_at


async def _stop_gracefully(
    run: RunState,
    attempt: Attempt,
    input: StreamLogs,
    stream: workflow.ActivityHandle[StreamEnd],
    reached: LimitReached | None,
) -> Ended | None:
    """SIGTERM, then the grace: the stream ends with the container. After the grace the stream is cancelled, and
    `finish` kills the container."""
    limit = run.grace + KILL_MARGIN
    stop = workflow.start_activity(
        activities.stop_agent,
        StopAgent(job=input.job, pod=input.pod),
        summary="send SIGTERM",
        start_to_close_timeout=timedelta(seconds=15),
        schedule_to_close_timeout=limit,
        retry_policy=RETRIES,
        cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
    )
    grace = asyncio.create_task(workflow.sleep(limit, summary="grace"))
    receipt = reached.receipt if isinstance(reached, OverQuota) else None
    await workflow.wait([stream, grace], return_when=asyncio.FIRST_COMPLETED)
    while not grace.done() and isinstance(end := result_or_none(stream), LimitReached):
        receipt = end.receipt if isinstance(end, OverQuota) else receipt
        stream = _follow_rest(input, end)
        await workflow.wait([stream, grace], return_when=asyncio.FIRST_COMPLETED)
    attempt.killed = not stream.done()
    for pending in (stream, stop, grace):
        pending.cancel()
    await workflow.wait([stream, stop])
    result_or_none(stop)  # retrieves the exception
    end = result_or_none(stream)
    if isinstance(end, Ended):
        return end
    return Ended(receipt=receipt) if receipt is not None else None


def _follow_rest(input: StreamLogs, end: LimitReached) -> workflow.ActivityHandle[StreamEnd]:
    """Follows an agent that is being stopped, without limits on its silence and its budget."""
    rest = StreamLogs(
        attempt=input.attempt,
        job=input.job,
        pod=input.pod,
        resume=end.progress,
        over_quota=isinstance(end, OverQuota),
        model=input.model,
    )
    return _stream_logs(rest, "follow until the agent has stopped")


def _stop_failure(end: LimitReached) -> Failure:
    match end:
        case OverQuota():
            text = f"more than {end.limit} bytes of this run are stored; what followed is not"
            return OutputQuotaExceeded.as_failure(text)
        case OverBudget():
            return end.exceeded
        case Silence():
            return _silence_failure(end)


def _silence_failure(silence: Silence) -> Failure:
    """The failure, with what was observed before the agent was stopped."""
    last_output = silence.progress.last_output
    observed = [f"last output: {last_output}"] if last_output else []
    observed += [f"processes: {', '.join(silence.processes)}"] if silence.processes else []
    seconds = f"{silence.limit.total_seconds():.0f}s"
    error: type[RunError]
    match silence:
        case Silence(has_output=False):
            error, text = AgentStartHung, f"no first line within {seconds}"
        case Silence(cause="provider"):
            error, text = ProviderHung, f"the provider has not answered for {seconds}"
        case Silence(cause="tool"):
            error, text = ToolHung, f"{silence.detail} has not ended for {seconds}"
        case Silence(cause="chatter"):
            error = NoProgress
            text = f"no step and no tool has ended for {seconds}, only output like {silence.detail!r}"
        case _:
            error, text = AgentSilent, f"no progress for {seconds}"
    return error.as_failure("; ".join([text, *observed]))
