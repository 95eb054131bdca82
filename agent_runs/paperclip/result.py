"""Maps what happened onto Paperclip's AdapterExecutionResult.

Spend and session are reported on every outcome, also on timeouts and cancels, where the existing adapters drop them.
A run is successful only when no failure is known, and then its exit code is 0: a missing exit code never means
success. Output itself stays in the transcript; the result names it. What depends on the Paperclip that gets the result
(acknowledged cancels, the link to the page, whether it knows recovery) is added by the plugin, `adapter/src/result.ts`.

What Paperclip does with a failure depends on its evidence: without any it holds the task until an operator resolves it.
So evidence is given whenever it is true, and never otherwise.
Source: Paperclip 2026.916.1, adapter-utils types and the server's outcome rules.
"""

import signal
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal

from agent_runs.contracts.errors import (
    FAILURES,
    BudgetExceeded,
    ExitUnknown,
    Failure,
    InvalidRequest,
    JobCreateFailed,
    PaperclipBudgetExceeded,
    PodIntrospectionFailed,
    PodScheduleFailed,
    PolicyRefused,
    ProviderRejected,
    RunCancelled,
    RunTimeout,
    SealedFieldUnreadable,
    WorkspaceNotShared,
)
from agent_runs.contracts.outcome import (
    SUMMARY_LIMIT,
    AttemptReport,
    ContainerEnd,
    Outcome,
    OutputReceipt,
    Report,
    Stop,
    Usage,
)
from agent_runs.contracts.request import OPENCODE, RunRequest, SessionParams
from agent_runs.paperclip.javascript import length, shorten
from agent_runs.paperclip.session import session_params

ErrorFamily = Literal["transient_upstream", "provider_quota", "model_refusal"]
BillingType = Literal["api", "metered_api", "unknown"]

ERROR_FAMILIES: Final[dict[str, ErrorFamily]] = {
    "provider_quota": "provider_quota",
    "model_refused": "model_refusal",
    "provider_unavailable": "transient_upstream",
    "stream_eof_transient": "transient_upstream",
    "opencode_response_type_crash": "transient_upstream",
}
UNSTARTED: Final = (
    InvalidRequest,
    PolicyRefused,
    WorkspaceNotShared,
    SealedFieldUnreadable,
    PodIntrospectionFailed,
    JobCreateFailed,
    PodScheduleFailed,
)
"""Failures of a run attempt whose agent never ran."""
UNSTARTED_CODES: Final = frozenset(code for code, error in FAILURES.items() if issubclass(error, UNSTARTED))
RETRY_DELAY: Final = timedelta(seconds=60)
"""Before Paperclip's own retry of a run that never started."""
REPEATED_FAMILIES: Final = frozenset[ErrorFamily | None]({"transient_upstream", "provider_quota"})
REJECTED_AGAIN: Final = (
    "a provider has rejected this session a second time, so it is cleared, and the next run begins a new one"
)
RESULT_MESSAGE_LIMIT: Final = 4000
ACTION_LIMIT: Final = 2000
"""UTF-16 code units that Paperclip takes of the text of what to do."""
NOTES_LIMIT: Final = 10
NOTE_LIMIT: Final = 500
_ELLIPSIS: Final = "…"


def outcome(
    request: RunRequest | None,
    *,
    report: Report | None = None,
    failure: Failure | None = None,
    end: ContainerEnd | None = None,
    earlier: Sequence[Report] = (),
    attempts: tuple[AttemptReport, ...] = (),
    receipt: OutputReceipt | None = None,
    transcript: str | None = None,
    notes: Iterable[str] = (),
    billing_type: BillingType = "unknown",
    stop: Stop | None = None,
    ended_at: datetime | None = None,
) -> Outcome:
    """The outcome of a run in Paperclip's terms.

    Args:
        request: the run's request; None when it could not be prepared.
        report: the fold over the last attempt's output; None when there was none.
        failure: what ended the run from outside OpenCode; it counts before the report's own failure.
        end: how the last attempt's container ended; None when no container ran.
        earlier: the reports of earlier attempts of this run; their tokens and costs are part of the spend.
        attempts: each attempt, as the outcome lists it.
        receipt: whether the stored output is whole.
        transcript: where the whole output can be read.
        notes: sentences for people, such as why a stored session was not resumed.
        billing_type: how the provider charges.
        stop: what is known of an agent that was stopped; None when it ended by itself.
        ended_at: when the run ended, UTC; None: not known, then a retry has no earliest time.
    """
    ended = failure or (
        report.failure if report else ExitUnknown.as_failure("nothing is known about how the run ended")
    )
    if request and ended and _is_paperclips_budget(request, ended):
        ended = PaperclipBudgetExceeded.as_failure(
            f"the agent's monthly budget in Paperclip is used up: {ended.message}"
        )
    reports = [*earlier, *([report] if report else [])]
    session_id = _session_id(request, reports)
    exit_code = _exit_code(ended, report, end)
    rejected_again = _is(ended, ProviderRejected.code) and _rejected_before(request, session_id) is not None
    if ended and rejected_again:
        ended = ended.model_copy(update={"message": f"{ended.message}; {REJECTED_AGAIN}"})
    clear_session = _clears(reports, session_id) or rejected_again
    unstarted = ended is not None and _never_started(report, end, attempts, stop)
    error_family = _error_family(ended, unstarted=unstarted)
    agent_stopped = _agent_stopped(ended, end, stop)
    return Outcome(
        exit_code=exit_code,
        signal=_signal(end) if ended else None,
        timed_out=_is(ended, RunTimeout.code),
        error_message=_error_message(request, ended, end, exit_code),
        error_code=ended.code if ended else None,
        error_family=error_family,
        retry_not_before=ended_at + RETRY_DELAY if ended_at and unstarted and error_family else None,
        usage=_usage(reports),
        session_id=session_id,
        session_params=stored_session(request, session_id, reports, _rejected(request, session_id, ended))
        if request and session_id and not clear_session
        else None,
        session_display_id=session_id,
        provider=provider(request.config.model) if request else None,
        model=request.config.model.partition("/")[2].strip() if request else None,
        billing_type=billing_type,
        cost_usd=_cost(reports),
        result_json=_result_json(ended, report, end, attempts, receipt, transcript, notes),
        summary=_cut(_summary(report, reports, ended), SUMMARY_LIMIT) or None if report else None,
        clear_session=clear_session,
        failure=ended,
        attempts=attempts,
        receipt=receipt,
        stop=stop,
        never_started=unstarted,
        agent_stopped=agent_stopped,
        may_repeat=error_family in REPEATED_FAMILIES,
        recovery="bootstrap" if unstarted else _interruption(stop),
        action_outcome="not_performed" if unstarted else "mixed" if ended else "completed",
        person_action=_person_action(ended) if ended and agent_stopped else None,
    )


def _summary(report: Report, reports: Sequence[Report], ended: Failure | None) -> str:
    """The agent's answer; a success of which a part was refused begins with that part."""
    refusals = dict.fromkeys(refused for each in reports for refused in each.refused)
    if ended is not None or not refusals:
        return report.summary
    refused = "; ".join(each.replace("`", "'") for each in refusals)
    return f"**Not permitted:** `{refused}`\n\n{report.summary}"


def with_notes(outcome: Outcome, notes: Iterable[str]) -> Outcome:
    """The same outcome with these notes for people instead of its own."""
    return outcome.model_copy(update={"result_json": outcome.result_json | _present({"notes": _bounded(notes)})})


def stored_session(
    request: RunRequest, session_id: str, reports: Sequence[Report], rejected: str | None = None
) -> SessionParams:
    """A session of this run as Paperclip stores it, and as a later attempt resumes it."""
    version = next((each.agent_version for each in reversed(reports) if each.session_id == session_id), None)
    resumed = request.runtime.session_params
    if version is None and resumed and resumed.session_id == session_id:
        version = resumed.agent_version
    later = version if version and request.config.agent == OPENCODE and not version.startswith("1.") else None
    carried = request.run_id if request.config.workspace == "carried" else None
    return session_params(session_id, request.context.paperclip_workspace, request.config, rejected, later, carried)


def _rejected(request: RunRequest, session_id: str, ended: Failure | None) -> str | None:
    """Which failure says that a provider has rejected the session, now or before; a success proves it usable."""
    if ended is None:
        return None
    return ended.code if ended.code == ProviderRejected.code else _rejected_before(request, session_id)


def _rejected_before(request: RunRequest | None, session_id: str | None) -> str | None:
    resumed = request.runtime.session_params if request else None
    return resumed.rejected if resumed and resumed.session_id == session_id else None


def provider(model: str) -> str | None:
    """The part of a model's name before the slash."""
    before, slash, _ = model.partition("/")
    return (before.strip() or None) if slash else None


def _is_paperclips_budget(request: RunRequest, failure: Failure) -> bool:
    """Whether the run has used what was left of the agent's budget in Paperclip, and not another limit."""
    is_cost = failure.code == BudgetExceeded.code and failure.message.startswith("maxCostUsd:")
    return is_cost and request.config.max_cost_usd == request.budget_left_usd


def _is(failure: Failure | None, code: str) -> bool:
    return failure is not None and failure.code == code


def _exit_code(failure: Failure | None, report: Report | None, end: ContainerEnd | None) -> int | None:
    """0 for success only. A run that was cancelled or never had a container has none."""
    if failure is None:
        return 0
    raw = end.exit_code if end else None
    if failure.code == RunCancelled.code:
        return None
    if failure.code == RunTimeout.code:
        return raw
    if report is None and end is None:
        return None
    return (report.exit_code if report else None) or raw or 1


def _signal(end: ContainerEnd | None) -> str | None:
    if end is None or not end.signal:
        return None
    try:
        return signal.Signals(end.signal).name
    except ValueError:
        return f"SIG{end.signal}"


def _error_message(
    request: RunRequest | None, failure: Failure | None, end: ContainerEnd | None, exit_code: int | None
) -> str | None:
    """The failure's message and the pod's reason. Never empty for a failure: Paperclip takes none for success."""
    if failure is None:
        return None
    if failure.code == RunCancelled.code:
        parts = dict.fromkeys(("Run cancelled", failure.message.strip()))
        return _cut("; ".join(filter(None, parts)), RESULT_MESSAGE_LIMIT)
    if failure.code == RunTimeout.code and request and request.config.timeout_sec:
        return f"Timed out after {request.config.timeout_sec}s"
    message = failure.message.strip() or f"The agent exited with code {-1 if exit_code is None else exit_code}"
    pod = f"Pod exited: {end.reason}" if end and end.reason else ""
    if pod in message:  # with its own exit code
        return _cut(message, RESULT_MESSAGE_LIMIT)
    if exit_code is not None:
        pod = f"{pod} (exit {exit_code})"
    return f"{_cut(message, RESULT_MESSAGE_LIMIT - len(pod) - 2)}; {pod}"


def _never_started(
    report: Report | None, end: ContainerEnd | None, attempts: Sequence[AttemptReport], stop: Stop | None
) -> bool:
    """Whether no attempt ever had a running agent, and none can start any more. Of the last one Kubernetes says so."""
    if stop is None or stop.agent_started or not stop.agent_stopped or _has_run(report, end):
        return False
    return all(attempt.failure_code in UNSTARTED_CODES for attempt in attempts[:-1])


def _has_run(report: Report | None, end: ContainerEnd | None) -> bool:
    return end is not None or (report is not None and report.events > 0)


def _agent_stopped(failure: Failure | None, end: ContainerEnd | None, stop: Stop | None) -> bool:
    if stop is not None:
        return stop.agent_stopped
    return failure is None or (end is not None and end.exit_code is not None)


def _interruption(stop: Stop | None) -> Literal["interrupted"] | None:
    if stop is None or stop.killed or not (stop.agent_stopped and stop.session_preserved):
        return None
    return "interrupted"


def _person_action(failure: Failure) -> str:
    then = f"{failure.next_step} Then comment on this task: the agent continues."
    return f"{shorten(f'{failure.code}: {failure.message}', ACTION_LIMIT - length(then) - 1)}\n{then}"


def _error_family(failure: Failure | None, *, unstarted: bool) -> ErrorFamily | None:
    """The family by which Paperclip repeats a run; one that never started is repeated only if infrastructure failed."""
    if failure is None:
        return None
    transient: ErrorFamily | None = "transient_upstream" if failure.budget == "infrastructure" else None
    return transient if unstarted else ERROR_FAMILIES.get(failure.code) or transient


def _usage(reports: Sequence[Report]) -> Usage | None:
    """The tokens of all attempts; None when no attempt got as far as to have output."""
    if not reports:
        return None
    return Usage(**{name: sum(getattr(report.usage, name) for report in reports) for name in Usage.model_fields})


def _cost(reports: Sequence[Report]) -> Decimal | None:
    costs = [report.cost_usd for report in reports if report.cost_usd is not None]
    return sum(costs, Decimal(0)) if costs else None


def _session_id(request: RunRequest | None, reports: Sequence[Report]) -> str | None:
    """The last session seen, else the resumed one; None when OpenCode does not know it, and no other took its place."""
    last = next((report for report in reversed(reports) if report.session_id or report.unknown_session), None)
    if last is not None:
        return None if last.unknown_session else last.session_id
    resumed = request.runtime.session_params if request else None
    return resumed.session_id if resumed else None


def _clears(reports: Sequence[Report], session_id: str | None) -> bool:
    """Whether Paperclip shall forget the session; it then forgets even a new one in the same result.

    So only when the session must not be used again, or when the stored one is unknown and no other took its place.
    """
    last = next((report for report in reversed(reports) if report.session_id or report.clear_session), None)
    if last is None:
        return False
    replaced = session_id is not None
    return (last.clear_session and not last.unknown_session) or (
        any(report.unknown_session for report in reports) and not replaced
    )


def _result_json(
    failure: Failure | None,
    report: Report | None,
    end: ContainerEnd | None,
    attempts: tuple[AttemptReport, ...],
    receipt: OutputReceipt | None,
    transcript: str | None,
    notes: Iterable[str],
) -> dict[str, Any]:
    """Bounded facts for Paperclip's run page: names, counters, the last output, where the output is."""
    facts: dict[str, Any] = {
        "stopReason": failure.code if failure else "completed",
        "nextStep": failure.next_step if failure else None,
        "budget": failure.budget if failure else None,
        "agentStarted": _has_run(report, end),
        "transcript": transcript,
        "receipt": receipt.state if receipt else None,
        "outputChecksum": receipt.checksum if receipt else None,
        "gaps": len(receipt.gaps) if receipt else 0,
        "lines": receipt.lines if receipt else 0,
        "attempts": len(attempts),
        "attemptFailures": [attempt.failure_code for attempt in attempts[-NOTES_LIMIT:] if attempt.failure_code],
        "podReason": end.reason if end else None,
        "podExitCode": end.exit_code if end else None,
        "notes": _bounded(notes),
    }
    if report is not None:
        facts |= {
            "finishReason": report.finish_reason,
            "steps": report.steps,
            "toolCalls": report.tool_calls,
            "lastContextTokens": report.last_context_tokens,
            "agentVersion": report.agent_version,
            "warnings": _bounded(report.warnings),
            "errors": _bounded(report.errors),
            "toolErrors": _bounded(report.tool_errors),
            "lastOutput": _cut(report.last_output, NOTE_LIMIT),
        }
    return _present(facts)


def _present(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if fact not in (None, "", [])}


def _bounded(texts: Iterable[str]) -> list[str]:
    return [_cut(text, NOTE_LIMIT) for text in list(texts)[-NOTES_LIMIT:]]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + _ELLIPSIS
