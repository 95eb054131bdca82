"""The node: runs the pods bound to it as processes of this machine, serves their logs, and can have accidents."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import shutil
from collections.abc import AsyncGenerator, Coroutine
from datetime import timedelta
from pathlib import Path

from local.cluster.deletion import begin
from local.cluster.discovery import VERSION
from local.cluster.instances import Instance
from local.cluster.kinds import NODES, PODS, Object
from local.cluster.logs import Ears, LogOptions, read_log
from local.cluster.objects import condition, deleting, set_condition, stamp
from local.cluster.pod_status import Slot, Verdict
from local.cluster.pods import ADDRESS, Pod, Surroundings
from local.cluster.refusals import bad_request, internal

log = logging.getLogger(__name__)
_SYNC = timedelta(seconds=60)  # the kubelet's syncFrequency


class Kubelet:
    """One node. Stopping it leaves its containers alone; the next one adopts them from disk."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self._around = around
        self._store = around.store
        self._pods: dict[str, Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._ears: Ears | None = None
        self._cut = asyncio.Event()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Begin to work, with what is already there."""
        self._ears = Ears()
        self._set_ready("True", "KubeletReady", "kubelet is posting ready status")
        for work in (self._follow_pods(), self._sync_files()):
            self._keep(work)

    def _keep(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._note_failure)
        self._watches.append(task)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) and not self._failure.done():
            self._failure.set_exception(error)

    async def fail_with(self) -> None:
        """Wait for ever, or raise what broke one of the kubelet's tasks."""
        await asyncio.shield(self._failure)

    async def stop(self) -> None:
        """Stop working without touching any container; open log streams end cleanly."""
        self.end_follows()
        tasks = [*self._watches, *self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watches.clear()
        self._tasks.clear()
        self._pods.clear()
        if self._ears is not None:
            self._ears.close()
            self._ears = None

    async def drain(self, grace: timedelta, verdict: Verdict) -> None:
        """End every pod, with its own grace or `grace` if that is shorter, as a node does that is shut down."""
        for pod in self._pods.values():
            pod.stop(min(grace, timedelta(seconds=pod.body["spec"]["terminationGracePeriodSeconds"])), verdict)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # ---------------------------------------------------------------- pods

    async def _follow_pods(self) -> None:
        self._forget_strangers()
        async for change in self._store.observe(PODS):
            body = change.body
            if body["spec"].get("nodeName") != self.name:
                continue
            pod = self._pods.get(body["metadata"]["uid"])
            if change.type == "DELETED":
                self._vanished(body, pod)
            elif deleting(body) and pod is not None:
                pod.stop_for_deletion(body)
            elif pod is not None:
                pod.heed_deadline(body)
                pod.heed_metadata(body)
            elif pod is None and body["status"].get("phase") not in ("Succeeded", "Failed"):
                self._begin(body)
            elif pod is None and deleting(body):
                Pod(body, self._around).leave()

    def _begin(self, body: Object) -> None:
        pod = Pod(body, self._around)
        self._pods[pod.uid] = pod
        task = asyncio.ensure_future(self._run(pod))
        task.add_done_callback(self._note_failure)
        self._tasks[pod.uid] = task
        if deleting(body):
            pod.stop_for_deletion(body)

    async def _run(self, pod: Pod) -> None:
        try:
            await pod.run()
        except* (KeyError, TypeError, ValueError, AttributeError) as errors:
            # Validation here is not a real API server's: a pod of odd shape must not take the node with it.
            log.exception("kubelet.pod_failed", exc_info=errors)
            pod.give_up(Verdict("InvalidPod", f"the embedded cluster cannot run this pod: {errors.exceptions[0]!r}"))
        current = self._store.find(PODS, pod.namespace, pod.name)
        if current is not None and current["metadata"]["uid"] == pod.uid and deleting(current):
            pod.leave()

    def _vanished(self, body: Object, pod: Pod | None) -> None:
        """The object is gone: end what still runs, then remove logs and volumes."""
        uid = body["metadata"]["uid"]
        if pod is None:
            shutil.rmtree(self._around.state / "pods" / uid, ignore_errors=True)
            return
        pod.stop(timedelta(seconds=body["metadata"].get("deletionGracePeriodSeconds") or 2))
        task = self._tasks[uid]

        def wipe(_: object) -> None:
            if not task.cancelled():
                pod.wipe()
                self._pods.pop(uid, None)
                self._tasks.pop(uid, None)

        task.add_done_callback(wipe)

    def _forget_strangers(self) -> None:
        """Remove what pods have left that were deleted while nobody watched."""
        known = {pod["metadata"]["uid"] for pod in self._store.every(PODS)}
        root = self._around.state / "pods"
        root.mkdir(exist_ok=True)
        for place in root.iterdir():
            if place.name not in known:
                self._end_stranger(place)

    def _end_stranger(self, place: Path) -> None:
        for pid in place.glob("*/*/pid"):
            run = Instance.adopt(pid.parent, int(pid.parent.name))
            run.kill()
            run.let_go()
        shutil.rmtree(place, ignore_errors=True)

    async def _sync_files(self) -> None:
        """Changed Secrets and ConfigMaps reach their volumes when a pod is looked at again, by this clock mostly."""
        while True:
            await asyncio.sleep(_SYNC.total_seconds())
            for pod in self._pods.values():
                pod.refresh_volumes()

    # ---------------------------------------------------------------- logs

    def open_log(
        self, body: Object, container: str | None, options: LogOptions, *, previous: bool
    ) -> AsyncGenerator[bytes] | None:
        """The log of a container of a pod; None, which the API server answers with 204, before it has a node.

        Raises:
            Refused: 400 with the kubelet's words when there is none yet; 500 while the kubelet is away.
        """
        if not body["spec"].get("nodeName"):
            return None
        name = _choose_container(body, container)
        pod, ears = self._reach("containerLogs", body)
        run = _choose_run(pod.slots_by_name[name], pod, previous=previous)
        return read_log(run.directory, options, ears, run.finished, self._cut)

    def running(self, body: Object, container: str | None) -> Instance:
        """The running instance of a container, for `exec`.

        Raises:
            Refused: 400, 409 or 500 when there is none, or the kubelet is away.
        """
        name = _choose_container(body, container)
        if not body["spec"].get("nodeName"):
            raise bad_request(f"pod {body['metadata']['name']} does not have a host assigned")
        if body["status"].get("phase") in ("Succeeded", "Failed"):
            raise internal(f"cannot exec in a stopped pod; current phase is {body['status']['phase']}")
        slot = self._reach("exec", body)[0].slots_by_name[name]
        if slot.current is None or not slot.running:
            raise internal(f'error executing command in container: container "{name}" is not running')
        return slot.current

    def _reach(self, what: str, body: Object) -> tuple[Pod, Ears]:
        """The pod on this node; 500 while nobody is there to ask."""
        if self._ears is None:
            raise internal(
                f'Get "https://{self.name}:10250/{what}": dial tcp {ADDRESS}:10250: connect: connection refused'
            )
        pod = self._pods.get(body["metadata"]["uid"])
        if pod is None:
            pod = Pod(body, self._around)
            pod.recover()
        return pod, self._ears

    def end_follows(self) -> None:
        """End every open log stream cleanly."""
        self._cut.set()
        self._cut = asyncio.Event()

    def rotate_log(self, namespace: str, pod: str, container: str) -> None:
        """Begin a new log file for a running container."""
        slot = self._pod(namespace, pod).slots_by_name.get(container)
        if slot is None or slot.current is None or not slot.running:
            raise bad_request(f"container {container} of pod {pod} is not running")
        slot.current.rotate_log()

    # ---------------------------------------------------------------- accidents

    async def restart(self, down: timedelta) -> None:
        """Die and come back after `down`."""
        await self.stop()
        await asyncio.sleep(down.total_seconds())
        self.start()

    async def evict(self, namespace: str, pod: str, reason: str, message: str) -> None:
        """End a pod under pressure: it stays, Failed."""
        victim = self._pod(namespace, pod)
        self._around.events.tell(PODS, victim.body, reason, message, warning=True)

        def disrupt(body: Object) -> None:
            set_condition(body["status"], "DisruptionTarget", "True", "TerminationByKubelet", message)

        self._store.change(PODS, namespace, pod, disrupt, victim.uid)
        victim.stop(timedelta(seconds=victim.body["spec"]["terminationGracePeriodSeconds"]), Verdict(reason, message))
        await self._tasks[victim.uid]

    async def lose(self, forget_after: timedelta) -> None:
        """Vanish: containers die unseen, the node is unknown, its pods are deleted and after a while forgotten."""
        pods = list(self._pods.values())
        runs = [slot.current for pod in pods for slot in pod.slots if slot.running and slot.current is not None]
        for run in runs:
            run.kill()
        await self.stop()
        self._set_ready("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
        message = "Taint manager: deleting due to NoExecute taint"
        for pod in pods:

            def mark(body: Object) -> None:
                set_condition(body["status"], "Ready", "False", "NodeNotReady")
                set_condition(body["status"], "DisruptionTarget", "True", "DeletionByTaintManager", message)

            body = self._store.change(PODS, pod.namespace, pod.name, mark, pod.uid)
            if body is not None:
                begin(self._store, PODS, body, "Background", None)
        await asyncio.sleep(forget_after.total_seconds())
        for pod in pods:

            def fail(body: Object) -> None:
                body["status"]["phase"] = "Failed"
                body["status"]["reason"] = "NodeLost"
                body["status"]["message"] = "PodGC: node no longer exists"
                body["metadata"]["deletionGracePeriodSeconds"] = 0

            self._store.change(PODS, pod.namespace, pod.name, fail, pod.uid)

    async def recover(self) -> None:
        """Come back after `lose`."""
        if self._ears is None:
            self.start()

    def _pod(self, namespace: str, name: str) -> Pod:
        for pod in self._pods.values():
            if (pod.namespace, pod.name) == (namespace, name):
                return pod
        raise bad_request(f"pod {namespace}/{name} is not on the node")

    # ---------------------------------------------------------------- the Node object

    def _set_ready(self, value: str, reason: str, message: str) -> None:
        if self._store.find(NODES, "", self.name) is None:
            self._store.add(NODES, _node(self.name))

        def tell(body: Object) -> None:
            set_condition(body["status"], "Ready", value, reason, message)
            taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
            body["spec"] = {} if value == "True" else {"taints": taints}

        node = self._store.get(NODES, "", self.name)
        if (condition(node, "Ready") or {}).get("status") != value:
            self._store.change(NODES, "", self.name, tell)


def _choose_container(body: Object, container: str | None) -> str:
    name = body["metadata"]["name"]
    mains = [one["name"] for one in body["spec"]["containers"]]
    inits = [one["name"] for one in body["spec"].get("initContainers") or ()]
    if container is None:
        if len(mains) == 1:
            return str(mains[0])
        choice = f"choose one of: [{' '.join(inits + mains)}]"
        raise bad_request(f"a container name must be specified for pod {name}, {choice}")
    if container not in mains + inits:
        raise bad_request(f"container {container} is not valid for pod {name}")
    return container


def _choose_run(slot: Slot, pod: Pod, *, previous: bool) -> Instance:
    run = slot.last if previous else (slot.shown or slot.last)
    if run is not None:
        return run
    if previous:
        raise bad_request(f'previous terminated container "{slot.name}" in pod "{pod.name}" not found')
    raise bad_request(f'container "{slot.name}" in pod "{pod.name}" is waiting to start: {pod.waits_for(slot)}')


def _node(name: str) -> Object:
    memory = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki"
    room = {"cpu": str(os.cpu_count() or 1), "memory": memory, "pods": "1000"}
    system = {
        "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": platform.release(),
        "osImage": "the host", "containerRuntimeVersion": "embedded://1", "kubeletVersion": VERSION,
        "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": platform.machine(),
    }  # fmt: skip
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "spec": {},
        "status": {
            "capacity": room,
            "allocatable": room,
            "addresses": [{"type": "InternalIP", "address": ADDRESS}, {"type": "Hostname", "address": name}],
            "conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": stamp()}],
            "nodeInfo": system,
        },
    }
