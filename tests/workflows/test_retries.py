"""Which attempt follows the last one: decided from the attempts so far."""

from datetime import timedelta

import pytest

from agent_runs.contracts.errors import AgentCrashed, AgentStartHung, PodLost, RunError, SessionUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import JobRef
from agent_runs.contracts.outcome import Report
from agent_runs.contracts.request import RunConfig, SessionParams
from agent_runs.paperclip.preparation import prepare
from tests.paperclip.contexts import captured
from workflows.attempt import Attempt
from workflows.retries import RetryDecision, next_attempt, next_session

JOB = JobRef(namespace="n", name="j", uid="u", keeps_sessions=True)
IN_THE_POD = JOB.model_copy(update={"keeps_sessions": False})
"""Its sessions end with its pod."""
REQUEST = prepare(captured("ctx-4")).request
RESUMED = SessionParams(session_id="ses_resumed")


def attempt(
    error: type[RunError] | None = None, *, session: SessionParams | None = RESUMED, **fields: object
) -> Attempt:
    """An attempt that ended with such a failure, and whose pods are deleted."""
    key = AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1"), attempt=1)
    failure = error.as_failure("why") if error is not None else None
    return Attempt(key, session, **{"failure": failure, "pods_deleted": True, **fields})  # type: ignore[arg-type]  # the fields are the test's


def decision(*attempts: Attempt, retries: int = 2) -> RetryDecision | None:
    return next_attempt(attempts, RunConfig(model="fake/x", infrastructure_retries=retries))


@pytest.mark.parametrize("last", [attempt(), attempt(AgentCrashed)])
def test_neither_a_success_nor_the_agents_own_failure_is_retried(last: Attempt) -> None:
    assert decision(last) is None


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_a_lost_pod_is_retried_as_often_as_is_configured(retries: int) -> None:
    lost = [attempt(PodLost)] * (retries + 1)
    assert decision(*lost, retries=retries) is None
    assert retries == 0 or decision(*lost[1:], retries=retries) is not None


def test_only_lost_attempts_cost_the_budget_and_lengthen_the_pause() -> None:
    lost = [
        decision(attempt(), attempt(AgentCrashed), *[attempt(PodLost)] * count, retries=10) for count in range(1, 8)
    ]
    pauses = (10, 20, 40, 80, 160, 300, 300)
    assert lost == [RetryDecision(timedelta(seconds=pause), PodLost.code) for pause in pauses]


def test_an_agent_that_hung_at_its_start_is_started_once_more_whatever_the_budget() -> None:
    again = decision(attempt(AgentStartHung), retries=0)
    assert again == RetryDecision(timedelta(seconds=10), AgentStartHung.code)
    assert decision(attempt(PodLost), attempt(AgentStartHung), retries=0) == again
    assert decision(attempt(AgentStartHung), attempt(PodLost), attempt(AgentStartHung), retries=10) is None


def test_an_attempt_whose_pods_may_still_run_has_no_successor() -> None:
    assert decision(attempt(PodLost, pods_deleted=False)) is None


def test_an_unknown_session_is_replaced_by_a_fresh_one_at_once() -> None:
    unknown = Report(failure=SessionUnavailable.as_failure("why"), unknown_session=True)
    decided = decision(attempt(report=unknown), retries=0)
    assert decided is not None
    assert decided.pause == timedelta()
    assert decision(attempt(AgentCrashed, report=unknown)) is None
    assert decision(attempt(report=unknown, session=None)) is None


@pytest.mark.parametrize(
    ("last", "session_id"),
    [
        (attempt(PodLost), "ses_resumed"),
        (attempt(PodLost, job=JOB, report=Report(session_id="ses_own")), "ses_own"),
        (attempt(PodLost, job=JOB, report=Report(session_id=None)), "ses_resumed"),
        (attempt(PodLost, session=None), None),
        (attempt(PodLost, job=JOB, report=Report(session_id="ses_own", clear_session=True)), None),
        (attempt(PodLost, job=JOB, report=Report(session_id="ses_resumed", clear_session=True)), None),
        (attempt(PodLost, job=JOB, report=Report(unknown_session=True, clear_session=True)), None),
        (attempt(PodLost, job=IN_THE_POD, report=Report(session_id="ses_own")), None),
        (attempt(PodLost, job=IN_THE_POD), None),
    ],
)
def test_the_next_attempt_resumes_the_session_that_the_last_one_has_left_usable(
    last: Attempt, session_id: str | None
) -> None:
    session = next_session(REQUEST, last)
    assert (session.session_id if session else None) == session_id


def test_a_resumed_session_that_a_provider_has_rejected_stays_marked_in_the_next_attempt() -> None:
    rejected = RESUMED.model_copy(update={"rejected": "provider_rejected"})
    assert next_session(REQUEST, attempt(PodLost, session=rejected)) == rejected


def test_a_resumed_session_is_kept_when_its_agent_is_stopped_before_its_first_event() -> None:
    silent = Report(session_id=None)
    stopped = {
        "before a Job": attempt(AgentCrashed),
        "before its output is judged": attempt(AgentCrashed, job=JOB),
        "before its first event": attempt(AgentCrashed, job=JOB, report=silent),
        "of which nothing is known": attempt(AgentCrashed, job=JOB, report=Report(unknown_session=True)),
        "in its pod's own database": attempt(
            AgentCrashed, job=JOB.model_copy(update={"keeps_sessions": False}), report=silent
        ),
    }
    preserved = {name: each.stop.session_preserved for name, each in stopped.items()}
    assert [name for name, kept in preserved.items() if kept] == [*stopped][:3]
