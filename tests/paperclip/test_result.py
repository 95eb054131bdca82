import itertools
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from agent_runs.contracts.errors import (
    FAILURES,
    AgentFailed,
    BudgetExceeded,
    ClusterUnavailable,
    ExitUnknown,
    ImageRegistryThrottled,
    OutOfMemory,
    PodLost,
    PodScheduleFailed,
    ProviderQuota,
    ProviderRejected,
    RunCancelled,
    RunTimeout,
    SessionUnavailable,
    StepLimitReached,
)
from agent_runs.contracts.outcome import (
    SUMMARY_LIMIT,
    AttemptReport,
    ContainerEnd,
    Gap,
    Outcome,
    OutputReceipt,
    Report,
    Stop,
    Usage,
)
from agent_runs.contracts.request import RunRequest, SessionParams
from agent_runs.paperclip.javascript import length
from agent_runs.paperclip.preparation import prepare
from agent_runs.paperclip.result import ACTION_LIMIT, RESULT_MESSAGE_LIMIT, outcome
from tests.paperclip.contexts import captured, with_value
from tests.support.cases import case

CONTEXT = with_value(captured("ctx-4"), "config.timeoutSec", 600)
REQUEST = prepare(CONTEXT).request
RESUMED = prepare(with_value(CONTEXT, "runtime.sessionParams", {"sessionId": "ses_old"})).request
CWD = CONTEXT["context"]["paperclipWorkspace"]["cwd"]
SPEND = Usage(input_tokens=10, output_tokens=5, cached_input_tokens=3)
SUCCESS = Report(
    session_id="ses_1",
    usage=SPEND,
    cost_usd=Decimal("0.01"),
    exit_code=0,
    summary="Done.",
    events=4,
    finish_reason="stop",
)
COMPLETED = ContainerEnd(exit_code=0, reason="Completed")
ENDED_AT = datetime(2026, 1, 2, 12, tzinfo=UTC)
UNSTARTED = Stop(agent_stopped=True)
NO_NODE = PodScheduleFailed.as_failure("no node")


def test_a_success_has_exit_code_zero_and_no_error() -> None:
    result = outcome(REQUEST, report=SUCCESS, end=COMPLETED)
    assert (result.exit_code, result.signal, result.timed_out) == (0, None, False)
    assert (result.error_message, result.error_code, result.error_family, result.failure) == (None, None, None, None)
    assert (result.summary, result.usage, result.cost_usd) == ("Done.", SPEND, Decimal("0.01"))
    assert f"{result.provider}/{result.model}" == REQUEST.config.model
    assert result.provider == "anthropic"
    assert result.result_json["stopReason"] == "completed"
    assert not result.never_started


ENDS = [None, ContainerEnd(), COMPLETED, ContainerEnd(exit_code=137, signal=9, reason="Error")]


def test_no_failure_ever_looks_like_a_success() -> None:
    for code, message, end in itertools.product(sorted(FAILURES), ("it broke", ""), ENDS):
        with case(code, message, end):
            failure = FAILURES[code].as_failure(message)
            for report in (None, SUCCESS, SUCCESS.model_copy(update={"failure": failure, "exit_code": None})):
                result = outcome(REQUEST, report=report, failure=failure, end=end)
                assert result.error_message
                assert result.error_message.strip()
                assert result.error_code == code
                assert (result.result_json["stopReason"], result.result_json["budget"]) == (code, failure.budget)
                assert result.result_json["nextStep"] == failure.next_step
                assert result.exit_code != 0 or code == RunTimeout.code
                assert result.timed_out == (code == RunTimeout.code)
                assert Outcome.model_validate_json(result.model_dump_json()) == result


def test_an_unknown_end_is_a_failure() -> None:
    result = outcome(REQUEST, end=COMPLETED)
    assert (result.error_code, result.exit_code) == ("k8s_exit_unknown", 1)


@pytest.mark.parametrize("failure", [RunTimeout, RunCancelled, OutOfMemory, ProviderQuota, ExitUnknown])
def test_spend_and_session_are_reported_however_a_run_ends(failure: Any) -> None:
    result = outcome(REQUEST, report=SUCCESS, failure=failure.as_failure("why"), end=ContainerEnd(exit_code=143))
    assert (result.usage, result.cost_usd, result.session_id) == (SPEND, Decimal("0.01"), "ses_1")
    assert result.session_params is not None
    assert result.session_params.cwd == CWD


def test_the_session_is_bound_to_its_workspace_and_displayed_by_its_id() -> None:
    result = outcome(REQUEST, report=SUCCESS)
    workspace = CONTEXT["context"]["paperclipWorkspace"]
    assert result.model_dump(mode="json")["sessionParams"] == {
        "sessionId": "ses_1",
        "cwd": CWD,
        "workspaceId": workspace["workspaceId"],
    }
    assert result.session_display_id == result.session_id == "ses_1"


@pytest.mark.parametrize(("seen", "kept"), [("2.0.15", "2.0.15"), ("1.18.33", None), (None, None)])
def test_a_session_says_which_opencode_has_used_it_last(seen: str | None, kept: str | None) -> None:
    """OpenCode 1 does not know what a later one has added. A run that has not begun changes nothing."""
    params = outcome(REQUEST, report=SUCCESS.model_copy(update={"agent_version": seen})).session_params
    assert params is not None
    assert params.model_dump().get("agentVersion") == params.agent_version == kept
    again = prepare(with_value(CONTEXT, "runtime.sessionParams", params.model_dump())).request
    lost = outcome(again, report=SUCCESS.model_copy(update={"failure": NO_NODE})).session_params
    assert lost == params


def test_a_session_of_another_agent_says_nothing_of_opencode() -> None:
    request = prepare(with_value(CONTEXT, "config.agent", "codex")).request
    params = outcome(request, report=SUCCESS.model_copy(update={"agent_version": "2.6.0"})).session_params
    assert params is not None
    assert params.agent_version is None


def test_a_session_without_a_workspace_is_bound_to_where_it_ran() -> None:
    context = with_value(CONTEXT, "context.paperclipWorkspace", {})
    result = outcome(prepare(context).request, report=SUCCESS)
    assert result.session_params is not None
    assert result.session_params.cwd == "/home/agent"


def test_the_resumed_session_stays_when_no_event_named_one() -> None:
    result = outcome(RESUMED, failure=PodScheduleFailed.as_failure("no node"))
    assert (result.session_id, result.clear_session, result.exit_code) == ("ses_old", False, None)
    assert result.usage is None


def test_an_unknown_session_is_forgotten() -> None:
    unknown = SessionUnavailable.as_failure("Session not found")
    report = Report(failure=unknown, unknown_session=True, clear_session=True, exit_code=1)
    result = outcome(RESUMED, report=report, end=ContainerEnd(exit_code=1, reason="Error"))
    assert (result.session_id, result.session_params, result.clear_session) == (None, None, True)
    assert result.error_code == "session_unavailable"


def test_a_fresh_session_after_an_unknown_one_is_kept() -> None:
    unknown = Report(unknown_session=True, clear_session=True, usage=Usage(input_tokens=1), cost_usd=Decimal("0.002"))
    result = outcome(RESUMED, report=SUCCESS, earlier=[unknown])
    assert (result.session_id, result.clear_session) == ("ses_1", False)


def test_a_session_of_this_run_that_a_later_attempt_does_not_know_is_forgotten() -> None:
    unknown = Report(unknown_session=True, clear_session=True)
    result = outcome(REQUEST, report=Report(), earlier=[SUCCESS, unknown], failure=PodLost.as_failure("evicted"))
    assert (result.session_id, result.session_params, result.clear_session) == (None, None, True)


def test_a_session_that_a_provider_rejects_a_second_time_is_cleared_in_words() -> None:
    rejected = Report(failure=ProviderRejected.as_failure("400: no"), session_id="ses_old", exit_code=1)
    first = outcome(RESUMED, report=rejected, end=ContainerEnd(exit_code=1))
    assert first.session_params is not None
    assert (first.clear_session, first.session_params.rejected) == (False, "provider_rejected")
    assert json.loads(first.model_dump_json())["sessionParams"]["rejected"] == "provider_rejected"
    again = resuming(first.session_params)
    second = outcome(again, report=rejected, end=ContainerEnd(exit_code=1))
    assert (second.clear_session, second.session_params) == (True, None)
    assert "a second time" in (second.error_message or "")
    assert "begins a new one" in (second.error_message or "")
    between = outcome(again, failure=PodScheduleFailed.as_failure("no node"))
    assert between.session_params is not None
    assert (between.session_params.rejected, between.clear_session) == ("provider_rejected", False)
    usable = outcome(again, report=SUCCESS.model_copy(update={"session_id": "ses_old"}))
    assert usable.session_params is not None
    assert (usable.session_params.rejected, "rejected" in usable.session_params.model_dump()) == (None, False)
    other = outcome(again, report=rejected.model_copy(update={"session_id": "ses_new"}), end=ContainerEnd(exit_code=1))
    assert not other.clear_session


def resuming(stored: SessionParams) -> RunRequest:
    """The request of a wake to which Paperclip passes this session."""
    raw = with_value(CONTEXT, "runtime.sessionParams", stored.model_dump(exclude_none=True))
    return prepare(raw).request


def test_a_session_that_must_not_be_used_again_is_cleared() -> None:
    report = SUCCESS.model_copy(update={"failure": StepLimitReached.as_failure("limit"), "clear_session": True})
    result = outcome(REQUEST, report=report)
    assert (result.clear_session, result.session_params, result.session_id) == (True, None, "ses_1")


def test_a_session_stays_cleared_when_the_next_attempt_ends_before_it_has_one() -> None:
    cleared = Report(session_id="ses_1", clear_session=True)
    lost = outcome(REQUEST, report=Report(), earlier=[cleared], failure=PodLost.as_failure("evicted"))
    assert (lost.clear_session, lost.session_params) == (True, None)
    replaced = outcome(REQUEST, report=Report(session_id="ses_2"), earlier=[cleared], failure=PodLost.as_failure("no"))
    assert (replaced.clear_session, replaced.session_id) == (False, "ses_2")


def test_the_spend_of_lost_attempts_counts() -> None:
    lost = Report(usage=Usage(input_tokens=7, reasoning_tokens=2), session_id="ses_0")
    result = outcome(REQUEST, report=SUCCESS, earlier=[lost])
    assert result.usage == Usage(input_tokens=17, output_tokens=5, cached_input_tokens=3, reasoning_tokens=2)
    assert result.cost_usd == Decimal("0.01")


@pytest.mark.parametrize(
    ("failure", "end", "exit_code", "message"),
    [
        (AgentFailed.as_failure("boom"), COMPLETED, 1, "boom; Pod exited: Completed (exit 1)"),
        (
            OutOfMemory.as_failure("late boom"),
            ContainerEnd(exit_code=137, reason="OOMKilled"),
            137,
            "late boom; Pod exited: OOMKilled (exit 137)",
        ),
        (
            OutOfMemory.as_failure("a tool; Pod exited: OOMKilled (exit 0)"),
            ContainerEnd(exit_code=0, reason="OOMKilled"),
            1,
            "a tool; Pod exited: OOMKilled (exit 0)",
        ),
        (AgentFailed.as_failure(" "), ContainerEnd(exit_code=3), 3, "The agent exited with code 3"),
        (PodScheduleFailed.as_failure("no node"), None, None, "no node"),
        (RunTimeout.as_failure("x"), ContainerEnd(exit_code=143, reason="Error"), 143, "Timed out after 600s"),
        (RunCancelled.as_failure("by ada"), ContainerEnd(exit_code=143), None, "Run cancelled; by ada"),
        (RunCancelled.as_failure("Run cancelled"), None, None, "Run cancelled"),
    ],
)
def test_the_message_has_the_agents_and_the_pods_reason(
    failure: Any, end: ContainerEnd | None, exit_code: int | None, message: str
) -> None:
    result = outcome(REQUEST, failure=failure, end=end)
    assert (result.exit_code, result.error_message) == (exit_code, message)


def test_a_run_that_has_used_the_agents_budget_in_paperclip_says_so() -> None:
    limit = "maxCostUsd: $3.0100 of $3.0000; used by this run: 7 steps"
    config = REQUEST.config.model_copy(update={"max_cost_usd": 3.0})

    def ended(message: str, left: float | None) -> tuple[str | None, str]:
        request = REQUEST.model_copy(update={"config": config, "budget_left_usd": left})
        found = outcome(request, failure=BudgetExceeded.as_failure(message), stop=UNSTARTED)
        return found.error_code, found.person_action or ""

    code, action = ended(limit, 3.0)
    assert code == "paperclip_budget_exceeded"
    assert "the agent's monthly budget in Paperclip is used up: maxCostUsd: $3.0100 of $3.0000; used by" in action
    assert "Raise the agent's monthly budget in Paperclip" in action
    others = [(limit, None), (limit, 4.0), ("maxSteps: 3 of 3 steps", 3.0)]
    assert [ended(*each)[0] for each in others] == ["budget_exceeded"] * 3


def test_a_failure_from_outside_counts_before_the_reports_own() -> None:
    report = SUCCESS.model_copy(update={"failure": AgentFailed.as_failure("inner"), "exit_code": 1})
    assert outcome(REQUEST, report=report, failure=RunTimeout.as_failure("outer")).error_code == "timeout"


def test_a_signal_is_named() -> None:
    failure = OutOfMemory.as_failure("killed")
    assert outcome(REQUEST, failure=failure, end=ContainerEnd(exit_code=137, signal=9)).signal == "SIGKILL"
    assert outcome(REQUEST, failure=failure, end=ContainerEnd(exit_code=137, signal=99)).signal == "SIG99"


@pytest.mark.parametrize(
    ("failure", "family"),
    [
        (ProviderQuota, "provider_quota"),
        (FAILURES["provider_unavailable"], "transient_upstream"),
        (FAILURES["model_refused"], "model_refusal"),
        (ClusterUnavailable, "transient_upstream"),
        (AgentFailed, None),
        (RunCancelled, None),
    ],
)
def test_failures_that_may_pass_are_marked_as_such(failure: Any, family: str | None) -> None:
    assert outcome(REQUEST, failure=failure.as_failure("why")).error_family == family


def test_the_result_is_bounded_whatever_the_agent_wrote() -> None:
    flood = ("x" * 100_000,) * 1000
    report = SUCCESS.model_copy(
        update={
            "summary": "s" * 100_000,
            "errors": flood,
            "tool_errors": flood,
            "warnings": flood,
            "last_output": flood[0],
        }
    )
    failure = AgentFailed.as_failure("m").model_copy(update={"message": "m" * 100_000})
    attempts = tuple(AttemptReport(attempt=n, job_name="j", failure_code="timeout") for n in range(1, 50))
    result = outcome(REQUEST, report=report, failure=failure, attempts=attempts, notes=flood)
    assert result.summary is not None
    assert len(result.summary) == SUMMARY_LIMIT
    assert 0 < len(result.error_message or "") <= RESULT_MESSAGE_LIMIT
    assert len(json.dumps(result.result_json)) < 40_000


def test_the_result_names_the_failures_of_the_last_ten_attempts() -> None:
    codes = sorted(FAILURES)[:12]
    attempts = tuple(AttemptReport(attempt=n, job_name="j", failure_code=code) for n, code in enumerate(codes, 1))
    facts = outcome(REQUEST, failure=NO_NODE, attempts=attempts).result_json
    assert (facts["attempts"], facts["attemptFailures"]) == (12, codes[2:])


def test_the_result_names_the_transcript_and_the_state_of_its_receipt() -> None:
    receipt = OutputReceipt(state="differs", lines=3, gaps=(Gap(after_sequence=1),), checksum="abc")
    result = outcome(REQUEST, report=SUCCESS, receipt=receipt, transcript="run/1", notes=["left a session"])
    facts = result.result_json
    assert (facts["transcript"], facts["receipt"], facts["gaps"], facts["lines"]) == ("run/1", "differs", 1, 3)
    assert (facts["notes"], facts["outputChecksum"]) == (["left a session"], "abc")
    assert result.receipt == receipt
    unread = outcome(REQUEST, failure=NO_NODE).result_json
    assert [unread.get(name) for name in ("transcript", "receipt", "gaps", "lines")] == [None, None, 0, 0]


def test_the_result_states_that_the_agent_never_started() -> None:
    silent: list[dict[str, Any]] = [{}, {"report": Report()}]
    started: list[dict[str, Any]] = [{"end": ContainerEnd()}, {"report": Report(events=1)}]
    for facts in (*silent, *started):
        with case(facts):
            result = outcome(REQUEST, failure=NO_NODE, **facts)
            assert result.result_json["agentStarted"] is (facts in started)


def _attempt(code: str) -> AttemptReport:
    return AttemptReport(attempt=1, job_name="job", failure_code=code)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"stop": UNSTARTED}, True),
        ({"stop": UNSTARTED, "attempts": (_attempt(ImageRegistryThrottled.code), _attempt(PodLost.code))}, True),
        ({"stop": UNSTARTED, "attempts": (_attempt(PodLost.code), _attempt(NO_NODE.code))}, False),
        ({"stop": Stop()}, False),
        ({"stop": None}, False),
        ({"stop": Stop(agent_started=True, agent_stopped=True)}, False),
        ({"stop": UNSTARTED, "end": ContainerEnd()}, False),
        ({"stop": UNSTARTED, "report": SUCCESS}, False),
    ],
    ids=[
        "the one attempt had no agent",
        "no attempt had one",
        "an earlier attempt had one",
        "a pod may yet start",
        "nothing is known",
        "the agent had started",
        "its container has ended",
        "there is output",
    ],
)
def test_a_run_never_started_when_no_attempt_can_have_had_an_agent(facts: dict[str, Any], expected: bool) -> None:
    assert outcome(REQUEST, failure=NO_NODE, **facts).never_started is expected


def test_of_runs_that_never_started_only_infrastructure_failures_are_repeated() -> None:
    for code in sorted(FAILURES):
        with case(code):
            failure = FAILURES[code].as_failure("why")
            result = outcome(REQUEST, failure=failure, stop=UNSTARTED, ended_at=ENDED_AT)
            repeated = failure.budget == "infrastructure"
            assert (result.never_started, result.agent_stopped) == (True, True)
            assert result.error_family == ("transient_upstream" if repeated else None)
            assert result.may_repeat is repeated
            assert result.retry_not_before == (ENDED_AT + timedelta(seconds=60) if repeated else None)
            started = outcome(
                REQUEST, failure=failure, stop=Stop(agent_started=True, agent_stopped=True), ended_at=ENDED_AT
            )
            assert (started.never_started, started.retry_not_before) == (False, None)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"report": SUCCESS}, True),
        ({"failure": NO_NODE, "end": ContainerEnd(exit_code=1)}, True),
        ({"failure": NO_NODE}, False),
        ({"failure": NO_NODE, "end": ContainerEnd()}, False),
        ({"failure": NO_NODE, "stop": Stop(agent_started=True, agent_stopped=True)}, True),
        ({"failure": NO_NODE, "stop": Stop(agent_started=True), "end": ContainerEnd(exit_code=1)}, False),
    ],
    ids=["success", "container ended", "end unknown", "exit code unknown", "stop confirmed", "stop not confirmed"],
)
def test_an_agent_has_stopped_when_no_container_of_its_run_is_left(facts: dict[str, Any], expected: bool) -> None:
    assert outcome(REQUEST, **facts).agent_stopped is expected


def test_an_outcome_of_an_earlier_worker_claims_nothing() -> None:
    result = Outcome.model_validate({"exitCode": 1})
    assert (result.never_started, result.agent_stopped) == (False, False)
    assert (result.may_repeat, result.recovery, result.action_outcome) == (False, None, "mixed")


STOPPED = Stop(agent_started=True, agent_stopped=True, session_preserved=True)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (None, None),
        (UNSTARTED, "bootstrap"),
        (STOPPED, "interrupted"),
        (STOPPED.model_copy(update={"killed": True}), None),
        (STOPPED.model_copy(update={"session_preserved": False}), None),
        (STOPPED.model_copy(update={"agent_stopped": False}), None),
    ],
    ids=["ended by itself", "never started", "stopped", "killed", "session lost", "may still work"],
)
def test_evidence_for_recovery_is_given_only_when_it_is_true(stop: Stop | None, expected: str | None) -> None:
    failure = RunCancelled.as_failure("why")
    assert outcome(REQUEST, failure=failure, stop=stop).recovery == expected


def test_the_result_of_the_agents_work_has_paperclips_word() -> None:
    failed = outcome(REQUEST, report=SUCCESS, failure=RunTimeout.as_failure("why"), end=COMPLETED)
    unstarted = outcome(REQUEST, failure=NO_NODE, stop=UNSTARTED)
    succeeded = outcome(REQUEST, report=SUCCESS, end=COMPLETED)
    words = [each.action_outcome for each in (succeeded, unstarted, failed)]
    assert words == ["completed", "not_performed", "mixed"]


def test_a_person_reads_what_happened_and_what_to_do_whatever_its_length() -> None:
    assert outcome(REQUEST, report=SUCCESS, end=COMPLETED).person_action is None
    failure = ProviderQuota.as_failure("no quota")
    assert outcome(REQUEST, failure=failure).person_action is None
    action = outcome(REQUEST, failure=failure, stop=STOPPED).person_action or ""
    assert action == (f"provider_quota: no quota\n{failure.next_step} Then comment on this task: the agent continues.")
    endless = ProviderQuota.as_failure("\U0001f980" * 4000)
    long = outcome(REQUEST, failure=endless, stop=STOPPED).person_action or ""
    assert ACTION_LIMIT - 2 < length(long) <= ACTION_LIMIT
    assert long.endswith("the agent continues.")
