"""What Kubernetes does to agents on a real cluster, with the real OpenCode: evicted, preempted, killed, cut off.

Needs KUBECONFIG and TEST_AGENT_IMAGE; what needs the node itself also TEST_CLUSTER_TOOL. All stories run side by side
on one stack, because they mostly wait; the node is lost when the others are over.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.objects import Pod
from tests.real.stack import Real, real
from tests.real.stories import OWN_CLASS, another_node, asked, database, made, story
from tests.real.test_output import TOOL, needed, tool

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(400)]

LOST = ("k8s_pod_lost", None)
"""The first attempt lost its pod, the second one was whole."""
EVICTION = "/api/v1/namespaces/default/pods/{}/eviction"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PODS = "/api/v1/namespaces/default/pods"
BACK = timedelta(seconds=100)
"""For a node that is back to end the one, and for the other and its successor to come to their ends."""
UNREACHABLE = "node.kubernetes.io/unreachable"
CROWD = "for i in $(seq 12); do (head -c 80000000 /dev/zero; sleep 20) | tail -c 80000000 > /dev/null & done; wait"
"""Processes none of which is as large as OpenCode: it is the one that the kernel ends."""
ROOM = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}

Telling = Callable[[Real, Path], Awaitable[None]]


async def a_deleted_pod_is_followed_by_one_more_attempt(system: Real, _: Path) -> None:
    async with story(system, 6) as run:
        pod = await run.at_work()
        await system.cluster.delete_pod("default", pod.metadata.name, pod.metadata.uid, timedelta(seconds=1))
        await run.assert_kept(await run.outcome(), *LOST)


async def a_drained_pod_is_followed_by_one_more_attempt(system: Real, _: Path) -> None:
    async with story(system, 6) as run:
        pod = await run.at_work()
        written = await run.written(pod)
        await evict(system, pod)
        await run.assert_kept(await run.outcome(), *LOST)
        assert (await run.lines())[: len(written)] == written


async def evict(system: Real, pod: Pod) -> None:
    """What `kubectl drain` does."""
    minor = int((await system.cluster.version()).split(".")[1])
    order = {
        "apiVersion": "policy/v1" if minor >= 22 else "policy/v1beta1",
        "kind": "Eviction",
        "metadata": {"name": pod.metadata.name, "namespace": "default"},
    }
    await asked(system.cluster, "POST", EVICTION.format(pod.metadata.name), body=order)


async def a_pod_that_its_node_evicts_is_followed_by_one_more_attempt(system: Real, _: Path) -> None:
    """More is written than the container may: its kubelet evicts the pod, which stays, failed."""
    namespace = f"real-{uuid.uuid4().hex[:10]}"
    limits = [{"type": "Container", "default": {"ephemeral-storage": "50Mi"}}]
    quota = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": limits}}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    async with made(system.cluster, "/api/v1/namespaces", space):
        await asked(system.cluster, "POST", f"/api/v1/namespaces/{namespace}/limitranges", body=quota)
        async with story(system, 6, namespace=namespace) as run:
            pod = await run.at_work()
            written = await run.written(pod)
            filling = asyncio.create_task(run.execute(pod, "sh", "-c", "head -c 200000000 /dev/zero > /tmp/big"))
            evicted = await run.unless_over(run.witness.until(lambda pod: pod.status.reason == "Evicted"))
            filling.cancel()  # the eviction may have overtaken it
            assert evicted.metadata.uid == pod.metadata.uid
            await run.assert_kept(await run.outcome(), *LOST)
            assert (await run.lines())[: len(written)] == written


async def a_preempted_pod_is_followed_by_one_more_attempt(system: Real, _: Path) -> None:
    """A pod of a higher class takes the agent's place for a while."""
    name = f"real-{uuid.uuid4().hex[:10]}"
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    container = {
        "name": "urgent",
        "image": "busybox:1.36",
        "command": ["sleep", "3"],
        "resources": {"requests": {"cpu": "1100m"}},
    }
    spec = {"priorityClassName": name, "restartPolicy": "Never", "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    large = {"requests": {"cpu": "1200m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
    async with story(system, 6, resources=large) as run:
        victim = await run.at_work()
        written = await run.written(victim)
        async with made(system.cluster, CLASSES, urgent), made(system.cluster, PODS, pod):
            outcome = await run.outcome()
        await run.assert_kept(outcome, *LOST)
        assert (await run.lines())[: len(written)] == written


async def an_agent_out_of_memory_is_named_and_not_repeated(system: Real, _: Path) -> None:
    async with story(system, 3, crisis=CROWD, resources=ROOM) as run:
        outcome = await run.outcome()
        await run.assert_kept(outcome, "oom_killed")
        assert (outcome.error_message or "").count("Pod exited") == 1
        assert await run.done() == [1, 2]


async def a_tool_out_of_memory_is_a_warning_of_a_run_that_went_on(system: Real, _: Path) -> None:
    """The kernel ends the tool; OpenCode goes on and ends well, and the container is called OOMKilled for good."""
    async with story(system, 3, crisis="tail /dev/zero; echo gone", resources=ROOM) as run:
        outcome = await run.outcome()
        await run.assert_kept(outcome, None)
        assert any("OOMKilled" in note for note in (outcome.result_json or {})["warnings"])


async def a_lost_node_never_runs_two_agents_and_one_that_comes_back_goes_on(system: Real, folder: Path) -> None:
    """The kubelet is away until Kubernetes gives up on the first agent's pod, and not on the second one's.

    A kubelet that comes back to a pod that was deleted meanwhile ends it and removes its log a second or two later;
    what was written while it was away is to be read between.
    """
    needed(TOOL)
    soon = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]
    agent_id = str(uuid.uuid4())
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(another_node(system.cluster))
        await stack.enter_async_context(database(system.cluster, folder, agent_id))
        own: dict[str, Any] = {
            "agentDbMode": "dedicated_pvc",
            "agentDbStorageClass": OWN_CLASS,
            "tolerations": soon,
        }
        given_up = await stack.enter_async_context(story(system, 8, agent_id=agent_id, **own))
        kept = await stack.enter_async_context(story(system, 8))
        pods = await asyncio.gather(given_up.at_work(), kept.at_work())
        await tool("kill", "kubelet")
        try:
            doomed = await given_up.unless_over(
                given_up.witness.until(lambda pod: pod.metadata.deletion_timestamp is not None)
            )
            await until(doomed.metadata.deletion_timestamp)
        finally:
            await tool("start", "kubelet")
        await kept.open_gate(pods[1])
        async with asyncio.timeout(BACK.total_seconds()):
            outcomes = await asyncio.gather(given_up.outcome(), kept.outcome())
        await given_up.assert_kept(outcomes[0], *LOST)
        assert await given_up.done() == list(range(1, 8))
        assert outcomes[0].attempts[0].receipt.state == "verified"
        assert await given_up.sessions() == {outcomes[0].session_id}
        await kept.assert_kept(outcomes[1], None)
        assert await kept.sessions() == {outcomes[1].session_id}


async def until(moment: datetime | None) -> None:
    """A moment that Kubernetes has announced; nothing happens then."""
    assert moment is not None
    await asyncio.sleep((moment - datetime.now(UTC)).total_seconds())


# all of them, side by side


class Stories:
    """Those that this session was asked for, as tasks."""

    def __init__(self, names: set[str], system: Real, folder: Path) -> None:
        self._system, self._folder = system, folder
        crowd = {name: asyncio.create_task(self._tell(name)) for name in names - ALONE}
        self.told = crowd | {name: asyncio.create_task(self._tell_after(crowd, name)) for name in names & ALONE}

    async def _tell_after(self, others: dict[str, asyncio.Task[None]], name: str) -> None:
        if others:
            await asyncio.wait(others.values())
        await self._tell(name)

    async def _tell(self, name: str) -> None:
        (place := self._folder / name).mkdir()
        place.chmod(0o777)
        await STORIES[name](self._system, place)

    async def end(self) -> None:
        for task in self.told.values():
            task.cancel()
        await asyncio.gather(*self.told.values(), return_exceptions=True)


STORIES: dict[str, Telling] = {
    each.__name__: each
    for each in (
        a_deleted_pod_is_followed_by_one_more_attempt,
        a_drained_pod_is_followed_by_one_more_attempt,
        a_pod_that_its_node_evicts_is_followed_by_one_more_attempt,
        a_preempted_pod_is_followed_by_one_more_attempt,
        an_agent_out_of_memory_is_named_and_not_repeated,
        a_tool_out_of_memory_is_a_warning_of_a_run_that_went_on,
        a_lost_node_never_runs_two_agents_and_one_that_comes_back_goes_on,
    )
}
ALONE = {a_lost_node_never_runs_two_agents_and_one_that_comes_back_goes_on.__name__}
"""What befalls every pod of the node."""


@pytest.fixture(scope="module")
async def stories(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stories]:
    """Begun with the first test."""
    names = {item.callspec.params["promise"] for item in request.session.items if "stories" in item.fixturenames}  # type: ignore[attr-defined]  # functions have both
    async with real(tmp_path_factory.mktemp("stack")) as system:
        begun = Stories(names, system, tmp_path_factory.mktemp("stories"))
        try:
            yield begun
        finally:
            await begun.end()


@pytest.mark.parametrize("promise", STORIES)
async def test_on_a_real_cluster(stories: Stories, promise: str) -> None:
    await stories.told[promise]
