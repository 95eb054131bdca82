"""The same environment with the real OpenCode behind its server, in a pod of its own or in one that is claimed."""

import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client

from agent_runs.contracts.outcome import AttemptReport
from agent_runs.job.resting_pods import rests
from dev_stack.cluster.kinds import JOBS
from dev_stack.demo import later_context
from dev_stack.opencode_binary import ensure_opencode
from tests.faults.environment import Environment, Server, recorded
from tests.runs.real_opencode import agent_of, open_real_system, playing
from tests.runs.system import OTHER_PROCESS_POLL, attempt_key
from tests.support.process_pool import ProcessPool

SERVED_LINES: Final = 4
KEEP_WARM_SEC: Final = 300
RUNS_BEFORE: Final = 3
"""Longer than a row takes: a pod that nobody claims ends by itself."""


@dataclass
class ServedEnvironment(Environment):
    """An environment whose agent is the real OpenCode; each of its lines is the output of a tool.

    Attributes:
        fresh: the context of an agent that has had no run and has no steps yet.
        claimed: the agent has a run before, whose pod rests.
        later: the context of the run that claims it.
    """

    fresh: dict[str, Any] = field(default_factory=dict)
    claimed: bool = False
    later: dict[str, Any] = field(default_factory=dict)

    def agent(
        self,
        body: str = "",  # noqa: ARG002 - only a script has one
        *,
        lines: int = SERVED_LINES,
        waits_for_release: bool = True,
        **config: Any,
    ) -> dict[str, Any]:
        """The context of an agent that calls one tool for each line."""
        self.raw = self.later or self.new_agent(lines, **config)
        if not waits_for_release:
            self.release_agent()
        return self.raw

    def new_agent(self, lines: int, **config: Any) -> dict[str, Any]:
        """The context of an agent that has had no run."""
        raw = deepcopy(self.fresh)
        raw["config"] |= {"keepWarmSec": KEEP_WARM_SEC if self.claimed else 0, **config}
        raw["context"]["paperclipTaskMarkdown"] += f"\n\nKeep {self.canaries['prompt']} to yourself."
        self.plant(raw)
        return playing(raw, *map(self.step, range(lines)), {"text": "Done."})

    def step(self, number: int) -> dict[str, Any]:
        """A tool that writes one line; the first one notes that the agent has begun, one awaits the release."""
        folder, job = shlex.quote(str(self.folder)), "${HOSTNAME%-*}"
        begin = f'echo "{job}" >> {folder}/starts; ' if number == 0 else ""
        wait = f"until [ -e {folder}/released ]; do sleep 0.2; done; " if number == self.half else ""
        command = f'{begin}{wait}echo line {number}; echo line {number} >> "{folder}/written-{job}"'
        return {"tools": [{"name": "bash", "args": {"command": command, "description": "a line"}}]}

    async def run_before(self) -> None:
        """Make the run whose pod rests then, and is to be claimed: another one if a busy machine has not kept it."""
        raw = self.agent()
        worker = await self.worker()
        for _ in range(RUNS_BEFORE):
            ticket = await self.attach(self.system.wake(playing(raw, {"text": "Rest."})))
            outcome = await self.outcome(ticket)
            assert (outcome.failure, outcome.summary) == (None, "Rest."), outcome
            raw = later_context(raw, outcome.session_params)
            if self.left(JOBS):
                break
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0
        assert len(self.left(JOBS)) == 1
        self.earlier_jobs = {job["metadata"]["name"] for job in self.states(JOBS)}
        self.later = raw

    async def stored(self, attempt: int) -> list[str]:
        """The lines in the outputs of tools."""
        events = await self.system.events(self.raw, attempt)
        outputs = [event["part"]["state"].get("output", "") for event in events if event["type"] == "tool_use"]
        return [line for output in outputs for line in output.splitlines() if line.startswith("line ")]

    def written(self, attempt: AttemptReport) -> list[str]:
        """The lines that were noted in the attempt's pod; a first one may have claimed a pod and not know it."""
        jobs = {attempt.job_name} | (self.earlier_jobs if attempt.attempt == 1 else set())
        return [line for job in sorted(jobs) for line in self.note(f"written-{job}")]

    async def until_stored(self, count: int | None = None) -> None:
        notifier = self.system.store.notifier(attempt_key(self.raw))
        while True:
            seen = notifier.changes
            if len(await self.stored(1)) >= (self.half if count is None else count):
                return
            await notifier.wait_for_change(seen, OTHER_PROCESS_POLL)

    async def end_rest(self) -> None:
        """End the only pod that may rest."""
        for job in (await self.system.jobs(self.raw))[:1]:
            if self.claimed and rests(job):
                await self.system.kubernetes.delete_job(job.metadata.namespace, job.metadata.name, job.metadata.uid)


@asynccontextmanager
async def open_served(
    name: str,
    temporal: Client,
    process_pool: ProcessPool,
    folder: Path,
    version: str,
    *,
    own_server: bool,
    claimed: bool,
) -> AsyncIterator[Environment]:
    """The environment of one row, without a worker yet. Everything that was started is ended."""
    binary = await ensure_opencode(version=version)
    async with AsyncExitStack() as parts:
        server = await parts.enter_async_context(Server.open(folder)) if own_server else None
        system = await parts.enter_async_context(
            open_real_system(server.running.client if server else temporal, folder)
        )
        half = SERVED_LINES // 2
        fresh = agent_of(system, binary, "script", transport="serve")
        env = ServedEnvironment(name, system, process_pool, folder, half, server, fresh=fresh, claimed=claimed)
        await parts.enter_async_context(recorded(env))
        if claimed:
            await env.run_before()
        yield env
