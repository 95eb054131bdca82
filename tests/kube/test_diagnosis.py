"""Every state of a pod has a diagnosis, and only what certainly succeeded counts as a success."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.stream_logs import outside_failure
from agent_runs.contracts.errors import (
    AgentCrashed,
    DiskLimitExceeded,
    ExitUnknown,
    ImagePullFailed,
    ImageRegistryThrottled,
    JobCreateFailed,
    JobDeletedExternally,
    OutOfMemory,
    PodLost,
    PodScheduleFailed,
    PodStartFailed,
    RunError,
    RunTimeout,
    WorkspaceNotRestored,
    WorkspaceUnreachable,
)
from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.contracts.pod import RESTORE_CONTAINER
from agent_runs.kube import diagnosis
from agent_runs.kube.diagnosis import (
    ContainerEnded,
    Diagnosis,
    Failing,
    Running,
    StartTimeouts,
    Waiting,
    diagnose,
    diagnose_sidecar,
    termination_cause,
)
from agent_runs.kube.objects import Event, InvalidReply, Job, Pod, decode
from agent_runs.transcript.fold import Fold
from tests.kube.pods import container, event, job, pod, terminated, unschedulable, waiting
from tests.support.cases import case

BEGAN = datetime(2026, 11, 21, 23, 0, tzinfo=UTC)
RUNNING = container(running={"startedAt": "2026-11-21T23:00:00Z"})
CORPUS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "fixtures" / "pods").glob("*.json"))
}
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}


@pytest.mark.parametrize(
    ("state", "events", "error", "message"),
    [
        pytest.param(
            pod(waiting("InvalidImageName", "couldn't parse")),
            [],
            ImagePullFailed,
            "InvalidImageName",
            id="bad image name",
        ),
        pytest.param(
            pod(waiting("ErrImageNeverPull", "policy Never")), [], ImagePullFailed, "ErrImageNeverPull", id="never pull"
        ),
        pytest.param(
            pod(waiting("ImagePullBackOff", 'Back-off pulling image "x:1"')),
            [event("Failed", 'Failed to pull image "x:1": not found')],
            ImagePullFailed,
            'Image pull failed for "opencode": Failed to pull image "x:1": not found',
            id="the registry's message is in an event",
        ),
        pytest.param(
            pod(waiting("ErrImagePull", "pull access denied")), [], ImagePullFailed, "denied", id="definite at once"
        ),
        pytest.param(
            pod(waiting("ContainerCannotMount", "no such device")),
            [],
            PodScheduleFailed,
            'Volume mount failed for "opencode": no such device',
            id="mount",
        ),
        pytest.param(pod(deleted="2026-11-21T23:00:30Z"), [], PodLost, "deleted before it started", id="deleted early"),
        pytest.param(
            pod(phase="Failed", reason="Evicted", message="low on memory"), [], PodLost, "Evicted", id="evicted"
        ),
        pytest.param(pod(RUNNING, phase="Running", reason="NodeLost"), [], PodLost, "is lost", id="node lost"),
        pytest.param(
            pod(init=[terminated(137, "Error", "write-prompt")], condition=DISRUPTED),
            [],
            PodLost,
            "preempted",
            id="preempted",
        ),
        pytest.param(
            pod(init=[terminated(None, "", "write-prompt")]),
            [],
            ExitUnknown,
            "unknown exit code",
            id="init code missing",
        ),
        pytest.param(
            pod(init=[terminated(137, "ContainerStatusUnknown", "write-prompt")], phase="Failed"),
            [],
            ExitUnknown,
            "unknown exit code",
            id="init status unknown",
        ),
    ],
)
def test_a_final_error_is_reported_at_once(
    state: Pod, events: list[Event], error: type[RunError], message: str
) -> None:
    diagnosis = diagnose(state, job(), events)
    assert isinstance(diagnosis, Failing)
    assert diagnosis.error is error
    assert message in diagnosis.message


@pytest.mark.parametrize(
    ("a_job", "had_pod", "events", "error", "message"),
    [
        pytest.param(None, False, [], JobDeletedExternally, "deleted by somebody", id="Job deleted"),
        pytest.param(
            job(deleted="2026-11-21T23:00:00Z"), True, [], JobDeletedExternally, "deleted by", id="Job being deleted"
        ),
        pytest.param(
            job("Failed", "DeadlineExceeded", "too long"), True, [], RunTimeout, "too long", id="Job deadline"
        ),
        pytest.param(job("Failed", "BackoffLimitExceeded"), True, [], PodLost, "BackoffLimitExceeded", id="Job failed"),
        pytest.param(job("Complete"), True, [], ExitUnknown, "exit code is lost", id="complete without a pod"),
        pytest.param(job(), True, [], PodLost, "the pod was deleted", id="pod deleted"),
    ],
)
def test_without_a_pod_the_job_decides_and_never_for_success(
    a_job: Job | None, had_pod: bool, events: list[Event], error: type[RunError], message: str
) -> None:
    diagnosis = diagnose(None, a_job, events, had_pod=had_pod)
    assert isinstance(diagnosis, Failing)
    assert diagnosis.error is error
    assert message in diagnosis.message


@pytest.mark.parametrize(
    ("state", "events", "timeout", "error", "reason"),
    [
        pytest.param(
            pod(waiting("ImagePullBackOff", "Back-off")),
            [event("Failed", "Failed to pull image: dial tcp: i/o timeout")],
            120,
            ImageRegistryThrottled,
            "i/o timeout",
            id="registry down",
        ),
        pytest.param(
            pod(waiting("ErrImagePull", "toomanyrequests: slow down")),
            [],
            120,
            ImageRegistryThrottled,
            "toomany",
            id="throttled",
        ),
        pytest.param(pod(waiting("ErrImagePull", "odd")), [], 30, ImagePullFailed, "odd", id="first failed pull"),
        pytest.param(
            pod(waiting("CreateContainerConfigError", 'secret "x" not found')),
            [],
            30,
            PodScheduleFailed,
            'Container "opencode" cannot be created: CreateContainerConfigError: secret "x" not found',
            id="Secret just created",
        ),
        pytest.param(
            pod(
                waiting(
                    "CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition"
                )
            ),
            [],
            180,
            PodScheduleFailed,
            "failed to sync secret cache",
            id="a kubelet too busy to read the Secret",
        ),
        pytest.param(
            pod(waiting("ContainerCreating")),
            [event("FailedMount", "old", when="2026-11-21T22:00:00Z"), event("FailedMount", "timed out")],
            180,
            PodScheduleFailed,
            "Volume mount failed: timed out",
            id="FailedMount",
        ),
        pytest.param(
            pod(waiting("SomethingNew", "who knows")), [], 180, PodScheduleFailed, "SomethingNew", id="unknown reason"
        ),
        pytest.param(
            None,
            [event("FailedCreate", "admission webhook denied the request", uid="job-uid")],
            30,
            JobCreateFailed,
            "admission webhook",
            id="admission",
        ),
        pytest.param(
            None,
            [event("FailedCreate", "exceeded quota: q", uid="job-uid")],
            600,
            JobCreateFailed,
            "exceeded quota",
            id="quota",
        ),
    ],
)
def test_a_transient_error_is_waited_for_and_reported_after_its_timeout(
    state: Pod | None, events: list[Event], timeout: int, error: type[RunError], reason: str
) -> None:
    diagnosis = diagnose(state, job(), events)
    assert isinstance(diagnosis, Waiting)
    assert reason in diagnosis.reason
    timeouts = StartTimeouts(schedule=timedelta(minutes=10), start=timedelta(minutes=10), began=BEGAN)
    assert timeouts.apply(diagnosis, BEGAN) == diagnosis
    assert timeouts.apply(diagnosis, BEGAN + timedelta(seconds=timeout - 1)) == diagnosis
    judged = timeouts.apply(diagnosis, BEGAN + timedelta(seconds=timeout))
    assert isinstance(judged, Failing)
    assert judged.error is error
    assert reason in judged.message


@pytest.mark.parametrize(
    ("status", "a_pod", "end", "failure"),
    [
        pytest.param(terminated(0, "Completed"), {}, (0, "Completed"), None, id="success"),
        pytest.param(terminated(3, "Error"), {}, (3, "Error"), None, id="OpenCode's own failure"),
        pytest.param(terminated(None, ""), {}, (None, None), ExitUnknown, id="no exit code"),
        pytest.param(terminated(0, "Whatever"), {}, (None, "Whatever"), ExitUnknown, id="an odd success"),
        pytest.param(
            terminated(137, "ContainerStatusUnknown"),
            {},
            (None, "ContainerStatusUnknown"),
            ExitUnknown,
            id="status unknown",
        ),
        pytest.param(terminated(255, "Unknown"), {}, (None, "Unknown"), ExitUnknown, id="runtime forgot"),
        pytest.param(terminated(137, "OOMKilled"), {}, (137, "OOMKilled"), OutOfMemory, id="out of memory"),
        pytest.param(terminated(139, "Error"), {}, (139, "Error"), AgentCrashed, id="crashed"),
        pytest.param(
            terminated(137), {"reason": "Evicted", "message": "disk"}, (137, "Evicted"), PodLost, id="evicted"
        ),
        pytest.param(
            terminated(143), {"condition": DISRUPTED}, (143, "PreemptionByScheduler"), PodLost, id="preempted"
        ),
        pytest.param(
            terminated(143), {"reason": "DeadlineExceeded"}, (143, "DeadlineExceeded"), RunTimeout, id="deadline"
        ),
        pytest.param(
            terminated(0, "Completed"), {"reason": "DeadlineExceeded"}, (0, "Completed"), None, id="in time after all"
        ),
        pytest.param(terminated(128, "StartError"), {}, (128, "StartError"), PodScheduleFailed, id="could not start"),
    ],
)
def test_how_a_container_ended(
    status: dict[str, Any], a_pod: dict[str, Any], end: tuple[int | None, str | None], failure: type[RunError] | None
) -> None:
    diagnosis = diagnose(pod(status, phase="Failed", **a_pod), job())
    assert isinstance(diagnosis, ContainerEnded)
    assert (diagnosis.end.exit_code, diagnosis.end.reason) == end
    cause = termination_cause(diagnosis.end)
    assert (cause.error if cause else None) is failure


DELETED: dict[str, dict[str, Any]] = {
    "ended": {"main": [terminated(143)], "phase": "Failed"},
    "end not reported": {"main": [waiting("ContainerCreating")], "phase": "Failed"},
    "not started": {"main": [], "phase": "Pending"},
    "its node is silent": {"main": [RUNNING], "phase": "Running"},
    "init stopped": {"main": [], "init": [terminated(143, name="write-prompt")], "phase": "Failed"},
}


@pytest.mark.parametrize(
    ("a_job", "job_was_read", "error"),
    [
        pytest.param(job(), True, PodLost, id="the pod alone"),
        pytest.param(None, False, PodLost, id="the Job was not read"),
        pytest.param(None, True, JobDeletedExternally, id="Job deleted"),
        pytest.param(job(deleted="2026-11-21T23:00:00Z"), True, JobDeletedExternally, id="Job being deleted"),
        pytest.param(job("Failed", "DeadlineExceeded", "too long"), True, RunTimeout, id="Job deadline"),
        pytest.param(job("FailureTarget", "DeadlineExceeded", "too long"), True, RunTimeout, id="pods end at it"),
    ],
)
def test_the_cause_of_a_pods_deletion_is_the_same_in_every_state(
    a_job: Job | None, job_was_read: bool, error: type[RunError]
) -> None:
    for name, status in DELETED.items():
        with case(name):
            more = {key: value for key, value in status.items() if key != "main"}
            state = pod(*status["main"], deleted="2026-11-21T22:00:00Z", **more)
            diagnosis = diagnose(state, a_job, job_was_read=job_was_read, now=BEGAN)
            failing = termination_cause(diagnosis.end) if isinstance(diagnosis, ContainerEnded) else diagnosis
            assert isinstance(failing, Failing)
            assert failing.error is error


def test_a_cluster_whose_clock_is_ahead_does_not_make_the_wait_endless() -> None:
    timeouts = StartTimeouts(schedule=timedelta(minutes=10), start=timedelta(minutes=10), began=BEGAN)
    state = diagnose(pod(waiting("ContainerCreating")), job())
    early = BEGAN - timedelta(days=1)
    assert timeouts.apply(state, early) == state
    assert isinstance(timeouts.apply(state, early + timedelta(minutes=10)), Failing)


def test_the_wait_of_a_suspended_job_is_named_and_is_no_scheduling_time() -> None:
    plain = job("Suspended", "JobSuspended", "Job suspended", suspend=True)
    queued = job(suspend=True, labels={"kueue.x-k8s.io/queue-name": "team-a"})
    timeouts = StartTimeouts(schedule=timedelta(minutes=10), start=timedelta(minutes=10), began=BEGAN)
    for suspended, text in ((plain, "such as a queue, admits it: Job suspended"), (queued, "queue team-a admits it")):
        with case(text):
            diagnosis = diagnose(None, suspended)
            assert isinstance(diagnosis, Waiting)
            assert (text in diagnosis.reason, diagnosis.queued, diagnosis.lacks_capacity) == (True, True, False)
            for hours in (1, 100):
                assert timeouts.apply(diagnosis, BEGAN + timedelta(hours=hours)) == diagnosis
    admitted, waits = BEGAN + timedelta(hours=100), diagnose(None, job())
    assert timeouts.apply(waits, admitted + timedelta(seconds=599)) == waits
    assert isinstance(timeouts.apply(waits, admitted + timedelta(seconds=600)), Failing)
    evicted = diagnose(None, queued, had_pod=True)
    assert evicted == Failing(PodLost, "the pod was deleted: the Job is suspended until queue team-a admits it")


def test_a_start_that_takes_too_long_is_a_pod_start_failure() -> None:
    timeouts = StartTimeouts(schedule=timedelta(minutes=10), start=timedelta(minutes=10), began=BEGAN)
    judged = timeouts.apply(diagnose(pod(waiting("ContainerCreating")), job()), BEGAN + timedelta(minutes=10))
    assert isinstance(judged, Failing)
    assert judged.error is PodStartFailed


def test_a_pod_that_is_over_while_its_container_still_ends_has_no_exit_code_yet() -> None:
    diagnosis = diagnose(pod(RUNNING, phase="Failed", reason="DeadlineExceeded", message="too long"), job())
    assert diagnosis == ContainerEnded(ContainerEnd(reason="DeadlineExceeded", message="too long"))


def test_an_init_container_that_failed_is_the_cause_of_an_end_that_nobody_reported() -> None:
    for code in (1, 2, 255):
        failed = diagnose(pod(init=[terminated(code, name="write-prompt")], phase="Failed"), job())
        assert isinstance(failed, Failing)
    ended = diagnose(pod(init=[terminated(0, "Completed", "write-prompt")], phase="Failed"), job())
    assert isinstance(ended, ContainerEnded)


@pytest.mark.parametrize(
    ("code", "reason", "error", "budget"),
    [
        (1, "Error", WorkspaceUnreachable, "infrastructure"),
        (2, "Error", WorkspaceNotRestored, "none"),
        (137, "OOMKilled", WorkspaceNotRestored, "none"),
        (137, "ContainerStatusUnknown", ExitUnknown, "infrastructure"),
    ],
)
def test_a_workspace_that_was_not_restored_is_named_and_an_outage_is_retried(
    code: int, reason: str, error: type[RunError], budget: str
) -> None:
    ended = terminated(code, reason, RESTORE_CONTAINER, "workspace: unavailable: ConnectionRefusedError")
    failed = diagnose(pod(init=[ended], phase="Failed"), job())
    assert isinstance(failed, Failing)
    assert (failed.error, failed.error.budget) == (error, budget)
    assert "workspace: unavailable" in failed.message


def test_a_succeeded_pod_without_a_container_status_is_no_success() -> None:
    diagnosis = diagnose(pod(phase="Succeeded"), job())
    assert isinstance(diagnosis, ContainerEnded)
    cause = termination_cause(diagnosis.end)
    assert cause is not None
    assert cause.error is ExitUnknown


def test_a_deleted_pod_counts_as_running_until_its_node_is_silent_for_too_long() -> None:
    state = pod(RUNNING, phase="Running", deleted="2026-11-21T23:00:00Z")
    assert diagnose(state, job(), now=BEGAN) == Running("it is being deleted")
    lost = diagnose(state, job(), now=BEGAN + timedelta(minutes=5))
    assert isinstance(lost, Failing)
    assert lost.error is PodLost


def test_a_node_that_is_not_ready_does_not_end_a_run() -> None:
    state = pod(RUNNING, phase="Running")
    assert diagnose(state, job(), [event("NodeNotReady", "Node is not ready")]) == Running(
        "its node is not ready: Node is not ready"
    )


def test_a_new_reason_starts_a_timeout_of_its_own() -> None:
    timeouts = StartTimeouts(schedule=timedelta(minutes=10), start=timedelta(minutes=10), began=BEGAN)
    first = diagnose(pod(waiting("CreateContainerConfigError", "a")), job())
    second = diagnose(pod(waiting("ErrImagePull", "odd")), job())
    later = BEGAN + timedelta(seconds=29)
    assert timeouts.apply(first, BEGAN) == first
    assert timeouts.apply(second, later) == second
    assert timeouts.apply(second, later + timedelta(seconds=29)) == second


def test_a_reason_whose_details_change_keeps_its_timeout() -> None:
    timeouts = StartTimeouts(schedule=timedelta(minutes=10), start=timedelta(minutes=10), began=BEGAN)
    for seconds in range(40):
        state = diagnose(pod(waiting("CreateContainerConfigError", f"try {seconds}")), job())
        judged = timeouts.apply(state, BEGAN + timedelta(seconds=seconds))
        assert isinstance(judged, Failing if seconds >= 30 else Waiting)


# the corpus


def read_case(case: dict[str, Any]) -> tuple[Pod | None, Job | None, list[Event]]:
    """The objects as the client reads them."""
    pod_there, job_there = case["pod"], case["job"]
    return (
        None if pod_there is None else decode(msgspec.json.encode(pod_there), Pod),
        None if job_there is None else decode(msgspec.json.encode(job_there), Job),
        [decode(msgspec.json.encode(each), Event) for each in case["events"]],
    )


def verdict(case: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """What becomes of the attempt, as the corpus spells it, and the message."""
    a_pod, a_job, events = read_case(case)
    diagnosis = diagnose(a_pod, a_job, events, had_pod=case["hadPod"])
    if isinstance(diagnosis, Running):
        return {"state": "runs"}, diagnosis.warning or ""
    if isinstance(diagnosis, Waiting):
        timeout = None if diagnosis.timeout is None else diagnosis.timeout.total_seconds()
        failure = {"code": diagnosis.error.code, "budget": diagnosis.error.budget}
        return {"state": "waits", **failure, "timeoutSec": timeout}, diagnosis.reason
    failing = termination_cause(diagnosis.end) if isinstance(diagnosis, ContainerEnded) else diagnosis
    if failing is None:
        assert isinstance(diagnosis, ContainerEnded)
        return {"state": "exited", "exitCode": diagnosis.end.exit_code}, ""
    return {"state": "failed", "code": failing.error.code, "budget": failing.error.budget}, failing.message


def test_a_recorded_pod_gets_its_recorded_verdict() -> None:
    for name, recorded in CORPUS.items():
        with case(name):
            wanted = dict(recorded["verdict"])
            words = wanted.pop("message", "")
            actual, message = verdict(recorded)
            assert actual == wanted
            assert words in message


def test_the_corpus_has_a_case_for_every_failure_that_a_pod_can_name() -> None:
    codes = {case["verdict"].get("code") for case in CORPUS.values()}
    errors = [
        AgentCrashed, DiskLimitExceeded, ExitUnknown, ImagePullFailed, ImageRegistryThrottled, JobCreateFailed,
        JobDeletedExternally, OutOfMemory, PodLost, PodScheduleFailed, RunTimeout,
    ]  # fmt: skip
    assert {error.code for error in errors} <= codes
    assert [name for name, case in CORPUS.items() if case["verdict"].get("exitCode") == 0] == ["succeeded"]


def test_a_failed_run_spends_the_budget_of_its_cause() -> None:
    failed = {name: recorded for name, recorded in CORPUS.items() if recorded["verdict"]["state"] == "failed"}
    for name, recorded in failed.items():
        with case(name):
            a_pod, a_job, events = read_case(recorded)
            diagnosis = diagnose(a_pod, a_job, events, had_pod=recorded["hadPod"])
            if isinstance(diagnosis, ContainerEnded):
                outside = outside_failure(diagnosis.end)
                failure = outside.error.as_failure("") if outside else Fold().report(diagnosis.end).failure
            else:
                assert isinstance(diagnosis, Failing)
                failure = diagnosis.error.as_failure("")
            assert failure is not None
            ours = recorded["verdict"]["budget"] == "infrastructure"
            assert (failure.budget == "infrastructure") == ours
            assert (failure.code == PodLost.code) == (recorded["verdict"]["code"] == PodLost.code)


# any state whatsoever


TEXT = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["ErrImagePull", "Evicted", "OOMKilled", "DeadlineExceeded", "Unknown", "CrashLoopBackOff", ""]),
)
MOMENTS = ["2026-11-21T23:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-11-21T23:00:00"]
MOMENT = st.one_of(st.none(), st.sampled_from(MOMENTS))
STATE = st.fixed_dictionaries(
    {},
    optional={
        "waiting": st.one_of(st.none(), st.fixed_dictionaries({}, optional={"reason": TEXT, "message": TEXT})),
        "running": st.one_of(st.none(), st.just({})),
        "terminated": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {},
                optional={"exitCode": st.one_of(st.none(), st.integers(-1, 300)), "reason": TEXT, "signal": st.just(0)},
            ),
        ),
    },
)
CONTAINER = st.fixed_dictionaries(
    {}, optional={"name": st.sampled_from(["opencode", "write-prompt", ""]), "state": st.one_of(st.none(), STATE)}
)
CONDITION = st.fixed_dictionaries(
    {"type": st.sampled_from(["PodScheduled", "DisruptionTarget", "Failed", "Complete", "x"])},
    optional={"status": st.sampled_from(["True", "False", "Unknown"]), "reason": TEXT, "message": TEXT,
              "lastTransitionTime": MOMENT},
)  # fmt: skip
POD = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"deletionTimestamp": MOMENT, "creationTimestamp": MOMENT}),
        "spec": st.one_of(st.none(), st.fixed_dictionaries({"nodeName": st.sampled_from(["", "n"])})),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "phase": st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed", "Unknown", "?"]),
                "reason": TEXT,
                "conditions": st.one_of(st.none(), st.lists(CONDITION, max_size=3)),
                "containerStatuses": st.one_of(st.none(), st.lists(CONTAINER, max_size=2)),
                "initContainerStatuses": st.one_of(st.none(), st.lists(CONTAINER, max_size=2)),
            },
        ),
    },
)
JOB = st.fixed_dictionaries(
    {}, optional={"status": st.fixed_dictionaries({"conditions": st.lists(CONDITION, max_size=2)})}
)
EVENT = st.fixed_dictionaries(
    {"reason": st.sampled_from(["FailedMount", "FailedCreate", "Failed", "NodeNotReady"])},
    optional={"message": TEXT, "lastTimestamp": MOMENT, "involvedObject": st.just({"uid": ""})},
)


@given(a_pod=st.one_of(st.none(), POD), a_job=st.one_of(st.none(), JOB), events=st.lists(EVENT, max_size=3),
       had_pod=st.booleans(), job_was_read=st.booleans())  # fmt: skip
def test_every_state_has_a_diagnosis_and_no_unclear_one_is_a_success(
    a_pod: dict[str, Any] | None,
    a_job: dict[str, Any] | None,
    events: list[dict[str, Any]],
    had_pod: bool,
    job_was_read: bool,
) -> None:
    state = None if a_pod is None else decode(msgspec.json.encode(a_pod), Pod)
    a_job_there = None if a_job is None else decode(msgspec.json.encode(a_job), Job)
    decoded = [decode(msgspec.json.encode(each), Event) for each in events]
    diagnosis: Diagnosis = diagnose(state, a_job_there, decoded, had_pod=had_pod, job_was_read=job_was_read, now=BEGAN)
    assert isinstance(diagnosis, Waiting | Running | ContainerEnded | Failing)
    judged = StartTimeouts(timedelta(0), timedelta(0), BEGAN).apply(diagnosis, BEGAN)
    assert not isinstance(judged, Waiting) or judged.queued
    if isinstance(diagnosis, ContainerEnded) and termination_cause(diagnosis.end) is None:
        assert state is not None
        status = state.container("opencode")
        assert status is not None
        assert status.state.terminated is not None
        assert status.state.terminated.exit_code == diagnosis.end.exit_code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from(MOMENTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something is inside."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path for key, each in inner for path in ((*here, key), *places(each, (*here, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


@settings(max_examples=300)
@given(data=st.data(), name=st.sampled_from(sorted(CORPUS)), job_was_read=st.booleans())
def test_no_damage_to_a_recorded_pod_breaks_the_diagnosis_or_turns_it_into_a_success(
    data: st.DataObject, name: str, job_was_read: bool
) -> None:
    case = json.loads(json.dumps(CORPUS[name]))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged = data.draw(st.sampled_from(["pod", "pod", "job", "events"]))
        inside = places(case[damaged])
        if inside:
            put(case[damaged], data.draw(st.sampled_from(inside)), data.draw(JSON))
    try:
        a_pod, a_job, events = read_case(case)
    except InvalidReply:
        return  # never believed: the client reports the API server as unavailable
    diagnosis = diagnose(a_pod, a_job, events, had_pod=case["hadPod"], job_was_read=job_was_read, now=BEGAN)
    judged = StartTimeouts(timedelta(0), timedelta(0), BEGAN).apply(diagnosis, BEGAN)
    assert not isinstance(judged, Waiting) or judged.queued
    if (
        isinstance(diagnosis, ContainerEnded)
        and diagnosis.end.exit_code == 0
        and termination_cause(diagnosis.end) is None
    ):
        status = a_pod.container("opencode") if a_pod is not None else None
        assert status is not None
        assert status.state.terminated is not None
        assert status.state.terminated.exit_code == 0
        assert status.state.terminated.reason in {"", "Completed"}


@given(JSON)
def test_any_json_is_a_pod_or_is_none(value: Any) -> None:
    try:
        a_pod = decode(json.dumps(value).encode(), Pod)
    except InvalidReply:
        return
    assert isinstance(diagnose(a_pod, Job(), now=BEGAN), Waiting | Failing | ContainerEnded | Running)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, None),
        (container("paperclip-api", running={}), None),
        (terminated(1, name="paperclip-api"), None),
        (waiting("ContainerCreating", name="paperclip-api"), Waiting),
        (waiting("ImagePullBackOff", "manifest unknown", name="paperclip-api"), Failing),
        (waiting("InvalidImageName", "x", name="paperclip-api"), Failing),
        (waiting("CreateContainerConfigError", "no Secret", name="paperclip-api"), Waiting),
    ],
)
def test_what_keeps_a_sidecar_from_starting_is_reported(status: dict[str, Any] | None, expected: type | None) -> None:
    seen = pod(container(running={}), *([status] if status else []), phase="Running")
    diagnosis = diagnose_sidecar(seen, "paperclip-api")
    assert (diagnosis and type(diagnosis)) == expected
    assert isinstance(diagnose(seen, Job()), Running)
    if isinstance(diagnosis, Failing):
        assert "paperclip-api" in diagnosis.message


@pytest.mark.parametrize("code", [0, 1, 137])
def test_the_end_of_a_sidecar_does_not_decide_the_run(code: int) -> None:
    done = pod(
        terminated(0, "Completed"), terminated(code, name="paperclip-api"), phase="Failed" if code else "Succeeded"
    )
    diagnosis = diagnose(done, Job())
    assert isinstance(diagnosis, ContainerEnded)
    assert (diagnosis.end.exit_code, termination_cause(diagnosis.end)) == (0, None)


@pytest.mark.parametrize(
    ("message", "lacks"),
    [
        ("0/3 nodes are available: 3 Insufficient cpu.", True),
        ("0/1 nodes are available: 1 Too many pods.", True),
        ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", False),
    ],
)
def test_only_a_pod_that_finds_no_capacity_needs_the_place_of_another(message: str, lacks: bool) -> None:
    found = diagnose(unschedulable(message), None, container="opencode")
    assert isinstance(found, Waiting)
    assert found.lacks_capacity is lacks


def test_a_job_that_a_quota_refuses_needs_the_place_of_a_pod() -> None:
    refused = event("FailedCreate", "exceeded quota: q", uid="job-uid")
    found = diagnose(None, job(), [refused], container="opencode")
    assert isinstance(found, Waiting)
    assert found.lacks_capacity


def test_a_node_that_does_not_answer_is_named_with_the_time_since_when() -> None:
    def shown(ready: str, containers: str) -> Pod:
        since = "2026-11-21T23:10:00Z"
        conditions = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": BEGAN},
            {"type": "Ready", "status": ready, "lastTransitionTime": since},
            {"type": "ContainersReady", "status": containers, "lastTransitionTime": BEGAN},
        ]
        return pod(container(running={}), phase="Running", node="worker-2", conditions=conditions)

    silent = diagnosis.silent_node(shown("False", "True"))
    assert silent is not None
    assert silent[0].startswith("node worker-2 does not answer. ")
    assert silent[1] == datetime(2026, 11, 21, 23, 10, tzinfo=UTC)
    answering = [shown("True", "True"), shown("False", "False"), pod(container(running={}), phase="Running")]
    assert [diagnosis.silent_node(each) for each in answering] == [None] * 3
