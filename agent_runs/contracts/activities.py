"""The activities as the workflow refers to them: name, input and result. The package `activities` implements them.

Typed references without the implementations, so that neither the workflow nor its callers load what those need. A test
holds every implementation to its signature here.
"""

from temporalio import activity

from agent_runs.contracts.messages import (
    AwaitSchedule,
    BundlePrompt,
    CreateJob,
    Finish,
    Finished,
    IntrospectPod,
    JobRef,
    ParseTranscript,
    PodProfile,
    PodRef,
    PrepareRun,
    PromptBundle,
    RotateToken,
    StopAgent,
    StreamEnd,
    StreamLogs,
    TellAgent,
)
from agent_runs.contracts.outcome import Report
from agent_runs.contracts.request import RunRequest
from agent_runs.contracts.start import CheckReport, CheckStart


@activity.defn
async def prepare_run(input: PrepareRun) -> RunRequest:
    """Opens what is sealed for the run, and returns the part without secrets."""
    raise NotImplementedError


@activity.defn
async def check_configuration(input: CheckStart) -> CheckReport:
    """Checks an agent's configuration as a run would."""
    raise NotImplementedError


@activity.defn
async def introspect_pod(input: IntrospectPod) -> PodProfile:
    """Returns what the run's pod inherits from the worker's own."""
    raise NotImplementedError


@activity.defn
async def bundle_prompt(input: BundlePrompt) -> PromptBundle:
    """Composes the prompt and puts it into a Secret."""
    raise NotImplementedError


@activity.defn
async def create_job(input: CreateJob) -> JobRef:
    """Removes what previous runs of the agent left, and creates the attempt's Job, or adopts it."""
    raise NotImplementedError


@activity.defn
async def await_schedule(input: AwaitSchedule) -> PodRef:
    """Returns the Job's pod once its agent runs or has ended."""
    raise NotImplementedError


@activity.defn
async def stream_logs(input: StreamLogs) -> StreamEnd:
    """Stores the agent's output until its container has ended, or until it was silent for too long."""
    raise NotImplementedError


@activity.defn
async def rotate_token(input: RotateToken) -> bool:
    """Gives a running agent the token of a later run; whether it was seen in the pod."""
    raise NotImplementedError


@activity.defn
async def tell_agent(input: TellAgent) -> None:
    """Gives an agent that works a message of a person."""
    raise NotImplementedError


@activity.defn
async def stop_agent(input: StopAgent) -> bool:
    """Asks the agent to end; False when its pod is already deleted."""
    raise NotImplementedError


@activity.defn
async def parse_transcript(input: ParseTranscript) -> Report:
    """Returns what the attempt's output and its container's end show together."""
    raise NotImplementedError


@activity.defn
async def finish(input: Finish) -> Finished:
    """Deletes what the attempt created."""
    raise NotImplementedError


@activity.defn
async def try_pod(input: CheckStart) -> CheckReport:
    """Runs a pod like that of the agent's next run, and returns what it finds."""
    raise NotImplementedError


ALL = (
    *(
        prepare_run,
        check_configuration,
        try_pod,
        introspect_pod,
        bundle_prompt,
        create_job,
        await_schedule,
        stream_logs,
    ),
    *(rotate_token, tell_agent, stop_agent, parse_transcript, finish),
)
