"""Why the worker's Deployment does not run, as somebody sees who may read it: the administrator who installs it."""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from agent_runs.contracts.start import Finding
from agent_runs.kube.client import Cluster
from agent_runs.kube.diagnosis import ContainerEnded, Failing, Waiting, diagnose
from agent_runs.kube.failures import LogCut, LogRefused
from agent_runs.kube.objects import ContainerStatus, Deployment, Event, Pod

LABEL: Final = "app.kubernetes.io/name=agent-runs-worker"
CONTAINER: Final = "worker"
REFUSED: Final = "worker: "
"""How the line begins in which a worker says why it does not start."""
LINE_LIMIT: Final = 900
AWAITED: Final = "server.awaited"
"""The event that a worker logs while it waits for a server, twice a minute at least."""
LOG_AGE: Final = timedelta(minutes=1)
LOG_TIMEOUT: Final = timedelta(seconds=5)

_REMEDIES: Final = (
    (
        'secret "agent-runs-keys" not found',
        "Make it: `agent-runs keys --namespace {namespace} | kubectl create -f -`",
    ),
    ('secret "agent-runs-database" not found', "Create it; its key `url` is postgresql://USER:PASSWORD@HOST/DATABASE"),
    (
        'secret "agent-runs-temporal-tls" not found',
        "Create it with tls.crt, tls.key and ca.crt, or remove the component temporal-tls from the overlay",
    ),
    ("couldn't find key", "Add the key to the Secret or ConfigMap"),
    ("exceeded quota", "Raise the quota of namespace {namespace}, or lower what the worker requests"),
    ("serviceaccount .*not found", "Apply the whole overlay: `kubectl apply -k`"),
    (
        'persistentvolumeclaim "[^"]+" not found',
        "Create the claim in namespace {namespace} (docs/install.md), or name yours in the component that mounts it",
    ),
    (
        "unbound|volume binding",
        "Give the claim a StorageClass that makes volumes, or make a volume that fits it",
    ),
    ("multi-attach", "The volume is on another node: its claim has to be ReadWriteMany, or all pods on one node"),
    (
        "image pull failed|no such image|imagepull",
        "Push the images (`./dev images`), correct `newName` and `newTag` in the overlay, or add imagePullSecrets",
    ),
    ('"[^"]+" not found', "Create it in namespace {namespace}, or take it out of the overlay; see docs/install.md"),
    ("nodes are available", "Add a node that fits, or change what the worker asks of its node"),
    (
        "is forbidden|violates podsecurity|denied the request",
        "Allow it in namespace {namespace}, or change the overlay",
    ),
)
"""What to do, by a pattern of the cause in lower case; the first one counts."""
_ELSE: Final = f"`kubectl --namespace {{namespace}} describe pods --selector {LABEL}` shows more"


async def deployment_findings(cluster: Cluster, namespace: str) -> Sequence[Finding]:
    """Return one error for each cause that keeps a worker from being ready, else one finding that says that all are.

    Raises:
        ClusterUnavailable, ClusterForbidden: the API server does not answer, or its caller may not list Deployments,
            pods and events there.
    """
    deployments = await cluster.list_deployments(namespace, LABEL)
    if not deployments:
        message = f"Namespace {namespace} has no Deployment with label {LABEL}"
        return [_error(message, "`kubectl apply -k` an overlay, or give the namespace of the worker.")]
    pods, _ = await cluster.list_pods(namespace, LABEL)
    events = await cluster.events_of(namespace, [pod.metadata.uid for pod in pods])
    found = [_cause(pod, events) or await _awaited(cluster, namespace, pod) for pod in pods]
    causes = [*_refused(deployments), *filter(None, found)]
    if causes:
        return [_error(cause, remedy(cause, namespace)) for cause in dict.fromkeys(causes)]
    wanted = sum(each.spec.replicas for each in deployments)
    ready = sum(each.status.ready_replicas for each in deployments)
    message = f"{ready} of {wanted} workers in namespace {namespace} are ready"
    if ready < wanted:
        return [_error(message, remedy(message, namespace))]
    return [Finding(code="worker_deployment", level="info", message=message)]


def remedy(cause: str, namespace: str) -> str:
    """What to do about a cause that Kubernetes or the worker itself has named."""
    if f"ended: {REFUSED}" in cause or cause.startswith("A worker waits for "):
        return "Change the overlay accordingly, and apply it again."
    text = next((text for pattern, text in _REMEDIES if re.search(pattern, cause.lower())), _ELSE)
    return text.format(namespace=namespace) + "."


def _refused(deployments: Iterable[Deployment]) -> Iterable[str]:
    """What the API server said of pods that it did not take."""
    for each in deployments:
        failed = each.condition("ReplicaFailure")
        if failed is not None:
            yield f"Kubernetes refuses the worker's pod: {_line(failed.message)}"


def _cause(pod: Pod, events: Sequence[Event]) -> str | None:
    """Why a pod's worker is not ready; None if it is, or has just been started and may become so."""
    status = pod.container(CONTAINER)
    if pod.metadata.deletion_timestamp is not None or (status is not None and status.ready):
        return None
    if status is not None and (said := _last_words(status)):
        return f"A worker ended: {said}"
    diagnosis = diagnose(pod, None, events, container=CONTAINER, job_was_read=False)
    text = diagnosis.message if isinstance(diagnosis, Failing) else ""
    if isinstance(diagnosis, Waiting) and not diagnosis.reason.startswith(("Waiting", "ContainerCreating")):
        text = diagnosis.reason
    if isinstance(diagnosis, ContainerEnded):
        text = diagnosis.end.message or diagnosis.end.reason or "it ended"
    return _line(text) or None


async def _awaited(cluster: Cluster, namespace: str, pod: Pod) -> str | None:
    """The server that a worker waits for, as the last line of its log says."""
    status = pod.container(CONTAINER)
    if status is None or status.ready or status.state.running is None:
        return None
    lines = b""
    with suppress(LogRefused, LogCut):
        async with cluster.open_log(
            namespace,
            pod.metadata.name,
            CONTAINER,
            follow=False,
            since=LOG_AGE,
            timestamps=False,
            idle_timeout=LOG_TIMEOUT,
        ) as log:
            async for piece in log:
                lines += piece
    with suppress(ValueError, IndexError, TypeError, KeyError):
        last = json.loads(lines.splitlines()[-1])
        return f"A worker waits for {last['server']}: {_line(last['cause'])}" if last["event"] == AWAITED else None
    return None


def _last_words(status: ContainerStatus) -> str:
    """The line with which the worker last refused to start, else the last line that it wrote."""
    ended = status.state.terminated or status.last_state.terminated
    lines = [] if ended is None else [line.strip() for line in ended.message.splitlines() if line.strip()]
    refusals = [line for line in lines if line.startswith(REFUSED)]
    if refusals:
        return _line(refusals[-1])
    return "" if ended is None else _line(lines[-1] if lines else f"{ended.reason} (exit {ended.exit_code})")


def _line(text: str) -> str:
    return " ".join(text.split())[:LINE_LIMIT]


def _error(message: str, hint: str) -> Finding:
    return Finding.error("worker_not_ready", message, hint)
