"""The wait for the pod: rows E25 to E36 of the existing adapters' tests. One row, one id; deviations in docs/."""

from datetime import UTC, datetime, timedelta

import pytest

from agent_runs.contracts.errors import PodScheduleFailed
from agent_runs.kube.diagnosis import (
    ContainerEnded,
    Diagnosis,
    Failing,
    Running,
    StartTimeouts,
    Waiting,
    diagnose,
    summary,
)
from agent_runs.kube.objects import Pod
from tests.kube.pods import container, job, pod, terminated, unschedulable, waiting

BEGAN = datetime(2026, 11, 21, 23, 0, tzinfo=UTC)


def diagnosis_after(a_pod: Pod | None, duration: timedelta) -> Diagnosis:
    """What the wait makes of a state that has lasted since the beginning."""
    timeouts = StartTimeouts(schedule=timedelta(seconds=120), start=timedelta(seconds=600), began=BEGAN)
    timeouts.apply(diagnose(a_pod, job()), BEGAN)
    return timeouts.apply(diagnose(a_pod, job()), BEGAN + duration)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        pytest.param(
            pod(init=[terminated(1, name="write-prompt")]),
            'Init container "write-prompt" failed with exit code 1: Error',
            id="E25 init exit 1",
        ),
        pytest.param(
            pod(waiting("ImagePullBackOff", 'Back-off pulling image "x"')),
            'Image pull failed for "opencode": Back-off pulling image "x"',
            id="E26 image",
        ),
        pytest.param(
            pod(init=[waiting("ImagePullBackOff", name="write-prompt")]),
            'Init container "write-prompt" image pull failed: ImagePullBackOff',
            id="E28 init image",
        ),
        pytest.param(
            pod(init=[waiting("CrashLoopBackOff", "back-off 10s", name="write-prompt")]),
            'Init container "write-prompt" crash loop: back-off 10s',
            id="E29 init crash loop",
        ),
        pytest.param(
            pod(waiting("CrashLoopBackOff", "back-off 10s")),
            'Container "opencode" crash loop: back-off 10s',
            id="E30 crash loop",
        ),
    ],
)
def test_what_cannot_start_fails_at_once(state: Pod, message: str) -> None:
    diagnosis = diagnose(state, job())
    assert isinstance(diagnosis, Failing)
    assert issubclass(diagnosis.error, PodScheduleFailed)
    assert diagnosis.message == message


def test_e27_unschedulable_fails_when_no_autoscaler_helps() -> None:
    state = unschedulable("0/3 nodes are available: 3 Insufficient cpu.")
    assert isinstance(diagnosis_after(state, timedelta(seconds=119)), Waiting)
    diagnosis = diagnosis_after(state, timedelta(seconds=120))
    assert isinstance(diagnosis, Failing)
    assert diagnosis.error is PodScheduleFailed
    assert diagnosis.message == (
        "Timed out waiting for pod to be scheduled (120s): "
        "Pod unschedulable: 0/3 nodes are available: 3 Insufficient cpu."
    )


def test_e31_a_running_container_counts_though_the_phase_lags() -> None:
    state = pod(container(running={}), init=[terminated(0, "Completed", name="write-prompt")], phase="Pending")
    assert diagnose(state, job()) == Running()


def test_e32_no_pod_yet_is_waited_for() -> None:
    diagnosis = diagnose(None, job())
    assert isinstance(diagnosis, Waiting)
    assert diagnosis.reason == "Waiting for Job controller to create pod..."


def test_e33_an_unbound_volume_is_waited_for() -> None:
    diagnosis = diagnose(unschedulable("pod has unbound immediate PersistentVolumeClaims"), job())
    assert isinstance(diagnosis, Waiting)
    assert diagnosis.reason == "PVC bind failed: pod has unbound immediate PersistentVolumeClaims"


def test_e34_a_slow_start_is_not_a_failed_scheduling() -> None:
    state = pod(waiting("ContainerCreating"))
    assert isinstance(diagnosis_after(state, timedelta(seconds=599)), Waiting)
    diagnosis = diagnosis_after(state, timedelta(seconds=600))
    assert isinstance(diagnosis, Failing)
    assert diagnosis.message == (
        "Timed out waiting for pod containers to start (600s): phase=Pending, opencode: waiting (ContainerCreating)"
    )


@pytest.mark.parametrize(
    ("state", "text"),
    [
        pytest.param(pod(container(running={}), phase="Running"), "phase=Running, opencode: running", id="E35"),
        pytest.param(
            pod(waiting("PodInitializing"), init=[terminated(0, name="write-prompt")]),
            "phase=Pending, init/write-prompt: done (exit 0), opencode: waiting (PodInitializing)",
            id="E36",
        ),
    ],
)
def test_one_state_has_one_line(state: Pod, text: str) -> None:
    assert summary(state) == summary(state) == text


def test_an_agent_that_ended_before_anybody_looked_has_ended() -> None:
    diagnosis = diagnose(pod(terminated(2), phase="Failed"), job())
    assert isinstance(diagnosis, ContainerEnded)
    assert diagnosis.end.exit_code == 2
