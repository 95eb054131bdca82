"""One pod on the node: its volumes, its containers in their order, their restarts, and its end."""

from __future__ import annotations

import asyncio
import re
import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from local.cluster.environment import NotConfigured, command, environment, expand
from local.cluster.events import Recorder
from local.cluster.faults import Faults
from local.cluster.instances import Instance, Namespaces, Process
from local.cluster.kinds import PODS, Kind, Object
from local.cluster.logs import tail_offset
from local.cluster.objects import deleting, parse_stamp
from local.cluster.pod_status import Slot, Verdict, status_of, waiting_state
from local.cluster.store import Store
from local.cluster.volumes import Mount, NotMounted, Volumes, host_path

ADDRESS = "127.0.0.1"
_RETRY = timedelta(seconds=1)  # between looks for a missing Secret; a real kubelet takes longer
_LONGEST_BACKOFF = timedelta(minutes=5)
_FORCED_GRACE = timedelta(seconds=2)  # what a kubelet gives a pod that was deleted without grace
_IMAGE = re.compile(r"[a-z0-9]+([._/:@-]+[a-zA-Z0-9_]+)*")
_MESSAGE_LIMIT = 4096  # bytes of a termination message


@dataclass(frozen=True)
class Surroundings:
    """What every pod of the node shares."""

    store: Store
    state: Path
    events: Recorder
    faults: Faults
    namespaces: Namespaces
    backoff: timedelta
    status_lag: timedelta

    @property
    def claims(self) -> Path:
        """Where the data of persistent volume claims is kept."""
        return self.state / "claims"


class Pod:
    """Runs one pod from its binding to its end, or takes up again what an earlier kubelet had begun."""

    def __init__(self, body: Object, around: Surroundings) -> None:
        self.body = body
        self.uid = str(body["metadata"]["uid"])
        self.directory = around.state / "pods" / self.uid
        self.slots = [Slot(one, init=True) for one in body["spec"].get("initContainers") or ()]
        self.slots += [Slot(one, init=False) for one in body["spec"]["containers"]]
        self._around = around
        self._verdict: Verdict | None = None
        self._stopping = asyncio.Event()
        self._kill_timers: list[asyncio.TimerHandle] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._pending: asyncio.TimerHandle | None = None
        self._known = [body["metadata"].get(part) for part in ("labels", "annotations")]
        self._volumes = Volumes(body, self.directory / "volumes", around.claims, self._lookup)

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return str(self.body["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.body["metadata"]["name"])

    @property
    def slots_by_name(self) -> dict[str, Slot]:
        """The pod's containers."""
        return {slot.name: slot for slot in self.slots}

    def waits_for(self, slot: Slot) -> str:
        """Why a container has no log yet, in the kubelet's words."""
        told = str(waiting_state(slot, self.slots)["reason"])
        return {
            "ErrImagePull": "image can't be pulled",
            "ImagePullBackOff": "trying and failing to pull image",
        }.get(told, told)

    # ---------------------------------------------------------------- life

    async def run(self) -> None:
        """From the first look to the last status. Cancelling lets go of the containers without touching them."""
        try:
            self.recover()
            self._publish()
            self.heed_deadline(self.body)
            await self._run_containers()
            for slot in self.slots:
                slot.final = slot.final or not slot.init
            self._publish()
            await self._until_published()
        finally:
            for timer in (*self._kill_timers, self._pending, self._deadline):
                if timer is not None:
                    timer.cancel()
            for slot in self.slots:
                if slot.current is not None:
                    slot.current.let_go()

    async def _run_containers(self) -> None:
        if not await self._set_up_volumes():
            return
        policy = self.body["spec"]["restartPolicy"]
        for slot in self.slots:
            if slot.init and not await self._run_slot(slot, "OnFailure" if policy == "Always" else policy):
                return
        async with asyncio.TaskGroup() as tasks:
            for slot in self.slots:
                if not slot.init:
                    tasks.create_task(self._run_slot(slot, policy))

    def recover(self) -> None:
        """Find the runs an earlier kubelet has left on disk."""
        for slot in self.slots:
            place = self.directory / slot.name
            numbers = sorted(int(path.name) for path in place.iterdir()) if place.exists() else []
            runs = [Instance.adopt(place / str(number), number) for number in numbers[-2:]]
            if runs:
                slot.current = runs[-1]
                slot.previous = runs[0] if len(runs) > 1 else None

    async def _set_up_volumes(self) -> bool:
        while not self._stopping.is_set():
            try:
                self._volumes.prepare()
            except (NotMounted, OSError) as problem:
                self._tell("FailedMount", str(problem), warning=True)
                self._publish()
                await self._pause(_RETRY)
            else:
                return True
        return False

    def heed_metadata(self, body: Object) -> None:
        """A kubelet looks at the whole pod again when its labels or annotations change, its volumes included."""
        known = [body["metadata"].get(part) for part in ("labels", "annotations")]
        if known != self._known:
            self._known = known
            self.refresh_volumes()

    def refresh_volumes(self) -> None:
        """Bring the files of Secrets and ConfigMaps up to date."""
        self._volumes.refresh()

    async def _run_slot(self, slot: Slot, policy: str) -> bool:
        """Run a container, again as its policy says; returns whether its last run succeeded."""
        run = slot.current or await self._start(slot, 0)
        while run is not None:
            await run.finished.wait()
            self._note_end(slot)
            again = policy == "Always" or (policy == "OnFailure" and slot.exit_code != 0)
            if not again or self._stopping.is_set():
                break
            self._publish()
            await self._back_off(slot, run.number)
            run = await self._start(slot, run.number + 1)
        slot.final = True
        if slot.current is not None:
            slot.waiting = ""
        self._publish()
        return slot.exit_code == 0

    async def _back_off(self, slot: Slot, number: int) -> None:
        """The first restart comes at once, later ones after doubling pauses."""
        if number == 0:
            return
        pause = min(self._around.backoff * 2 ** min(number - 1, 20), _LONGEST_BACKOFF)
        slot.waiting = "CrashLoopBackOff"
        slot.waiting_message = (
            f"back-off {pause.total_seconds():g}s restarting failed container={slot.name} "
            f"pod={self.name}_{self.namespace}({self.uid})"
        )
        self._tell("BackOff", "Back-off restarting failed container", warning=True, slot=slot)
        self._publish()
        await self._pause(pause)

    # ---------------------------------------------------------------- starting

    async def _start(self, slot: Slot, number: int) -> Instance | None:
        """Start one run, trying until its image and configuration are there; None if the pod stops before."""
        while not self._stopping.is_set():
            if await self._pull(slot):
                try:
                    return await self._launch(slot, number)
                except NotConfigured as problem:
                    self._wait(slot, "CreateContainerConfigError", str(problem))
                    self._tell("Failed", f"Error: {problem}", warning=True, slot=slot)
                    await self._pause(_RETRY)
                except (NotMounted, OSError) as problem:
                    self._wait(slot, "CreateContainerError", str(problem))
                    self._tell("Failed", f"Error: {problem}", warning=True, slot=slot)
                    await self._pause(_RETRY)
        return None

    async def _pull(self, slot: Slot) -> bool:
        """Images are only names, unless a fault refuses one; then this waits a back-off and says False."""
        image, policy = slot.spec["image"], slot.spec.get("imagePullPolicy")
        if not _IMAGE.fullmatch(image):
            message = f'Failed to apply default image tag "{image}": couldn\'t parse image reference "{image}": '
            message += "invalid reference format"
            self._wait(slot, "InvalidImageName", message)
            self._tell("InspectFailed", message, warning=True, slot=slot)
            await self._pause(_LONGEST_BACKOFF)
            return False
        refusal = self._around.faults.images.get(image)
        if refusal is None:
            self._tell("Pulled", f'Container image "{image}" already present on machine', slot=slot)
            return True
        if policy == "Never":
            message = f'Container image "{image}" is not present with pull policy of Never'
            self._wait(slot, "ErrImageNeverPull", message)
            self._tell("ErrImageNeverPull", message, warning=True, slot=slot)
            await self._pause(_RETRY)
            return False
        message = f'failed to pull and unpack image "{image}": {refusal}'
        self._tell("Pulling", f'Pulling image "{image}"', slot=slot)
        self._tell("Failed", f'Failed to pull image "{image}": {message}', warning=True, slot=slot)
        self._tell("Failed", "Error: ErrImagePull", warning=True, slot=slot)
        self._wait(slot, "ErrImagePull", message)
        await self._pause(self._around.backoff / 10)
        self._wait(slot, "ImagePullBackOff", f'Back-off pulling image "{image}"')
        self._tell("BackOff", f'Back-off pulling image "{image}"', slot=slot)
        self._tell("Failed", "Error: ImagePullBackOff", warning=True, slot=slot)
        await self._pause(self._around.backoff)
        return False

    async def _launch(self, slot: Slot, number: int) -> Instance:
        variables = environment(slot.spec, self.body, self._lookup)
        defaults = {"PATH": host_path(), "HOSTNAME": self.name, "HOME": "/"}
        directory = self.directory / slot.name / str(number)
        mounts = self._volumes.mounts(slot.spec)
        if not self._around.namespaces.mount and mounts:
            raise NotMounted(
                "volumes cannot be mounted: this system permits no private mount namespace "
                f"({self._around.namespaces.problem})"
            )
        if self._around.namespaces.mount:
            mounts.append(self._termination_log(slot, number))
        words = command(slot.spec, variables)
        workdir = expand(slot.spec.get("workingDir") or "/", variables)
        process = Process(words, defaults | variables, workdir, mounts)
        instance = Instance(directory, number)
        own_pids = self._around.namespaces.pid and not self.body["spec"].get("hostPID")
        await instance.start(process, replace(self._around.namespaces, pid=own_pids))
        slot.previous, slot.current = slot.current, instance
        slot.waiting = slot.waiting_message = ""
        self._forget_old_runs(slot)
        self._tell("Created", f"Created container {slot.name}", slot=slot)
        if instance.end is None or instance.end.reason != "StartError":
            self._tell("Started", f"Started container {slot.name}", slot=slot)
        if self._stopping.is_set():
            instance.terminate()
        self._publish()
        return instance

    def _termination_log(self, slot: Slot, number: int) -> Mount:
        path = self.directory / "termination" / slot.name / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(0o666)
        return Mount(str(path), slot.spec["terminationMessagePath"], read_only=False)

    def _note_end(self, slot: Slot) -> None:
        """Fill in what the run's end does not tell itself: its last words."""
        run = slot.current
        if run is None or run.end is None:
            return
        if run.end.reason == "StartError":
            self._tell("Failed", f"Error: failed to create containerd task: {run.end.message}", warning=True, slot=slot)
            return
        path = self.directory / "termination" / slot.name / str(run.number)
        words = path.read_bytes()[:_MESSAGE_LIMIT] if path.exists() else b""
        if not words and run.end.code and slot.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            with run.log.open("rb") as file:
                file.seek(tail_offset(run.log, 80))
                lines = [line.split(b" ", 3)[-1] for line in file.read().splitlines(keepends=True)]
            words = b"".join(lines)[-2048:]
        if words:
            run.end = replace(run.end, message=words.decode(errors="replace"))

    def _forget_old_runs(self, slot: Slot) -> None:
        if slot.previous is not None and slot.previous.number > 0:
            shutil.rmtree(self.directory / slot.name / str(slot.previous.number - 1), ignore_errors=True)

    # ---------------------------------------------------------------- stopping

    def stop(self, grace: timedelta, verdict: Verdict | None = None) -> None:
        """SIGTERM now, SIGKILL after `grace`; a later call can only shorten that."""
        if not self._stopping.is_set():
            self._verdict = verdict
            self._stopping.set()
            for slot in self.slots:
                if slot.running and slot.current is not None:
                    self._tell("Killing", f"Stopping container {slot.name}", slot=slot)
                    slot.current.terminate()
        loop = asyncio.get_running_loop()
        self._kill_timers.append(loop.call_later(grace.total_seconds(), self._kill))

    def give_up(self, verdict: Verdict) -> None:
        """Publish the pod as Failed, with what runs of it killed."""
        self._verdict = verdict
        self._kill()
        for slot in self.slots:
            slot.final = True
        self._write_status()

    def stop_for_deletion(self, body: Object) -> None:
        """Follow the pod's deletion, with the grace it names."""
        seconds = body["metadata"].get("deletionGracePeriodSeconds")
        if not seconds:
            self.stop(_FORCED_GRACE)
            return
        # The stamp has whole seconds; after a restart of the kubelet only what is left of the grace is given.
        left = parse_stamp(body["metadata"]["deletionTimestamp"]) - datetime.now(UTC) + timedelta(seconds=1)
        self.stop(max(timedelta(), min(left, timedelta(seconds=seconds))))

    def _kill(self) -> None:
        for slot in self.slots:
            if slot.running and slot.current is not None:
                slot.current.kill()

    def heed_deadline(self, body: Object) -> None:
        """Follow `activeDeadlineSeconds`, which may be set or lowered while the pod runs."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        seconds = body["spec"].get("activeDeadlineSeconds")
        if seconds is None or "startTime" not in body["status"] or self._stopping.is_set():
            return
        left = parse_stamp(body["status"]["startTime"]) + timedelta(seconds=seconds) - datetime.now(UTC)
        verdict = Verdict("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
        grace = timedelta(seconds=body["spec"]["terminationGracePeriodSeconds"])
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(max(0.0, left.total_seconds()), self.stop, grace, verdict)

    # ---------------------------------------------------------------- telling

    def _wait(self, slot: Slot, reason: str, message: str) -> None:
        slot.waiting, slot.waiting_message = reason, message
        self._publish()

    def _tell(self, reason: str, message: str, *, warning: bool = False, slot: Slot | None = None) -> None:
        field = "" if slot is None else f"spec.{'initContainers' if slot.init else 'containers'}{{{slot.name}}}"
        self._around.events.tell(PODS, self.body, reason, message, warning=warning, field=field)

    def _publish(self) -> None:
        """Write the status now, or a little later, as real kubelets do."""
        if not self._around.status_lag:
            self._write_status()
        elif self._pending is None:
            lag = self._around.status_lag.total_seconds()
            self._pending = asyncio.get_running_loop().call_later(lag, self._write_status)

    async def _until_published(self) -> None:
        if self._pending is not None:
            await asyncio.sleep(self._around.status_lag.total_seconds())

    def _write_status(self) -> None:
        self._pending = None

        def write(body: Object) -> None:
            body["status"] = status_of(body, self.slots, self._verdict, ADDRESS)

        body = self._around.store.change(PODS, self.namespace, self.name, write, self.uid)
        if body is not None:
            self.body = body

    async def _pause(self, pause: timedelta) -> None:
        """Wait, unless the pod stops or somebody changes the faults."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        changed = asyncio.ensure_future(self._around.faults.changed.wait())
        try:
            await asyncio.wait((stopping, changed), timeout=pause.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            changed.cancel()

    def _lookup(self, kind: Kind, name: str) -> Object | None:
        return self._around.store.find(kind, self.namespace, name)

    def leave(self) -> None:
        """Take a deleted pod, whose containers have ended, out of the API."""

        def release(body: Object) -> None:
            if deleting(body):
                body["metadata"]["deletionGracePeriodSeconds"] = 0

        self._around.store.change(PODS, self.namespace, self.name, release, self.uid)

    def wipe(self) -> None:
        """Remove everything the pod had on disk, logs included."""
        shutil.rmtree(self.directory, ignore_errors=True)
