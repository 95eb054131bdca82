"""An agent whose every step is known, what befalls it on a real cluster, and what must be true afterwards."""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from client.attach import Ticket, attach
from client.outcome import cancel
from cluster.client import KubernetesCluster
from cluster.manifest import claim_name
from cluster.objects import Pod
from cluster.ownership import agent_selector
from cluster.port import ExecFailed
from contracts.identity import AttemptKey
from contracts.outcome import Outcome
from contracts.request import RunRequest
from tests.real.stack import Real
from tests.real.witness import CONTAINER, Witness, witnessing

SMALL = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
"""So that many agents find room on one node of two processors."""
OWN_CLASS = "real-tests"
"""Of volumes that a test makes itself; nobody else makes any of this class."""
NODES = "/api/v1/nodes"
STAND_IN = "real-tests-stand-in"
GATE = "/tmp/gate"
LATER = "case $(cat /etc/hostname) in *-2-?????) true ;; *) false ;; esac"
"""Whether this is the second attempt: its pod is named so."""
PATIENCE = timedelta(seconds=30)
TIDYING = timedelta(seconds=90)
"""For what is over to vanish: a kubelet looks once a minute whether it has missed something."""

Step = dict[str, Any]
Result = TypeVar("Result")


def step(number: int, command: str) -> Step:
    arguments = {"command": f"echo step-{number}; {command}", "description": f"step {number}"}
    return {"text": f"Step {number}.", "tools": [{"name": "bash", "args": arguments}]}


def script(count: int, *, crisis: str = "") -> dict[str, Any]:
    """`count` steps of a second each, then one that waits for the gate; the second attempt hurries and does not wait.

    A `crisis` is a command that takes the place of the gate.
    """
    steps = [step(number, f"{LATER} || sleep 1") for number in range(1, count)]
    last = crisis or f"{LATER} || until [ -e {GATE} ]; do sleep 0.2; done"
    return {"steps": [*steps, step(count, last), {"text": "All steps are done."}]}


@dataclass
class Story:
    """One run and whoever sees it.

    Attributes:
        steps: how many the agent's script has.
    """

    system: Real
    request: RunRequest
    ticket: Ticket
    witness: Witness
    namespace: str
    steps: int

    @property
    def cluster(self) -> KubernetesCluster:
        return self.system.cluster

    @property
    def agent_id(self) -> str:
        return self.request.agent.id

    def key(self, attempt: int = 1) -> AttemptKey:
        return AttemptKey(run=self.request.key, attempt=attempt)

    async def outcome(self) -> Outcome:
        return await self.ticket.handle(self.system.stack.client).result()

    async def at_work(self, steps: int = 2, attempt: int = 1) -> Pod:
        """The attempt's pod, once so many steps are stored, by a worker in another process."""
        return await self.unless_over(self._at_work(steps, attempt))

    async def _at_work(self, steps: int, attempt: int) -> Pod:
        pod = await self.witness.begun(attempt)
        news = self.system.store.news(self.key(attempt))
        while len(await self.done(attempt)) < steps:
            await news.beyond(news.count, timedelta(milliseconds=200))
        return pod

    async def unless_over(self, waiting: Coroutine[Any, Any, Result]) -> Result:
        """What is waited for, which does not come any more once the run is over."""
        wanted, over = asyncio.ensure_future(waiting), asyncio.ensure_future(self.outcome())
        try:
            await asyncio.wait([wanted, over], return_when=asyncio.FIRST_COMPLETED)
            assert wanted.done(), f"the run ended before: {over.result().error_message} {await self.tools()}"
            return wanted.result()
        finally:
            wanted.cancel()
            over.cancel()

    async def open_gate(self, pod: Pod) -> None:
        await self.unless_over(self.execute(pod, "touch", GATE))

    async def written(self, pod: Pod) -> list[bytes]:
        """What the agent has written by now, from its own file."""
        return (await self.execute(pod, "cat", "/agent-run/output/stdout")).split(b"\n")[:-1]

    async def execute(self, pod: Pod, *argv: str) -> bytes:
        """What a command in the pod prints, however many tries it takes: a kubelet that has just come back refuses."""
        while True:
            opened = self.cluster.exec_output(
                self.namespace, pod.metadata.name, CONTAINER, argv, limit=1 << 24, idle=PATIENCE
            )
            with suppress(ExecFailed):
                async with opened as pieces:
                    return b"".join([piece async for piece in pieces])
            await asyncio.sleep(0.1)

    # what is stored

    async def lines(self, attempt: int = 1) -> list[bytes]:
        """The agent's standard output, after a look at how it is numbered."""
        found, last = [], 0
        while page := await self.system.store.read(self.key(attempt), last):
            assert [line.sequence for line in page] == sorted({line.sequence for line in page})
            assert page[0].sequence > last
            found += page
            last = page[-1].sequence
        return [line.data for line in found if line.stream == "stdout"]

    async def done(self, attempt: int = 1) -> list[int]:
        """The numbers of the steps whose end is stored."""
        outputs = [state.get("output", "") for state in await self.tools(attempt)]
        return [int(number) for output in outputs for number in re.findall(r"^step-(\d+)$", output, re.MULTILINE)]

    async def tools(self, attempt: int = 1) -> list[Step]:
        """How the agent's tools have ended."""
        events = [json.loads(line) for line in await self.lines(attempt)]
        return [event["part"]["state"] for event in events if event["type"] == "tool_use"]

    async def sessions(self) -> set[str]:
        """The sessions that all attempts have worked in."""
        attempts = range(1, len(self.witness.agents) + 1)
        return {json.loads(line)["sessionID"] for attempt in attempts for line in await self.lines(attempt)}

    # what must be true afterwards

    async def assert_kept(self, outcome: Outcome, *failures: str | None) -> None:
        """One Job and one agent per attempt, never two at a time, each step once and in order, and nothing left over.

        Args:
            failures: the names of all attempts.
        """
        assert tuple(attempt.failure_code for attempt in outcome.attempts) == failures, outcome.error_message
        assert outcome.error_code == failures[-1]
        assert self.witness.jobs == [self.key(number).job_name for number in range(1, len(failures) + 1)]
        assert self.witness.agents == list(range(1, len(failures) + 1))
        assert self.witness.most == 1
        assert self.witness.hasty == set()
        for report in outcome.attempts:
            done = await self.done(report.attempt)
            assert done == list(range(1, len(done) + 1))
            assert report.receipt.gaps == ()
            assert report.receipt.lines == len(await self.lines(report.attempt))
        if failures[-1] is None:
            assert outcome.exit_code == 0
            assert outcome.receipt is not None
            assert outcome.receipt.state == "verified"
            assert len(await self.done(len(failures))) == self.steps
        await self.assert_nothing_left()

    async def assert_nothing_left(self) -> None:
        """Owners take along what they own a moment after they are gone."""
        async with asyncio.timeout(TIDYING.total_seconds()):
            while left := await self.left():
                assert left
                await asyncio.sleep(0.2)

    async def left(self) -> list[str]:
        labels, core = [("labelSelector", agent_selector(self.agent_id))], f"/api/v1/namespaces/{self.namespace}"
        places = [f"{core}/pods", f"{core}/secrets", f"/apis/batch/v1/namespaces/{self.namespace}/jobs"]
        found = [await asked(self.cluster, "GET", place, query=labels) for place in places]
        return [item["metadata"]["name"] for page in found for item in page["items"]]


@asynccontextmanager
async def story(
    system: Real, count: int, *, agent_id: str = "", crisis: str = "", namespace: str = "default", **config: Any
) -> AsyncIterator[Story]:
    """A run of an agent of its own that has begun. What goes wrong leaves nothing behind either."""
    agent_id = agent_id or str(uuid.uuid4())
    chosen = {"resources": SMALL, "graceSec": 2, "namespace": namespace, **config}
    request = system.request("script", agent_id, script=script(count, crisis=crisis), **chosen)
    async with witnessing(system.cluster, namespace, agent_id) as witness:
        ticket = await attach(system.stack.client, system.stack.settings, request)
        try:
            yield Story(system, request, ticket, witness, namespace, count)
        except BaseException:
            async with asyncio.timeout(60):
                await cancel(ticket.handle(system.stack.client), "the test is over")
            raise


# what a test makes on the cluster beside runs


async def asked(cluster: KubernetesCluster, method: str, path: str, **more: Any) -> Any:
    """An answer of the API; a refusal fails the test."""
    answer = await cluster._call(method, method.lower(), path, path, **more)
    assert isinstance(answer, bytes), str(answer)
    return json.loads(answer)


@asynccontextmanager
async def made(cluster: KubernetesCluster, path: str, manifest: dict[str, Any]) -> AsyncIterator[None]:
    """An object of the test's own."""
    await asked(cluster, "POST", path, body=manifest)
    try:
        yield
    finally:
        await asked(cluster, "DELETE", f"{path}/{manifest['metadata']['name']}")


@asynccontextmanager
async def database(cluster: KubernetesCluster, folder: Path, agent_id: str) -> AsyncIterator[None]:
    """A volume of this machine for the agent's own claim, which the program makes and leaves: sessions outlive pods.

    Args:
        folder: everybody may write there; what a node mounts of itself is nobody's group's.
    """
    claims, name = "/api/v1/namespaces/default/persistentvolumeclaims", claim_name(agent_id)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": OWN_CLASS,
            "hostPath": {"path": str(folder)},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name},
        },
    }
    async with made(cluster, "/api/v1/persistentvolumes", volume):
        yield
        await asked(cluster, "DELETE", f"{claims}/{name}")


@asynccontextmanager
async def another_node(cluster: KubernetesCluster) -> AsyncIterator[None]:
    """A node in name only: ready, and closed to pods.

    Where no node at all is ready Kubernetes takes itself to be cut off, and gives up on no pod.
    """
    closed = {"key": "real-tests", "effect": "NoSchedule"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": STAND_IN}, "spec": {"taints": [closed]}}

    async def say_ready() -> None:
        ready = {"type": "Ready", "status": "True", "reason": "StandIn", "lastHeartbeatTime": f"{now():%FT%TZ}"}
        patch, kind = {"status": {"conditions": [ready]}}, "application/merge-patch+json"
        await asked(cluster, "PATCH", f"{NODES}/{STAND_IN}/status", body=patch, content_type=kind)

    async def stay_ready() -> None:
        while True:
            await asyncio.sleep(5)
            await say_ready()

    async with made(cluster, NODES, node):
        await say_ready()
        staying = asyncio.create_task(stay_ready())
        try:
            yield
        finally:
            staying.cancel()
            await asyncio.wait([staying])


def now() -> datetime:
    return datetime.now(UTC)
