"""Faults of a followed container, drawn at random from a seed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from agent_runs.contracts.pod import SIDECAR_CONTAINER
from dev_stack.cluster import EmbeddedCluster
from dev_stack.cluster.faults import HttpFault
from tests.chaos.faulty_network import FaultyNetwork
from tests.chaos.workload import FollowedRun

LOG, POD, EXEC = "pods/{}/log", "pods/{}$", "pods/{}/exec"
KUBELET_MESSAGES = (
    "rpc error: code = Unknown desc = Error: No such container\n",
    "failed to create fsnotify watcher: too many open files",
    "unable to retrieve container logs for containerd://0",
    "failed to watch file: no space left on device\n2026-",
)


InjectFault = Callable[[], Awaitable[None]]


@dataclass
class RandomFaults:
    """Injects one fault after the other into a run: on the network and in its worker.

    Attributes:
        immediate: the names of faults that took effect at once.
        requested: faults that take effect on the next matching request.
    """

    network: FaultyNetwork
    run: FollowedRun
    random: Random
    immediate: list[str] = field(default_factory=list)
    requested: list[HttpFault] = field(default_factory=list)

    @property
    def hits(self) -> int:
        return len(self.immediate) + sum(fault.hits for fault in self.requested)

    @property
    def kinds(self) -> Sequence[InjectFault]:
        """The possible faults; one that is listed twice is twice as likely."""
        return [
            self._cut, self._cut, self._kubelet_message, self._refused, self._refused, self._slow, self._clean_end,
            self._no_status, self._no_exec, self._worker_shutdown, self._worker_killed,
        ]  # fmt: skip

    async def inject(self, least: int) -> None:
        """Inject until at least so many took effect."""
        await self.run.until_stored(1)
        while self.hits < least:
            await self.random.choice(self.kinds)()
            await asyncio.sleep(self.random.uniform(0.02, 0.6))

    def _fault(self, path: str, **what: object) -> None:
        self.requested.append(self.network.http(path=path.format(self.run.pod.name), **what))

    async def _cut(self) -> None:
        self._fault(LOG, cut_after=int(self.random.expovariate(1 / 20_000)), clean=self.random.random() < 0.5)
        self.network.end_follows()

    async def _kubelet_message(self) -> None:
        """A message of the kubelet behind any byte."""
        after = self.random.choice([0, 100, 9000, 70_000]) + self.random.randrange(100)
        self._fault(LOG, cut_after=after, clean=True, text=self.random.choice(KUBELET_MESSAGES))
        self.network.end_follows()

    async def _refused(self) -> None:
        status, after = self.random.choice([429, 500, 503, 504]), self.random.choice([None, 1])
        self._fault(LOG, status=status, retry_after=after, times=self.random.randint(1, 3))
        self.network.end_follows()

    async def _slow(self) -> None:
        self._fault(LOG, delay=self.random.uniform(0.1, 1.0))
        self.network.end_follows()

    async def _clean_end(self) -> None:
        self.immediate.append("clean end")
        self.network.end_follows()

    async def _no_status(self) -> None:
        self._fault(POD, status=self.random.choice([429, 500, 503]), times=2)
        self.network.end_follows()

    async def _no_exec(self) -> None:
        if self.random.random() < 0.5:
            self._fault(EXEC, status=500)
        else:
            self._fault(EXEC, cut_after=self.random.choice([0, 5000]))

    async def _worker_shutdown(self) -> None:
        self.immediate.append("worker shutdown")
        self.run.shut_down_worker()

    async def _worker_killed(self) -> None:
        self.immediate.append("killed worker")
        self.run.kill_worker()


@dataclass
class EmbeddedFaults(RandomFaults):
    """In addition the faults of the embedded cluster's node."""

    embedded: EmbeddedCluster = field(kw_only=True)

    @property
    def kinds(self) -> Sequence[InjectFault]:
        return [*super().kinds, self._kubelet_restart, self._rotated, self._rotated_behind_a_cut]

    async def _kubelet_restart(self) -> None:
        self.immediate.append("kubelet")
        await self.embedded.faults.restart_kubelet(self.random.choice([0.0, 0.3, 1.0]))

    async def _rotated(self) -> None:
        with suppress(FileNotFoundError):  # the new file of the last rotation is not there yet
            self.embedded.faults.rotate_log(self.run.pod.name, SIDECAR_CONTAINER)
            self.immediate.append("rotation")

    async def _rotated_behind_a_cut(self) -> None:
        """Nobody reads while the log is rotated, so the log never has what was not read yet."""
        self._fault(LOG, cut_after=self.random.choice([0, 3000]))
        self._fault(LOG, status=503, times=2)
        self.network.end_follows()
        await asyncio.sleep(self.random.uniform(0.1, 0.4))
        await self._rotated()
