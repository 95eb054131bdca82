"""How long a wake takes from attach to its first model request, and the CPU it costs: one agent, and ten at once.

The agents are the real OpenCode with the scripted model, in the embedded cluster; Temporal's dev server and the worker
are processes of their own. The clock starts before the wake is sealed and attached, and stops when the model's server
has the request. `python -m bench.wake [ROUNDS]` prints a table, with all variants in each round. A variant is one line
in `VARIANTS`. `python -m bench.wake ROUNDS NAME...` wakes other agents, each for a task whose session it loads: in a
new pod, and in one that rests.

CPU: `agent` is every process of its name as last seen, every 0.1 s; `sidecar, runner` is what else runs in the
pods, with the embedded cluster's supervisors of containers. The API server, the model and the caller are in this
process and not counted, nor is Temporal.
"""

import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from agent_runs.client.connection import run_to_end
from agent_runs.contracts.request import OPENCODE
from bench.reports import machine
from dev_stack.agent_programs import PROGRAMS
from dev_stack.demo import later_context
from dev_stack.scripted_model.server import ScriptedModel, provider_block, serve
from tests.runs.real_agents import AgentSystem
from tests.runs.real_opencode import opencode_agent
from tests.runs.system import System, open_system
from tests.support.temporal import start_temporal

SAMPLE_INTERVAL: Final = 0.1
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Variant:
    """A way to wake an agent.

    Attributes:
        config: fields of the adapter's configuration.
        before: how many wakes for the same task come before the one that is measured.
        provider: the model's; only `fake` is in no list of OpenCode's.
        agent: whose program it is.
        opencode: the first number of OpenCode's version.
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    before: int = 0
    provider: str = "fake"
    agent: str = OPENCODE
    opencode: int = 1


VARIANTS: Final = (
    Variant("cold, run", {"transport": "run"}),
    Variant("cold, serve", {"transport": "serve"}),
    Variant("cold, serve, `anthropic`", {"transport": "serve"}, provider="anthropic"),
    Variant("warm, the second", {"transport": "serve", "keepWarmSec": 300}, before=1),
    Variant("warm, the tenth", {"transport": "serve", "keepWarmSec": 300}, before=9),
    Variant("OpenCode 2: cold", {"transport": "serve"}, opencode=2),
    Variant("OpenCode 2: warm, the second", {"transport": "serve", "keepWarmSec": 300}, before=1, opencode=2),
    Variant("OpenCode 2: warm, the tenth", {"transport": "serve", "keepWarmSec": 300}, before=9, opencode=2),
)
AT_ONCE: Final = (1, 10)
AGENT_PROCESSES: Final = frozenset({OPENCODE, "node", "MainThread", "claude", "codex-acp"})
"""Names of processes, which only agents have."""


@dataclass(frozen=True)
class Process:
    """One line of /proc. Times are CPU seconds, `reaped` those of its ended children; `memory` is the resident set, in
    bytes."""

    pid: int
    parent: int
    name: str
    started: int
    own: float
    reaped: float
    memory: int

    @classmethod
    def read(cls, pid: int) -> Self:
        """OSError: it has ended."""
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - takes less of the CPU that wakes share
            head, _, tail = file.read().decode(errors="replace").rpartition(") ")
        fields = tail.split()
        own, reaped = (sum(map(int, fields[place : place + 2])) / _TICKS for place in (11, 13))
        memory = int(fields[21]) * resource.getpagesize()
        return cls(pid, int(fields[1]), head.partition("(")[2], int(fields[19]), own, reaped, memory)


@dataclass(frozen=True)
class Cpu:
    agent: float
    pods: float
    worker: float

    def since(self, before: "Cpu", wakes: int) -> "Cpu":
        """Per wake."""
        pairs = zip(self.seconds, before.seconds, strict=True)
        return Cpu(*((now - then) / wakes for now, then in pairs))

    @property
    def seconds(self) -> tuple[float, float, float]:
        """In the order of the table."""
        return self.agent, self.pods, self.worker


@dataclass(frozen=True)
class Measured:
    """Some wakes at once.

    Attributes:
        requests: seconds to the first model request of each.
        starts: seconds to the start of each agent's process, of those that started.
        cpu: of each wake on average.
        memory: the most that one process of an agent had.
    """

    requests: list[float]
    starts: list[float]
    cpu: Cpu
    memory: int


class CpuClock:
    """CPU of everything below this process. What has ended and was waited for is in its parent's times, or in ours."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._agent: dict[tuple[int, int], float] = {}
        self.most_memory = 0

    async def sample(self) -> None:
        """See every process of an agent until cancelled."""
        while True:
            self._see()
            await asyncio.sleep(SAMPLE_INTERVAL)

    def read(self) -> Cpu:
        """All since the start."""
        processes = self._see()
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        everything = ours.ru_utime + ours.ru_stime + sum(each.own + each.reaped for each in processes)
        worker, temporal = (
            sum(each.own + each.reaped for each in processes if each.pid == self._worker),
            sum(each.own + each.reaped for each in processes if each.name == "temporal"),
        )
        agent = sum(self._agent.values())
        return Cpu(agent, everything - worker - temporal - agent, worker)

    def starts_after(self, began: float) -> list[float]:
        """Seconds from then to the start of each process of an agent."""
        times = [started / _TICKS - began for _, started in self._agent]
        return [seconds for seconds in times if seconds > 0]

    def _see(self) -> list[Process]:
        processes = _descendants()
        names = {each.pid: each.name for each in processes}
        for each in processes:
            if each.name in AGENT_PROCESSES and names.get(each.parent) not in AGENT_PROCESSES:
                self._agent[each.pid, each.started] = each.own + each.reaped
                self.most_memory = max(self.most_memory, each.memory)
        return processes


def _descendants() -> list[Process]:
    processes = list[Process]()
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - paths for 100 processes cost more than this
        with suppress(OSError):
            processes.append(Process.read(int(name)))
    below, known = list[Process](), {os.getpid()}
    while generation := [each for each in processes if each.parent in known]:
        below += generation
        known = {each.pid for each in generation}
    return below


@dataclass(frozen=True)
class Bench:
    """The system, and how it is watched."""

    system: System
    model: ScriptedModel
    cpu: CpuClock
    folder: Path

    async def wakes(self, variant: Variant, count: int) -> Measured:
        """Agents that are woken at once."""
        names = [f"text:{number}" for number in range(count)]  # a model for each agent tells their requests apart
        agents = [await self._agent(variant, name) for name in names]
        for _ in range(variant.before):
            ended = await asyncio.gather(*map(self.system.outcome, agents))
            agents = [later_context(raw, each.session_params) for raw, each in zip(agents, ended, strict=True)]
        before, began, self.cpu.most_memory = self.cpu.read(), time.monotonic(), 0
        seconds = await asyncio.gather(*map(self._wake, agents, names))
        used = self.cpu.read().since(before, count)
        await asyncio.gather(*map(self._remove, agents))
        return Measured(list(seconds), self.cpu.starts_after(began), used, self.cpu.most_memory)

    async def _agent(self, variant: Variant, scenario: str) -> dict[str, Any]:
        if variant.agent != OPENCODE:
            agents = AgentSystem(self.system, self.model, self.folder)
            return await agents.agent(variant.agent, scenario, **variant.config)
        raw = await opencode_agent(self.system, scenario, variant.opencode, **variant.config)
        environment = raw["config"]["env"]
        raw["config"] |= {"model": f"{variant.provider}/scenario/{scenario}", "env": environment}
        return raw

    async def _wake(self, raw: dict[str, Any], name: str) -> float:
        began = time.monotonic()
        outcome = await self.system.outcome(raw)
        assert outcome.failure is None, outcome.failure
        asked = [each.at for each in self.model.arrivals if each.model == f"scenario/{name}" and each.at > began]
        return asked[0] - began

    async def _remove(self, raw: dict[str, Any]) -> None:
        """Delete what stays of an agent, so that it does not take part in what is measured next."""
        for job in await self.system.jobs(raw):
            await self.system.kubernetes.delete_job(job.metadata.namespace, job.metadata.name, job.metadata.uid)
        while await self.system.pods(raw):  # noqa: ASYNC110 - the kubelet has no event
            await asyncio.sleep(SAMPLE_INTERVAL)


@asynccontextmanager
async def open_bench(folder: Path) -> AsyncIterator[Bench]:
    """Temporal, cluster, model and a worker process, after a first run."""
    async with (
        await start_temporal() as environment,
        serve() as model,
        open_system(environment.client, folder) as opened,
    ):
        names = [f"text:{number}" for number in range(max(AT_ONCE))]
        provider = folder / "provider.json"
        fake = provider_block(model.base_url, names)
        listed = {key: fake["fake"][key] for key in ("options", "models")}
        provider.write_text(json.dumps({"provider": {**fake, "anthropic": listed}}))
        images = dict.fromkeys(PROGRAMS, "a:1")
        system = await opened.with_data_volume("sessions", opencode_config=provider, agent_images=images)
        async with system.worker_process() as worker:
            bench = Bench(system, model, CpuClock(worker.pid), folder / "agents")
            bench.folder.mkdir()
            await bench.wakes(Variant("first"), 1)  # imports, connections, caches
            sampling = asyncio.create_task(bench.cpu.sample())
            yield bench
            sampling.cancel()


def variants_of(agents: Sequence[str]) -> tuple[Variant, ...]:
    """Those of agents besides OpenCode."""
    rest = {"cold": 0, "warm": 300}
    return tuple(
        Variant(f"{agent}, {name}", {"keepWarmSec": seconds}, before=1, agent=agent)
        for agent in agents
        for name, seconds in rest.items()
    )


async def measure(
    rounds: int, variants: Sequence[Variant], at_once: Sequence[int]
) -> dict[tuple[str, int], list[Measured]]:
    """All rounds of each variant and number of agents."""
    measured: dict[tuple[str, int], list[Measured]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with open_bench(Path(folder)) as bench:
            for _ in range(rounds):
                for variant in variants:
                    for count in at_once:
                        wakes = await bench.wakes(variant, count)
                        measured.setdefault((variant.name, count), []).append(wakes)
                        shown = " ".join(f"{each:.2f}" for each in sorted(wakes.requests))
                        print(f"{variant.name}, {count}: {shown}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return measured


def table(measured: Mapping[tuple[str, int], Sequence[Measured]]) -> str:
    """Markdown. p50 and CPU are the median of the rounds, max is the largest of all."""
    head = ["wake", "agents at once", "to the first agent's start, p50 s", "to the first model request, p50 s", "max s"]
    head += ["CPU s of each wake: agent", "sidecar, runner", "worker", "an agent's memory, MB"]
    lines = [f"| {' | '.join(head)} |", f"|---{'|---:' * (len(head) - 1)}|"]
    for (name, count), rounds in measured.items():
        starts = [min(each.starts) for each in rounds if each.starts]
        started = f"{statistics.median(starts):.2f}" if starts else "no start"
        middle = statistics.median(statistics.median(each.requests) for each in rounds)
        most = max(max(each.requests) for each in rounds)
        cpu = [statistics.median(column) for column in zip(*(each.cpu.seconds for each in rounds), strict=True)]
        columns = " | ".join(f"{each:.2f}" for each in (middle, most, *cpu))
        memory = statistics.median(each.memory for each in rounds) / 1e6
        lines.append(f"| {name} | {count} | {started} | {columns} | {memory:.0f} |")
    return "\n".join(lines)


def main() -> None:
    rounds, agents = int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:]
    measured = (variants_of(agents), AT_ONCE[:1]) if agents else (VARIANTS, AT_ONCE)

    async def run() -> None:
        began = os.getloadavg()[0]
        print(table(await measure(rounds, *measured)))
        print(f"\n{machine()} at the end, {began:.1f} before; {rounds} rounds.")

    run_to_end(run)


if __name__ == "__main__":
    main()
