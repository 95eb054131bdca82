"""How soon people see why a run waits: from the API server's own sign to `read_obstacles`, which all surfaces read.

    KUBECONFIG=... TEST_AGENT_IMAGE=... [TEST_CLUSTER_TOOL=...] python -m bench.waits [ROUNDS]

One run for each cause on a real cluster. The sign is looked for as often as the answer, ten times a second; a negative
time is an answer that was there before its sign was seen. With the cluster's own tool a second node is cut off, too.
"""

import asyncio
import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from agent_runs.client.connection import run_to_end
from agent_runs.client.obstacles import read_obstacles
from agent_runs.client.outcome import cancel
from bench.reports import machine
from tests.real_cluster.objects import NODES, api_request, created_object
from tests.real_cluster.observed_runs import ObservedRun, observed_run
from tests.real_cluster.requirements import TOOL, cluster_tool
from tests.real_cluster.stack import RealSystem, open_real_system

NODE = "node-2"
PAUSE = 0.1
LIMIT = 60.0

Sign = Callable[[ObservedRun], Awaitable[bool]]
HUGE = {"requests": {"cpu": "16", "memory": "64Mi"}, "limits": {"cpu": "16", "memory": "2Gi"}}


async def found(run: ObservedRun, kind: str) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{run.namespace}/{kind}"
    items: list[dict[str, Any]] = (await api_request(run.cluster, "GET", path))["items"]
    name = run.key().job_name
    return [item for item in items if name in (item.get("involvedObject", item["metadata"]).get("name") or "")]


def unschedulable(words: str) -> Sign:
    async def sign(run: ObservedRun) -> bool:
        conditions = [each for pod in await found(run, "pods") for each in pod["status"].get("conditions", ())]
        return any(words in each.get("message", "") for each in conditions)

    return sign


def event(reason: str) -> Sign:
    async def sign(run: ObservedRun) -> bool:
        return any(each["reason"] == reason for each in await found(run, "events"))

    return sign


async def node_is_silent(run: ObservedRun) -> bool:
    node = await api_request(run.cluster, "GET", f"{NODES}/{NODE}")
    return any(each["type"] == "Ready" and each["status"] == "Unknown" for each in node["status"]["conditions"])


async def first(holds: Callable[[], Awaitable[bool]]) -> float:
    """When it holds for the first time."""
    async with asyncio.timeout(LIMIT):
        while not await holds():  # noqa: ASYNC110 - another process
            await asyncio.sleep(PAUSE)
    return time.monotonic()


async def seconds(system: RealSystem, run: ObservedRun, sign: Sign, words: str) -> float:
    handle = run.ticket.handle(system.stack.client)

    async def said() -> bool:
        return any(words in each.text for each in await read_obstacles(system.stack.client, handle))

    signed, answered = await asyncio.gather(first(lambda: sign(run)), first(said))
    return answered - signed


@asynccontextmanager
async def waiting_run(system: RealSystem, cause: str, **config: Any) -> AsyncIterator[ObservedRun]:
    async with AsyncExitStack() as stack:
        if cause == "quota":
            name = f"bench-waits-{uuid.uuid4()}"
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            await stack.enter_async_context(created_object(system.cluster, "/api/v1/namespaces", namespace))
            quota = {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "none"},
                "spec": {"hard": {"pods": "0"}},
            }
            await api_request(system.cluster, "POST", f"/api/v1/namespaces/{name}/resourcequotas", body=quota)
            config["namespace"] = name
        run = await stack.enter_async_context(observed_run(system, 4, agent_id=f"{cause}-{uuid.uuid4()}", **config))
        if cause == "node":
            await run.until_steps()
            await cluster_tool("cut", NODE)
        try:
            yield run
        finally:
            if cause == "node":
                await cluster_tool("heal", NODE)
        await cancel(run.ticket.handle(system.stack.client), "measured")
        await run.outcome()


CAUSES: dict[str, tuple[Sign, str, dict[str, Any]]] = {
    "no capacity": (unschedulable("Insufficient cpu"), "Insufficient cpu", {"resources": HUGE}),
    "image": (event("Failed"), "image", {"image": "127.0.0.1:1/none:1", "imagePullPolicy": "IfNotPresent"}),
    "volume": (
        unschedulable("not found"),
        "not found",
        {"extraVolumes": [{"name": "v", "mountPath": "/v", "persistentVolumeClaim": {"claimName": "missing"}}]},
    ),
    "quota": (event("FailedCreate"), "quota", {}),
    "node": (node_is_silent, NODE, {"nodeSelector": {"kubernetes.io/hostname": NODE}}),
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3

    async def run() -> None:
        rows: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            async with open_real_system(Path(folder)) as system:
                for cause, (sign, words, config) in CAUSES.items():
                    if cause == "node" and TOOL not in os.environ:
                        continue
                    for _ in range(rounds):
                        async with waiting_run(system, cause.split()[-1], **config) as waiting:
                            rows.setdefault(cause, []).append(await seconds(system, waiting, sign, words))
        print(f"{machine()}\n\n| cause | seconds from its sign to the answer, {rounds} runs |\n|---|---|")
        for cause, times in rows.items():
            print(f"| {cause} | {', '.join(f'{each:.1f}' for each in sorted(times))} |")

    run_to_end(run)


if __name__ == "__main__":
    main()
