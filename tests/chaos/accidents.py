"""What may befall a followed container on the embedded cluster, drawn by a seed."""

import asyncio
from dataclasses import dataclass, field
from random import Random

from local.cluster import EmbeddedCluster
from local.cluster.faults import HttpFault
from tests.chaos.workload import Run

LOG, POD, EXEC = "pods/{}/log", "pods/{}$", "pods/{}/exec"
WORDS = (
    "rpc error: code = Unknown desc = Error: No such container\n",
    "failed to create fsnotify watcher: too many open files",
    "unable to retrieve container logs for containerd://0",
    "failed to watch file: no space left on device\n2026-",
)


@dataclass
class Accidents:
    """One thing after another goes wrong for a run.

    Attributes:
        done: the names of those that took effect at once.
        ordered: faults that wait for the next request.
    """

    embedded: EmbeddedCluster
    run: Run
    random: Random
    done: list[str] = field(default_factory=list)
    ordered: list[HttpFault] = field(default_factory=list)

    @property
    def suffered(self) -> int:
        """How many have hit."""
        return len(self.done) + sum(fault.hits for fault in self.ordered)

    async def happen(self, least: int) -> None:
        """Until `least` have hit."""
        await self.run.reached(1)
        while self.suffered < least:
            await self._one()
            await asyncio.sleep(self.random.uniform(0.02, 0.6))

    async def _one(self) -> None:
        kinds = [
            self._cut, self._cut, self._words, self._refused, self._refused, self._slow, self._ended, self._kubelet,
            self._rotated, self._rotated_behind_a_cut, self._no_status, self._no_exec, self._handed_over,
        ]  # fmt: skip
        await self.random.choice(kinds)()

    def _order(self, path: str, **what: object) -> None:
        self.ordered.append(self.embedded.faults.http(path=path.format(self.run.pod.name), **what))

    async def _cut(self) -> None:
        self._order(LOG, cut_after=int(self.random.expovariate(1 / 20_000)), clean=self.random.random() < 0.5)
        self.embedded.faults.end_follows()

    async def _words(self) -> None:
        after = self.random.choice([0, 100, 9000, 70_000])
        self._order(LOG, cut_after=after, clean=True, text=self.random.choice(WORDS))
        self.embedded.faults.end_follows()

    async def _refused(self) -> None:
        status, after = self.random.choice([429, 500, 503, 504]), self.random.choice([None, 1])
        self._order(LOG, status=status, retry_after=after, times=self.random.randint(1, 3))
        self.embedded.faults.end_follows()

    async def _slow(self) -> None:
        self._order(LOG, delay=self.random.uniform(0.1, 1.0))
        self.embedded.faults.end_follows()

    async def _ended(self) -> None:
        self.done.append("clean end")
        self.embedded.faults.end_follows()

    async def _kubelet(self) -> None:
        self.done.append("kubelet")
        await self.embedded.faults.restart_kubelet(self.random.choice([0.0, 0.3, 1.0]))

    async def _rotated(self) -> None:
        self.done.append("rotation")
        self.embedded.faults.rotate_log(self.run.pod.name, self.run.pod.container)

    async def _rotated_behind_a_cut(self) -> None:
        """Nobody reads while the log is rotated, so what was not read yet is lost for good."""
        self._order(LOG, cut_after=self.random.choice([0, 3000]))
        self._order(LOG, status=503, times=2)
        self.embedded.faults.end_follows()
        await asyncio.sleep(self.random.uniform(0.1, 0.4))
        await self._rotated()

    async def _no_status(self) -> None:
        self._order(POD, status=self.random.choice([429, 500, 503]), times=2)
        self.embedded.faults.end_follows()

    async def _no_exec(self) -> None:
        if self.random.random() < 0.5:
            self._order(EXEC, status=500)
        else:
            self._order(EXEC, cut_after=self.random.choice([0, 5000]))

    async def _handed_over(self) -> None:
        self.done.append("hand-over")
        self.run.hand_over()
