"""What agent configurations may choose, and how a refusal and a wrong file read."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agent_runs.contracts.errors import InvalidRequest, PolicyRefused
from agent_runs.contracts.request import RunConfig
from agent_runs.job.checks import check_config
from agent_runs.job.policy import Allowed, Policy
from tests.support.cases import case

SHIPPED = Path(__file__).parents[2] / "deploy" / "base" / "policy.yaml"
FILE = """\
serviceAccountNames: [builder-*]
namespaces:
  - agents-two
images: ["ghcr.io/acme/*"]
nodeSelectors: ["pool=agents-*"]
tolerations: ["gpu=*:NoSchedule", "spot=*:*"]
paperclipApiUrls: ["https://paperclip.example*"]
storageClasses: [fast]
max:
  cpu: 8
  memory: 32Gi
  timeoutSec: 7200
  costUsd: 2.5
  tokens: 1000000
  repeatedCalls: 10
"""


def refusal(config: dict[str, Any], policy: Policy | None = None, **about: Any) -> str:
    """The message of the refusal; empty when the configuration is allowed."""
    try:
        (policy or Policy()).check(RunConfig.model_validate({"model": "fake/model", **config}), **about)
    except PolicyRefused as refused:
        return refused.message
    return ""


def test_a_policy_may_ask_for_images_by_digest() -> None:
    policy = Policy.parse('images: ["registry.example:5000/*@sha256:*"]', "p.yaml")
    digest = f"@sha256:{'a' * 64}"
    for image in ("registry.example:5000/agent", "registry.example:5000/team/agent:1.2"):
        assert refusal({"image": image + digest}, policy) == ""
        assert "image" in refusal({"image": image}, policy)
    assert "image" in refusal({"image": f"elsewhere/agent{digest}"}, policy)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"serviceAccountName": "builder"}, "serviceAccountName"),
        ({"namespace": "kube-system"}, "namespace"),
        ({"labels": {"app": "paperclip"}}, "labels"),
        ({"labels": {"sidecar.istio.io/inject": "true"}}, "labels"),
        ({"labels": {"azure.workload.identity/use": "true"}}, "labels"),
        ({"podTemplate": {"metadata": {"labels": {"sidecar.istio.io/inject": "true"}}}}, "podTemplate.metadata.labels"),
        ({"annotations": {"azure.workload.identity/inject-proxy-sidecar": "true"}}, "annotations"),
        ({"nodeSelector": {"node-role.kubernetes.io/master": ""}}, "nodeSelector"),
        ({"tolerations": [{"operator": "Exists"}]}, "tolerations"),
        ({"paperclipApiUrl": "https://elsewhere.example"}, "paperclipApiUrl"),
        ({"agentDbMode": "dedicated_pvc", "agentDbStorageClass": "gold"}, "agentDbStorageClass"),
        ({"agentDbMode": "dedicated_pvc", "agentDbStorageCapacity": "900Ti"}, "agentDbStorageCapacity"),
        ({"resources": {"limits": {"cpu": "900"}}}, "resources.limits.cpu"),
        ({"resources": {"limits": {"memory": "65Gi"}}}, "resources.limits.memory"),
    ],
)
def test_without_a_policy_nothing_is_chosen_that_reaches_beyond_the_agents_own_pod(
    config: dict[str, Any], field: str
) -> None:
    assert refusal(config).startswith(f"{field}: ")
    assert "AGENT_RUNS_POLICY names no file" in refusal(config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"namespace": "home"},
        {"image": "ghcr.io/anybody/agent:1"},
        {"nodeSelector": {}, "tolerations": []},
        {"agentDbMode": "dedicated_pvc"},
        {"agentDbStorageClass": "unused without a claim"},
        {"resources": {"limits": {"cpu": "16", "memory": "64Gi"}}},
        {"timeoutSec": 0},
    ],
)
def test_without_a_policy_an_ordinary_configuration_is_allowed(config: dict[str, Any]) -> None:
    assert not refusal(config, home="home")


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"serviceAccountName": "admin"}, "serviceAccountName: 'admin' is not allowed by serviceAccountNames"),
        (
            {"namespace": "three"},
            "namespace: 'three' is not allowed by namespaces of the operator's policy (p.yaml, line 2)",
        ),
        ({"image": "evil/ghcr.io/acme/x"}, "(p.yaml, line 4)"),
        ({"nodeSelector": {"pool": "control"}}, "'pool=control' is not allowed by nodeSelectors"),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, "'gpu=*:*' is not allowed by tolerations"),
        ({"tolerations": [{"key": "gpu", "value": "a", "effect": "NoExecute"}]}, "'gpu=a:NoExecute'"),
        ({"labels": {"team": "a"}}, "labels of the operator's policy (p.yaml, which has no such key)"),
        (
            {"resources": {"limits": {"cpu": "8001m"}}},
            "is more than 8, by max.cpu of the operator's policy (p.yaml, line 10)",
        ),
        ({"timeoutSec": 7201}, "timeoutSec: '7201' is more than 7200, by max.timeoutSec"),
        ({"timeoutSec": 0}, "timeoutSec: '0 (no limit)' is more than 7200"),
        (
            {"maxCostUsd": 2.51},
            "maxCostUsd: '2.51' is more than 2.5, by max.costUsd of the operator's policy (p.yaml, line 13)",
        ),
        ({"maxTokens": 1_000_001}, "maxTokens: '1000001' is more than 1000000, by max.tokens"),
        ({"maxRepeatedCalls": 11}, "max.repeatedCalls of the operator's policy (p.yaml, line 15)"),
    ],
)
def test_a_refusal_names_field_value_and_the_line_of_the_policy(config: dict[str, Any], place: str) -> None:
    assert place in refusal({"timeoutSec": 60, "image": "ghcr.io/acme/agent:1", **config}, Policy.parse(FILE, "p.yaml"))


@pytest.mark.parametrize(
    "config",
    [
        {"serviceAccountName": "builder-1"},
        {"namespace": "agents-two"},
        {"nodeSelector": {"pool": "agents-a"}},
        {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, {"key": "spot", "value": "x"}]},
        {"paperclipApiUrl": "https://paperclip.example/"},
        {"agentDbMode": "dedicated_pvc", "agentDbStorageClass": "fast"},
        {"resources": {"limits": {"cpu": "8"}}},
        {"timeoutSec": 7200},
        {"maxCostUsd": 2.5, "maxTokens": 1_000_000, "maxSteps": 10**9, "maxRepeatedCalls": 0},
    ],
)
def test_what_the_policy_lists_is_allowed(config: dict[str, Any]) -> None:
    assert not refusal({"timeoutSec": 60, "image": "ghcr.io/acme/agent:1", **config}, Policy.parse(FILE, "p.yaml"))


def test_each_part_of_an_address_is_compared_by_itself() -> None:
    pattern = "https://*.corp.example"
    refused = [
        *(
            "https://evil.example/x.corp.example",
            "https://evil.example/.corp.example",
            "https://evil.example?.corp.example",
        ),
        *("https://evil.example#.corp.example", "https://evil.example\\.corp.example", "http://a.corp.example"),
        *(
            "https://a.corp.example:8443",
            "https://a.corp.example/elsewhere",
            "https://corp.example",
            "ftp://a.corp.example",
        ),
    ]
    allowed = ["https://a.corp.example", "https://a.b.corp.example/", "HTTPS://A.CORP.EXAMPLE"]
    for address in (*refused, *allowed):
        with case(address):
            policy = Policy(Allowed.model_validate({"paperclipApiUrls": [pattern]}))
            assert bool(refusal({"paperclipApiUrl": address}, policy)) == (address in refused)
    paths = Policy(Allowed.model_validate({"paperclipApiUrls": ["https://*.example/tools/*", "http://*:3100"]}))
    for address in ("https://a.example/tools/x", "http://paperclip:3100"):
        assert not refusal({"paperclipApiUrl": address}, paths)
    assert refusal({"paperclipApiUrl": "https://a.example/x/tools/y"}, paths)
    assert not refusal({"paperclipApiUrl": "http://x/y"}, Policy(Allowed.model_validate({"paperclipApiUrls": ["*"]})))


def test_no_limit_of_nothing_passes_as_a_limit() -> None:
    volume: dict[str, Any] = {"name": "v", "mountPath": "/v"}
    for amount in ("0", "0.0", "00", "0Gi", "0m"):
        limits: list[dict[str, Any]] = [
            *({"resources": {"limits": {kind: amount}}} for kind in ("cpu", "memory", "ephemeral-storage")),
            {"extraVolumes": [{**volume, "emptyDir": {"sizeLimit": amount}}]},
            {"agentDbMode": "dedicated_pvc", "agentDbStorageCapacity": amount},
        ]
        for config in limits:
            with case(config), pytest.raises((InvalidRequest, ValidationError), match="more than 0"):
                check_config(RunConfig.model_validate({"model": "fake/model", **config}))
    check_config(RunConfig.model_validate({"model": "fake/model", "resources": {"requests": {"cpu": "0"}}}))


def test_an_agent_without_a_budget_gets_that_of_the_policy() -> None:
    policy = Policy.parse(FILE, "p.yaml")
    config = RunConfig.model_validate({"model": "fake/model", "maxTokens": 5, "maxSteps": 7})
    limited = policy.bounded(config)
    assert (limited.max_cost_usd, limited.max_tokens, limited.max_steps, limited.max_repeated_calls) == (2.5, 5, 7, 10)
    assert Policy().bounded(config) == config


def test_a_pod_rests_no_longer_than_the_policy_allows() -> None:
    policy = Policy.parse("max: {keepWarmSec: 30}", "p.yaml")
    chosen = [RunConfig.model_validate({"model": "fake/model", **config}) for config in ({}, {"keepWarmSec": 5})]
    assert [policy.bounded(config).keep_warm_sec for config in chosen] == [30, 5]
    assert Policy().bounded(chosen[0]).keep_warm_sec == 120


def test_all_refused_fields_are_named_at_once() -> None:
    message = refusal({"namespace": "a", "labels": {"app": "x"}, "resources": {"limits": {"cpu": "900"}}})
    assert [part.split(":")[0] for part in message.split("; ")] == ["namespace", "labels", "resources.limits.cpu"]


def test_the_workers_own_service_account_is_refused_even_when_the_policy_lists_it() -> None:
    policy = Policy(Allowed(serviceAccountNames=("*",)))
    assert not refusal({"serviceAccountName": "builder"}, policy, own_account="agent-runs-worker")
    message = refusal({"serviceAccountName": "agent-runs-worker"}, policy, own_account="agent-runs-worker")
    assert message == "serviceAccountName: 'agent-runs-worker' is the worker's own, which no agent may have"


def test_the_defaults_of_the_resources_count_as_chosen() -> None:
    small = Policy(Allowed.model_validate({"max": {"memory": "4Gi"}}))
    assert refusal({}, small).startswith("resources.limits.memory: '8Gi' is more than 4Gi")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("images: [a\n", "p.yaml, line 2: "),
        ("images: []\nimage: [a]\n", "p.yaml, line 2: image: no such key"),
        ("max:\n  cpu: 4\n  gpu: 1\n", "p.yaml, line 3: max.gpu: no such key"),
        ("max:\n  memory: much\n", "p.yaml, line 2: max.memory: must be a Kubernetes quantity"),
        ("labels:\n  - a\n  - 'b c'\n", "p.yaml, line 3: labels.1: must be a text without spaces"),
        ("namespaces: all\n", "p.yaml, line 1: namespaces: "),
        ("- a\n", "p.yaml, line 1: "),
        ("images: []\nmax:\n  <<: {cpu: many}\n", "p.yaml, line 2: max.cpu: must be a Kubernetes quantity"),
        ("paperclipApiUrls: ['*.corp.example']\n", "p.yaml, line 1: paperclipApiUrls.0: must be '*' or begin as"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_key(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Policy.parse(text, "p.yaml")
    assert caught.value.message.startswith(message)


def test_an_empty_file_is_the_defaults() -> None:
    assert Policy.parse("# nothing\n", "p.yaml").allowed == Allowed()


def test_the_shipped_file_says_the_defaults() -> None:
    shipped = Policy.parse(SHIPPED.read_text(), SHIPPED.name)
    assert shipped.allowed == Allowed()
    assert {name.split(".")[0] for name in shipped.lines} == {
        str(field.alias) for field in Allowed.model_fields.values()
    }


def test_a_policy_stays_as_it_was_read() -> None:
    allowed = Policy.parse(FILE, "p.yaml").allowed
    for part, field in ((allowed, "images"), (allowed.max, "cpu"), (allowed.volumes, "secrets")):
        with case(field), pytest.raises(ValidationError, match="frozen"):
            setattr(part, field, ("*",))


def test_no_number_of_the_policy_is_negative_and_0_is_one() -> None:
    defaults = Allowed().max.model_dump(by_alias=True)
    numbers = [name for name, value in defaults.items() if isinstance(value, int | float)]
    assert numbers == ["timeoutSec", "keepWarmSec", "costUsd", "tokens", "steps", "repeatedCalls"]
    for name in numbers:
        with case(name):
            assert Policy.parse(f"max: {{{name}: 0}}", "p.yaml")
            with pytest.raises(InvalidRequest, match=rf"line 1: max\.{name}: "):
                Policy.parse(f"max: {{{name}: -1}}", "p.yaml")


def test_of_a_long_value_that_is_refused_80_characters_are_quoted() -> None:
    address = f"https://elsewhere.example/{'x' * 80}"
    assert refusal({"paperclipApiUrl": address}).startswith(f"paperclipApiUrl: '{address[:80]}' is not allowed")
