"""A limit on disk that a pod exceeded is named with its bytes, and never met a second time."""

from datetime import UTC, datetime

import pytest

from agent_runs.contracts.errors import DiskLimitExceeded, PodLost
from agent_runs.kube.diagnosis import ContainerEnded, Failing, diagnose, exceeded_disk_limit, termination_cause
from agent_runs.kube.objects import ContainerState, ContainerStatus, Metadata, Pod, PodStatus, Terminated

LIMITS = {
    'Usage of EmptyDir volume "output" exceeds the limit "1Gi". ': (
        'volume "output" used more disk than its limit of 1Gi (1073741824 bytes)'
    ),
    'Container opencode exceeded its local ephemeral storage limit "50Mi". ': (
        "container opencode used more disk than its limit of 50Mi (52428800 bytes)"
    ),
    "Pod ephemeral local storage usage exceeds the total limit of containers 1500M. ": (
        "pod used more disk than its limit of 1500M (1500000000 bytes)"
    ),
    "Pod ephemeral local storage usage exceeds the total limit of containers 1.5Gi.": (
        "pod used more disk than its limit of 1.5Gi (1610612736 bytes)"
    ),
}
OF_THE_NODE = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 900Mi. Container opencode "
    "was using 2Gi, request is 0, has larger consumption of ephemeral-storage. "
)


@pytest.mark.parametrize("message", LIMITS)
def test_the_volume_or_container_and_its_limit_in_bytes_are_named(message: str) -> None:
    for reason in ("Evicted", "TerminationByKubelet"):  # of the pod, and of its condition, which is set before
        assert exceeded_disk_limit(reason, message) == LIMITS[message]


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Evicted", OF_THE_NODE),
        ("Evicted", ""),
        ("Error", next(iter(LIMITS))),
        ("Evicted", f'Usage of EmptyDir volume "{"x" * 300}" exceeds the limit "1Gi"'),
    ],
)
def test_any_other_end_is_no_limit_of_the_agents(reason: str, message: str) -> None:
    assert exceeded_disk_limit(reason, message) is None


def evicted(message: str, *, with_status: bool) -> Pod:
    ended = Terminated(exit_code=137, reason="Error", finished_at=datetime.now(UTC))
    statuses = (ContainerStatus(name="opencode", state=ContainerState(terminated=ended)),) if with_status else ()
    status = PodStatus(phase="Failed", reason="Evicted", message=message, container_statuses=statuses)
    return Pod(metadata=Metadata(name="p", uid="u"), status=status)


def cause(pod: Pod) -> Failing:
    diagnosis = diagnose(pod, None, job_was_read=False)
    failing = termination_cause(diagnosis.end) if isinstance(diagnosis, ContainerEnded) else diagnosis
    assert isinstance(failing, Failing)
    return failing


@pytest.mark.parametrize("with_status", [True, False], ids=["status", "no status"])
@pytest.mark.parametrize("message", LIMITS)
def test_an_eviction_for_a_limit_of_the_pods_is_its_own_failure_and_not_repeated(
    message: str, *, with_status: bool
) -> None:
    failure = cause(evicted(message, with_status=with_status))
    assert failure.error is DiskLimitExceeded
    assert LIMITS[message] in failure.message
    assert failure.error.as_failure(failure.message).budget == "agent"


@pytest.mark.parametrize("with_status", [True, False], ids=["status", "no status"])
def test_an_eviction_by_a_node_without_disk_is_a_lost_pod_and_says_how_much_was_used(*, with_status: bool) -> None:
    failure = cause(evicted(OF_THE_NODE, with_status=with_status))
    assert failure.error is PodLost
    assert "Container opencode was using 2Gi" in failure.message
    assert failure.error.as_failure("").budget == "infrastructure"
