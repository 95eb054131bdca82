"""The kubelet, or the API server, is killed around the claim of a pod that rests, with the real OpenCode.

Needs KUBECONFIG, TEST_AGENT_IMAGE and TEST_CLUSTER_TOOL.
"""

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_runs.client.outcome import cancel
from agent_runs.job.resting_pods import TRIES
from agent_runs.kube.objects import Job
from agent_runs.kube.ownership import RESTS_SINCE
from tests.chaos.faulty_network import FaultyNetwork, faulty_network
from tests.real_cluster.observed_runs import SMALL_RESOURCES, ObservedRun, script
from tests.real_cluster.pod_observer import PodObserver, observe_pods
from tests.real_cluster.requirements import TOOL, Node, cluster_and_image, cluster_tool, skip_without
from tests.real_cluster.stack import RealSystem, open_real_system

pytestmark = [pytest.mark.real_cluster, pytest.mark.alone, pytest.mark.timeout(900)]

CLAIM = "/exec.*command=claim"
"""The request that hands prompt and tokens to a pod that has been claimed."""
REFUSED = {"kubelet": (CLAIM, TRIES + 1), "apiserver": ("", 1)}
"""What a worker has asked when it knows that this part is away. It repeats a request that is cut for another reason."""
NO_WAIT = "true"
STEPS = 3
CONFIG: dict[str, Any] = {
    "transport": "serve",
    "keepWarmSec": 300,
    "paperclipApiUrl": "http://127.0.0.1:3100",  # only a pod with the API proxy rests
    "resources": SMALL_RESOURCES | {"requests": {"cpu": "50m", "memory": "1Gi"}},  # one that uses more does not rest
    "graceSec": 2,
}


@dataclass
class Claims:
    """The stack behind a proxy that can hold the worker's requests back."""

    system: RealSystem
    network: FaultyNetwork

    @asynccontextmanager
    async def resting(self) -> AsyncIterator["RestingPod"]:
        """An agent after its first run, whose pod rests."""
        agent_id = str(uuid.uuid4())
        wake = self.system.wake("script", agent_id, {"steps": [{"text": "Rest."}]}, **CONFIG)
        async with observe_pods(self.system.cluster, "default", agent_id) as observer:
            first = await self.system.outcome(wake)
            assert (first.failure, first.summary) == (None, "Rest.")
            (job,) = await self.system.cluster.jobs_of_agent("default", agent_id)
            assert RESTS_SINCE in job.metadata.annotations
            try:
                yield RestingPod(self, observer, agent_id, job)
            finally:
                for left in await self.system.cluster.jobs_of_agent("default", agent_id):
                    await self.system.cluster.delete_job("default", left.metadata.name, left.metadata.uid)


@dataclass
class RestingPod:
    claims: Claims
    observer: PodObserver
    agent_id: str
    job: Job

    @asynccontextmanager
    async def woken(self, command: str = NO_WAIT) -> AsyncIterator[ObservedRun]:
        """The agent's next run; a test that fails cancels it."""
        system = self.claims.system
        self.answers = len(system.answers())
        wake = system.wake("script", self.agent_id, script(STEPS, command=command), **CONFIG)
        ticket = await system.start(wake)
        try:
            yield ObservedRun(system, wake, ticket, self.observer, "default", STEPS)
        except BaseException:
            await cancel(ticket.handle(system.stack.client), "the test is over")
            raise

    async def assert_whole(self, run: ObservedRun) -> None:
        """One attempt in the pod that rested, each step once and in order, and the model was asked once for each."""
        outcome = await run.outcome()
        assert [each.failure_code for each in outcome.attempts] == [None], outcome.error_message
        assert (outcome.failure, outcome.summary) == (None, "All steps are done.")
        assert await run.finished_steps() == list(range(1, STEPS + 1))
        assert outcome.receipt is not None
        assert (outcome.receipt.state, outcome.receipt.gaps) == ("verified", ())
        assert outcome.receipt.lines == len(await run.lines())
        asked = [each for each in run.system.answers()[self.answers :] if each["model"] == "scenario/script"]
        assert len(asked) == STEPS + 1
        assert outcome.attempts[0].job_name == self.job.metadata.name
        assert self.observer.jobs == [self.job.metadata.name]


@pytest.fixture(scope="module")
async def claims(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Claims]:
    skip_without(TOOL)
    kubeconfig, _ = cluster_and_image()
    async with (
        faulty_network(Path(kubeconfig), tmp_path_factory.mktemp("network")) as network,
        open_real_system(tmp_path_factory.mktemp("stack"), through=network.kubeconfig) as system,
    ):
        yield Claims(system, network)


@pytest.fixture(params=["kubelet", "apiserver"])
def part(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_restart_while_the_pod_rests_costs_the_next_run_nothing(claims: Claims, part: str) -> None:
    async with claims.resting() as pod:
        await Node().restart(part)
        async with pod.woken() as run:
            await pod.assert_whole(run)


@pytest.mark.parametrize("answer", [False, True], ids=["before the prompt", "before the answer"])
async def test_a_pod_is_asked_until_the_part_is_back_that_was_killed_when_it_got_the_prompt(
    claims: Claims, part: str, answer: bool
) -> None:
    held = claims.network.hold(CLAIM, answer=answer)
    async with claims.resting() as pod, pod.woken() as run:
        await run.unless_ended(held.arrived.wait())
        await cluster_tool("kill", part)
        try:
            held.release()
            await run.unless_ended(claims.network.until_requested(*REFUSED[part]))
        finally:
            await cluster_tool("start", part)
        await pod.assert_whole(run)


async def test_a_restart_while_the_claimed_pod_works_costs_no_line(claims: Claims, part: str) -> None:
    async with claims.resting() as resting, resting.woken(command="") as run:
        pod = await run.until_steps()
        await Node().restart(part)
        await run.release_agent(pod)
        await resting.assert_whole(run)
