"""Whether containers of a pod have started or ended, by their statuses."""

from agent_runs.kube.objects import Pod


def container_started(pod: Pod, container: str) -> bool:
    """Return whether this container runs or has run."""
    status = pod.container(container)
    return status is not None and (status.state.running is not None or status.state.terminated is not None)


def container_ended(pod: Pod, container: str) -> bool:
    """Return whether this container has ended; others of the pod may still run."""
    status = pod.container(container)
    return status is not None and status.state.terminated is not None


def has_ended(pod: Pod) -> bool:
    """Return whether every container has ended. The phase does not show it: kubelets up to 1.21 set it early."""
    statuses = pod.status.container_statuses
    return bool(statuses) and all(status.state.terminated is not None for status in statuses)
