"""Agents inherit what the operator lists, and never what the worker's own settings point to."""

from dataclasses import replace
from typing import Any

import pytest

from agent_runs.contracts.messages import PodProfile
from agent_runs.job.pod_profile import Inheritance, pod_profile

EVERYTHING = Inheritance(variables=("*",), env_from=("*",), mounts=("*",))
FOUND_BY_A_REVIEW = (
    *("PAPERCLIP_AGENT_JWT_SECRET", "BETTER_AUTH_SECRET", "DATABASE_URL", "PGPASSWORD"),
    "PAPERCLIP_SECRETS_MASTER_KEY",
)
"""Variables of Paperclip's own pod that agents inherited by reference."""


def reference(name: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def inherited(
    *env: dict[str, Any],
    inheritance: Inheritance = EVERYTHING,
    mounts: dict[str, str] | None = None,
    env_from: tuple[str, ...] = (),
) -> PodProfile:
    """The profile of a worker with these variables and mounts (path: Secret)."""
    paths = mounts or {}
    names = {secret: f"v{index}" for index, secret in enumerate(dict.fromkeys(paths.values()))}
    container = {
        "name": "worker",
        "image": "worker:1",
        "env": list(env),
        "envFrom": [{"secretRef": {"name": name}} for name in env_from],
        "volumeMounts": [{"name": names[secret], "mountPath": path} for path, secret in paths.items()],
    }
    volumes = [{"name": name, "secret": {"secretName": secret}} for secret, name in names.items()]
    return pod_profile({"spec": {"containers": [container], "volumes": volumes}}, inheritance)


def test_by_default_nothing_is_inherited_by_reference_mount_or_env_from() -> None:
    references = [reference(name, "paperclip-secrets", name) for name in FOUND_BY_A_REVIEW]
    profile = inherited(
        *references,
        inheritance=Inheritance(variables=("ANTHROPIC_*",)),
        mounts={"/etc/keys": "keys"},
        env_from=("paperclip-secrets",),
    )
    assert (profile.env_references, profile.env_from, profile.secret_mounts) == ((), (), ())


def test_a_secret_of_this_program_is_inherited_by_its_exact_name_alone() -> None:
    """The overlays list that of providers; `*` finds none, not even one that a model provider's variable refers to."""
    ours = ("agent-runs-provider-keys", "agent-runs-workspace-storage")
    variable = reference("AWS_ACCESS_KEY_ID", ours[1], "AWS_ACCESS_KEY_ID")
    listed = inherited(variable, inheritance=replace(EVERYTHING, env_from=("*", ours[0])), env_from=ours)
    assert (listed.env_from, listed.env_references) == (({"secretRef": {"name": ours[0]}},), ())


def test_a_listed_reference_is_inherited() -> None:
    wanted = reference("ANTHROPIC_API_KEY", "providers", "anthropic")
    (only,) = inherited(wanted, inheritance=Inheritance(variables=("ANTHROPIC_*",))).env_references
    assert only.name == "ANTHROPIC_API_KEY"


@pytest.mark.parametrize(
    "setting",
    [
        {"name": "AGENT_RUNS_SEALING_KEY_FILE", "value": "/keys/sealing-key.json"},
        {"name": "AGENT_RUNS_KUBECONFIG", "value": "/keys/config"},
        {"name": "KUBECONFIG", "value": "/keys/config"},
        {"name": "TEMPORAL_TLS_CLIENT_KEY_PATH", "value": "/keys/../keys/tls.key"},
        {"name": "AGENT_RUNS_TRANSCRIPTS_KEY_FILE", "value": "/keys"},
    ],
    ids=lambda setting: str(setting["name"]),
)
def test_a_secret_that_a_setting_points_to_is_passed_on_nowhere(setting: dict[str, Any]) -> None:
    profile = inherited(
        setting,
        reference("INNOCENT", "sealing", "sealing-key.json"),
        mounts={"/keys": "sealing", "/elsewhere": "sealing", "/etc/ca": "authorities"},
        env_from=("sealing", "shared"),
    )
    assert [mount.secret_name for mount in profile.secret_mounts] == ["authorities"]
    assert profile.env_references == ()
    assert profile.env_from == ({"secretRef": {"name": "shared"}},)


def test_the_value_of_a_setting_is_not_passed_on_under_another_name() -> None:
    profile = inherited(
        reference("AGENT_RUNS_TRANSCRIPTS_URL", "database", "url"),
        reference("DATABASE_URL", "database", "url"),
        reference("DATABASE_NAME", "database", "name"),
        mounts={"/db": "database"},
        env_from=("database",),
    )
    assert [each.name for each in profile.env_references] == ["DATABASE_NAME"]
    assert (profile.env_from, profile.secret_mounts) == ((), ())
