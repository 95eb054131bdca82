"""What workflow and activities say to each other. One message per step, small, no prompt, no output, no secret."""

from datetime import datetime, timedelta
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from contracts.base import Contract
from contracts.errors import Failure
from contracts.identity import AttemptKey, RunKey
from contracts.outcome import ContainerEnd, OutputReceipt
from contracts.request import RunConfig, SessionParams, Workspace


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


class IntrospectPod(Contract):
    """Input of `introspect_pod`."""

    run: RunKey
    config: RunConfig


class BundlePrompt(Contract):
    """Input of `bundle_prompt`. `resuming` selects the wake prose and drops what a resumed session already knows."""

    attempt: AttemptKey
    config: RunConfig
    resuming: bool = False


class PromptBundle(Contract):
    """Where the prompt is and what it is made of; never the prompt.

    Attributes:
        sha256: of the prompt's UTF-8 bytes, hex.
        size: in bytes.
        metrics: characters (UTF-16 units, as Paperclip counts) per section, Paperclip's names.
        warnings: for people, such as instructions that could not be read.
    """

    namespace: str
    secret_name: str
    sha256: str
    size: int
    metrics: dict[str, int] = {}
    warnings: tuple[str, ...] = ()


class JoinedRun(Contract):
    """A later Paperclip run that goes on in this one: the agent speaks for it from then on.

    Attributes:
        run_id: Paperclip's id of the later run.
        sealed_secrets: its `Secrets`, sealed for that id.
    """

    run_id: str
    sealed_secrets: str = Field(repr=False)


class CreateJob(Contract):
    """Input of `create_job`.

    Attributes:
        joined: whom the agent speaks for instead of the run it was started for.
    """

    attempt: AttemptKey
    agent_name: str = ""
    task_id: str | None = None
    task_key: str | None = None
    config: RunConfig
    workspace: Workspace = Workspace()
    profile: PodProfile
    prompt: PromptBundle
    session: SessionParams | None = None
    joined: JoinedRun | None = None


class JobRef(Contract):
    """One Job, addressed so that a later one of the same name is never mistaken for it.

    Attributes:
        adopted: an earlier try of this step had created it.
        keeps_sessions: OpenCode's database outlives the pod.
        page: where people read the run, without a token; None when nobody serves it.
        rotates: the agent speaks to Paperclip through the pod's proxy, so its token can be exchanged while it runs.
        warnings: for people, such as a reserved label that was left out.
    """

    namespace: str
    name: str
    uid: str
    container: str = "opencode"
    adopted: bool = False
    keeps_sessions: bool = False
    page: str | None = None
    rotates: bool = False
    warnings: tuple[str, ...] = ()


class RotateToken(Contract):
    """Input of `rotate_token`."""

    attempt: AttemptKey
    job: JobRef
    joined: JoinedRun


class AwaitSchedule(Contract):
    """Input of `await_schedule`.

    Attributes:
        patience: until a node has taken the pod, wall clock from the Job's creation.
        start_patience: from there until the agent container runs (image pulls, volumes).
        until: what to wait for.
    """

    attempt: AttemptKey
    job: JobRef
    patience: timedelta = timedelta(minutes=10)
    start_patience: timedelta = timedelta(minutes=10)
    until: Literal["scheduled", "running"] = "running"


class PodRef(Contract):
    """One pod and the agent container in it."""

    namespace: str
    name: str
    uid: str
    node: str | None = None
    container: str = "opencode"


class StreamLogs(Contract):
    """Input of `stream_logs`."""

    attempt: AttemptKey
    job: JobRef
    pod: PodRef


class StreamEnd(Contract):
    """How the stream of one attempt ended: the container's own end and the receipt for its output.

    Attributes:
        failure: what ended the agent, or hid its end, from outside: a deleted pod, a lost node.
    """

    container: ContainerEnd
    receipt: OutputReceipt
    failure: Failure | None = None

    @classmethod
    def unknown(cls) -> Self:
        """The end of a stream that was cut off: nothing is known, and nothing is assumed."""
        return cls(container=ContainerEnd(), receipt=OutputReceipt())


class StreamProgress(Contract):
    """Heartbeat details of `stream_logs`: a hint; the transcript's own last sequence is the cursor.

    Attributes:
        needed_from: number of the first frame that another worker needs to go on after `sequence`; None: unknown.
        second: where in the log that frame is to be found.
    """

    sequence: int = 0
    needed_from: int | None = None
    second: datetime | None = None
    lines: int = 0
    session_id: str | None = None
    last_words: str = ""


class ParseTranscript(Contract):
    """Input of `parse_transcript`.

    Attributes:
        stopped: why we stopped the agent; None when it ended by itself.
    """

    attempt: AttemptKey
    end: StreamEnd
    resumed_session: str | None = None
    stopped: Failure | None = None
    model: str


class ReapLeftovers(Contract):
    """Input of `reap_leftovers`: whatever earlier runs of this agent left must be gone before a Job is created.

    Attributes:
        namespace: where Jobs of this agent go; None for the worker's own.
        grace: how long a straggler may take to end after SIGTERM.
    """

    run: RunKey
    namespace: str | None = None
    grace: timedelta = timedelta(seconds=60)


class Leftovers(Contract):
    """What `reap_leftovers` ended: Jobs that were not over, and pods that ran."""

    jobs: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()


class ExamineSilence(Contract):
    """Input of `examine_silence`: has the agent really said nothing for so long?

    Attributes:
        first: before its first line.
        limit: of silence.
    """

    attempt: AttemptKey
    job: JobRef
    pod: PodRef
    first: bool
    limit: timedelta


class Silence(Contract):
    """What `examine_silence` found.

    Attributes:
        silent_for: since the last line, or since the container began; None when nobody could tell, because the store,
            the API server or the node did not answer.
        spoke: there is a first line.
        last_words: bounded.
        processes: what runs in the container, names without arguments, bounded; empty when it could not be learned.
    """

    silent_for: timedelta | None = None
    spoke: bool = False
    last_words: str = ""
    processes: tuple[str, ...] = ()


class StopAgent(Contract):
    """Input of `stop_agent`: SIGTERM to the agent; pod, log and exit code stay readable."""

    job: JobRef
    pod: PodRef


class Finish(Contract):
    """Input of `finish`: what one attempt left and whether to keep it.

    Attributes:
        job: None when the attempt failed before a Job was created.
        namespace: where the objects are; None for the worker's own.
        retain: keep the Job for debugging (`retainJobs`).
        grace: how long OpenCode may take to end after SIGTERM, when it still runs.
    """

    attempt: AttemptKey
    namespace: str | None = None
    job: JobRef | None = None
    retain: bool = False
    grace: timedelta = timedelta(seconds=60)


class Finished(Contract):
    """What `finish` did and saw.

    Attributes:
        deleted: something was there to delete.
        agent_started: a pod was seen whose agent ran, or had run, also one that nobody had reported.
    """

    deleted: bool = False
    agent_started: bool = False

    @model_validator(mode="before")
    @classmethod
    def _earlier(cls, value: object) -> object:
        """Histories of earlier code hold only whether something was deleted."""
        return {"deleted": value} if isinstance(value, bool) else value
