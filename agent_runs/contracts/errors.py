"""One tree of failures, one class for each thing that an operator can act on.

The `code` is the Temporal error type and Paperclip's `errorCode`, hence a public contract; codes that the existing
adapters use keep their spelling. Each class states what to do next and whose budget a retry costs: retry decisions
belong to the failure, not to each call site.
"""

from datetime import timedelta
from typing import ClassVar, Final, Literal

from temporalio.exceptions import ApplicationError

from agent_runs.contracts.base import PaperclipContract

Budget = Literal["infrastructure", "agent", "none"]
FAILURE_MESSAGE_LIMIT: Final = 2000


class Failure(PaperclipContract):
    """A failure as data: what happened, what to do next, whose budget a next attempt costs."""

    code: str
    message: str
    next_step: str
    budget: Budget


class RunError(ApplicationError):
    """Root of all named failures.

    Attributes:
        code: Temporal error type and Paperclip `errorCode`.
        next_step: what an operator does about it, in one sentence.
        budget: `infrastructure`: another attempt may follow, on the infrastructure budget; `agent`: no attempt
            follows; `none`: no attempt follows, and nothing ran.
        retryable: whether Temporal retries an activity that fails with this error.
        retry_delay: before Temporal retries; None leaves it to the activity's retry policy.
    """

    code: ClassVar[str] = "agent_run_failed"
    next_step: ClassVar[str] = "Read the run's transcript and the Temporal history."
    budget: ClassVar[Budget] = "agent"
    retryable: ClassVar[bool] = False
    retry_delay: ClassVar[timedelta | None] = None

    def __init__(self, message: str, **details: str | int | None) -> None:
        super().__init__(
            message[:FAILURE_MESSAGE_LIMIT],
            *([details] if details else []),
            type=self.code,
            non_retryable=not self.retryable,
            next_retry_delay=self.retry_delay,
        )

    @classmethod
    def as_failure(cls, message: str) -> Failure:
        """This failure as data for an outcome."""
        return Failure(
            code=cls.code, message=message[:FAILURE_MESSAGE_LIMIT], next_step=cls.next_step, budget=cls.budget
        )


# the request


class InvalidRequest(RunError):
    """The request lacks or misspells something a run needs. Raised before any object exists."""

    code = "invalid_request"
    next_step = "Correct the named field of the agent's configuration and wake the agent again."
    budget = "none"


class PolicyRefused(RunError):
    """The agent's configuration chooses what the operator's policy does not allow. Raised before any object exists."""

    code = "policy_refused"
    next_step = (
        "Choose a value that the operator's policy allows, or ask the operator to allow it, then wake the agent again."
    )
    budget = "none"


class WorkspaceNotShared(RunError):
    """The files of the run's workspace would be lost with the agent's pod. Raised before any object exists."""

    code = "workspace_not_shared"
    next_step = (
        "Give the worker a workspace store (AGENT_RUNS_WORKSPACE_STORE), which Paperclip reaches at"
        " AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL, or Paperclip's data volume at /paperclip, or set `workspace` of this"
        " agent to `ephemeral` if its files may be lost; then wake the agent again."
    )
    budget = "none"


class WorkspaceNotCarried(RunError):
    """The files of the run's workspace are not in the workspace store, or what is there was changed."""

    code = "workspace_not_carried"
    next_step = (
        "Wake the agent again, which sends the folder once more; if that fails, check the storage of"
        " AGENT_RUNS_WORKSPACE_STORE and its key."
    )
    budget = "none"


class WorkspaceStoreUnavailable(RunError):
    """The workspace store refused, timed out or cannot be reached. Retried with back-off."""

    code = "workspaces_unavailable"
    next_step = (
        "Check the workspace store (AGENT_RUNS_WORKSPACE_STORE, its disk or server); the run continues by itself."
    )
    budget = "infrastructure"
    retryable = True
    retry_delay = timedelta(seconds=3)


class SealedFieldUnreadable(RunError):
    """A sealed text cannot be opened: another key, damaged, or sealed for another use."""

    code = "sealed_field_unreadable"
    next_step = (
        "Give caller and worker the same sealing key (AGENT_RUNS_SEALING_KEY_FILE; the plugin also takes "
        "AGENT_RUNS_SEALING_KEY), then wake the agent again. Sending the same sealed start again will not help."
    )
    budget = "none"


class AgentBusy(RunError):
    """Another run holds this agent."""

    code = "k8s_concurrent_run_blocked"
    next_step = "Wait for the named run to end or cancel it, then wake the agent again."
    budget = "none"


# the cluster


class ClusterUnavailable(RunError):
    """The API server is slow, throttled, restarting or unreachable. Retried with back-off."""

    code = "k8s_api_unavailable"
    next_step = "Check the API server; the run continues by itself once it answers."
    budget = "infrastructure"
    retryable = True


class ClusterForbidden(RunError):
    """The worker's ServiceAccount may not do this."""

    code = "k8s_forbidden"
    next_step = (
        "Grant the named verb on the named resource to the worker's ServiceAccount; agent-runs doctor names the file."
    )
    budget = "none"


class PodIntrospectionFailed(RunError):
    """The worker's own pod, or Paperclip's Deployment, cannot be read, or lacks what an agent pod inherits."""

    code = "k8s_introspection_failed"
    next_step = (
        "Set AGENT_RUNS_IMAGE, or POD_NAME and POD_NAMESPACE from the downward API, or correct "
        "AGENT_RUNS_INHERIT_DEPLOYMENT, on the worker."
    )
    budget = "none"


class JobCreateFailed(RunError):
    """Kubernetes refused the Job or one of its Secrets."""

    code = "k8s_job_create_failed"
    next_step = "Read the API server's reason, correct the agent's configuration or the quota, and wake it again."
    budget = "none"


class QuotaUsedUp(JobCreateFailed):
    """A ResourceQuota has no room for the Job or a Secret now. Retried for a while, as a pod waits for its quota."""

    code = "k8s_quota_used_up"
    next_step = "Nothing while the run waits: what ends elsewhere makes room; else raise the quota."
    retryable = True
    retry_delay = timedelta(seconds=5)


class PromptTooLarge(JobCreateFailed):
    """The prompt does not fit into a Secret (1 MiB)."""

    code = "prompt_too_large"
    next_step = "Shorten the instructions, skills or templates of this agent."


class ForeignObject(JobCreateFailed):
    """An object of our name exists and is not ours."""

    code = "k8s_job_state_mismatch"
    next_step = "Inspect the named object; delete it if nobody needs it, then wake the agent again."


class PodScheduleFailed(RunError):
    """The pod did not get a node, an image, a volume or a start in time."""

    code = "k8s_pod_schedule_failed"
    next_step = "Read the scheduler's or kubelet's reason in the message, fix the cause, and wake the agent again."
    budget: ClassVar[Budget] = "none"


class ImagePullFailed(PodScheduleFailed):
    """The image of a container cannot be pulled."""

    code = "k8s_image_pull_failed"
    next_step = "Check the image name, the registry and the pull secret."


class ImageRegistryThrottled(ImagePullFailed):
    """The registry refuses for now: too many requests (429), or it is unavailable."""

    code = "k8s_image_registry_throttled"
    next_step = "Nothing to do if another attempt follows; else mirror the image, or set the pull secret of an account."
    budget = "infrastructure"


class PodStartFailed(PodScheduleFailed):
    """A node took the pod, and its agent container did not run in time: image, volumes, Secrets, sandbox."""

    code = "k8s_pod_start_failed"
    next_step = "Read the kubelet's reason in the message, fix the cause, and wake the agent again."


class WorkspaceNotRestored(PodScheduleFailed):
    """The files of a carried workspace could not be put into the agent's pod, which did not start."""

    code = "workspace_not_restored"
    next_step = (
        "Read the reason in the message: if something is damaged, check the storage of AGENT_RUNS_WORKSPACE_STORE and"
        " its key; then wake the agent again."
    )


class WorkspaceUnreachable(WorkspaceNotRestored):
    """The agent's pod did not reach the workspace service for minutes, or could not write the files."""

    code = "workspace_unreachable"
    next_step = (
        "Nothing to do if another attempt follows; else check from the message whether pods reach"
        " AGENT_RUNS_WORKSPACE_URL (address, NetworkPolicy), whether its store answers, or whether the node has room."
    )
    budget = "infrastructure"


class SidecarUnavailable(RunError):
    """The sidecar in the agent's pod did not start, so neither did the agent."""

    code = "sidecar_unavailable"
    next_step = (
        "Nothing to do if another attempt follows; else check AGENT_RUNS_SIDECAR_IMAGE (it needs python3 >= 3.9)"
        " and the log of the pod's container sidecar."
    )
    budget = "infrastructure"


class PodLost(RunError):
    """The pod, its node or its container runtime was lost: evicted, preempted, deleted by somebody, node failure."""

    code = "k8s_pod_lost"
    next_step = "Nothing to do if another attempt follows; else inspect the node's events."
    budget: ClassVar[Budget] = "infrastructure"


class DiskLimitExceeded(PodLost):
    """The kubelet evicted the pod for a limit on its disk; another attempt would have the same limit."""

    code = "disk_limit_exceeded"
    next_step = (
        "Make the agent write less, or raise resources.limits.ephemeral-storage of this agent (the message names the"
        " limit; a volume's own is fixed), then wake the agent again."
    )
    budget = "agent"


class JobDeletedExternally(PodLost):
    """The Job was deleted while the agent ran, by somebody or by its TTL while no worker was running."""

    code = "k8s_job_deleted_externally"
    next_step = (
        "Find out who deleted the Job (audit log), or raise ttlSecondsAfterFinished if no worker was running for that"
        " long; check the agent's work, then wake it again."
    )
    budget = "none"


class ExitUnknown(RunError):
    """The container's exit code is not known. Never a success."""

    code = "k8s_exit_unknown"
    next_step = "Inspect the pod's events and node; check the agent's work before waking it again."
    budget = "infrastructure"


class OutOfMemory(RunError):
    """The kernel killed the container for exceeding its memory limit."""

    code = "oom_killed"
    next_step = "Raise resources.limits.memory of this agent as the message advises, or make its tools use less."


class AgentCrashed(RunError):
    """The agent was ended by a signal that the worker did not send, also after an answer: more may have followed."""

    code = "opencode_crashed"
    next_step = "Read the last lines of the transcript and the answer, if there is one; wake the agent again."


class ServerUnusable(RunError):
    """OpenCode's server did not start, or cannot be driven; it got no prompt."""

    code = "opencode_server_unusable"
    next_step = (
        "Nothing to do if another attempt follows, which uses `opencode run`; set `transport: run` if the image's"
        " program has no server that can be driven."
    )
    budget = "infrastructure"


class AgentVersionUnsupported(RunError):
    """The agent's program has a version that is not supported, or `transport: run` meets OpenCode 2."""

    code = "agent_version_unsupported"
    next_step = (
        "Take an image whose program has a version that docs/compatibility.md names; without `transport: run`, and"
        " without the options in extraArgs that only `opencode run` has, version 2 is supported, too."
    )
    budget = "none"


class AgentNotStarted(RunError):
    """OpenCode 2, or an agent that speaks ACP, ended or did not answer before it got its prompt."""

    code = "agent_not_started"
    next_step = (
        "Nothing to do if another attempt follows; else read the agent's own words at the end of the transcript, and"
        " check its image, command, files and variables."
    )
    budget = "infrastructure"


class AgentProtocolBroken(RunError):
    """An agent does not speak the Agent Client Protocol as it must, or refused what it needs for its prompt."""

    code = "agent_protocol"
    next_step = (
        "Read the agent's answer in the message: it mostly names a wrong mode, model or login of the agent's profile;"
        " else take the version of the agent that the profile was made for."
    )


class AgentLost(RunError):
    """OpenCode's server, or an agent that speaks ACP, was lost in its turn. The prompt is not sent again."""

    code = "agent_lost"
    next_step = (
        "Read the agent's own words at the end of the transcript, and check its work; the next run continues its"
        " session if the agent has kept it."
    )


class MessageNotDelivered(RunError):
    """A message has not reached an agent: its turn is over, or its session ends with its pod."""

    code = "message_not_delivered"
    next_step = "Comment on the task instead: the agent's next run gets the comment."
    budget = "none"


# the transcript store


class TranscriptsUnavailable(RunError):
    """The transcript store refused, timed out or cannot be reached. Retried with back-off."""

    code = "transcripts_unavailable"
    next_step = (
        "Check the transcript store (AGENT_RUNS_TRANSCRIPTS_URL, its disk or server); the run continues by itself."
    )
    budget = "infrastructure"
    retryable = True
    retry_delay = timedelta(seconds=3)  # every stream of a worker loses the store at the same moment


class TranscriptFenced(RunError):
    """A later activity attempt writes this transcript now, so this one stops.

    Only an activity attempt that Temporal has given up gets it, so it appears in logs only. It has no budget: if it
    ever reached a run, the agent of that run might still be running, and a second one must not start.
    """

    code = "transcript_fenced"
    next_step = "Nothing: the later activity attempt continues. If it does not, report the Temporal history."
    budget = "none"


class TranscriptSealed(RunError):
    """Output arrived for an attempt whose receipt is already sealed; it is not stored."""

    code = "transcript_sealed"
    next_step = "Check the agent's work before waking it again; report the transcript and the Temporal history."
    budget = "none"


# limits and the operator


class RunTimeout(RunError):
    """The run took longer than `timeoutSec`."""

    code = "timeout"
    next_step = "Raise timeoutSec of this agent, or give it smaller tasks."


class AgentSilent(RunError):
    """The agent made no progress for longer than `silenceTimeoutSec`; its output does not show what it waits for."""

    code = "agent_silent"
    next_step = (
        "Read the last output and processes in the message; raise silenceTimeoutSec if the agent was still working."
    )


class ProviderHung(AgentSilent):
    """The model's provider did not answer for longer than `silenceTimeoutSec`: a step has begun, and no tool runs."""

    code = "provider_hung"
    next_step = "Check the provider's status and its time-outs in the agent's configuration; wake the agent again."


class ToolHung(AgentSilent):
    """A tool did not end for longer than `silenceTimeoutSec`, and none of its processes works."""

    code = "tool_hung"
    next_step = (
        "Find out what the named tool waits for; give it a time-out of its own, or raise silenceTimeoutSec if it works."
    )


class NoProgress(AgentSilent):
    """The agent wrote for longer than `silenceTimeoutSec`, but only what it had written before, and made no step."""

    code = "no_progress"
    next_step = (
        "Read the repeated line in the message: it mostly names the provider's error or the plugin that repeats."
    )


class AgentStartHung(AgentSilent):
    """The agent wrote no first line within `firstOutputTimeoutSec`, as OpenCode does once in hundreds of runs.

    The agent has done nothing by then, so the attempt is retried once.
    """

    code = "opencode_start_hung"
    next_step = "Nothing to do if another attempt follows; else check model, provider and session directory."
    budget = "infrastructure"


class OutputQuotaExceeded(RunError):
    """The agent wrote more than the worker stores of one run; it was stopped, and what followed is not stored."""

    code = "output_quota_exceeded"
    next_step = (
        "Make the agent print less, or raise AGENT_RUNS_MAX_OUTPUT_MIB on the workers, then wake the agent again."
    )


class BudgetExceeded(RunError):
    """The run used up its budget: `maxCostUsd`, `maxTokens`, `maxSteps` or `maxRepeatedCalls`."""

    code = "budget_exceeded"
    next_step = (
        "Read in the transcript what the agent did; raise the named limit of this agent, or give it smaller tasks. The"
        " next run continues its session, if sessions of this agent outlive its pods."
    )


class PaperclipBudgetExceeded(BudgetExceeded):
    """The agent's monthly budget in Paperclip is used up: before the run, which is then refused, or by it."""

    code = "paperclip_budget_exceeded"
    next_step = (
        "Raise the agent's monthly budget in Paperclip, or wait for the next month. The next run continues the session,"
        " if sessions of this agent outlive its pods."
    )


class RunCancelled(RunError):
    """Somebody cancelled the run."""

    code = "cancelled"
    next_step = "Nothing: the run was stopped on request."


# what the agent reports


class SessionUnavailable(RunError):
    """The agent does not know the session that was to be resumed."""

    code = "session_unavailable"
    next_step = "Nothing: the stored session is cleared and the next run starts afresh."


class StartFailed(RunError):
    """The agent ended before its first event: arguments, configuration, directories, database."""

    code = "opencode_start_failed"
    next_step = "Read the agent's own error in the message; it names the option, file or directory."


class OutputLost(RunError):
    """The agent exited 0 but its output is incomplete."""

    code = "output_lost"
    next_step = "Check the agent's work before waking it again; report the transcript."


class OutputCutOff(RunError):
    """The model's answer was cut by its output limit."""

    code = "output_cut_off"
    next_step = "Raise the model's output limit or give the agent smaller tasks."


class PermissionBlocked(RunError):
    """The agent asked for a permission, did not get it, and stopped."""

    code = "permission_blocked"
    next_step = (
        "Allow or deny the named permission in the agent's configuration (`opencode`, `dangerouslySkipPermissions`), "
        "or have people asked for it: see `askTimeoutSec`."
    )


class StepLimitReached(RunError):
    """The model stopped because of a limit on steps or turns."""

    code = "step_limit_reached"
    next_step = "Raise the step limit or give the agent smaller tasks; the session is cleared."


class ContextOverflow(RunError):
    """The conversation no longer fits into the model's context window."""

    code = "context_overflow"
    next_step = "The next run starts a fresh session; keep tasks smaller or choose a model with a larger window."


class SessionRejected(RunError):
    """The provider refuses what is in the session's history, so each resume of it would fail alike."""

    code = "session_rejected"
    next_step = "Nothing: the stored session is cleared and the next run starts afresh."


class AgentUnfinished(RunError):
    """The agent ended by itself without an answer: after its tools, or after it had compacted its conversation."""

    code = "agent_unfinished"
    next_step = "Wake the agent again: its session is kept, and the task can be continued."


class EmptyAnswer(RunError):
    """The model's answer was empty."""

    code = "llm_api_error"
    next_step = "Check the provider's status and the model name; wake the agent again."


class ModelRefused(RunError):
    """The provider's content filter stopped the answer."""

    code = "model_refused"
    next_step = "Reword the task; the provider's content filter stopped the answer."


class ProviderCredentials(RunError):
    """The provider refused the credentials (401, 403)."""

    code = "provider_credentials"
    next_step = "Correct the provider's API key in the agent's environment."


class ProviderQuota(RunError):
    """The provider refused for quota or rate (429)."""

    code = "provider_quota"
    next_step = "Wait for the quota to renew, or raise it at the provider."


class ProviderUnavailable(RunError):
    """The provider failed or could not be reached, after the agent's own retries."""

    code = "provider_unavailable"
    next_step = "Check the provider's status; wake the agent again later."


class ProviderRejected(RunError):
    """The provider refused the request itself (400, 404 and the like)."""

    code = "provider_rejected"
    next_step = (
        "Read the provider's words in the message, and check the model's name and options. A session that is rejected"
        " twice is cleared."
    )


class ModelUnknown(RunError):
    """The agent does not know the model: its name, its provider or the provider's API key is wrong or missing."""

    code = "model_unknown"
    next_step = (
        "Correct `model`, or give the API key of its provider: without one, all models of a provider are unknown."
    )


class OpenCodeFailed(RunError):
    """The agent reported an error of its own."""

    code = "opencode_error"
    next_step = "Read the error in the message and the log lines around it in the transcript."


class StreamTruncated(OpenCodeFailed):
    """The model's stream ended in the middle of an answer (Unexpected EOF)."""

    code = "stream_eof_transient"
    next_step = "Wake the agent again: the session is preserved."


class ResponseTypeCrash(OpenCodeFailed):
    """The agent crashed on a response item without a type."""

    code = "opencode_response_type_crash"
    next_step = "Wake the agent again later; take a newer image of the agent if it repeats."


class AgentFailed(RunError):
    """The agent exited non-zero without a known error."""

    code = "adapter_failed"
    next_step = "Read the last lines of the transcript."


def _tree(root: type[RunError]) -> dict[str, type[RunError]]:
    tree = {root.code: root}
    for child in root.__subclasses__():
        tree |= _tree(child)
    return tree


FAILURES: Final[dict[str, type[RunError]]] = _tree(RunError)


def failure_of(error: ApplicationError) -> Failure:
    """Returns the failure of an error that crossed a process boundary, where only type and message are kept.

    An error of an unknown type becomes the root failure, with the type in its message.
    """
    known = FAILURES.get(error.type or "")
    if known is not None:
        return known.as_failure(error.message)
    return RunError.as_failure(f"{error.type}: {error.message}")
