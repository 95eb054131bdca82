"""One pod on the node: its volumes, its containers in their order, and its end."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dev_stack.cluster.containers import Container, Namespaces, Process
from dev_stack.cluster.environment import NotConfigured, command, environment, expand
from dev_stack.cluster.events import Recorder
from dev_stack.cluster.faults import NodeFaults
from dev_stack.cluster.kinds import PODS, SECRETS, Object
from dev_stack.cluster.objects import deleting, parse_stamp
from dev_stack.cluster.pod_status import PodEnd, Slot, status_of, waiting_state
from dev_stack.cluster.store import Store
from dev_stack.cluster.volumes import Mount, NotMounted, Volumes, host_path

_RETRY = timedelta(seconds=1)
"""Between attempts to start a container whose Secret is missing; a real kubelet takes longer."""
_PULL_RETRY = timedelta(seconds=10)
_MESSAGE_PATH = "/dev/termination-log"
_FORCED_GRACE = timedelta(seconds=2)
"""What a kubelet gives a pod that was deleted without grace."""


@dataclass(frozen=True)
class NodeContext:
    """What every pod of the node shares.

    Attributes:
        working: not set while the kubelet is down; then nothing is published.
    """

    store: Store
    state: Path
    events: Recorder
    faults: NodeFaults
    namespaces: Namespaces
    working: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def claims(self) -> Path:
        """Where the data of persistent volume claims is kept."""
        return self.state / "claims"

    def pod_directory(self, uid: str) -> Path:
        """Where a pod's volumes and logs are."""
        return self.state / "pods" / uid


class Pod:
    """Runs one pod from its binding to its end."""

    def __init__(self, body: Object, node: NodeContext) -> None:
        self.body = body
        self.uid = str(body["metadata"]["uid"])
        self.namespace = str(body["metadata"]["namespace"])
        self.name = str(body["metadata"]["name"])
        self.directory = node.pod_directory(self.uid)
        self.slots = [Slot(one, init=True) for one in body["spec"].get("initContainers") or ()]
        self.slots += [Slot(one, init=False) for one in body["spec"]["containers"]]
        self._node = node
        self.has_sandbox = True
        self._end: PodEnd | None = None
        self._stopping = asyncio.Event()
        self._kill_timers: list[asyncio.TimerHandle] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._volumes = Volumes(body, self.directory / "volumes", node.claims, self._secret)

    def slot(self, name: str) -> Slot:
        return next(slot for slot in self.slots if slot.name == name)

    def waits_for(self, slot: Slot) -> str:
        """Why a container has no log yet, worded as the kubelet words it."""
        reason = str(waiting_state(slot, self.slots)["reason"])
        return "trying and failing to pull image" if reason in ("ErrImagePull", "ImagePullBackOff") else reason

    # ---------------------------------------------------------------- life

    async def run(self) -> None:
        """From the first status to the last one."""
        try:
            self.publish()
            self.follow_deadline(self.body)
            await self._run_containers()
        finally:
            for timer in (*self._kill_timers, self._deadline):
                if timer is not None:
                    timer.cancel()
        self.publish()  # the ends of all containers; the phase follows once the sandbox has ended
        while self._node.faults.sandboxes_stay:
            await self._node.faults.changed.wait()
        self.has_sandbox = False
        self.publish()

    async def _run_containers(self) -> None:
        if not await self._set_up_volumes():
            return
        for slot in self.slots:
            if slot.init:
                await self._run_slot(slot)
                if not slot.succeeded:
                    return
        async with asyncio.TaskGroup() as tasks:
            for slot in self.slots:
                if not slot.init:
                    tasks.create_task(self._run_slot(slot))

    async def _set_up_volumes(self) -> bool:
        while not self._stopping.is_set():
            try:
                self._volumes.prepare()
            except (NotMounted, OSError) as problem:
                self._event("FailedMount", str(problem), warning=True)
                self.publish()
                await self._pause(_RETRY)
            else:
                return True
        return False

    def refresh_volumes(self) -> None:
        self._volumes.refresh()

    async def _run_slot(self, slot: Slot) -> None:
        """Run a container to its end, starting it as soon as its image and configuration are there."""
        while slot.container is None and not self._stopping.is_set():
            if not await self._pull(slot):
                continue
            try:
                slot.container = await self._start(slot)
            except (NotConfigured, NotMounted, OSError) as problem:
                known = isinstance(problem, NotConfigured)
                self._wait(slot, "CreateContainerConfigError" if known else "CreateContainerError", str(problem))
                self._event("Failed", f"Error: {problem}", warning=True, slot=slot)
                await self._pause(_RETRY)
        if slot.container is not None:
            await self._follow(slot, slot.container)
        self.publish()

    async def _follow(self, slot: Slot, container: Container) -> None:
        if self._stopping.is_set():
            container.terminate()
        if container.end is not None and container.end.reason == "StartError":
            text = f"Error: failed to create containerd task: {container.end.message}"
            self._event("Failed", text, warning=True, slot=slot)
        else:
            self._event("Started", f"Started container {slot.name}", slot=slot)
        self.publish()
        await container.finished.wait()

    # ---------------------------------------------------------------- starting

    async def _pull(self, slot: Slot) -> bool:
        """Images are only names, unless a fault refuses one; then this waits a back-off and returns False."""
        image = slot.spec["image"]
        refusal = self._node.faults.images.get(image)
        if refusal is None:
            self._event("Pulled", f'Container image "{image}" already present on machine', slot=slot)
            return True
        message = f'failed to pull and unpack image "{image}": {refusal}'
        self._event("Failed", f'Failed to pull image "{image}": {message}', warning=True, slot=slot)
        self._event("Failed", "Error: ErrImagePull", warning=True, slot=slot)
        self._wait(slot, "ErrImagePull", message)
        await self._pause(_RETRY)
        self._wait(slot, "ImagePullBackOff", f'Back-off pulling image "{image}"')
        self._event("BackOff", f'Back-off pulling image "{image}"', slot=slot)
        await self._pause(_PULL_RETRY)
        return False

    async def _start(self, slot: Slot) -> Container:
        namespaces = self._node.namespaces
        variables = environment(slot.spec, self.namespace, self._secret)
        mounts = self._volumes.mounts(slot.spec)
        if mounts and not namespaces.mount:
            why = f"this system permits no private mount namespace ({namespaces.problem})"
            raise NotMounted(f"volumes cannot be mounted: {why}")
        defaults = {"PATH": host_path(), "HOSTNAME": self.name, "HOME": "/"}
        defaults["RUNNER_CGROUP"] = ""  # no container has a cgroup of its own: the host's would mislead
        workdir = expand(slot.spec.get("workingDir") or "/", variables)
        log_is_message = slot.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        message = self._termination_log(slot) if namespaces.mount else None
        if message:
            mounts = [
                *mounts,
                Mount(message, slot.spec.get("terminationMessagePath") or _MESSAGE_PATH, read_only=False),
            ]
        argv = command(slot.spec, variables)
        process = Process(argv, defaults | variables, workdir, mounts, message, log_is_message)
        container = await Container.start(self.directory / slot.name, process, namespaces)
        self._event("Created", f"Created container {slot.name}", slot=slot)
        return container

    def _termination_log(self, slot: Slot) -> str:
        file = self.directory / slot.name / "termination-log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        return str(file)

    # ---------------------------------------------------------------- stopping

    def stop(self, grace: timedelta, end: PodEnd | None = None) -> None:
        """SIGTERM now, SIGKILL after `grace`; a later call can only shorten that."""
        if not self._stopping.is_set():
            self._end = end
            self._stopping.set()
            for slot in self.slots:
                if slot.container is not None and slot.running:
                    self._event("Killing", f"Stopping container {slot.name}", slot=slot)
                    slot.container.terminate()
        loop = asyncio.get_running_loop()
        self._kill_timers.append(loop.call_later(grace.total_seconds(), self.kill))

    def kill(self) -> None:
        for slot in self.slots:
            if slot.container is not None:
                slot.container.kill()

    def stop_for_deletion(self, body: Object) -> None:
        """Follow the pod's deletion, with the grace it names."""
        seconds = body["metadata"].get("deletionGracePeriodSeconds")
        self.stop(timedelta(seconds=seconds) if seconds else _FORCED_GRACE)

    @property
    def grace(self) -> timedelta:
        return timedelta(seconds=self.body["spec"]["terminationGracePeriodSeconds"])

    def follow_deadline(self, body: Object) -> None:
        """Follow `activeDeadlineSeconds`, which may be set or lowered while the pod runs."""
        if self._deadline is not None:
            self._deadline.cancel()
        seconds = body["spec"].get("activeDeadlineSeconds")
        if seconds is None or "startTime" not in body["status"] or self._stopping.is_set():
            return
        left = parse_stamp(body["status"]["startTime"]) + timedelta(seconds=seconds) - datetime.now(UTC)
        end = PodEnd("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(max(0.0, left.total_seconds()), self.stop, self.grace, end)

    # ---------------------------------------------------------------- publishing

    def publish(self) -> None:
        """Write the status, unless the kubelet is down."""
        if not self._node.working.is_set():
            return

        def write(body: Object) -> None:
            body["status"] = status_of(body, self.slots, self._end, has_sandbox=self.has_sandbox)

        body = self._node.store.change(PODS, self.namespace, self.name, write, self.uid)
        if body is not None:
            self.body = body

    def leave(self) -> None:
        """Remove a deleted pod, whose containers have ended, from the API."""

        def release(body: Object) -> None:
            if deleting(body):
                body["metadata"]["deletionGracePeriodSeconds"] = 0

        self._node.store.change(PODS, self.namespace, self.name, release, self.uid)

    def wipe(self) -> None:
        """Remove everything the pod had on disk, logs included."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _wait(self, slot: Slot, reason: str, message: str) -> None:
        slot.reason, slot.message = reason, message
        self.publish()

    def _event(self, reason: str, message: str, *, warning: bool = False, slot: Slot | None = None) -> None:
        field_path = "" if slot is None else f"spec.{'initContainers' if slot.init else 'containers'}{{{slot.name}}}"
        self._node.events.record(PODS, self.body, reason, message, warning=warning, field=field_path)

    async def _pause(self, pause: timedelta) -> None:
        """Wait, unless the pod stops or somebody changes the faults."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._stopping, self._node.faults.changed)]
        try:
            await asyncio.wait(waits, timeout=pause.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _secret(self, name: str) -> Object | None:
        return self._node.store.find(SECRETS, self.namespace, name)
