"""What comes before the agent starts: the request, what its Job needs, and the Job."""

from datetime import timedelta
from typing import Final

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import activities
    from agent_runs.contracts.errors import ServerUnusable
    from agent_runs.contracts.messages import (
        BundlePrompt,
        CreateJob,
        IntrospectPod,
        JobRef,
        PodProfile,
        PrepareRun,
        PromptBundle,
        Restored,
    )
    from agent_runs.contracts.outcome import Interruption, LostWork
    from agent_runs.contracts.request import RunRequest
    from workflows.activity_calls import (
        API_CALLS,
        API_OUTAGE,
        RETRIES,
        SHORT_HEARTBEAT_TIMEOUT,
        WAIT_CANCELLATION_COMPLETED,
        WITHOUT_WORKERS,
        result_or_none,
        wait_all,
    )
    from workflows.attempt import Attempt
    from workflows.current_details import Phase
    from workflows.run_state import RunState
    from workflows.token_rotation import TokenRotation

PREVIOUS_PODS: Final = timedelta(minutes=5)
"""For each try of `create_job`, which waits until no pod of the agent's previous runs is left."""
CREATION: Final = timedelta(hours=1)
"""For all tries of `create_job`, after the grace of previous pods and the time for which a quota may refuse the Job."""


async def prepare_run(run: RunState) -> None:
    """Opens what is sealed for the run, and checks all of it."""
    run.show(Phase.PREPARING)
    request = await workflow.execute_activity(
        activities.prepare_run,
        PrepareRun(run=run.key, task=run.start.task),
        summary="open and check the request",
        start_to_close_timeout=API_CALLS,
        schedule_to_close_timeout=WITHOUT_WORKERS,
        heartbeat_timeout=SHORT_HEARTBEAT_TIMEOUT,
        retry_policy=RETRIES,
        cancellation_type=WAIT_CANCELLATION_COMPLETED,
    )
    run.use(request)


async def profile_and_prompt(run: RunState, attempt: Attempt) -> tuple[PodProfile, PromptBundle]:
    """What the attempt's Job is made of, gathered concurrently."""
    key = attempt.key
    run.show(Phase.PREPARING, attempt=str(key.attempt) if key.attempt > 1 else None)
    profile = workflow.start_activity(
        activities.introspect_pod,
        IntrospectPod(run=key.run, config=run.config),
        summary="read the worker's pod",
        start_to_close_timeout=API_CALLS,
        schedule_to_close_timeout=API_OUTAGE,
        heartbeat_timeout=SHORT_HEARTBEAT_TIMEOUT,
        retry_policy=RETRIES,
        cancellation_type=WAIT_CANCELLATION_COMPLETED,
    )
    prompt = workflow.start_activity(
        activities.bundle_prompt,
        BundlePrompt(
            attempt=key,
            config=run.config,
            resuming=attempt.session is not None,
            messages=attempt.messages,
            continues=any(earlier.succeeded for earlier in run.attempts),
            interruption=_interruption(run),
        ),
        summary="build prompt Secret",
        start_to_close_timeout=API_CALLS,
        schedule_to_close_timeout=API_OUTAGE,
        heartbeat_timeout=SHORT_HEARTBEAT_TIMEOUT,
        retry_policy=RETRIES,
        cancellation_type=WAIT_CANCELLATION_COMPLETED,
    )
    try:
        await wait_all(profile, prompt)
    finally:
        if (bundle := result_or_none(prompt)) is not None:
            attempt.namespace = bundle.namespace
    return profile.result(), prompt.result()


def _interruption(run: RunState) -> Interruption | None:
    """Of the last attempt that had output, if its pod was lost."""
    reports = [attempt.report for attempt in run.attempts if attempt.report and attempt.report.events]
    return reports[-1].interruption if reports else None


def _request_for_attempt(run: RunState) -> RunRequest:
    """The request; it has OpenCode's command line as its transport if the server could not be used before."""
    config, ended = run.config, [attempt.known_failure for attempt in run.attempts]
    if config.transport == "auto" and any(each and each.code == ServerUnusable.code for each in ended):
        config = config.model_copy(update={"transport": "run"})
    return run.request.model_copy(update={"config": config, "notes": ()})


async def create_job(
    run: RunState, tokens: TokenRotation, attempt: Attempt, profile: PodProfile, prompt: PromptBundle
) -> JobRef:
    """Removes what previous runs of the agent left, and creates the attempt's Job, or adopts the one that an earlier
    activity attempt has created."""
    key = attempt.key
    attempt.token_run_id = tokens.newest_run_id
    creation = workflow.start_activity(
        activities.create_job,
        CreateJob(
            attempt=key,
            request=_request_for_attempt(run),
            profile=profile,
            prompt=prompt,
            session=attempt.session,
            joined=tokens.newest,
        ),
        summary=f"create Job {key.job_name}",
        start_to_close_timeout=PREVIOUS_PODS,
        schedule_to_close_timeout=CREATION + run.grace + timedelta(seconds=run.config.schedule_timeout_sec),
        heartbeat_timeout=SHORT_HEARTBEAT_TIMEOUT,
        retry_policy=RETRIES,
        cancellation_type=WAIT_CANCELLATION_COMPLETED,
    )
    try:
        await wait_all(creation)
    finally:
        attempt.job = result_or_none(creation)  # also when the run was stopped meanwhile: cleanup needs it
    job = creation.result()
    run.warn(*job.warnings)
    if job.restored is not None and key.attempt > 1:
        _note_files(run, key.attempt, job.restored)
    tokens.begin()
    run.show(Phase.SCHEDULING, job=f"{job.namespace}/{job.name}", transcript=job.page)
    return job


def _note_files(run: RunState, attempt: int, files: Restored) -> None:
    """Says with which files an attempt begins, and what of the work before is not in them."""
    whose = f"of attempt {files.attempt} after {_steps(files.steps)}" if files.attempt else "that Paperclip sent"
    text = f"attempt {attempt} begins with the files {whose}, as they were at {files.at:%H:%M:%S} UTC"
    before = run.attempts[-1]
    interruption = before.report.interruption if before.report else None
    if interruption and interruption.at and files.attempt == before.key.attempt:
        seconds = max((interruption.at - files.at).total_seconds(), 0)
        before.lost = lost = LostWork(steps=max(interruption.steps - files.steps, 0), seconds=round(seconds, 1))
        text += f"; lost: {_steps(lost.steps)} and {lost.seconds:.0f} s of work"
        text += f", with {', '.join(interruption.tools)} at work" if interruption.tools else ""
    run.note(text)


def _steps(number: int) -> str:
    return f"{number} step{'s' * (number != 1)}"
