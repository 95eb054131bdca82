"""What agents inherit from the worker's pod, and what they never inherit."""

from typing import Any

import pytest

from agent_runs.contracts.errors import PodIntrospectionFailed
from agent_runs.contracts.messages import EnvReference, SecretMount
from agent_runs.contracts.request import RunConfig
from agent_runs.job.pod_profile import Inheritance, PodOverrides, agent_profile, inherited_literals, pod_profile

SECRET_REF = {"secretKeyRef": {"name": "db", "key": "user"}}
EVERYTHING = Inheritance(variables=("*",), env_from=("*",), mounts=("*",))


def worker(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "worker", "image": "registry.example/paperclip:1", **(container or {})}
    return {"metadata": {"name": "worker-1", "namespace": "home"}, "spec": {"containers": [main], **spec}}


def test_a_whole_profile() -> None:
    container = {
        "volumeMounts": [
            {"name": "data", "mountPath": "/paperclip"},
            {"name": "keys", "mountPath": "/etc/keys", "subPath": "a"},
            {"name": "sealing", "mountPath": "/etc/agent-runs"},
            {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
            {"name": "maps", "mountPath": "/etc/maps"},
        ],
        "env": [
            {"name": "LITERAL", "value": "x"},
            {"name": "PGUSER", "valueFrom": SECRET_REF},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "AGENT_RUNS_SEALING_KEY", "valueFrom": {"secretKeyRef": {"name": "own", "key": "key"}}},
            {"name": "TEMPORAL_API_KEY", "valueFrom": {"secretKeyRef": {"name": "own", "key": "temporal"}}},
        ],
        "envFrom": [{"secretRef": {"name": "shared"}}, {"secretRef": {"name": "agent-runs-worker"}}],
    }
    profile = pod_profile(
        worker(
            container,
            volumes=[
                {"name": "data", "persistentVolumeClaim": {"claimName": "paperclip-data"}},
                {
                    "name": "keys",
                    "secret": {"secretName": "k", "defaultMode": 256, "items": [{"key": "a", "path": "b"}]},
                },
                {"name": "sealing", "secret": {"secretName": "sealing-key"}},
                {"name": "token", "secret": {"secretName": "worker-token-abc"}},
                {"name": "maps", "configMap": {"name": "m"}},
            ],
            imagePullSecrets=[{"name": "registry"}, {"name": ""}],
            dnsConfig={"nameservers": ["10.0.0.10"]},
            nodeSelector={"disk": "ssd"},
            tolerations=[{"key": "gpu", "operator": "Exists"}],
        ),
        Inheritance(variables=("PG*", "*TOKEN*"), env_from=("shared",), mounts=("/etc/*", "/var/*")),
    )
    assert profile.namespace == "home"
    assert profile.image == "registry.example/paperclip:1"
    assert profile.image_pull_secrets == ("registry",)
    assert profile.dns_config == {"nameservers": ["10.0.0.10"]}
    assert profile.data_claim == "paperclip-data"
    assert profile.secret_mounts == (
        SecretMount(
            volume_name="keys",
            secret_name="k",
            mount_path="/etc/keys",
            default_mode=256,
            items=({"key": "a", "path": "b"},),
            sub_path="a",
        ),
    )
    assert profile.env_references == (EnvReference(name="PGUSER", value_from=SECRET_REF),)
    assert profile.env_from == ({"secretRef": {"name": "shared"}},)
    assert (profile.node_selector, profile.tolerations) == ({"disk": "ssd"}, ({"key": "gpu", "operator": "Exists"},))
    assert profile.source == "pod home/worker-1"


def test_the_container_called_worker_is_asked_and_never_one_beside_it() -> None:
    paperclip = {"name": "paperclip", "image": "a", "env": [{"name": "PGUSER", "valueFrom": SECRET_REF}]}
    pod = worker(containers=[paperclip, {"name": "worker", "image": "b"}])
    assert pod_profile(pod, EVERYTHING).image == "b"
    assert pod_profile(pod, EVERYTHING).env_references == ()


@pytest.mark.parametrize(("chosen", "expected"), [(None, "agents"), ("other", "other")])
def test_agents_of_a_worker_in_another_namespace_are_where_the_settings_say(chosen: str | None, expected: str) -> None:
    config = RunConfig(model="fake/model", namespace=chosen)
    assert agent_profile(worker(), config, PodOverrides(), EVERYTHING, home="agents").namespace == expected


@pytest.mark.parametrize(("chosen", "expected"), [(None, "settings:1"), ("chosen:1", "chosen:1")])
def test_an_image_of_the_configuration_or_of_the_settings_replaces_that_of_the_worker(
    chosen: str | None, expected: str
) -> None:
    config, overrides = RunConfig(model="fake/model", image=chosen), PodOverrides("settings:1", data_claim="own")
    profile = agent_profile(worker(), config, overrides, EVERYTHING, home="agents")
    assert (profile.image, profile.data_claim) == (expected, "own")


@pytest.mark.parametrize(
    "container",
    [
        pytest.param({}, id="no mount"),
        pytest.param({"volumeMounts": [{"name": "data", "mountPath": "/paperclip/sub"}]}, id="another path"),
        pytest.param({"volumeMounts": [{"name": "empty", "mountPath": "/paperclip"}]}, id="no claim"),
    ],
)
def test_without_a_data_volume_there_is_none(container: dict[str, Any]) -> None:
    assert pod_profile(worker(container, volumes=[{"name": "empty", "emptyDir": {}}])).data_claim is None


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        ({"metadata": {"name": "w"}}, "pod w has no spec"),
        (worker(containers=[]), "no container"),
        (worker({"image": ""}), "pod worker-1 has no container image"),
        ({}, "no spec"),
        ({"spec": {"containers": None, "x": 1}}, "no container"),
        (
            worker(containers=[{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]),
            "call the worker's own `worker`",
        ),
    ],
)
def test_a_pod_without_an_image_is_reported(pod: dict[str, Any], message: str) -> None:
    with pytest.raises(PodIntrospectionFailed, match=message):
        pod_profile(pod)


def test_literals_are_inherited_only_by_name() -> None:
    container = {
        "env": [
            {"name": "HTTP_PROXY", "value": "http://proxy"},
            {"name": "EMPTY"},
            {"name": "PGUSER", "valueFrom": SECRET_REF},
            {"name": "AGENT_RUNS_TOKEN", "value": "canary"},
            {"name": "DATABASE_URL", "value": "canary"},
        ]
    }
    assert inherited_literals(worker(container), Inheritance()) == {}
    assert inherited_literals(worker(container), Inheritance(["*_PROXY", "EMPTY", "PGUSER"])) == {
        "HTTP_PROXY": "http://proxy",
        "EMPTY": "",
    }
    assert "AGENT_RUNS_TOKEN" not in inherited_literals(worker(container), EVERYTHING)


def test_a_data_mount_with_a_trailing_slash_is_found() -> None:
    container = {"volumeMounts": [{"name": "data", "mountPath": "/paperclip/"}]}
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "paperclip-data"}}]
    assert pod_profile(worker(container, volumes=volumes)).data_claim == "paperclip-data"
