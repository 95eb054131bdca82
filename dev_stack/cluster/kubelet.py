"""The kubelet of the one node: it runs the pods that are bound there, serves their logs, and can fail."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

from dev_stack.cluster.container_log import ContainerLog, LogOptions
from dev_stack.cluster.containers import Container
from dev_stack.cluster.deletion import begin_deletion
from dev_stack.cluster.discovery import VERSION
from dev_stack.cluster.errors import bad_request, internal
from dev_stack.cluster.kinds import NODES, PODS, Object
from dev_stack.cluster.objects import deleting, ended, set_condition
from dev_stack.cluster.pod_status import ADDRESS, PodEnd, Slot
from dev_stack.cluster.pods import NodeContext, Pod
from dev_stack.cluster.store import Change

_SYNC = timedelta(seconds=60)
"""The kubelet's syncFrequency: so often changed Secrets reach their volumes by themselves."""


class Kubelet:
    """Runs pods. While it is down its containers run on, and nothing of them is published."""

    def __init__(self, name: str, node: NodeContext) -> None:
        self.name = name
        self._node = node
        self._store = node.store
        self._pods: dict[str, Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    # ---------------------------------------------------------------- life

    async def run(self) -> None:
        self._remove_leftovers()
        self.resume()
        async with asyncio.TaskGroup() as tasks:
            self._group = tasks
            tasks.create_task(self._follow_pods())
            tasks.create_task(self._sync_volumes())

    def resume(self) -> None:
        """Begin to work, or come back after a failure."""
        self._node.working.set()
        self._set_ready("True", "KubeletReady", "kubelet is posting ready status")
        for pod in self._pods.values():
            pod.publish()

    async def drain(self, grace: timedelta) -> None:
        """End every pod, with its own grace or `grace` if that is shorter, as a node does that is shut down."""
        self._node.working.set()
        end = PodEnd("Terminated", "Pod was terminated in response to imminent node shutdown.")
        for pod in self._pods.values():
            pod.stop(min(grace, pod.grace), end)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _remove_leftovers(self) -> None:
        """Remove the logs and volumes of pods that do not exist any more."""
        known = {pod["metadata"]["uid"] for pod in self._store.every(PODS)}
        root = self._node.pod_directory("")
        root.mkdir(exist_ok=True)
        for directory in root.iterdir():
            if directory.name not in known:
                shutil.rmtree(directory, ignore_errors=True)

    async def _sync_volumes(self) -> None:
        while True:
            await asyncio.sleep(_SYNC.total_seconds())
            for pod in self._pods.values():
                pod.refresh_volumes()

    # ---------------------------------------------------------------- pods

    async def _follow_pods(self) -> None:
        async for change in self._store.observe(PODS):
            await self._node.working.wait()
            if change.body["spec"].get("nodeName") == self.name:
                self._handle(change)

    def _handle(self, change: Change) -> None:
        body = change.body
        pod = self._pods.get(body["metadata"]["uid"])
        if change.type == "DELETED":
            self._remove(body, pod)
        elif pod is None:
            if not ended(body):
                self._begin(body)
        elif deleting(body):
            pod.stop_for_deletion(body)
        else:
            pod.follow_deadline(body)
            if change.before is not None and _metadata(body) != _metadata(change.before):
                pod.refresh_volumes()  # a real kubelet reconciles the whole pod then

    def _begin(self, body: Object) -> None:
        pod = Pod(body, self._node)
        self._pods[pod.uid] = pod
        self._tasks[pod.uid] = self._group.create_task(self._run(pod))
        if deleting(body):
            pod.stop_for_deletion(body)

    async def _run(self, pod: Pod) -> None:
        await pod.run()
        await self._node.working.wait()
        pod.publish()
        body = self._store.find(PODS, pod.namespace, pod.name)
        if body is not None and body["metadata"]["uid"] == pod.uid and deleting(body):
            pod.leave()

    def _remove(self, body: Object, pod: Pod | None) -> None:
        """The object was deleted: end what runs, then remove logs and volumes."""
        uid = body["metadata"]["uid"]
        if pod is None:
            shutil.rmtree(self._node.pod_directory(uid), ignore_errors=True)
            return
        pod.stop_for_deletion(body)

        def wipe(_: object) -> None:
            pod.wipe()
            self._pods.pop(uid, None)
            self._tasks.pop(uid, None)

        self._tasks[uid].add_done_callback(wipe)

    # ---------------------------------------------------------------- logs and exec

    def open_log(self, body: Object, name: str | None, options: LogOptions) -> AsyncGenerator[bytes] | None:
        """The log of a container; None, which the API server answers with 204, before its pod has a node.

        Raises:
            ApiError: 400 when there is none yet; 500 while the kubelet is down.
        """
        if not body["spec"].get("nodeName"):
            return None
        name = _choose_container(body, name)
        slot = self._reach("containerLogs", body, name)
        path = self._node.pod_directory(body["metadata"]["uid"]) / name / "log"
        if slot is None and path.exists():  # of a pod that ended before the last restart of the cluster
            return ContainerLog(path, open_for_writing=False).read(options)
        if slot is None or slot.container is None:
            why = "ContainerCreating" if slot is None else self._pods[body["metadata"]["uid"]].waits_for(slot)
            raise bad_request(f'container "{name}" in pod "{body["metadata"]["name"]}" is waiting to start: {why}')
        return slot.container.log.read(options)

    def container(self, body: Object, name: str | None) -> Container:
        """A running container.

        Raises:
            ApiError: 400 or 500 when there is none, or the kubelet is down.
        """
        name = _choose_container(body, name)
        if not body["spec"].get("nodeName"):
            raise bad_request(f"pod {body['metadata']['name']} does not have a host assigned")
        if ended(body):
            raise internal(f"cannot exec in a stopped pod; current phase is {body['status']['phase']}")
        slot = self._reach("exec", body, name)
        if slot is None or slot.container is None or not slot.running:
            raise internal(f'error executing command in container: container "{name}" is not running')
        return slot.container

    def _reach(self, what: str, body: Object, name: str) -> Slot | None:
        """The container on this node, None if its pod is not there; 500 while the kubelet is down."""
        if not self._node.working.is_set():
            address = f"{ADDRESS}:10250"
            raise internal(f'Get "https://{self.name}:10250/{what}": dial tcp {address}: connect: connection refused')
        pod = self._pods.get(body["metadata"]["uid"])
        return None if pod is None else pod.slot(name)

    def end_follows(self) -> None:
        for slot in self._slots():
            if slot.container is not None:
                slot.container.log.end_follows()

    def _slots(self) -> list[Slot]:
        return [slot for pod in self._pods.values() for slot in pod.slots]

    # ---------------------------------------------------------------- failures

    async def restart(self, down: timedelta) -> None:
        """Stop, stay down, resume; containers run on."""
        self._node.working.clear()
        self.end_follows()
        await asyncio.sleep(down.total_seconds())
        self.resume()

    async def evict(self, body: Object, message: str) -> None:
        """End a pod under pressure: it stays, Failed."""
        pod = self._pods[body["metadata"]["uid"]]
        self._node.events.record(PODS, pod.body, "Evicted", message, warning=True)

        def disrupt(body: Object) -> None:
            set_condition(body["status"], "DisruptionTarget", "True", "TerminationByKubelet", message)

        self._store.change(PODS, pod.namespace, pod.name, disrupt, pod.uid)
        pod.stop(pod.grace, PodEnd("Evicted", message))
        await asyncio.wait([self._tasks[pod.uid]])

    async def lose(self, forget_after: timedelta) -> None:
        """Lose the node: containers die unseen, the node is unknown, its pods are deleted and later removed."""
        self._node.working.clear()
        self.end_follows()
        pods = list(self._pods.values())
        for pod in pods:
            pod.kill()
        self._set_ready("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        for pod in pods:
            body = self._store.change(PODS, pod.namespace, pod.name, _taint, pod.uid)
            if body is not None:
                begin_deletion(self._store, PODS, body)
        await asyncio.sleep(forget_after.total_seconds())
        for pod in pods:
            self._store.change(PODS, pod.namespace, pod.name, _forget, pod.uid)

    # ---------------------------------------------------------------- the Node object

    def _set_ready(self, value: str, reason: str, message: str) -> None:
        if self._store.find(NODES, "", self.name) is None:
            self._store.add(NODES, _node(self.name))

        def write(body: Object) -> None:
            set_condition(body["status"], "Ready", value, reason, message)

        self._store.change(NODES, "", self.name, write)


def _metadata(body: Object) -> list[Any]:
    return [body["metadata"].get(part) for part in ("labels", "annotations")]


def _taint(body: Object) -> None:
    set_condition(body["status"], "Ready", "False", "NodeNotReady")
    message = "Taint manager: deleting due to NoExecute taint"
    set_condition(body["status"], "DisruptionTarget", "True", "DeletionByTaintManager", message)


def _forget(body: Object) -> None:
    body["status"] |= {"phase": "Failed", "reason": "NodeLost", "message": "PodGC: node no longer exists"}
    body["metadata"]["deletionGracePeriodSeconds"] = 0


def _choose_container(body: Object, name: str | None) -> str:
    pod = body["metadata"]["name"]
    mains = [str(one["name"]) for one in body["spec"]["containers"]]
    inits = [str(one["name"]) for one in body["spec"].get("initContainers") or ()]
    if name is None and len(mains) == 1:
        return mains[0]
    if name is None:
        choice = f"choose one of: [{' '.join(inits + mains)}]"
        raise bad_request(f"a container name must be specified for pod {pod}, {choice}")
    if name not in mains + inits:
        raise bad_request(f"container {name} is not valid for pod {pod}")
    return name


def _node(name: str) -> Object:
    memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki"
    resources = {"cpu": str(os.cpu_count() or 1), "memory": memory, "pods": "1000"}
    system = {"osImage": "this machine", "kernelVersion": platform.release(), "kubeletVersion": VERSION}
    system |= {
        "containerRuntimeVersion": "embedded://1",
        "operatingSystem": "linux",
        "architecture": platform.machine(),
    }
    system |= dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), "")
    addresses = [{"type": "InternalIP", "address": ADDRESS}, {"type": "Hostname", "address": name}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {"capacity": resources, "allocatable": resources, "addresses": addresses, "nodeInfo": system},
    }
