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
    """Return whether every container has ended, or none will start because an init container has failed.

    The phase shows it a second later, when the sandbox has ended, and is `Failed` also for a pod whose node was lost.
    """
    ends = [status.state.terminated for status in pod.status.container_statuses]
    inits = [status.state.terminated for status in pod.status.init_container_statuses]
    return any(end is not None and end.exit_code != 0 for end in inits) or (bool(ends) and None not in ends)
