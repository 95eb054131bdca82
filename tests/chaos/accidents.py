"""What may befall a followed container, drawn by a seed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from local.cluster import EmbeddedCluster
from local.cluster.faults import HttpFault
from tests.chaos.proxy import Network
from tests.chaos.workload import Run

LOG, POD, EXEC = "pods/{}/log", "pods/{}$", "pods/{}/exec"
WORDS = (
    "rpc error: code = Unknown desc = Error: No such container\n",
    "failed to create fsnotify watcher: too many open files",
    "unable to retrieve container logs for containerd://0",
    "failed to watch file: no space left on device\n2026-",
)


Accident = Callable[[], Awaitable[None]]


@dataclass
class Accidents:
    """One thing after another goes wrong for a run, on its way over the network and in its worker.

    Attributes:
        done: the names of those that took effect at once.
        ordered: faults that wait for the next request.
    """

    network: Network
    run: Run
    random: Random
    done: list[str] = field(default_factory=list)
    ordered: list[HttpFault] = field(default_factory=list)

    @property
    def suffered(self) -> int:
        """How many have hit."""
        return len(self.done) + sum(fault.hits for fault in self.ordered)

    @property
    def kinds(self) -> Sequence[Accident]:
        """What may happen, the likelier the oftener."""
        return [
            self._cut, self._cut, self._words, self._refused, self._refused, self._slow, self._ended,
            self._no_status, self._no_exec, self._handed_over, self._killed,
        ]  # fmt: skip

    async def happen(self, least: int) -> None:
        """Until `least` have hit."""
        await self.run.reached(1)
        while self.suffered < least:
            await self.random.choice(self.kinds)()
            await asyncio.sleep(self.random.uniform(0.02, 0.6))

    def _order(self, path: str, **what: object) -> None:
        self.ordered.append(self.network.http(path=path.format(self.run.pod.name), **what))

    async def _cut(self) -> None:
        self._order(LOG, cut_after=int(self.random.expovariate(1 / 20_000)), clean=self.random.random() < 0.5)
        self.network.end_follows()

    async def _words(self) -> None:
        """The kubelet says something, behind any byte."""
        after = self.random.choice([0, 100, 9000, 70_000]) + self.random.randrange(100)
        self._order(LOG, cut_after=after, clean=True, text=self.random.choice(WORDS))
        self.network.end_follows()

    async def _refused(self) -> None:
        status, after = self.random.choice([429, 500, 503, 504]), self.random.choice([None, 1])
        self._order(LOG, status=status, retry_after=after, times=self.random.randint(1, 3))
        self.network.end_follows()

    async def _slow(self) -> None:
        self._order(LOG, delay=self.random.uniform(0.1, 1.0))
        self.network.end_follows()

    async def _ended(self) -> None:
        self.done.append("clean end")
        self.network.end_follows()

    async def _no_status(self) -> None:
        self._order(POD, status=self.random.choice([429, 500, 503]), times=2)
        self.network.end_follows()

    async def _no_exec(self) -> None:
        if self.random.random() < 0.5:
            self._order(EXEC, status=500)
        else:
            self._order(EXEC, cut_after=self.random.choice([0, 5000]))

    async def _handed_over(self) -> None:
        self.done.append("hand-over")
        self.run.hand_over()

    async def _killed(self) -> None:
        self.done.append("killed worker")
        self.run.kill()


@dataclass
class EmbeddedAccidents(Accidents):
    """The same, and what the embedded cluster's node can do."""

    embedded: EmbeddedCluster = field(kw_only=True)

    @property
    def kinds(self) -> Sequence[Accident]:
        return [*super().kinds, self._kubelet, self._rotated, self._rotated_behind_a_cut]

    async def _kubelet(self) -> None:
        self.done.append("kubelet")
        await self.embedded.faults.restart_kubelet(self.random.choice([0.0, 0.3, 1.0]))

    async def _rotated(self) -> None:
        with suppress(FileNotFoundError):  # the new file of the last rotation is not there yet
            self.embedded.faults.rotate_log(self.run.pod.name, self.run.pod.container)
            self.done.append("rotation")

    async def _rotated_behind_a_cut(self) -> None:
        """Nobody reads while the log is rotated, so the log will never have what was not read yet."""
        self._order(LOG, cut_after=self.random.choice([0, 3000]))
        self._order(LOG, status=503, times=2)
        self.network.end_follows()
        await asyncio.sleep(self.random.uniform(0.1, 0.4))
        await self._rotated()
