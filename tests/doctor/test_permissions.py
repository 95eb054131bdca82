"""Which permissions a worker asks for, and where."""

from dataclasses import dataclass
from typing import cast

from agent_runs.doctor.permissions import missing_permissions, needed_grants
from agent_runs.kube.client import Cluster


@dataclass
class Strict:
    """A cluster that grants all but two permissions in the agents' namespace, and nothing elsewhere."""

    own_namespace: str | None = None

    async def allowed(self, verb: str, resource: str, namespace: str) -> bool:
        return namespace == "agents" and (verb, resource) not in {("get", "pods/log"), ("watch", "pods")}


async def test_missing_permissions_are_named_by_verb_and_resource() -> None:
    cluster = cast("Cluster", Strict())
    assert sorted(await missing_permissions(cluster, "agents")) == [("get", "pods/log"), ("watch", "pods")]
    assert await missing_permissions(cluster, "elsewhere", {"pods": ("get",)}) == [("get", "pods")]


def test_a_worker_needs_its_own_pod_only_inside_one_and_a_deployment_only_if_agents_inherit_from_it() -> None:
    inside, outside = cast("Cluster", Strict("workers")), cast("Cluster", Strict())
    assert [each.namespace for each in needed_grants(outside, "agents", None)] == ["agents"]
    assert [each.namespace for each in needed_grants(inside, "agents", "paperclip")] == [
        "agents",
        "workers",
        "paperclip",
    ]
