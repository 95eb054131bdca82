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
    )
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
        files = job.restored
        whose = f"of attempt {files.attempt} after {files.steps} steps" if files.attempt else "that Paperclip sent"
        run.note(f"attempt {key.attempt} begins with the files {whose}, as they were at {files.at:%H:%M:%S} UTC")
    tokens.begin()
    run.show(Phase.SCHEDULING, job=f"{job.namespace}/{job.name}", transcript=job.page)
    return job
