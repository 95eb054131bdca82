"""Inputs and results of the activities: small, one per message, without prompt, output or secrets."""

import posixpath
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias

from pydantic import Field

from agent_runs.contracts.base import Contract
from agent_runs.contracts.errors import Failure
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import ContainerEnd, Interruption, OutputReceipt
from agent_runs.contracts.pod import AGENT_CONTAINER, DATA_DIRECTORY
from agent_runs.contracts.request import OPENCODE, RunConfig, RunRequest, SessionParams


class EnvReference(Contract):
    """An environment variable of the worker's own pod that points elsewhere (`valueFrom`)."""

    name: str
    value_from: dict[str, Any]


class SecretMount(Contract):
    """A Secret volume of the worker's own pod that agents inherit, read-only."""

    volume_name: str
    secret_name: str
    mount_path: str
    default_mode: int | None = None
    items: tuple[dict[str, Any], ...] = ()
    sub_path: str | None = None


class PodProfile(Contract):
    """What an agent pod inherits from the worker's own pod (or from settings, outside a pod).

    Literal environment values are not here: they do not travel through history and are read again at creation.
    """

    namespace: str
    image: str
    image_pull_secrets: tuple[str, ...] = ()
    dns_config: dict[str, Any] | None = None
    data_claim: str | None = None
    secret_mounts: tuple[SecretMount, ...] = ()
    env_references: tuple[EnvReference, ...] = ()
    env_from: tuple[dict[str, Any], ...] = ()
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    source: str = "settings"


class PrepareRun(Contract):
    """Input of `prepare_run`; the sealed text is in the run's first event."""

    run: RunKey
    task: str | None = None


class IntrospectPod(Contract):
    run: RunKey
    config: RunConfig


class QueuedMessage(Contract):
    """A message to the agent that becomes a part of its next prompt.

    Attributes:
        by: who sends it, for people.
        sealed: compact JWE of `SealedMessage`.
    """

    id: str
    by: str
    sealed: str = Field(repr=False)


class BundlePrompt(Contract):
    """Input of `bundle_prompt`.

    Attributes:
        resuming: selects the wake text for a resumed session, and leaves out what such a session already knows.
        messages: with which the prompt ends.
        continues: the agent has done what it was woken for: a session that is resumed gets only the messages.
        interruption: of the attempt before, if its pod was lost.
    """

    attempt: AttemptKey
    config: RunConfig
    resuming: bool = False
    messages: tuple[QueuedMessage, ...] = ()
    continues: bool = False
    interruption: Interruption | None = None


class PromptBundle(Contract):
    """Where the prompt is and what it consists of; never the prompt itself.

    Attributes:
        sha256: of the prompt's UTF-8 bytes, hex.
        size: in bytes.
        metrics: characters (UTF-16 units, as Paperclip counts) per section, by Paperclip's names and `messagesChars`.
        skill_folders: of the skills that the agent gets as folders, relative to the data volume, or absolute below
            `SKILLS_DIRECTORY`; they are not in the prompt.
        skill_names: of the same skills; none in bundles of earlier releases.
    """

    namespace: str
    secret_name: str
    sha256: str
    size: int
    metrics: dict[str, int] = {}
    skill_folders: tuple[str, ...] = ()
    skill_names: tuple[str, ...] = ()

    @property
    def skill_paths(self) -> list[str]:
        """The same folders, as the pod has them."""
        return [posixpath.join(DATA_DIRECTORY, folder) for folder in self.skill_folders]


class JoinedRun(Contract):
    """A later Paperclip run that has joined this one: the agent uses its token from then on.

    Attributes:
        run_id: Paperclip's id of the later run.
        sealed: its tokens, a compact JWE of `SealedJoin`.
    """

    run_id: str
    task: str | None = None
    sealed: str = Field(repr=False)


class CreateJob(Contract):
    """Input of `create_job`.

    Attributes:
        request: without its notes.
        joined: the run whose token the agent uses; None: of the run that it is started for.
    """

    attempt: AttemptKey
    request: RunRequest
    profile: PodProfile
    prompt: PromptBundle
    session: SessionParams | None = None
    joined: JoinedRun | None = None

    @property
    def config(self) -> RunConfig:
        return self.request.config


class Claimed(Contract):
    """How an attempt got a pod that rested, instead of a Job of its own.

    Attributes:
        first: number of its first frame in the sidecar's log.
        at: when, by the node's clock.
    """

    first: int
    at: datetime


class Restored(Contract):
    """The tree with which an attempt's pod begins.

    Attributes:
        number: in the ledger of the run's workspace.
        attempt: whose files they are; 0: as they came from Paperclip.
        steps: of that attempt, that are in it.
        at: when they were stored, by the service's clock.
    """

    number: int
    attempt: int
    steps: int
    at: datetime


class JobRef(Contract):
    """One Job, with its uid, so that a later one of the same name is never mistaken for it.

    Attributes:
        adopted: an earlier activity attempt had created it.
        keeps_sessions: OpenCode's database outlives the pod.
        page: address of the run's page, without a token; None when no worker serves it.
        has_api_proxy: the agent reaches Paperclip through a proxy in its pod, so its token can be rotated.
        warnings: for people, such as a reserved label that was left out.
        joined: the later run whose tokens the pod has; they are kept out of its output.
        restored: with what a carried workspace begins; None: it is not carried.
        claimed: the Job is an earlier run's, whose pod works for this one; None: it is this attempt's own.
    """

    namespace: str
    name: str
    uid: str
    container: str = AGENT_CONTAINER
    adopted: bool = False
    keeps_sessions: bool = False
    page: str | None = None
    has_api_proxy: bool = False
    warnings: tuple[str, ...] = ()
    joined: JoinedRun | None = None
    restored: Restored | None = None
    claimed: Claimed | None = None


class RotateToken(Contract):
    """Input of `rotate_token`."""

    attempt: AttemptKey
    job: JobRef
    joined: JoinedRun


class TellAgent(Contract):
    """Input of `tell_agent`.

    Attributes:
        sealed: compact JWE of `SealedMessage`; None: the question is rejected.
        question: what the agent is answered; None: it is a message.
    """

    attempt: AttemptKey
    job: JobRef
    message_id: str
    by: str
    sealed: str | None = Field(default=None, repr=False)
    question: str | None = None


class AwaitSchedule(Contract):
    """Input of `await_schedule`.

    Attributes:
        schedule_timeout: until a node has taken the pod, wall clock from the creation of the Job.
        start_timeout: from there until the agent container runs (image pulls, volumes).
    """

    attempt: AttemptKey
    job: JobRef
    schedule_timeout: timedelta = timedelta(minutes=10)
    start_timeout: timedelta = timedelta(minutes=10)


class StartProgress(Contract):
    """Heartbeat details of `await_schedule`.

    Attributes:
        reason: why the agent does not run yet.
        since: when the wait for a node, or for the start, began, by the cluster's clock.
    """

    reason: str = ""
    since: datetime | None = None


class PodRef(Contract):
    """One pod and the agent container in it.

    Attributes:
        created_at: when the pod was created, by the API server's clock.
        started_at: when the agent container started, by the node's clock; None: it had not, or nobody knows. Both are
            the time of the claim for a pod that had rested.
    """

    namespace: str
    name: str
    uid: str
    node: str | None = None
    container: str = AGENT_CONTAINER
    created_at: datetime | None = None
    started_at: datetime | None = None


class StreamProgress(Contract):
    """Heartbeat details of `stream_logs`: a hint; the transcript's own last sequence is the cursor.

    Attributes:
        needed_from: number of the first frame that another worker needs to continue after `sequence`; None: unknown.
        second: the log's timestamp of that frame, in whole seconds.
        reason: why nothing can come now; empty: nothing keeps the agent's output from coming.
        since: since when, by the cluster's clock.
    """

    sequence: int = 0
    needed_from: int | None = None
    second: datetime | None = None
    lines: int = 0
    session_id: str | None = None
    last_output: str = ""
    reason: str = ""
    since: datetime | None = None


BudgetLimit: TypeAlias = Literal[
    "maxCostUsd", "maxCostUsd without a price", "maxTokens", "maxSteps", "maxRepeatedCalls"
]
"""What people are warned of: a limit is nearly used, or the cost cannot be watched."""


class Budget(Contract):
    """What one run may use, all attempts together; zero is no limit.

    Attributes:
        max_cost_usd: what OpenCode reports, or the built-in price of `model`.
        max_tokens: input, cached input, cache writes and output of all steps.
        max_repeated_calls: calls of one tool with the same input, one directly after the other in one attempt.
    """

    model: str = ""
    max_cost_usd: float = 0
    max_tokens: int = 0
    max_steps: int = 0
    max_repeated_calls: int = 0


class OverBudget(Contract):
    """Why `stream_logs` ended although the agent runs: all of the run's budget is used.

    Attributes:
        progress: how far the output is stored.
    """

    kind: Literal["budget"] = "budget"
    exceeded: Failure
    progress: StreamProgress = StreamProgress()


class StreamLogs(Contract):
    """Input of `stream_logs`. A limit of zero is none.

    Attributes:
        first_output_timeout: until the agent writes to stdout; until then `silence_timeout` does not count.
        silence_timeout: how long the agent may make no progress.
        answered_timeout: how long it may stay after its last step, if that is less.
        resume: how far an earlier `stream_logs` of this attempt came.
        over_quota: an earlier one has reported that too much is stored: its agent is being stopped.
        model: prices the usage of an agent at work; empty in inputs of an earlier version.
        budget: what the run may use; None: not watched.
        asks: the driver puts the agent's questions to people.
    """

    attempt: AttemptKey
    job: JobRef
    pod: PodRef
    first_output_timeout: timedelta = timedelta()
    silence_timeout: timedelta = timedelta()
    answered_timeout: timedelta = timedelta()
    resume: StreamProgress = StreamProgress()
    over_quota: bool = False
    model: str = ""
    budget: Budget | None = None
    asks: bool = False


SilenceCause = Literal["agent", "provider", "tool", "chatter"]
"""What an agent without progress waits for. `chatter`: it writes, but nothing new; `agent`: nobody knows."""


class Silence(Contract):
    """Why `stream_logs` ended although the agent runs: it has made no progress for too long.

    Attributes:
        limit: the limit that it exceeded.
        cause: what it waits for, as far as its output shows.
        detail: of a tool the names of those that have begun, of chatter a line; bounded, without secrets.
        has_output: the agent has written to stdout, so the limit is the one on silence.
        progress: how far the output is stored, with the last output that people would want to read.
        processes: what runs in the container, names without arguments, bounded; empty when it could not be learned.
    """

    kind: Literal["silence"] = "silence"
    limit: timedelta
    cause: SilenceCause = "agent"
    detail: str = ""
    has_output: bool = True
    progress: StreamProgress = StreamProgress()
    processes: tuple[str, ...] = ()


class OverQuota(Contract):
    """Why `stream_logs` ended although the agent runs: more of the run is stored than the worker allows.

    Attributes:
        limit: bytes, of all attempts of the run together.
        receipt: for what is stored; it is sealed.
        progress: how far the output is stored.
    """

    kind: Literal["over_quota"] = "over_quota"
    limit: int
    receipt: OutputReceipt = OutputReceipt()
    progress: StreamProgress = StreamProgress()


class Ended(Contract):
    """The agent has ended. Without a value nothing is known, and nothing is assumed: the stream was cut off.

    Attributes:
        failure: what ended the agent, or hid its end, from outside: a deleted pod, a lost node.
        early: the sidecar saw the agent's process end with exit code 0, and all of its output is stored; what its
            container's status says is not known yet. `finish` reads it.
        rests: its pod waits for the agent's next run.
        warnings: for people, such as a permission that the worker lacks.
    """

    kind: Literal["ended"] = "ended"
    container: ContainerEnd = ContainerEnd()
    receipt: OutputReceipt = OutputReceipt()
    failure: Failure | None = None
    early: bool = False
    rests: bool = False
    warnings: tuple[str, ...] = ()


LimitReached: TypeAlias = Silence | OverQuota | OverBudget
"""Why `stream_logs` ended although the agent runs; another one follows the rest."""
StreamEnd: TypeAlias = Ended | LimitReached
"""Result of `stream_logs`. Each has a `kind` of its own, which tells them apart in a history."""


class ParseTranscript(Contract):
    """Input of `parse_transcript`.

    Attributes:
        stopped: why we stopped the agent; None when it ended by itself.
        joined: as in `JobRef`.
        agent: whose program ran, by its name.
    """

    attempt: AttemptKey
    agent: str = OPENCODE
    end: Ended
    resumed_session: str | None = None
    stopped: Failure | None = None
    model: str
    joined: JoinedRun | None = None


class StopAgent(Contract):
    """Input of `stop_agent`: SIGTERM to the agent; pod, log and exit code stay readable."""

    job: JobRef
    pod: PodRef


class _Finish(Contract):
    """What follows an attempt.

    Attributes:
        retain: keep the Job for debugging (`retainJobs`).
        grace: how long the agent may take to end after SIGTERM, when it still runs.
    """

    attempt: AttemptKey
    retain: bool = False
    grace: timedelta = timedelta(seconds=60)


class EndJob(_Finish):
    """Delete what the attempt created.

    Attributes:
        confirm: how the agent ended is known from its sidecar only: read its container's status before the deletion.
    """

    kind: Literal["end"] = "end"
    job: JobRef
    confirm: bool = False


class KeepJob(_Finish):
    """The Job's pod rests: keep it for the agent's next run, or delete it if it rests no more."""

    kind: Literal["keep"] = "keep"
    job: JobRef


class EndUnreportedJob(_Finish):
    """`create_job` has failed or was cancelled: find what it has created, and delete it.

    Attributes:
        namespace: where the objects are; None for the worker's own.
    """

    kind: Literal["unreported"] = "unreported"
    namespace: str | None = None


Finish: TypeAlias = EndJob | KeepJob | EndUnreportedJob
"""Input of `finish`. Each has a `kind` of its own."""


class FinishProgress(Contract):
    """Heartbeat details of `finish`: what the next activity attempt cannot see any more, because it is deleted.

    Attributes:
        waits_for: what has to happen before the next step.
        agent_started, contradiction: as in the result.
    """

    waits_for: str = ""
    agent_started: bool = False
    contradiction: str | None = None


class Finished(Contract):
    """Result of `finish`.

    Attributes:
        deleted: there was something to delete.
        agent_started: a pod was found whose agent runs or had run, also one that the workflow does not know.
        contradiction: what the container's status says, if that is not what the sidecar said; None also when it could
            not be read.
        kept: the Job's pod rests; nothing of it was deleted.
    """

    deleted: bool = False
    agent_started: bool = False
    contradiction: str | None = None
    kept: bool = False
