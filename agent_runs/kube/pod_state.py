"""Whether containers of a pod have started or ended, by their statuses."""

from agent_runs.contracts.pod import AGENT_CONTAINER, SIDECAR_CONTAINER
from agent_runs.kube.objects import Pod


def container_started(pod: Pod, container: str) -> bool:
    """Return whether this container runs or has run."""
    status = pod.container(container)
    return status is not None and (status.state.running is not None or status.state.terminated is not None)


def container_ended(pod: Pod, container: str) -> bool:
    """Return whether this container has ended; others of the pod may still run."""
    status = pod.container(container)
    return status is not None and status.state.terminated is not None


def work_ended(pod: Pod) -> bool:
    """Return whether agent and sidecar have ended. A container that an admission controller has injected may run on."""
    ours = [status for status in pod.status.container_statuses if status.name in {AGENT_CONTAINER, SIDECAR_CONTAINER}]
    return has_ended(pod) or (bool(ours) and all(status.state.terminated is not None for status in ours))


def has_ended(pod: Pod) -> bool:
    """Return whether every container has ended, or an init container has failed for good.

    The phase shows the first a second late, when the sandbox has ended. Only the phase shows the second: an init
    container that restarts also fails, while the pod works. Source: 1.37, observed; kubernetes.io, Sidecar Containers.
    """
    ends = [status.state.terminated for status in pod.status.container_statuses]
    inits = [status.state.terminated for status in pod.status.init_container_statuses]
    init_failed = pod.status.phase == "Failed" and any(end is not None and end.exit_code != 0 for end in inits)
    return init_failed or (bool(ends) and None not in ends)
