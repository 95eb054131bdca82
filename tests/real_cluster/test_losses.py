"""What Kubernetes does to agents on a real cluster, with the real OpenCode: evicted, preempted, killed, disconnected.

Needs KUBECONFIG and TEST_AGENT_IMAGE; what needs the node itself also TEST_CLUSTER_TOOL. All scenarios run at a time on
one stack, because they mostly wait; the node is disconnected when the others have ended.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent_runs.kube.objects import Pod
from tests.real_cluster.objects import (
    OWN_CLASS,
    agent_volume,
    api_request,
    created_object,
    stand_in_node,
    until_accepted,
)
from tests.real_cluster.observed_runs import observed_run
from tests.real_cluster.requirements import TOOL, cluster_tool, skip_without
from tests.real_cluster.stack import RealSystem, open_real_system

pytestmark = [pytest.mark.real_cluster, pytest.mark.alone, pytest.mark.timeout(900)]

LOST = ("k8s_pod_lost", None)
"""The first attempt lost its pod, the second one succeeded."""
EVICTION = "/api/v1/namespaces/default/pods/{}/eviction"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PODS = "/api/v1/namespaces/default/pods"
RECONNECTED_TIMEOUT = timedelta(seconds=100)
"""Until the runs have ended, from the moment when their node is connected."""
UNREACHABLE = "node.kubernetes.io/unreachable"
MANY_PROCESSES = (
    "for i in $(seq 12); do (head -c 80000000 /dev/zero; sleep 20) | tail -c 80000000 > /dev/null & done; wait"
)
"""Processes none of which is as large as OpenCode, so that the kernel kills OpenCode."""
ONE_GIGABYTE = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}

Scenario = Callable[[RealSystem, Path], Awaitable[None]]


async def a_deleted_pod_is_followed_by_one_more_attempt(system: RealSystem, _: Path) -> None:
    async with observed_run(system, 6) as run:
        pod = await run.until_steps()
        await system.cluster.delete_pod("default", pod.metadata.name, pod.metadata.uid, timedelta(seconds=1))
        await run.assert_guarantees(await run.outcome(), *LOST)


async def a_drained_pod_is_followed_by_one_more_attempt(system: RealSystem, _: Path) -> None:
    async with observed_run(system, 6) as run:
        pod = await run.until_steps()
        written = await run.written(pod)
        await evict(system, pod)
        await run.assert_guarantees(await run.outcome(), *LOST)
        assert (await run.lines())[: len(written)] == written


async def evict(system: RealSystem, pod: Pod) -> None:
    """Evict the pod through the API, as `kubectl drain` does."""
    metadata = {"name": pod.metadata.name, "namespace": "default"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    await api_request(system.cluster, "POST", EVICTION.format(pod.metadata.name), body=eviction)


async def a_pod_evicted_for_its_disk_limit_is_a_named_failure_without_retry(system: RealSystem, _: Path) -> None:
    """The container writes more than its limit: the kubelet evicts the pod, which stays, failed."""
    namespace = f"real-{uuid.uuid4().hex[:10]}"
    limits = [{"type": "Container", "default": {"ephemeral-storage": "50Mi"}}]
    quota = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": limits}}
    own_namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    async with created_object(system.cluster, "/api/v1/namespaces", own_namespace):
        await api_request(system.cluster, "POST", f"/api/v1/namespaces/{namespace}/limitranges", body=quota)
        async with observed_run(system, 6, namespace=namespace) as run:
            pod = await run.until_steps()
            written = await run.written(pod)
            filling = asyncio.create_task(run.execute(pod, "sh", "-c", "head -c 200000000 /dev/zero > /tmp/big"))
            evicted = await run.unless_ended(run.observer.until(lambda pod: pod.status.reason == "Evicted"))
            filling.cancel()  # the eviction may have overtaken it
            assert evicted.metadata.uid == pod.metadata.uid
            outcome = await run.outcome()
            await run.assert_guarantees(outcome, "disk_limit_exceeded")
            assert "used more disk than its limit of" in (outcome.error_message or "")
            assert (await run.lines())[: len(written)] == written


async def a_preempted_pod_is_followed_by_one_more_attempt(system: RealSystem, _: Path) -> None:
    """A pod of a higher priority class takes the agent's place for a while."""
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
    async with observed_run(system, 6, resources=large) as run:
        victim = await run.until_steps()
        written = await run.written(victim)
        async with created_object(system.cluster, CLASSES, urgent):
            await until_accepted(system.cluster, PODS, pod)
            async with created_object(system.cluster, PODS, pod):
                outcome = await run.outcome()
        await run.assert_guarantees(outcome, *LOST)
        assert (await run.lines())[: len(written)] == written


async def an_agent_out_of_memory_is_a_named_failure_without_retry(system: RealSystem, _: Path) -> None:
    async with observed_run(system, 3, command=MANY_PROCESSES, resources=ONE_GIGABYTE) as run:
        outcome = await run.outcome()
        await run.assert_guarantees(outcome, "oom_killed")
        assert (outcome.error_message or "").count("Pod exited") == 1
        assert await run.finished_steps() == [1, 2]


async def a_tool_out_of_memory_is_a_note_of_a_run_that_succeeds(system: RealSystem, _: Path) -> None:
    """The kernel kills the tool; OpenCode continues and succeeds, and its container's status says OOMKilled later."""
    async with observed_run(system, 3, command="tail /dev/zero; echo killed", resources=ONE_GIGABYTE) as run:
        outcome = await run.outcome()
        await run.assert_guarantees(outcome, None)
        assert any("OOMKilled" in note for note in (outcome.result_json or {})["notes"])


async def a_disconnected_node_never_runs_two_agents_and_continues_when_it_is_back(
    system: RealSystem, folder: Path
) -> None:
    """The kubelet is stopped until Kubernetes deletes the first agent's pod, and not the second one's.

    A kubelet that starts and has a pod that was deleted meanwhile ends it and removes its log a second or two later;
    what was written while it was stopped has to be read in between.
    """
    skip_without(TOOL)
    soon = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]
    agent_id = str(uuid.uuid4())
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(stand_in_node(system.cluster))
        await stack.enter_async_context(agent_volume(system.cluster, folder, agent_id))
        own: dict[str, Any] = {
            "agentDbMode": "dedicated_pvc",
            "agentDbStorageClass": OWN_CLASS,
            "tolerations": soon,
        }
        moved = await stack.enter_async_context(observed_run(system, 8, agent_id=agent_id, **own))
        continued = await stack.enter_async_context(observed_run(system, 8))
        pods = await asyncio.gather(moved.until_steps(), continued.until_steps())
        await cluster_tool("kill", "kubelet")
        try:
            deleted = await moved.unless_ended(
                moved.observer.until(lambda pod: pod.metadata.deletion_timestamp is not None)
            )
            node = pods[1].spec.node_name
            await continued.unless_ended(continued.until_waiting(f"node {node} does not answer"))
            await sleep_until(deleted.metadata.deletion_timestamp)
        finally:
            await cluster_tool("start", "kubelet")
        await continued.release_agent(pods[1])
        async with asyncio.timeout(RECONNECTED_TIMEOUT.total_seconds()):
            outcomes = await asyncio.gather(moved.outcome(), continued.outcome())
        await moved.assert_guarantees(outcomes[0], *LOST)
        assert await moved.finished_steps() == list(range(1, 8))
        assert outcomes[0].attempts[0].receipt.state == "verified"
        assert await moved.sessions() == {outcomes[0].session_id}
        await continued.assert_guarantees(outcomes[1], None)
        assert await continued.sessions() == {outcomes[1].session_id}


async def sleep_until(moment: datetime | None) -> None:
    """Sleep until a moment that Kubernetes has announced without an event for it."""
    assert moment is not None
    await asyncio.sleep((moment - datetime.now(UTC)).total_seconds())


# all of them at a time


class ScenarioRuns:
    """The selected scenarios, each as a task."""

    def __init__(self, names: set[str], system: RealSystem, folder: Path) -> None:
        self._system, self._folder = system, folder
        shared = {name: asyncio.create_task(self._run(name)) for name in names - ALONE}
        self.tasks = shared | {name: asyncio.create_task(self._run_after(shared, name)) for name in names & ALONE}

    async def _run_after(self, others: dict[str, asyncio.Task[None]], name: str) -> None:
        if others:
            await asyncio.wait(others.values())
        await self._run(name)

    async def _run(self, name: str) -> None:
        (folder := self._folder / name).mkdir()
        folder.chmod(0o777)
        await SCENARIOS[name](self._system, folder)

    async def end(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


SCENARIOS: dict[str, Scenario] = {
    each.__name__: each
    for each in (
        a_deleted_pod_is_followed_by_one_more_attempt,
        a_drained_pod_is_followed_by_one_more_attempt,
        a_pod_evicted_for_its_disk_limit_is_a_named_failure_without_retry,
        a_preempted_pod_is_followed_by_one_more_attempt,
        an_agent_out_of_memory_is_a_named_failure_without_retry,
        a_tool_out_of_memory_is_a_note_of_a_run_that_succeeds,
        a_disconnected_node_never_runs_two_agents_and_continues_when_it_is_back,
    )
}
ALONE = {a_disconnected_node_never_runs_two_agents_and_continues_when_it_is_back.__name__}
"""What happens to every pod of the node."""


@pytest.fixture(scope="module")
async def scenario_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ScenarioRuns]:
    """Started with the first test."""
    names = {item.callspec.params["promise"] for item in request.session.items if "scenario_runs" in item.fixturenames}  # type: ignore[attr-defined]  # functions have both
    async with open_real_system(tmp_path_factory.mktemp("stack")) as system:
        runs = ScenarioRuns(names, system, tmp_path_factory.mktemp("scenarios"))
        try:
            yield runs
        finally:
            await runs.end()


@pytest.mark.parametrize("promise", SCENARIOS)
async def test_on_a_real_cluster(scenario_runs: ScenarioRuns, promise: str) -> None:
    await scenario_runs.tasks[promise]
