"""`podTemplate` is laid over the pod, within the operator's policy, and never breaks what every pod guarantees."""

from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_runs.contracts.errors import InvalidRequest, PolicyRefused
from agent_runs.contracts.messages import PodProfile
from agent_runs.contracts.pod_template import REFUSED
from agent_runs.contracts.request import RunConfig
from agent_runs.job.policy import Policy
from agent_runs.paperclip.preparation import prepare
from tests.job.inputs import create_job_input, job_plan, objections, pod_spec
from tests.paperclip.contexts import minimal, with_value
from tests.support.cases import case
from tests.support.pod_security import restricted_violations

OVERLAY: dict[str, Any] = {
    "metadata": {"labels": {"team/name": "a"}, "annotations": {"team/note": "b"}},
    "spec": {
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["git.example"]}],
        "dnsConfig": {
            "nameservers": ["10.0.0.9"],
            "searches": ["example"],
            "options": [{"name": "ndots", "value": "2"}],
        },
        "dnsPolicy": "None",
        "hostUsers": False,
        "schedulerName": "batch",
        "securityContext": {
            "seccompProfile": {"type": "Localhost", "localhostProfile": "strict.json"},
            "appArmorProfile": {"type": "RuntimeDefault"},
            "seLinuxOptions": {"level": "s0:c1,c2"},
        },
    },
}
KEYS = [
    *("spec.hostAliases", "spec.dnsConfig", "spec.dnsPolicy", "spec.hostUsers", "spec.schedulerName"),
    *(f"spec.securityContext.{name}" for name in ("seccompProfile", "appArmorProfile", "seLinuxOptions")),
]


def at(key: str, value: Any) -> dict[str, Any]:
    """The overlay that sets one key, by its path."""
    for name in reversed(key.split(".")):
        value = {name: value}
    whole: dict[str, Any] = value
    return whole


def refused_form(template: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        prepare(with_value(minimal(), "config.podTemplate", template))
    return refused.value.message


def test_an_overlay_is_laid_over_the_pod_which_stays_valid_and_restricted() -> None:
    profile = PodProfile(namespace="agents", image="i", data_claim="data", dns_config={"nameservers": ["10.0.0.10"]})
    plan = job_plan(create_job_input(config={"podTemplate": OVERLAY, "labels": {"team/own": "c"}}, profile=profile))
    kubernetes_validate.validate(plan.job, "1.34", strict=True)
    template = plan.job["spec"]["template"]
    assert list(objections(plan)) == []
    assert list(restricted_violations(template)) == []
    plain = pod_spec(job_plan(create_job_input(profile=profile)))
    spec = pod_spec(plan)
    assert {key: spec[key] for key in OVERLAY["spec"] if key != "securityContext"} == {
        key: value for key, value in OVERLAY["spec"].items() if key != "securityContext"
    }
    assert spec["securityContext"] == {**plain["securityContext"], **OVERLAY["spec"]["securityContext"]}
    assert spec["securityContext"]["runAsUser"] == 1000
    assert {key: spec[key] for key in plain.keys() - OVERLAY["spec"].keys()} == {
        key: plain[key] for key in plain.keys() - OVERLAY["spec"].keys()
    }
    assert template["metadata"]["labels"].items() >= {"team/name": "a", "team/own": "c"}.items()
    assert template["metadata"]["annotations"]["team/note"] == "b"
    assert "team/name" not in plan.job["metadata"]["labels"]


def test_a_key_that_breaks_a_guarantee_is_refused_by_its_name_with_the_reason() -> None:
    for key, reason in REFUSED.items():
        with case(key):
            assert refused_form(at(key, "x")) == f"config.podTemplate {key}: {reason}"


def test_every_key_of_the_pod_is_refused_or_known() -> None:
    ours = {f"spec.{key}" for key in pod_spec(job_plan())} - {"spec.securityContext"}
    ours |= {f"spec.securityContext.{key}" for key in pod_spec(job_plan())["securityContext"]}
    assert ours - REFUSED.keys() == {"spec.securityContext.seccompProfile"}


WRONG_OVERLAYS: list[tuple[Any, str]] = [
    ("[", "config.podTemplate must be JSON"),
    ([], "config.podTemplate must be an object"),
    ({"containers": []}, "containers: is not known"),
    ({"metadata": {"name": "a"}}, "metadata.name: is not known"),
    ({"spec": {"os": {"name": "windows"}}}, "spec.os: is not known"),
    ({"spec": {"hostUsers": True}}, "spec.hostUsers: "),
    ({"spec": {"dnsPolicy": "ClusterFirstWithHostNet"}}, "spec.dnsPolicy: "),
    ({"spec": {"dnsPolicy": "None"}}, "spec: needs dnsConfig.nameservers with dnsPolicy None"),
    (
        {"spec": {"dnsConfig": {"nameservers": ["dns.example"]}}},
        "spec.dnsConfig.nameservers[0]: must be an IP address",
    ),
    ({"spec": {"hostAliases": [{"ip": "10.0.0.7"}]}}, "spec.hostAliases[0].hostnames: is missing"),
    ({"spec": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}}, "seccompProfile.type: "),
    ({"spec": {"securityContext": {"appArmorProfile": {"type": "Localhost"}}}}, "needs localhostProfile with type"),
    ({"spec": {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}}}, "seLinuxOptions.type: "),
    ({"spec": {"securityContext": {"seLinuxOptions": {"user": "root"}}}}, "seLinuxOptions.user: is not known"),
    ({"metadata": {"labels": {"job-name": "a"}}}, "is a label by which the run, its Job or a policy finds the pod"),
    ({"metadata": {"labels": {"app.kubernetes.io/component": "a"}}}, "finds the pod"),
    ({"metadata": {"labels": {"paperclip.io/agent-id": "a"}}}, "finds the pod"),
    ({"metadata": {"labels": {"team": "a b"}}}, "metadata.labels.team: must be a Kubernetes label value"),
]


def test_a_wrong_overlay_is_refused_with_its_path() -> None:
    for template, message in WRONG_OVERLAYS:
        with case(template):
            assert message in refused_form(template)


@pytest.mark.parametrize("annotation", ["paperclip.io/api-proxy", "kubectl.kubernetes.io/default-container"])
def test_annotations_that_others_rely_on_are_refused(annotation: str) -> None:
    config = {"podTemplate": {"metadata": {"annotations": {annotation: "x"}}}}
    with pytest.raises(InvalidRequest, match=rf"podTemplate\.metadata\.annotations: {annotation} is reserved"):
        job_plan(create_job_input(config=config))


def refusal(template: dict[str, Any], text: str | None = None) -> str:
    policy = Policy.parse(text, "p.yaml") if text is not None else Policy()
    try:
        policy.check(RunConfig.model_validate({"model": "a/b", "podTemplate": template}))
    except PolicyRefused as refused:
        return refused.message
    return ""


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_refused_until_the_policy_lists_it(key: str) -> None:
    value: Any = OVERLAY
    for name in key.split("."):
        value = value[name]
    template = at(key, value)
    if key == "spec.dnsPolicy":
        template = at(key, "Default")
    assert refusal(template).startswith(f"podTemplate: '{key}' is not allowed by podTemplateKeys")
    assert refusal(template, f"podTemplateKeys: [{key}]") == ""
    assert refusal(template, "podTemplateKeys: [spec.other]") != ""


def test_labels_and_annotations_of_an_overlay_are_judged_as_all_others() -> None:
    labels = {"metadata": {"labels": {"app": "paperclip"}}}
    assert refusal(labels).startswith("podTemplate.metadata.labels: 'app' is not allowed by labels")
    assert refusal({"metadata": {"labels": {"team/a": "b"}}}, "labels: ['team/*']") == ""
    annotations = {"metadata": {"annotations": {"team/a": "b"}}}
    assert refusal(annotations).startswith("podTemplate.metadata.annotations: 'team/a' is not allowed by annotations")
    assert refusal(annotations, "annotations: ['team/*']") == ""


SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 2000), st.sampled_from(["", "Unconfined", "Always", "root"])
)
VALUE = st.recursive(
    SCALAR,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "name", "ip"]), inner, max_size=2)
    ),
    max_leaves=4,
)
PATHS = st.sampled_from(
    [*KEYS, *sorted(REFUSED), "spec.hostname", "metadata.labels", "metadata.annotations", "spec", "x"]
)


@given(keys=st.dictionaries(PATHS, VALUE, min_size=1, max_size=3))
def test_whatever_overlay_is_accepted_the_pod_is_restricted_and_valid(keys: dict[str, Any]) -> None:
    template: dict[str, Any] = {}
    for key, value in keys.items():
        folder = template
        *parents, last = key.split(".")
        for parent in parents:
            found = folder.setdefault(parent, {})
            folder = found if isinstance(found, dict) else {}
        folder[last] = value
    try:
        plan = job_plan(create_job_input(config={"podTemplate": template}))
    except (ValidationError, InvalidRequest):
        return
    assert list(restricted_violations(plan.job["spec"]["template"])) == []
    plain = pod_spec(job_plan())
    fixed = ("containers", "initContainers", "volumes", "restartPolicy", "automountServiceAccountToken")
    assert {key: pod_spec(plan)[key] for key in fixed} == {key: plain[key] for key in fixed}
    kubernetes_validate.validate(plan.job, "1.34", strict=True)
