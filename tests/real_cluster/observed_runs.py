"""A run on a real cluster whose steps are numbered, what a test does with it, and what must be true afterwards."""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from agent_runs.client.attach import Ticket
from agent_runs.client.obstacles import read_obstacles
from agent_runs.client.outcome import cancel, outcome_at_close
from agent_runs.client.wake import Wake
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from agent_runs.kube.objects import Pod
from agent_runs.kube.ownership import agent_selector
from tests.real_cluster.objects import api_request
from tests.real_cluster.pod_observer import CONTAINER, PodObserver, observe_pods
from tests.real_cluster.stack import RealSystem
from tests.support.ends import assert_verified

SMALL_RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
"""So that many agents fit on one node of two processors."""
RELEASE_FILE = "/tmp/released"
IS_SECOND_ATTEMPT = "case $(cat /etc/hostname) in *-2-?????) true ;; *) false ;; esac"
"""A shell command: whether this is the second attempt, by the name of its pod."""
EXEC_TIMEOUT = timedelta(seconds=90)
CLEANUP_TIMEOUT = timedelta(seconds=90)
"""Until a run's objects are deleted: a kubelet checks once a minute whether it has missed something."""

Step = dict[str, Any]
T = TypeVar("T")


def step(number: int, command: str) -> Step:
    arguments = {"command": f"echo step-{number}; {command}", "description": f"step {number}"}
    return {"text": f"Step {number}.", "tools": [{"name": "bash", "args": arguments}]}


def script(count: int, *, command: str = "") -> dict[str, Any]:
    """`count` steps of a second each, then one that waits for its release; the second attempt never waits.

    Args:
        command: what the last step executes instead of waiting.
    """
    steps = [step(number, f"{IS_SECOND_ATTEMPT} || sleep 1") for number in range(1, count)]
    last = command or f"{IS_SECOND_ATTEMPT} || until [ -e {RELEASE_FILE} ]; do sleep 0.2; done"
    return {"steps": [*steps, step(count, last), {"text": "All steps are done."}]}


def tools_in(lines: Iterable[bytes]) -> list[Step]:
    """The states of the tool calls that have ended, in an agent's output."""
    events = [json.loads(line) for line in lines]
    return [event["part"]["state"] for event in events if event["type"] == "tool_use"]


def steps_in(lines: Iterable[bytes]) -> list[int]:
    """The numbers of the steps whose command has ended by itself, in an agent's output.

    A server tells of a command that it has aborted, too, with the exit code null.
    """
    ended = [state for state in tools_in(lines) if state.get("metadata", {}).get("exit") is not None]
    outputs = [state.get("output", "") for state in ended]
    return [int(number) for output in outputs for number in re.findall(r"^step-(\d+)$", output, re.MULTILINE)]


@dataclass
class ObservedRun:
    """One run, and an observer of its pods.

    Attributes:
        steps: how many the agent's script has.
    """

    system: RealSystem
    wake: Wake
    ticket: Ticket
    observer: PodObserver
    namespace: str
    steps: int

    @property
    def cluster(self) -> Cluster:
        return self.system.cluster

    @property
    def agent_id(self) -> str:
        return self.wake.key.agent_id

    def key(self, attempt: int = 1) -> AttemptKey:
        return AttemptKey(run=self.wake.key, attempt=attempt)

    async def outcome(self) -> Outcome:
        return await outcome_at_close(self.ticket.handle(self.system.stack.client))

    async def until_steps(self) -> Pod:
        """The first attempt's pod, once two steps are stored, by a worker in another process."""
        return await self.unless_ended(self._until_steps())

    async def _until_steps(self) -> Pod:
        pod = await self.observer.started_pod(1)
        notifier = self.system.store.notifier(self.key())
        while len(await self.finished_steps()) < 2:
            await notifier.wait_for_change(notifier.changes, timedelta(milliseconds=200))
        return pod

    async def until_waiting(self, reason: str) -> None:
        """Returns once `show` says that the run waits for this reason."""
        client = self.system.stack.client
        while True:
            obstacles = await read_obstacles(client, self.ticket.handle(client))
            if any(reason in each.text for each in obstacles):
                return
            await asyncio.sleep(0.2)

    async def unless_ended(self, waiting: Coroutine[Any, Any, T]) -> T:
        """The result of `waiting`; fails as soon as the run has ended, when it would wait for ever."""
        result, end = asyncio.ensure_future(waiting), asyncio.ensure_future(self.outcome())
        try:
            await asyncio.wait([result, end], return_when=asyncio.FIRST_COMPLETED)
            assert result.done(), f"the run ended before: {end.result().error_message} {await self.tools()}"
            return result.result()
        finally:
            result.cancel()
            end.cancel()

    async def release_agent(self, pod: Pod) -> None:
        await self.unless_ended(self.execute(pod, "touch", RELEASE_FILE))

    async def written(self, pod: Pod) -> list[bytes]:
        """The lines that the agent has written by now, from the runner's file."""
        return (await self.execute(pod, "cat", "/agent-run/output/stdout")).split(b"\n")[:-1]

    async def execute(self, pod: Pod, *argv: str) -> bytes:
        """The output of a command in the pod; failures are retried, since a kubelet that has just started refuses."""
        while True:
            opened = self.cluster.exec_output(
                self.namespace, pod.metadata.name, CONTAINER, argv, limit=1 << 24, idle_timeout=EXEC_TIMEOUT
            )
            with suppress(ExecFailed):
                async with opened as pieces:
                    return b"".join([piece async for piece in pieces])
            await asyncio.sleep(0.1)

    # what is stored

    async def lines(self, attempt: int = 1) -> list[bytes]:
        """The stored lines of the agent's standard output, whose numbers must grow."""
        lines, last = [], 0
        while page := await self.system.store.read(self.key(attempt), last):
            assert [line.sequence for line in page] == sorted({line.sequence for line in page})
            assert page[0].sequence > last
            lines += page
            last = page[-1].sequence
        return [line.data for line in lines if line.stream == "stdout"]

    async def finished_steps(self, attempt: int = 1) -> list[int]:
        """The numbers of the steps whose end is stored."""
        return steps_in(await self.lines(attempt))

    async def tools(self, attempt: int = 1) -> list[Step]:
        """The states of the agent's tool calls that have ended."""
        return tools_in(await self.lines(attempt))

    async def sessions(self) -> set[str]:
        attempts = range(1, len(self.observer.agents) + 1)
        return {json.loads(line)["sessionID"] for attempt in attempts for line in await self.lines(attempt)}

    # what must be true afterwards

    async def assert_guarantees(self, outcome: Outcome, *failures: str | None) -> None:
        """One Job and one agent per attempt, never two at a time, each step once and in order, and nothing left over.

        Args:
            failures: the names of all attempts.
        """
        assert tuple(attempt.failure_code for attempt in outcome.attempts) == failures, outcome.error_message
        assert outcome.error_code == failures[-1]
        assert self.observer.jobs == [self.key(number).job_name for number in range(1, len(failures) + 1)]
        assert self.observer.agents == list(range(1, len(failures) + 1))
        assert self.observer.max_alive == 1
        assert self.observer.early_jobs == set()
        for report in outcome.attempts:
            steps = await self.finished_steps(report.attempt)
            assert steps == list(range(1, len(steps) + 1))
            assert report.receipt.gaps == ()
            assert report.receipt.lines == len(await self.lines(report.attempt))
        if failures[-1] is None:
            assert outcome.exit_code == 0
            assert_verified(outcome)
            assert len(await self.finished_steps(len(failures))) == self.steps
        await self.assert_nothing_left()

    async def assert_nothing_left(self) -> None:
        """What a deleted owner owns is deleted a moment later."""
        async with asyncio.timeout(CLEANUP_TIMEOUT.total_seconds()):
            while left := await self.leftovers():
                assert left
                await asyncio.sleep(0.2)

    async def leftovers(self) -> list[str]:
        labels, core = [("labelSelector", agent_selector(self.agent_id))], f"/api/v1/namespaces/{self.namespace}"
        paths = [f"{core}/pods", f"{core}/secrets", f"/apis/batch/v1/namespaces/{self.namespace}/jobs"]
        pages = [await api_request(self.cluster, "GET", path, query=labels) for path in paths]
        return [item["metadata"]["name"] for page in pages for item in page["items"]]


@asynccontextmanager
async def observed_run(
    system: RealSystem, count: int, *, agent_id: str = "", command: str = "", namespace: str = "default", **config: Any
) -> AsyncIterator[ObservedRun]:
    """A started run of an agent of its own; a test that fails cancels it."""
    agent_id = agent_id or str(uuid.uuid4())
    chosen = {"resources": SMALL_RESOURCES, "graceSec": 2, "namespace": namespace, **config}
    wake = system.wake("script", agent_id, script=script(count, command=command), **chosen)
    async with observe_pods(system.cluster, namespace, agent_id) as observer:
        ticket = await system.start(wake)
        try:
            yield ObservedRun(system, wake, ticket, observer, namespace, count)
        except BaseException:
            async with asyncio.timeout(60):
                await cancel(ticket.handle(system.stack.client), "the test is over")
            raise
