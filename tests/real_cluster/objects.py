"""Objects that a test makes in the cluster in addition to its runs."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from agent_runs.job.volumes import claim_name
from agent_runs.kube.client import Cluster

OWN_CLASS = "real-tests"
"""The storage class of volumes that a test makes itself; no provisioner serves it."""
NODES = "/api/v1/nodes"
STAND_IN = "real-tests-stand-in"


async def api_request(cluster: Cluster, method: str, path: str, **more: Any) -> Any:
    """The API server's response; an error status fails the test."""
    response = await cluster._call(method, method.lower(), path, path, **more)
    assert isinstance(response, bytes), str(response)
    return json.loads(response)


def kubeconfig_of(token: str) -> str:
    """The administrator's kubeconfig with another identity."""
    config: dict[str, Any] = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    users = [{**each, "user": {"token": token}} for each in config["users"]]
    return yaml.safe_dump({**config, "users": users})


@asynccontextmanager
async def created_object(cluster: Cluster, path: str, manifest: dict[str, Any]) -> AsyncIterator[None]:
    await api_request(cluster, "POST", path, body=manifest)
    try:
        yield
    finally:
        await api_request(cluster, "DELETE", f"{path}/{manifest['metadata']['name']}")


async def until_accepted(cluster: Cluster, path: str, manifest: dict[str, Any]) -> None:
    """Return when the API server would create the object: it knows what that needs a moment after it was created."""
    query = [("dryRun", "All")]
    while not isinstance(await cluster._call("POST", "create", path, path, query, manifest), bytes):  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)


@asynccontextmanager
async def agent_volume(cluster: Cluster, folder: Path, agent_id: str) -> AsyncIterator[None]:
    """A volume on this machine for the agent's own claim, which the worker creates and keeps: sessions outlive pods.

    Args:
        folder: writable for everybody, since a `hostPath` gets no group of the pod.
    """
    claims, name = "/api/v1/namespaces/default/persistentvolumeclaims", claim_name(agent_id)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": OWN_CLASS,
            "hostPath": {"path": str(folder)},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name},
        },
    }
    async with created_object(cluster, "/api/v1/persistentvolumes", volume):
        yield
        await api_request(cluster, "DELETE", f"{claims}/{name}")


@asynccontextmanager
async def stand_in_node(cluster: Cluster) -> AsyncIterator[None]:
    """A Node object without a machine: ready, and tainted against pods.

    Where no node is ready Kubernetes takes itself to be disconnected, and deletes no pod.
    """
    taint = {"key": "real-tests", "effect": "NoSchedule"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": STAND_IN}, "spec": {"taints": [taint]}}

    async def report_ready() -> None:
        ready = {"type": "Ready", "status": "True", "reason": "StandIn", "lastHeartbeatTime": f"{now():%FT%TZ}"}
        patch, kind = {"status": {"conditions": [ready]}}, "application/merge-patch+json"
        await api_request(cluster, "PATCH", f"{NODES}/{STAND_IN}/status", body=patch, content_type=kind)

    async def stay_ready() -> None:
        while True:
            await asyncio.sleep(5)
            await report_ready()

    async with created_object(cluster, NODES, node):
        await report_ready()
        reporting = asyncio.create_task(stay_ready())
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])


def now() -> datetime:
    return datetime.now(UTC)
