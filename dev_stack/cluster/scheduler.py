"""The scheduler of a cluster with one node, and the binder that gives every claim its volume."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from dev_stack.cluster.events import Recorder
from dev_stack.cluster.faults import NodeFaults
from dev_stack.cluster.kinds import CLAIMS, NODES, PODS, Kind, Object
from dev_stack.cluster.objects import condition, deleting, holds, set_condition
from dev_stack.cluster.store import Store
from dev_stack.cluster.volumes import claims_of


class Scheduler:
    """Binds pods to the node, or publishes the reason why not."""

    def __init__(self, store: Store, node: str, faults: NodeFaults) -> None:
        self._store = store
        self._node = node
        self._faults = faults
        self._events = Recorder(store, "default-scheduler")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for kind in (PODS, CLAIMS, NODES):
                tasks.create_task(self._follow(kind))
            tasks.create_task(self._follow_faults())

    async def _follow(self, kind: Kind) -> None:
        async for change in self._store.observe(kind):
            if kind is not PODS:
                self._schedule_all()
            elif change.type != "DELETED":
                self._schedule(change.body["metadata"])

    async def _follow_faults(self) -> None:
        while True:
            await self._faults.changed.wait()
            self._schedule_all()

    def _schedule_all(self) -> None:
        for pod in self._store.every(PODS):
            self._schedule(pod["metadata"])

    def _schedule(self, meta: Object) -> None:
        pod = self._store.find(PODS, meta["namespace"], meta["name"])
        if pod is None or pod["spec"].get("nodeName") or deleting(pod):
            return
        objection = self._objection(pod)
        if objection is None:
            self._bind(pod)
        elif condition(pod, "PodScheduled").get("message") != objection:

            def refuse(body: Object) -> None:
                set_condition(body["status"], "PodScheduled", "False", "Unschedulable", objection)

            self._store.change(PODS, meta["namespace"], meta["name"], refuse)
            self._events.record(PODS, pod, "FailedScheduling", objection, warning=True)

    def _objection(self, pod: Object) -> str | None:
        reason = self._faults.unschedulable
        node = self._store.find(NODES, "", self._node)
        labels = node["metadata"]["labels"] if node else {}
        missing = (
            claim for claim in claims_of(pod) if not self._store.find(CLAIMS, pod["metadata"]["namespace"], claim)
        )
        if reason is None and (claim := next(missing, None)):
            reason = f'persistentvolumeclaim "{claim}" not found.'
        elif reason is None and (node is None or not holds(node, "Ready")):
            reason = "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }."
        elif reason is None and not labels.items() >= (pod["spec"].get("nodeSelector") or {}).items():
            reason = "1 node(s) didn't match Pod's node affinity/selector."
        return None if reason is None else f"0/1 nodes are available: {reason}"

    def _bind(self, pod: Object) -> None:
        meta = pod["metadata"]

        def bind(body: Object) -> None:
            body["spec"]["nodeName"] = self._node
            set_condition(body["status"], "PodScheduled", "True")

        self._store.change(PODS, meta["namespace"], meta["name"], bind)
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {self._node}"
        self._events.record(PODS, pod, "Scheduled", message)


class Binder:
    """Gives each claim a volume at once, and deletes the data with the claim."""

    def __init__(self, store: Store, claims: Path) -> None:
        self._store = store
        self._claims = claims

    async def run(self) -> None:
        async for change in self._store.observe(CLAIMS):
            claim, meta = change.body, change.body["metadata"]
            if change.type == "DELETED":
                shutil.rmtree(self._claims / meta["namespace"] / meta["name"], ignore_errors=True)
            elif claim["status"].get("phase") == "Pending":
                self._store.change(CLAIMS, meta["namespace"], meta["name"], _bind_claim)


def _bind_claim(claim: Object) -> None:
    spec = claim["spec"]
    spec.setdefault("storageClassName", "embedded")
    spec["volumeName"] = f"pvc-{claim['metadata']['uid']}"
    capacity = (spec.get("resources") or {}).get("requests") or {}
    claim["status"] = {"phase": "Bound", "accessModes": spec["accessModes"], "capacity": capacity}
