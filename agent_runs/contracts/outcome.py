"""What a run ends with: Paperclip's AdapterExecutionResult, and what only a durable run knows."""

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from pydantic import field_serializer

from agent_runs.contracts.base import PaperclipContract
from agent_runs.contracts.errors import Failure
from agent_runs.contracts.request import SessionParams

SUMMARY_LIMIT = 16_000
"""Characters of the answer in an outcome; the transcript holds all of it."""

MIB = 1024 * 1024
ADVICE_STEP_MIB = 64
"""Advised limits are multiples of it."""

Receipt = Literal["verified", "unverified", "differs"]


class Usage(PaperclipContract):
    """Tokens of one run. `input_tokens` are uncached; `output_tokens` include `reasoning_tokens`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def uncached_tokens(self) -> int:
        """All input that no cache had, also what was written to one: as people see it, and as it is priced."""
        return self.input_tokens + self.cache_write_tokens

    @property
    def total(self) -> int:
        return self.uncached_tokens + self.cached_input_tokens + self.output_tokens


GAP_STREAM = "gap"
"""Stream of a transcript line that stands for missing output; its sequence is that of the first missing line."""


class Gap(PaperclipContract):
    """Output that the agent wrote and that is missing. `frames` is its size; None: unknown."""

    after_sequence: int
    frames: int | None = None


class OutputReceipt(PaperclipContract):
    """What was stored of one attempt, compared with what the runner in the pod has counted.

    Attributes:
        checksum: CRC-32 and Adler-32 of the raw stdout bytes, hex.
        state: `verified`: both are equal; `unverified`: the runner was killed before it reported; `differs`: they are
            not equal.
    """

    state: Receipt = "unverified"
    lines: int = 0
    bytes: int = 0
    checksum: str | None = None
    gaps: tuple[Gap, ...] = ()


class Peaks(PaperclipContract):
    """What an attempt's pod used at most, in bytes; None: not known. Numbers of the agent's own container are its word.

    Attributes:
        memory: of the agent's container, page cache included.
        memory_reached_limit: the container was killed as a whole at its limit, which `memory` then is.
        memory_limit: of that container; None also for no limit.
        output_disk: on the volume of the agent's output.
    """

    memory: int | None = None
    memory_reached_limit: bool = False
    memory_limit: int | None = None
    output_disk: int | None = None

    @property
    def memory_advice(self) -> str:
        """`; limit 512 MiB, peak 512 MiB: set resources.limits.memory to at least 768Mi`, half as much again; empty
        without a known limit. A container that was killed as a whole had reached its limit, whatever it could report.
        """
        if not self.memory_limit:
            return ""
        peak = "which it reached" if self.memory is None else f"peak {self._at_least}{_size(self.memory)}"
        advised = -(-self.memory_limit * 3 // (2 * MIB * ADVICE_STEP_MIB)) * ADVICE_STEP_MIB
        return f"; limit {_size(self.memory_limit)}, {peak}: set resources.limits.memory to at least {advised}Mi"

    @property
    def text(self) -> str:
        """One line for people; empty if nothing is known."""
        parts = []
        if self.memory is not None:
            of = f" of {_size(self.memory_limit)}" if self.memory_limit else ""
            parts.append(f"memory {self._at_least}{_size(self.memory)}{of}")
        elif self.memory_limit:
            parts.append(f"memory limit {_size(self.memory_limit)}")
        if self.output_disk is not None:
            parts.append(f"output on disk {_size(self.output_disk)}")
        return ", ".join(parts)

    @property
    def _at_least(self) -> str:
        return "at least " if self.memory_reached_limit else ""


def _size(number: int) -> str:
    """`768 MiB`; below one, bytes."""
    return f"{number / MIB:,.0f} MiB" if number >= MIB else f"{number} bytes"


class ContainerEnd(PaperclipContract):
    """How the agent container ended, according to its status. All None: not known.

    Attributes:
        runner_error: what kept the runner in the pod from its work, a word of `agent_runs.logs.frames.LastFrame.error`;
            never the agent's own word, as `message` may be.
    """

    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    finished_at: datetime | None = None
    runner_error: str | None = None
    peaks: Peaks = Peaks()


class Interruption(PaperclipContract):
    """What an agent had done when its pod was lost, by its stored output.

    Attributes:
        steps: that have ended, without those of sub-agents.
        at: its last output; None: it had none.
        tools: calls that have begun and not ended, each as a name and what it is about; one line, bounded.
    """

    steps: int = 0
    at: datetime | None = None
    tools: tuple[str, ...] = ()


class LostWork(PaperclipContract):
    """What an agent had done after its last checkpoint when its pod was lost."""

    steps: int
    seconds: float


class Report(PaperclipContract):
    """What the fold over one attempt's output shows.

    Attributes:
        failure: None means success.
        warnings: what went wrong although the attempt succeeded.
        session_id: OpenCode's session, from its first event, else from its log on stderr.
        cost_usd: sum of the steps' costs, exact; None when no step reported one.
        cost_estimated: `cost_usd` comes from the built-in price table, because OpenCode reported none.
        last_context_tokens: the largest prompt of a step (input, cache read and cache write).
        finish_reason: of the last step.
        unknown_session: OpenCode does not know the session that was to be resumed; a fresh attempt may follow.
        clear_session: the stored session must not be resumed again.
        stayed: it was stopped only because it did not exit after its last step, and succeeded.
        exit_code: the judged exit code: 0 only for success, never None for an agent that ran.
        last_output: the last line a person would want to read, bounded.
        refused: permissions for which the agent asked and which it did not get, with who has rejected them.
        interruption: None unless the agent's pod was lost.
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
    stayed: bool = False
    exit_code: int | None = None
    last_output: str = ""
    events: int = 0
    unparsed_lines: int = 0
    agent_version: str | None = None
    refused: tuple[str, ...] = ()
    interruption: Interruption | None = None


class Stop(PaperclipContract):
    """What is known of an agent that was stopped. Paperclip needs it to continue the task.

    Attributes:
        agent_started: its container has run.
        agent_stopped: no container of this run is left, according to Kubernetes.
        killed: it did not end within its grace and was killed.
        session_preserved: the session is known and its database outlives the pod, so the next wake can resume it.
    """

    agent_started: bool = False
    agent_stopped: bool = False
    killed: bool = False
    session_preserved: bool = False


class AttemptReport(PaperclipContract):
    """One attempt as the outcome lists it. `lost` is None where no work is known to be lost."""

    attempt: int
    job_name: str
    failure_code: str | None = None
    receipt: OutputReceipt = OutputReceipt()
    peaks: Peaks = Peaks()
    lost: LostWork | None = None


class Outcome(PaperclipContract):
    """Maps one to one to Paperclip's AdapterExecutionResult; the fields after `clear_session` are additions.

    Attributes:
        error_message: of a failure never empty, because Paperclip takes none for success; at most 4000 characters.
        error_family: what Paperclip acts on; of a run that never started None, unless its infrastructure failed.
        retry_not_before: the earliest time of Paperclip's own retry, UTC.
        session_params: what Paperclip stores, without absent fields; None with `clear_session`.
        model: without the provider's name.
        never_started: no attempt ever had a running agent, and none can start any more.
        agent_stopped: no container of the run is left: it ended by itself, or Kubernetes has deleted it.
        may_repeat: Paperclip repeats such a failure by itself, for a limited number of times.
        recovery: the strongest evidence for Paperclip's recovery. `bootstrap`: no agent ever worked; `interrupted`: a
            stopped agent ended by itself, with its session; None: neither is proven.
        action_outcome: Paperclip's word for the result of the agent's work.
        person_action: what a person has to do about the failure, as Paperclip shows it; None for a success, and if the
            agent may still work.

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
    never_started: bool = False
    agent_stopped: bool = False
    may_repeat: bool = False
    recovery: Literal["bootstrap", "interrupted"] | None = None
    action_outcome: Literal["completed", "not_performed", "mixed"] = "mixed"
    person_action: str | None = None

    @field_serializer("session_params")
    def _present_fields(self, params: SessionParams | None) -> dict[str, str] | None:
        return params.model_dump(exclude_none=True) if params else None

    @property
    def agent_version(self) -> str | None:
        """Of the program that did the last attempt, as it said itself; None: not known."""
        version = self.result_json.get("agentVersion")
        return version if isinstance(version, str) else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for people: what the run had to note, then what the agent's output shows."""
        return tuple(str(text) for name in ("notes", "warnings") for text in self.result_json.get(name) or ())
