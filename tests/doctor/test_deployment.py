"""What keeps a worker's Deployment from running is named once, with what to do.

What Kubernetes itself says is tested on a real cluster (tests/real_cluster/test_wrong_installations.py).
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import msgspec
import pytest

from agent_runs.contracts.start import Finding
from agent_runs.doctor.deployment import deployment_findings
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Deployment, Event, Pod, decode
from tests.kube.pods import container, event, pod, terminated, waiting

REFUSAL = "worker: AGENT_RUNS_MAX_RUNS: must be a number. Correct it"


def deployment(ready: int = 0, **failure: str) -> Deployment:
    conditions = [{"type": "ReplicaFailure", "status": "True", **failure}] if failure else []
    body = {"spec": {"replicas": 2}, "status": {"readyReplicas": ready, "conditions": conditions}}
    return decode(msgspec.json.encode(body), Deployment)


@dataclass(frozen=True)
class Scripted:
    """A cluster with one Deployment."""

    found: Sequence[Deployment] = (deployment(),)
    pods: Sequence[Pod] = ()
    events: Sequence[Event] = ()
    log: Sequence[bytes] = ()

    @asynccontextmanager
    async def open_log(self, *_where: str, **_how: object) -> AsyncIterator[AsyncIterator[bytes]]:
        async def pieces() -> AsyncIterator[bytes]:
            for piece in self.log:
                yield piece

        yield pieces()

    async def list_deployments(self, namespace: str, labels: str) -> Sequence[Deployment]:
        return self.found if _is_ours(namespace, labels) else ()

    async def list_pods(self, namespace: str, labels: str) -> tuple[list[Pod], str]:
        return list(self.pods) if _is_ours(namespace, labels) else [], "1"

    async def events_of(self, namespace: str, uids: Sequence[str]) -> list[Event]:
        return [each for each in self.events if namespace == "paperclip" and each.involved_object.uid in uids]


def _is_ours(namespace: str, labels: str) -> bool:
    return (namespace, labels) == ("paperclip", "app.kubernetes.io/name=agent-runs-worker")


async def only(cluster: Scripted) -> Finding:
    [finding] = await deployment_findings(cast("Cluster", cluster), "paperclip")
    return finding


def crashed(message: str, code: int = 1) -> Pod:
    ended = terminated(code, message=message)["state"]
    state = {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}
    return pod(container("worker", last=ended, waiting=state), phase="Running")


async def test_two_workers_that_end_for_the_same_reason_are_one_finding_with_the_workers_own_words() -> None:
    each = crashed(f'{{"event": "starting"}}\n{REFUSAL}\n')
    found = await only(Scripted(pods=[each, each]))
    assert (found.level, found.message) == ("error", f"A worker ended: {REFUSAL}")
    assert found.hint == "Change the overlay accordingly, and apply it again."


async def test_a_worker_that_ended_without_a_reason_of_its_own_shows_its_last_line() -> None:
    found = await only(Scripted(pods=[crashed("Traceback\nMemoryError")]))
    assert found.message == "A worker ended: MemoryError"
    silent = await only(Scripted(pods=[crashed("", code=137)]))
    assert silent.message == "A worker ended: Error (exit 137)"


async def test_a_worker_that_waits_for_a_server_is_named_with_the_cause_out_of_its_log() -> None:
    running = pod(container("worker", running={}), phase="Running")
    waits = {"event": "server.awaited", "server": "temporal", "cause": "Temporal does not answer at temporal:7233"}
    log = b'{"event": "kubernetes.connected"}\n' + json.dumps(waits).encode() + b"\n"
    found = await only(Scripted(pods=[running], log=[log[:20], log[20:]]))
    assert found.message == "A worker waits for temporal: Temporal does not answer at temporal:7233"
    assert found.hint == "Change the overlay accordingly, and apply it again."
    for other in (b"", b"no JSON\n", b"[]\n", log + b'{"event": "worker.started"}\n'):
        assert (await only(Scripted(pods=[running], log=[other]))).message.startswith("0 of 2 workers")


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ('secret "agent-runs-keys" not found', "agent-runs keys --namespace paperclip"),
        ('configmap "agent-runs-settings-x" not found', "Create it in namespace paperclip"),
    ],
)
async def test_a_volume_that_is_not_mounted_names_what_to_create(missing: str, remedy: str) -> None:
    creating = pod(waiting("ContainerCreating", name="worker"))
    found = await only(Scripted(pods=[creating], events=[event("FailedMount", f"MountVolume.SetUp failed: {missing}")]))
    assert missing in found.message
    assert found.hint is not None
    assert remedy in found.hint


async def test_a_pod_that_kubernetes_refuses_is_named_by_its_deployment() -> None:
    refused = deployment(reason="FailedCreate", message='pods "x" is forbidden: exceeded quota: small')
    found = await only(Scripted(found=[refused]))
    assert found.message == 'Kubernetes refuses the worker\'s pod: pods "x" is forbidden: exceeded quota: small'
    assert found.hint is not None
    assert found.hint.startswith("Raise the quota of namespace paperclip")


async def test_workers_that_run_and_are_not_ready_are_counted() -> None:
    running = pod(container("worker", running={}), phase="Running")
    found = await only(Scripted(pods=[running, running]))
    assert found.message == "0 of 2 workers in namespace paperclip are ready"


async def test_workers_that_are_all_ready_are_no_error() -> None:
    found = await only(Scripted(found=[deployment(ready=2)]))
    assert (found.level, found.message) == ("info", "2 of 2 workers in namespace paperclip are ready")


async def test_a_namespace_without_the_deployment_is_named() -> None:
    found = await only(Scripted(found=[]))
    assert "Namespace paperclip has no Deployment" in found.message
