"""The scheduler of a cluster with one node, and the binder that gives every claim its volume."""

from __future__ import annotations

import asyncio
from pathlib import Path

from local.cluster.events import Recorder
from local.cluster.faults import Faults
from local.cluster.kinds import CLAIMS, NODES, PODS, Kind, Object
from local.cluster.objects import condition, deleting, set_condition
from local.cluster.store import Store
from local.cluster.volumes import claims_of, forget_claim


class Scheduler:
    """Binds pods to the node unless something speaks against it, and says what."""

    def __init__(self, store: Store, node: str, faults: Faults) -> None:
        self._store = store
        self._node = node
        self._faults = faults
        self._events = Recorder(store, "default-scheduler")

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_pods())
            tasks.create_task(self._look_again_for(CLAIMS))
            tasks.create_task(self._look_again_for(NODES))
            tasks.create_task(self._look_again_after_faults())

    async def _follow_pods(self) -> None:
        async for change in self._store.observe(PODS):
            if change.type != "DELETED":
                self._consider(change.body["metadata"]["namespace"], change.body["metadata"]["name"])

    async def _look_again_for(self, kind: Kind) -> None:
        async for _ in self._store.observe(kind):
            self._consider_all()

    async def _look_again_after_faults(self) -> None:
        while True:
            await self._faults.changed.wait()
            self._consider_all()

    def _consider_all(self) -> None:
        for pod in self._store.every(PODS):
            self._consider(pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _consider(self, namespace: str, name: str) -> None:
        pod = self._store.find(PODS, namespace, name)
        if pod is None or pod["spec"].get("nodeName") or deleting(pod):
            return
        objection = self._objection(pod)
        if objection is None:
            self._bind(pod)
        elif (condition(pod, "PodScheduled") or {}).get("message") != objection:

            def refuse(body: Object) -> None:
                set_condition(body["status"], "PodScheduled", "False", "Unschedulable", objection)

            self._store.change(PODS, namespace, name, refuse)
            self._events.tell(PODS, pod, "FailedScheduling", objection, warning=True)

    def _objection(self, pod: Object) -> str | None:
        if self._faults.no_room is not None:
            return f"0/1 nodes are available: {self._faults.no_room}"
        for claim in claims_of(pod):
            if self._store.find(CLAIMS, pod["metadata"]["namespace"], claim) is None:
                return f'0/1 nodes are available: persistentvolumeclaim "{claim}" not found.'
        node = self._store.get(NODES, "", self._node)
        if (condition(node, "Ready") or {}).get("status") != "True":
            return "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }."
        labels = node["metadata"]["labels"]
        wanted = pod["spec"].get("nodeSelector") or {}
        if any(labels.get(key) != value for key, value in wanted.items()):
            return "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        return None

    def _bind(self, pod: Object) -> None:
        def bind(body: Object) -> None:
            body["spec"]["nodeName"] = self._node
            set_condition(body["status"], "PodScheduled", "True")

        meta = pod["metadata"]
        self._store.change(PODS, meta["namespace"], meta["name"], bind)
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {self._node}"
        self._events.tell(PODS, pod, "Scheduled", message)


class Binder:
    """Gives each claim a volume at once, and deletes the data with the claim."""

    def __init__(self, store: Store, claims: Path) -> None:
        self._store = store
        self._claims = claims

    async def run(self) -> None:
        """Bind until cancelled."""
        async for change in self._store.observe(CLAIMS):
            claim = change.body
            if change.type == "DELETED":
                forget_claim(self._claims, claim)
            elif claim["status"].get("phase") == "Pending":
                meta = claim["metadata"]
                self._store.change(CLAIMS, meta["namespace"], meta["name"], self._bind)

    @staticmethod
    def _bind(claim: Object) -> None:
        claim["spec"].setdefault("storageClassName", "embedded")
        claim["spec"]["volumeName"] = f"pvc-{claim['metadata']['uid']}"
        claim["status"] = {
            "phase": "Bound",
            "accessModes": claim["spec"]["accessModes"],
            "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
        }
