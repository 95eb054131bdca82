"""From which Deployment agents inherit, and which Secrets have to be in the namespace of their Jobs."""

from dataclasses import dataclass
from typing import cast

import pytest

from agent_runs.contracts.messages import EnvReference, PodProfile
from agent_runs.job.pod_profile import DeploymentChoice
from agent_runs.job.pod_source import deployment_namespace, inherited_secrets
from agent_runs.kube.client import Cluster


@dataclass
class Namespaces:
    own_namespace: str | None
    namespace: str


@pytest.mark.parametrize(
    ("chosen", "own", "expected"),
    [("paperclip", "workers", "paperclip"), (None, "workers", "workers"), (None, None, "agents")],
)
def test_the_deployment_is_where_the_setting_says_else_beside_the_worker(
    chosen: str | None, own: str | None, expected: str
) -> None:
    cluster = cast("Cluster", Namespaces(own, "agents"))
    assert deployment_namespace(cluster, DeploymentChoice("a=b", chosen)) == expected


def test_secrets_that_may_be_missing_are_not_asked_for() -> None:
    def variable(name: str, secret: str, **more: bool) -> EnvReference:
        return EnvReference(name=name, value_from={"secretKeyRef": {"name": secret, "key": "k", **more}})

    profile = PodProfile(
        namespace="agents",
        image="i",
        env_references=(
            variable("A", "one"),
            variable("B", "one"),
            variable("C", "maybe", optional=True),
            EnvReference(name="D", value_from={"configMapKeyRef": {"name": "map", "key": "k"}}),
        ),
        env_from=(
            {"secretRef": {"name": "two"}},
            {"secretRef": {"name": "maybe", "optional": True}},
            {"configMapRef": {"name": "map"}},
        ),
    )
    assert inherited_secrets(profile) == {"one": "variable A", "two": "all of its keys"}
