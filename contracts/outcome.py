"""What a run ends with: Paperclip's AdapterExecutionResult, plus what only a durable run can say."""

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from contracts.base import PaperclipContract
from contracts.errors import Failure
from contracts.request import SessionParams

SUMMARY_LIMIT = 16_000
"""Characters of an answer that travel in an outcome; the transcript holds all of it."""

Receipt = Literal["verified", "unverified", "differs", "best effort"]


class Usage(PaperclipContract):
    """Tokens of one run. `input_tokens` are uncached, `output_tokens` include reasoning; shares do not overlap."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class Gap(PaperclipContract):
    """Output that was written and could not be had. `frames` is its size; None means unknown."""

    after_sequence: int
    frames: int | None = None


class OutputReceipt(PaperclipContract):
    """What was stored of one attempt, compared with what the runner in the pod says it wrote.

    Attributes:
        sha256: over the raw stdout bytes, hex.
        state: `verified` equal; `unverified` the runner was killed before it could say; `differs`; `best effort` the
            log had no frames.
    """

    state: Receipt = "unverified"
    lines: int = 0
    bytes: int = 0
    sha256: str | None = None
    gaps: tuple[Gap, ...] = ()


class ContainerEnd(PaperclipContract):
    """How the agent container ended, as its status says. All None means that it could not be learned."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: datetime | None = None


class Report(PaperclipContract):
    """What the fold over one attempt's output says.

    Attributes:
        failure: None means success.
        warnings: what went wrong on the way to a success.
        session_id: OpenCode's session, from its first event, else from its log on stderr.
        cost_usd: sum of the steps' costs, exact; None when no step named one.
        cost_estimated: `cost_usd` comes from our own price table, because OpenCode named none.
        last_context_tokens: the largest prompt of a step (input + cache read + cache write).
        finish_reason: of the last step.
        unknown_session: OpenCode does not know the session that was to be resumed; a fresh attempt may follow.
        clear_session: the stored session must not be resumed again.
        exit_code: the judged exit code: 0 only for success, never None for an agent that ran.
        last_words: the last line a person would want to read, bounded.
    """

    failure: Failure | None = None
    warnings: tuple[str, ...] = ()
    session_id: str | None = None
    usage: Usage = Usage()
    cost_usd: Decimal | None = None
    cost_estimated: bool = False
    last_context_tokens: int = 0
    steps: int = 0
    tool_calls: int = 0
    finish_reason: str | None = None
    summary: str = ""
    errors: tuple[str, ...] = ()
    tool_errors: tuple[str, ...] = ()
    unknown_session: bool = False
    clear_session: bool = False
    exit_code: int | None = None
    last_words: str = ""
    events: int = 0
    unparsed_lines: int = 0
    opencode_version: str | None = None


class Stop(PaperclipContract):
    """What is known of an agent that we stopped. Paperclip needs all of it to go on with the task.

    Attributes:
        agent_started: its container ran at some time.
        agent_stopped: no container of this run is left, by Kubernetes' word.
        forced: it did not end within its grace and was killed.
        session_preserved: the session is known and its database outlives the pod, so the next wake can resume it.
    """

    agent_started: bool = False
    agent_stopped: bool = False
    forced: bool = False
    session_preserved: bool = False


class AttemptReport(PaperclipContract):
    """One attempt as the outcome lists it."""

    attempt: int
    job_name: str
    failure_code: str | None = None
    receipt: OutputReceipt = OutputReceipt()


class Outcome(PaperclipContract):
    """Maps one to one onto Paperclip's AdapterExecutionResult; the fields after `clear_session` are ours.

    Source: Paperclip 2026.916.1, adapter-utils types.
    """

    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    error_message: str | None = None
    error_code: str | None = None
    error_family: Literal["transient_upstream", "provider_quota", "model_refusal"] | None = None
    retry_not_before: datetime | None = None
    usage: Usage | None = None
    usage_basis: Literal["per_run"] = "per_run"
    session_id: str | None = None
    session_params: SessionParams | None = None
    session_display_id: str | None = None
    provider: str | None = None
    biller: str | None = None
    model: str | None = None
    billing_type: Literal["api", "metered_api", "unknown"] = "unknown"
    cost_usd: Decimal | None = None
    result_json: dict[str, Any] = {}
    summary: str | None = None
    clear_session: bool = False

    failure: Failure | None = None
    attempts: tuple[AttemptReport, ...] = ()
    receipt: OutputReceipt | None = None
    stop: Stop | None = None
