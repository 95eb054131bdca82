"""The order of judgement: from what was seen to one verdict.

OpenCode's exit code misleads in both directions, and no event says "done". The only positive sign of success is the end
of the output with a last step that finished by `stop`, nothing after it, and exit code 0 (or 1 after an error from
which the run recovered). Everything else gets a name. The rules stand in order; the first that applies decides.
Source: OpenCode 1.2, 1.14 and 1.18.33, observed.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from agent_runs.contracts.errors import (
    AgentCrashed,
    AgentFailed,
    AgentLost,
    AgentNotStarted,
    AgentProtocolBroken,
    AgentSilent,
    AgentUnfinished,
    AgentVersionUnsupported,
    ContextOverflow,
    EmptyAnswer,
    ExitUnknown,
    Failure,
    ModelRefused,
    OpenCodeFailed,
    OutOfMemory,
    OutputCutOff,
    OutputLost,
    PermissionBlocked,
    RunError,
    RunTimeout,
    ServerUnusable,
    SessionRejected,
    SessionUnavailable,
    SidecarUnavailable,
    StartFailed,
    StepLimitReached,
    StreamTruncated,
)
from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.transcript.diagnostics import Diagnostics, reports_missing_session
from agent_runs.transcript.events import printable, shortened
from agent_runs.transcript.provider_errors import ProviderError, failure_for

Missing = Literal["nothing", "middle", "end"]
"""Output that was written and could not be had: a gap with the end at hand, or the end itself."""

STOP: Final = "stop"
OOM_KILLED: Final = "OOMKilled"
"""Why a container ended, if the kernel has killed any process of it for its memory limit."""
STEP_LIMITS: Final = frozenset({"max_turns", "max_steps", "step_limit"})
VERDICT_TEXT_LIMIT: Final = 1500
REASON_LIMIT: Final = 200
PERMISSION_LIMIT: Final = 500
SIGNAL_BASE: Final = 128
LAST_SIGNAL: Final = 64
SIGNAL_NAMES: Final = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
OPENCODE_EXITS: Final = frozenset({0, 1})
NOT_STARTED: Final = frozenset({"ContainerCannotRun", "StartError", "CreateContainerError", "RunContainerError"})
NOT_EXECUTABLE: Final = frozenset({126, 127})
DISK_FULL: Final = "disk_full"
"""The runner's error when the disk for the output is full."""
SIDECAR_MISSING: Final = "sidecar"
"""The runner's error when the sidecar for which it waited never came, so that nothing was started."""
_SESSION_SHAPE: Final = re.compile(r"ses_\w{8,64}")


@dataclass
class Evidence:
    """What the fold has seen of one attempt; from `agent` on, what is known for a report.

    Attributes:
        half_line: the last line lacks its LF and is no whole event.
        resumed_seen: an event or the log carries the id that was passed with `--session`.
        started: a step began, so a session and a model answer existed.
        open_step: something followed the last finished step.
        reason: finish reason of the last step.
        limit_reached: some step ended by a limit on steps or turns.
        pending_errors: errors after the last step that finished by `stop`.
        errors: the texts of all errors.
        rejected_tool: a tool whose permission was rejected because nobody could answer.
        agent: its title, for messages.
        stopped: why we stopped the agent, if we did.
        verified: all of the output is stored, as the runner's last frame proves.
        has_output: text, tool calls or output tokens.
    """

    resumed_session: str | None
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    half_line: bool = False
    cut_lines: int = 0
    events: int = 0
    resumed_seen: bool = False
    started: bool = False
    open_step: bool = False
    finished: bool = False
    reason: str | None = None
    limit_reached: bool = False
    pending_errors: list[ProviderError] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    rejected_tool: str | None = None
    agent: str = ""
    stopped: Failure | None = None
    missing: Missing = "nothing"
    verified: bool = False
    has_output: bool = False

    @property
    def whole(self) -> bool:
        """Whether the end of the output was seen and its last line is complete."""
        return self.missing != "end" and not self.half_line


class Verdict(NamedTuple):
    """How an attempt ended; `failure` None means success."""

    failure: Failure | None
    exit_code: int | None
    warnings: tuple[str, ...] = ()
    unknown_session: bool = False
    clear_session: bool = False
    stayed: bool = False


Finding = tuple[type[RunError], str] | Failure
"""A failure by its class and text, or one that we caused and hence know already."""

Rule = Callable[[Evidence, ContainerEnd], Finding | None]


def judge(evidence: Evidence, end: ContainerEnd) -> Verdict:
    """The verdict of the first rule that applies; without one the attempt succeeded."""
    if is_success(evidence, end):
        warnings, clears = _warnings(evidence, end), evidence.limit_reached
        return Verdict(None, exit_code=0, warnings=warnings, clear_session=clears, stayed=_stayed(evidence))
    for rule in RULES:
        finding = rule(evidence, end)
        if finding is not None:
            return _verdict(finding, evidence, end)
    return _verdict((AgentFailed, pod_exit(evidence, end)), evidence, end)


def is_success(evidence: Evidence, end: ContainerEnd) -> bool:
    """Whether the output proves that the run ended by itself, well.

    A timeout that comes while OpenCode ends by itself does not undo its work: exit code 0 after a SIGTERM is proof of
    that, because OpenCode dies of the signal. Nor does the stop of one that wrote its whole answer and then stayed. A
    cancel or another stop stands.
    """
    stayed = _stayed(evidence)
    if evidence.stopped is not None and not (
        stayed or (evidence.stopped.code == RunTimeout.code and end.exit_code == 0)
    ):
        return False
    return (
        (stayed or (end.exit_code in OPENCODE_EXITS and not end.signal))
        and end.reason != "ContainerStatusUnknown"
        and (end.reason != OOM_KILLED or _outlived_a_kill(evidence, end))
        and evidence.whole
        and evidence.diagnostics.unwritable is None
        and not evidence.pending_errors
        and evidence.finished
        and not evidence.open_step
        and not evidence.diagnostics.compacts
        and evidence.has_output
        and _ended_well(evidence, end)
    )


def _stayed(evidence: Evidence) -> bool:
    """Whether it was stopped because it wrote nothing more after its answer, and did not end either."""
    return evidence.stopped is not None and evidence.stopped.code == AgentSilent.code and evidence.reason == STOP


def is_step_limit(reason: str | None) -> bool:
    """Whether a finish reason names a limit on steps or turns (no real OpenCode was seen to write one)."""
    return (reason or "").lower() in STEP_LIMITS


def pod_exit(evidence: Evidence, end: ContainerEnd) -> str:
    """`Pod exited: <reason> (exit <n>)`, the wording of Paperclip's built-in adapters."""
    code = "unknown" if end.exit_code is None else str(end.exit_code)
    if end.reason:
        return f"Pod exited: {printable(end.reason, REASON_LIMIT)} (exit {code})"
    return f"{evidence.agent} exited with code {code}"


def _ended_well(evidence: Evidence, end: ContainerEnd) -> bool:
    """`stop`, or no reason at all with exit code 0: versions before 1.0 wrote none."""
    return evidence.reason == STOP or (evidence.reason is None and end.exit_code == 0)


def stopped_by_us(evidence: Evidence, _end: ContainerEnd) -> Finding | None:
    """We stopped it: the reason is ours, whatever the output shows."""
    return evidence.stopped


def _outlived_a_kill(evidence: Evidence, end: ContainerEnd) -> bool:
    """Whether the memory limit ended a tool only. The runner, which reports the exit code, saw OpenCode end well.

    Without one kill for all (cgroup v1, `singleProcessOOMKill`) the kernel ends the largest process, and the runtime
    marks the container for good. Source: Kubernetes 1.20 with containerd 1.6, observed.
    """
    return end.exit_code == 0 and evidence.verified


def out_of_memory(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """The kernel killed a process of the container; a finished answer before that does not count."""
    if end.reason != OOM_KILLED:
        return None
    text = f"{pod_exit(evidence, end)}{end.peaks.memory_advice}"
    if end.exit_code in OPENCODE_EXITS:
        return OutOfMemory, f"A process of the agent was killed for the container's memory limit; {text}"
    return OutOfMemory, text


def never_started(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    if end.reason in NOT_STARTED or (end.exit_code in NOT_EXECUTABLE and not evidence.events):
        text = printable(end.message or "", VERDICT_TEXT_LIMIT) or evidence.diagnostics.text(VERDICT_TEXT_LIMIT)
        return StartFailed, _composed(text, evidence, end)
    return None


def exit_unknown(_evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """Nobody knows how the container ended: never a success."""
    if end.reason == "ContainerStatusUnknown" or (end.exit_code is None and not end.signal):
        detail = f": {printable(end.reason, REASON_LIMIT)}" if end.reason else ""
        return ExitUnknown, f"The exit code of the agent container could not be learned{detail}"
    return None


def agent_ended(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """The driver of an agent that speaks the Agent Client Protocol has a name for its end."""
    failure = BY_DRIVER.get(end.runner_error or "")
    if failure is None:
        return None
    own = f"{failure.code}: "
    said = next((error.text for error in evidence.pending_errors if error.text.startswith(own)), end.message or "")
    words = printable(said.removeprefix(own), VERDICT_TEXT_LIMIT)
    return failure, words or "the agent ended before its turn did"


def version_unsupported(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    if end.exit_code and not evidence.events and evidence.diagnostics.refuses_options:
        return AgentVersionUnsupported, "OpenCode 2 does not know the options of `opencode run` that make it readable"
    return None


def server_unusable(_evidence: Evidence, end: ContainerEnd) -> Finding | None:
    if end.runner_error not in SERVER_UNUSABLE:
        return None
    return ServerUnusable, printable(end.message or end.runner_error, VERDICT_TEXT_LIMIT)


def crashed(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """Ended by a signal that we did not send. OpenCode itself exits with 0 or 1 only.

    Also after a step that finished by `stop`: a run can go on after one, so nothing proves that it was the last.
    """
    number = _signal(end)
    if number is None:
        return None
    name = SIGNAL_NAMES.get(number, f"signal {number}")
    answered = evidence.reason == STOP and not evidence.open_step and not evidence.pending_errors
    answer = "; its last step had ended with an answer, after which it may have had more to do" if answered else ""
    return AgentCrashed, f"{evidence.agent} was ended by {name}; {pod_exit(evidence, end)}{answer}"


def unknown_session(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """`--session` named a session that OpenCode does not know. Old versions exit 0 then.

    Believed only while no step began: text of the agent's own cannot be there yet.
    """
    if not is_session_unknown(evidence, end):
        return None
    text = "\n".join(error.text for error in evidence.pending_errors)
    return SessionUnavailable, text or f"Session unavailable: {evidence.agent} does not know {evidence.resumed_session}"


def is_session_unknown(evidence: Evidence, end: ContainerEnd) -> bool:
    session = evidence.resumed_session
    if not session or evidence.started:
        return False
    if any(error.status is None and reports_missing_session(error.text) for error in evidence.pending_errors):
        return True
    if evidence.resumed_seen:
        return False
    never_an_id = _SESSION_SHAPE.fullmatch(session) is None and not evidence.events and end.exit_code == 0
    return evidence.diagnostics.session_missing or never_an_id


def output_lost(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """The output is not whole, or OpenCode reports that it could not write it."""
    unwritable = evidence.diagnostics.unwritable
    if unwritable is not None and not evidence.pending_errors:
        return OutputLost, _composed(f"{evidence.agent} could not write its output: {unwritable}", evidence, end)
    if evidence.pending_errors:
        return None
    if end.exit_code and end.runner_error == DISK_FULL:
        return OutputLost, _composed(f"The disk that {evidence.agent} writes its output to is full", evidence, end)
    if evidence.half_line:
        return OutputLost, _composed(f"The last line of {evidence.agent}'s output is cut", evidence, end)
    if end.exit_code == 0:
        return _lost_at_exit_zero(evidence)
    return None


def sidecar_missing(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    if end.exit_code and end.runner_error == SIDECAR_MISSING:
        return SidecarUnavailable, f"the sidecar did not come up in the pod, so {evidence.agent} was not started"
    return None


def server_lost(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """OpenCode's server stopped answering, or a driver failed. An error that the agent reported before says more."""
    if evidence.pending_errors or end.runner_error not in SERVER_LOST:
        return None
    return AgentLost, printable(end.message or end.runner_error, VERDICT_TEXT_LIMIT)


def start_failed(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """No event: arguments, configuration, directories, database. Exit code 0 without an event is lost output."""
    if evidence.events:
        return None
    return StartFailed, _composed(evidence.diagnostics.text(VERDICT_TEXT_LIMIT), evidence, end)


def reported_error(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """An `error` event after the last `stop`: the most telling one names the failure."""
    if not evidence.pending_errors:
        return None
    causes = [_failure_and_text(error, evidence.diagnostics) for error in evidence.pending_errors]
    failure = next((kind for kind, _ in causes if kind is not OpenCodeFailed), OpenCodeFailed)
    texts = dict.fromkeys(text for _, text in causes)
    text = shortened("\n".join(texts), VERDICT_TEXT_LIMIT)
    return failure, _composed(f"{PREFIXES[failure]}: {text}" if failure in PREFIXES else text, evidence, end)


def step_limit(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    if is_step_limit(evidence.reason) and not evidence.open_step:
        return StepLimitReached, _composed(f"{evidence.agent} step limit reached ({evidence.reason})", evidence, end)
    return None


def empty_answer(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """The model answered with no text, no tool call and no token, and its finish reason does not say why.

    A provider may count no tokens for reasoning that used up the output limit.
    """
    if evidence.finished and not evidence.open_step and not evidence.has_output:
        return EmptyAnswer, _composed("LLM API returned empty response", evidence, end)
    return None


def permission_blocked(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """Stopped after a tool call because a permission was not given."""
    if evidence.reason != "tool-calls" or evidence.open_step or end.exit_code not in OPENCODE_EXITS:
        return None
    permission = "; ".join(evidence.diagnostics.permissions) or evidence.rejected_tool
    if not permission:
        return None
    asked = shortened(permission, PERMISSION_LIMIT)
    return (
        PermissionBlocked,
        f"{evidence.agent} asked for a permission, did not get it and stopped: {asked}",
    )


def cut_off(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """The last step ended in a way that is no answer."""
    if evidence.open_step or evidence.reason is None:
        return None
    finding = BY_REASON.get(evidence.reason)
    return (finding[0], _composed(finding[1], evidence, end)) if finding is not None else None


def compacted(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """The last step summarised the conversation so that it fits: its text is not the task's answer."""
    if not evidence.diagnostics.compacts or evidence.open_step or evidence.reason != STOP:
        return None
    return AgentUnfinished, _composed(f"{evidence.agent} compacted its conversation and then stopped", evidence, end)


def unfinished(evidence: Evidence, end: ContainerEnd) -> Finding | None:
    """Exit 0 without a final answer and without any known cause. Output is missing, unless all of it is proven here."""
    if end.exit_code != 0:
        return None
    if evidence.reason not in {None, STOP, "tool-calls"} and not evidence.open_step:
        return OpenCodeFailed, f"The last step ended with the finish reason {evidence.reason!r}"
    if evidence.reason == "tool-calls" and not evidence.open_step and evidence.verified:
        return AgentUnfinished, f"{evidence.agent} stopped after its tools, without an answer"
    return OutputLost, f"{evidence.agent} exited 0 without a final answer; the rest of its output is missing"


BY_REASON: Final[dict[str, tuple[type[RunError], str]]] = {
    "length": (OutputCutOff, "The model's answer was cut by its output limit"),
    "content-filter": (ModelRefused, "The provider's content filter stopped the answer"),
    "unknown": (StreamTruncated, "Model stream truncated: the last answer ended without a finish reason"),
    "error": (OpenCodeFailed, "The last step ended with an error"),
}

BY_DRIVER: Final[dict[str, type[RunError]]] = {
    failure.code: failure for failure in (AgentNotStarted, AgentProtocolBroken, AgentLost, AgentVersionUnsupported)
}
"""The runner's errors that the sidecar's driver has found."""
SERVER_UNUSABLE: Final = frozenset(
    {"server_not_started", "server_not_answering", "server_refused", "server_unsupported"}
)
"""The same of OpenCode's server before it got the prompt."""
SERVER_LOST: Final = frozenset({"server_lost", "driver_failed"})
"""The same once it may have got the prompt, and a driver's own fault."""

LAST_OF_SESSION: Final = frozenset({ContextOverflow.code, SessionRejected.code})
"""Failures that every resume of the session would repeat."""

PREFIXES: Final[dict[type[RunError], str]] = {
    StreamTruncated: "Model stream truncated",
    ContextOverflow: "Context window exhausted",
}
"""Beginnings of messages that users of Paperclip's built-in adapters know."""

RULES: Final[tuple[Rule, ...]] = (
    stopped_by_us,
    out_of_memory,
    never_started,
    exit_unknown,
    agent_ended,
    version_unsupported,
    server_unusable,
    crashed,
    unknown_session,
    output_lost,
    sidecar_missing,
    server_lost,
    start_failed,
    reported_error,
    step_limit,
    cut_off,
    empty_answer,
    permission_blocked,
    compacted,
    unfinished,
)


def _verdict(finding: Finding, evidence: Evidence, end: ContainerEnd) -> Verdict:
    failure = finding if isinstance(finding, Failure) else finding[0].as_failure(finding[1])
    unknown = failure.code == SessionUnavailable.code
    return Verdict(
        failure=failure,
        exit_code=_failed_exit(failure, evidence, end),
        unknown_session=unknown,
        clear_session=unknown or evidence.limit_reached or failure.code in LAST_OF_SESSION,
    )


def _failed_exit(failure: Failure, evidence: Evidence, end: ContainerEnd) -> int | None:
    """The container's own code when it is one of failure, else 1; None when nothing shows that the agent ran."""
    if end.exit_code:
        return end.exit_code
    if end.signal:
        return SIGNAL_BASE + end.signal
    if end.exit_code is None and not evidence.events and failure.code != OutOfMemory.code:
        return None
    return 1


def _lost_at_exit_zero(evidence: Evidence) -> Finding | None:
    if evidence.missing == "end":
        return OutputLost, f"{evidence.agent} exited 0, but the end of its output could not be read"
    if not evidence.events:
        return OutputLost, f"{evidence.agent} exited 0 without any event"
    return None


def _failure_and_text(error: ProviderError, diagnostics: Diagnostics) -> tuple[type[RunError], str]:
    cause = diagnostics.causes.get(error.reference or "")
    return failure_for(error, cause), error.text if cause is None else f"{cause} ({error.reference})"


def _composed(text: str, evidence: Evidence, end: ContainerEnd) -> str:
    """`text; Pod exited: <reason> (exit <n>)`; the second half only where the exit code is one of failure."""
    if not text:
        return pod_exit(evidence, end)
    return f"{text}; {pod_exit(evidence, end)}" if end.exit_code else text


def _signal(end: ContainerEnd) -> int | None:
    if end.signal:
        return end.signal
    number = (end.exit_code or SIGNAL_BASE) - SIGNAL_BASE
    return number if 0 < number <= LAST_SIGNAL else None


def _warnings(evidence: Evidence, end: ContainerEnd) -> tuple[str, ...]:
    warnings: list[str] = []
    if evidence.errors:
        warnings.append(f"{evidence.agent} reported {len(evidence.errors)} error(s) and recovered")
    elif end.exit_code and not _stayed(evidence):
        warnings.append(f"{evidence.agent} completed cleanly (reason=stop) despite exit code {end.exit_code}")
    if _stayed(evidence):
        warnings.append(f"{evidence.agent} did not exit after its last step, and was stopped")
    elif evidence.stopped is not None:
        warnings.append(f"{evidence.agent} finished by itself while it was being stopped ({evidence.stopped.code})")
    if end.reason == OOM_KILLED:
        warnings.append(
            f"A tool was killed for the container's memory limit (OOMKilled); {evidence.agent} continued and finished"
        )
    if evidence.missing == "middle":
        warnings.append("Some output in the middle could not be read: usage and cost may be too low")
    if evidence.cut_lines:
        warnings.append(f"{evidence.cut_lines} over-long line(s) were cut; usage and text in them are not counted")
    if evidence.reason is None:
        warnings.append("The last step names no finish reason")
    return tuple(warnings)
