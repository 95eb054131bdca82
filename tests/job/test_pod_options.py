"""What an agent's configuration may choose for its pod: refused by name, within the policy, and in a valid pod."""

import itertools
import json
from typing import Any

import kubernetes_validate
import pytest

from agent_runs.contracts.errors import InvalidRequest, PolicyRefused
from agent_runs.contracts.messages import PodProfile, SecretMount
from agent_runs.contracts.request import RunConfig
from agent_runs.job.checks import Checks
from agent_runs.job.placement import ANNOTATIONS_LIMIT
from agent_runs.job.policy import Policy
from agent_runs.paperclip.preparation import prepare
from tests.job.inputs import create_job_input, job_plan, main_container, mounts, objections, pod_spec, volumes
from tests.paperclip.contexts import minimal, with_value
from tests.support.cases import case
from tests.support.pod_security import restricted_violations
from tests.support.policies import ANYTHING

NODES = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]}]}
AGENTS = {"matchLabels": {"app.kubernetes.io/component": "agent-job"}}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": NODES,
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 10, "preference": {"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["8"]}]}}
        ],
    },
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"labelSelector": AGENTS, "topologyKey": "kubernetes.io/hostname"}}
        ]
    },
}
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": AGENTS,
}
VOLUMES = [
    {"name": "scratch", "mountPath": "/scratch", "emptyDir": {"sizeLimit": "1Gi"}},
    {"name": "settings", "mountPath": "/etc/settings", "configMap": {"name": "team-settings"}},
    {
        "name": "key",
        "mountPath": "/etc/key",
        "secret": {"secretName": "team-key", "items": [{"key": "a", "path": "b"}]},
    },
    {
        "name": "models",
        "mountPath": "/models/",
        "subPath": "llama",
        "readOnly": True,
        "persistentVolumeClaim": {"claimName": "models", "readOnly": True},
    },
]
EVERYTHING: dict[str, Any] = {
    "runtimeClassName": "gvisor",
    "priorityClassName": "agents",
    "affinity": AFFINITY,
    "topologySpreadConstraints": [SPREAD],
    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    "extraVolumes": VOLUMES,
    "resources": {"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "20Gi"}},
}


def volume(**changes: Any) -> list[dict[str, Any]]:
    return [{"name": "v", "mountPath": "/v", "emptyDir": {"sizeLimit": "1Gi"}, **changes}]


def named(kind: str, **source: str) -> dict[str, Any]:
    return {"extraVolumes": volume(emptyDir=None, **{kind: source})}


def anti_affinity(**term: Any) -> dict[str, Any]:
    whole = {"labelSelector": AGENTS, "topologyKey": "kubernetes.io/hostname", **term}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [whole]}}


def test_a_pod_with_all_options_is_valid_and_restricted() -> None:
    plan = job_plan(create_job_input(config=EVERYTHING))
    kubernetes_validate.validate(plan.job, "1.34", strict=True)
    assert list(objections(plan)) == []
    assert list(restricted_violations(plan.job["spec"]["template"])) == []
    spec = pod_spec(plan)
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("gvisor", "agents")
    assert (spec["affinity"], spec["topologySpreadConstraints"]) == (AFFINITY, [SPREAD])
    annotations = plan.job["spec"]["template"]["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert main_container(plan)["resources"]["limits"]["ephemeral-storage"] == "20Gi"
    assert volumes(plan)["extra-models"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    mount = {"name": "extra-models", "mountPath": "/models", "subPath": "llama", "readOnly": True}
    assert mounts(plan)["/models"] == mount


def test_an_extra_volume_is_the_agents_alone() -> None:
    plan = job_plan(create_job_input(config=EVERYTHING))
    others = [
        each for each in pod_spec(plan)["containers"] + pod_spec(plan)["initContainers"] if each["name"] != "opencode"
    ]
    assert len(others) == 2
    assert not any(mount["name"].startswith("extra-") for each in others for mount in each["volumeMounts"])


def test_without_options_the_pod_has_none() -> None:
    spec = pod_spec(job_plan())
    assert not spec.keys() & {"affinity", "topologySpreadConstraints", "runtimeClassName", "priorityClassName"}
    assert "ephemeral-storage" not in json.dumps(spec)


def test_the_texts_of_the_form_are_the_same_configuration() -> None:
    form = {
        "affinity": json.dumps(AFFINITY),
        "topologySpreadConstraints": json.dumps([SPREAD]),
        "extraVolumes": json.dumps(VOLUMES),
        "annotations": "cluster-autoscaler.kubernetes.io/safe-to-evict=false",
        "resources.requests.ephemeral-storage": "2Gi",
        "resources.limits.ephemeral-storage": "20Gi",
        "runtimeClassName": "gvisor",
        "priorityClassName": "agents",
    }
    assert RunConfig.model_validate({"model": "a/b", **form}) == RunConfig.model_validate(
        {"model": "a/b", **EVERYTHING}
    )
    empty = RunConfig.model_validate({"model": "a/b", **dict.fromkeys(form, "")})
    assert pod_spec(job_plan(create_job_input(config=empty.model_dump(by_alias=True)))) == pod_spec(job_plan())


WRONG_FORMS: list[tuple[dict[str, Any], str]] = [
    ({"runtimeClassName": "g visor"}, "config.runtimeClassName must be the name of an object"),
    ({"priorityClassName": "High"}, "config.priorityClassName must be the name of an object"),
    ({"affinity": "{"}, "config.affinity must be JSON in Kubernetes' own form"),
    ({"affinity": []}, "config.affinity must be an object"),
    ({"affinity": {"node": {}}}, "config.affinity node: is not known"),
    (
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
        "SchedulingIgnoredDuringExecution.nodeSelectorTerms: list should have at least 1",
    ),
    ({"affinity": anti_affinity(topologyKey=None)}, "[0].topologyKey: is missing"),
    ({"affinity": anti_affinity(namespaces=["kube-system"])}, "[0].namespaces: is not known"),
    (
        {"affinity": anti_affinity(labelSelector={"matchExpressions": [{"key": "a", "operator": "In"}]})},
        "matchExpressions[0]: needs values with operator In and NotIn",
    ),
    ({"affinity": anti_affinity(labelSelector={"matchLabels": {"a b": "c"}})}, "must be a Kubernetes label key"),
    ({"topologySpreadConstraints": [{**SPREAD, "maxSkew": 0}]}, "config.topologySpreadConstraints [0].maxSkew: "),
    ({"topologySpreadConstraints": {"a": 1}}, "config.topologySpreadConstraints must be a list"),
    ({"resources": {"limits": {"ephemeral-storage": "much"}}}, "config.resources.limits.ephemeral-storage must be"),
    ({"annotations": {"a b": "c"}}, "config.annotations keys must be Kubernetes label keys"),
    ({"extraVolumes": volume(name="Big")}, "config.extraVolumes [0].name: must be lowercase"),
    ({"extraVolumes": volume(emptyDir={})}, "[0].emptyDir.sizeLimit: is missing"),
    ({"extraVolumes": volume(emptyDir=None)}, "[0]: needs exactly one of emptyDir, configMap, secret,"),
    ({"extraVolumes": volume(secret={"secretName": "a"})}, "[0]: needs exactly one of"),
    ({"extraVolumes": volume(nfs={"server": "a"})}, "[0].nfs: is not known"),
    ({"extraVolumes": volume(subPath="../x")}, "[0].subPath: must be a relative path without '..'"),
    ({"extraVolumes": volume(mountPath="v")}, "[0].mountPath: must be an absolute path"),
    ({"extraVolumes": volume(mountPath="/a/../v")}, "[0].mountPath: must not hold '..'"),
    (named("hostPath", path="/mnt/../etc"), "[0].hostPath.path: must be an absolute path of the node without"),
    (named("hostPath", path="mnt"), "[0].hostPath.path: must be an absolute path of the node"),
    ({"extraVolumes": volume() + volume(mountPath="/w")}, "must not have the same name twice"),
    ({"extraVolumes": volume() + volume(name="w", mountPath="/v/")}, "must not have the same mountPath twice"),
    ({"extraVolumes": [volume()[0] | {"name": f"v{i}", "mountPath": f"/v{i}"} for i in range(33)]}, "at most 32"),
    ({"affinity": json.dumps({"a": "x" * 70_000})}, "must not have more than 16384 characters"),
]


def test_a_wrong_form_is_refused_with_its_path_and_the_remedy() -> None:
    for config, message in WRONG_FORMS:
        with case(config):
            context = minimal()
            context["config"] |= config
            with pytest.raises(InvalidRequest) as refused:
                prepare(context)
            assert message in refused.value.message


FIELDS = ["affinity", "topologySpreadConstraints", "extraVolumes", "podTemplate"]


def test_json_of_any_depth_is_refused_by_its_field() -> None:
    for field, depth in itertools.product(FIELDS, (200, 330, 480, 900, 7000)):
        with case(field, depth):
            for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
                context = with_value(minimal(), f"config.{field}", text)
                with pytest.raises(InvalidRequest, match=rf"config\.{field}[ \[]"):
                    prepare(context)


def test_no_extra_volume_covers_what_every_pod_needs() -> None:
    ours = [*mounts(job_plan()), "/tmp/prompt-secret/x", "/proc/1", "/var/run/secrets"]
    assert "/agent-run/secret" in ours
    holding = {"/"} | {path.rpartition("/")[0] or "/" for path in ours}
    for path in {*ours, *holding, *(f"{path}/within" for path in ours)}:
        context = with_value(minimal(), "config.extraVolumes", volume(mountPath=path))
        with pytest.raises(InvalidRequest, match="must not be, hold or be in"):
            prepare(context)


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ("paperclip.io/api-proxy", "annotations: paperclip.io/api-proxy is reserved"),
        ("kubectl.kubernetes.io/default-container", "is reserved"),
        ("container.apparmor.security.beta.kubernetes.io/opencode", "is reserved"),
    ],
)
async def test_annotations_that_others_rely_on_are_refused(annotation: str, message: str) -> None:
    config = RunConfig.model_validate({"model": "a/b", "annotations": {annotation: "x"}})
    with pytest.raises(InvalidRequest, match=message):
        await Checks(Policy.parse(ANYTHING, "policy.yaml")).check(config)


async def test_annotations_have_keys_and_values_of_16_kib_together_at_most() -> None:
    policy = Checks(Policy.parse(ANYTHING, "policy.yaml"))
    for size in (ANNOTATIONS_LIMIT, ANNOTATIONS_LIMIT + 1):
        overlay = {"metadata": {"annotations": {key * 60: "y" * 4036 for key in "bcd"}}}
        annotations = {"annotations": {"a" * 60: "x" * (4036 + size - ANNOTATIONS_LIMIT)}, "podTemplate": overlay}
        checked = policy.check(RunConfig.model_validate({"model": "a/b", **annotations}))
        if size == ANNOTATIONS_LIMIT:
            await checked
            continue
        with pytest.raises(InvalidRequest, match="must not have more than 16384 characters together"):
            await checked


def test_a_request_of_disk_above_its_limit_is_refused() -> None:
    config = {"resources": {"requests": {"ephemeral-storage": "3Gi"}, "limits": {"ephemeral-storage": "2Gi"}}}
    with pytest.raises(InvalidRequest, match=r"resources\.requests\.ephemeral-storage: 3Gi is more than the limit 2Gi"):
        job_plan(create_job_input(config=config))


def refusal(config: dict[str, Any], text: str | None = None, data_claim: str | None = None) -> str:
    policy = Policy.parse(text, "p.yaml") if text is not None else Policy()
    try:
        policy.check(RunConfig.model_validate({"model": "a/b", **config}), data_claim=data_claim)
    except PolicyRefused as refused:
        return refused.message
    return ""


CHOICES: list[tuple[dict[str, Any], str, str]] = [
    ({"runtimeClassName": "gvisor"}, "runtimeClassName: 'gvisor'", "runtimeClassNames: [gvisor]"),
    ({"priorityClassName": "agents"}, "priorityClassName: 'agents'", "priorityClassNames: [agents]"),
    ({"annotations": {"team/a": "x"}}, "annotations: 'team/a'", "annotations: ['team/*']"),
    (
        {"affinity": {"nodeAffinity": AFFINITY["nodeAffinity"]}},
        "affinity.nodeAffinity: 'pool=a'",
        "nodeSelectors: ['pool=*', 'cores=*']",
    ),
    (
        {"affinity": anti_affinity()},
        "affinity.podAntiAffinity: 'app.kubernetes.io/component=agent-job'",
        "podAffinities: [app.kubernetes.io/component=agent-job]",
    ),
    ({"affinity": anti_affinity(labelSelector={})}, "affinity.podAntiAffinity: '*=*'", "podAffinities: ['*']"),
    (
        {"topologySpreadConstraints": [{**SPREAD, "topologyKey": "rack"}]},
        "topologySpreadConstraints: 'rack'",
        "topologyKeys: [rack]",
    ),
    (named("configMap", name="a"), "extraVolumes[0].configMap: 'a'", "volumes: {configMaps: [a]}"),
    (named("secret", secretName="a"), "extraVolumes[0].secret: 'a'", "volumes: {secrets: [a]}"),
    (
        named("persistentVolumeClaim", claimName="a"),
        "extraVolumes[0].persistentVolumeClaim: 'a'",
        "volumes: {claims: [a]}",
    ),
    (named("hostPath", path="/mnt/a"), "extraVolumes[0].hostPath: '/mnt/a'", "volumes: {hostPaths: ['/mnt/*']}"),
    (
        {"resources": {"limits": {"ephemeral-storage": "200Gi"}}},
        "resources.limits.ephemeral-storage: '200Gi' is more than 100Gi, by max.ephemeralStorage",
        "max: {ephemeralStorage: 200Gi}",
    ),
    (
        {"resources": {"requests": {"ephemeral-storage": "200Gi"}}},
        "resources.requests.ephemeral-storage: '200Gi' is more than 100Gi",
        "max: {ephemeralStorage: 200Gi}",
    ),
    (
        {"extraVolumes": volume(emptyDir={"sizeLimit": "200Gi"})},
        "extraVolumes[0].emptyDir.sizeLimit: '200Gi' is more than 100Gi",
        "max: {ephemeralStorage: 200Gi}",
    ),
]


@pytest.mark.parametrize(("config", "message", "rule"), CHOICES, ids=[message for _, message, _ in CHOICES])
def test_what_could_harm_others_is_refused_until_the_policy_lists_it(
    config: dict[str, Any], message: str, rule: str
) -> None:
    assert refusal(config).startswith(message)
    assert refusal(config, rule) == ""


def requirement(operator: str, *values: str, key: str = "pool") -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("term", "choices"),
    [
        ({"matchExpressions": [requirement("In", "a", "b")]}, ["pool=a", "pool=b"]),
        ({"matchExpressions": [requirement("NotIn", "a")]}, ["pool=*"]),
        ({"matchExpressions": [requirement("Exists")]}, ["pool=*"]),
        ({"matchFields": [requirement("In", "node-1", key="metadata.name")]}, ["metadata.name=node-1"]),
    ],
)
@pytest.mark.parametrize("kind", ["required", "preferred"])
def test_each_choice_of_nodes_is_compared(term: dict[str, Any], choices: list[str], kind: str) -> None:
    affinity = {
        "required": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}},
        "preferred": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]},
    }[kind]
    message = refusal({"affinity": {"nodeAffinity": affinity}})
    assert [part.partition("'")[2].partition("'")[0] for part in message.split("; ")] == choices


@pytest.mark.parametrize(
    ("selector", "choice"),
    [
        ({}, "*=*"),
        ({"matchLabels": {"app": "a"}}, "app=a"),
        ({"matchExpressions": [requirement("Exists", key="app")]}, "app=*"),
        ({"matchExpressions": [requirement("NotIn", "a", key="app")]}, "app=*"),
    ],
)
@pytest.mark.parametrize("name", ["podAffinity", "podAntiAffinity"])
def test_each_choice_of_pods_is_compared(selector: dict[str, Any], choice: str, name: str) -> None:
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    for affinity in (
        {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
        {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]},
    ):
        assert refusal({"affinity": {name: affinity}}).startswith(
            f"affinity.{name}: '{choice}' is not allowed by podAff"
        )
        assert refusal({"affinity": {name: affinity}}, f"podAffinities: ['{choice}']") == ""
    rack = {"requiredDuringSchedulingIgnoredDuringExecution": [{**term, "topologyKey": "rack"}]}
    assert "'rack' is not allowed by topologyKeys" in refusal({"affinity": {name: rack}})


def inherited(volume_name: str, path: str) -> PodProfile:
    mount = SecretMount(volume_name=volume_name, secret_name="s", mount_path=path)
    return PodProfile(namespace="agents", image="i", secret_mounts=(mount,))


def test_an_extra_volume_is_not_mixed_up_with_an_inherited_secret() -> None:
    config = {"extraVolumes": volume()}
    with pytest.raises(InvalidRequest, match=r"extraVolumes\[0\]\.mountPath: /v has an inherited Secret"):
        job_plan(create_job_input(config=config, profile=inherited("keys", "/v")))
    plan = job_plan(create_job_input(config=config, profile=inherited("extra-v", "/etc/keys")))
    assert list(objections(plan)) == []
    assert (mounts(plan)["/v"]["name"], mounts(plan)["/etc/keys"]["name"]) == ("extra-v", "extra-v-inherited")


def test_what_harms_nobody_is_allowed_without_a_policy() -> None:
    assert refusal({"extraVolumes": volume(), "topologySpreadConstraints": [SPREAD]}) == ""
    assert refusal({"resources": {"limits": {"ephemeral-storage": "100Gi"}}}) == ""
    assert refusal({"extraVolumes": volume()}, "volumes: {emptyDirs: false}").startswith("extraVolumes[0].emptyDir: ")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (named("persistentVolumeClaim", claimName="paperclip-data"), "is the data volume"),
        (named("persistentVolumeClaim", claimName="opencode-db-other"), "is an agent's database"),
        (named("secret", secretName="agent-runs-keys"), "is this program's own"),
        (named("secret", secretName="agent-opencode-other-run-abc-run"), "is this program's own, or another run's"),
        (named("configMap", name="agent-runs-policy"), "is this program's own"),
    ],
)
def test_no_policy_gives_an_agent_another_ones_files_or_secrets(config: dict[str, Any], reason: str) -> None:
    assert reason in refusal(config, ANYTHING, data_claim="paperclip-data")


def test_the_data_volume_is_no_extra_volume_whoever_names_it() -> None:
    with pytest.raises(InvalidRequest, match="is the data volume; name another claim"):
        job_plan(create_job_input(config=named("persistentVolumeClaim", claimName="data")))


async def test_the_check_of_a_configuration_knows_the_data_volume() -> None:
    async def data_claim() -> str | None:
        return "paperclip-data"

    checks = Checks(Policy.parse(ANYTHING, "policy.yaml"), data_claim=data_claim)
    config = RunConfig.model_validate({"model": "a/b", **named("persistentVolumeClaim", claimName="paperclip-data")})
    with pytest.raises(PolicyRefused, match="is the data volume"):
        await checks.check(config)


def test_the_standard_restricted_sees_what_it_refuses() -> None:
    plan = job_plan(create_job_input(config=named("hostPath", path="/mnt/a")))
    template = plan.job["spec"]["template"]
    assert list(restricted_violations(template)) == ["volume extra-v: hostPath"]
    template["spec"]["hostPID"] = True
    template["spec"]["securityContext"]["runAsNonRoot"] = False
    template["spec"]["containers"][0]["securityContext"] = {"capabilities": {"add": ["SYS_ADMIN"]}}
    assert set(restricted_violations(template)) >= {
        "spec.hostPID",
        "securityContext.runAsNonRoot",
        "sidecar.runAsNonRoot",
        "sidecar.capabilities",
        "sidecar.allowPrivilegeEscalation",
    }
