"""`podTemplate`: an overlay of the pod's template, in Kubernetes' own form, of the few keys that break no guarantee.

A key that would is refused by its name, with the reason. Objects are merged into ours, lists replace what is inherited.
Source: Kubernetes 1.34, core/v1 PodTemplateSpec; Pod Security Standards, "restricted".
"""
# ruff: noqa: N815 - the fields have Kubernetes' own spelling

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from agent_runs.contracts.pod_options import (
    MAX_ITEMS,
    LabelKey,
    LabelValue,
    ObjectName,
    PodOption,
    from_json,
    of_form,
)
from agent_runs.contracts.syntax import refuse

_OWN_FIELD: Final = "has a field of its own in the agent's configuration; set that one"
_FIXED: Final = "is the same in every agent's pod: user 1000 owns the agent's files and can never become root"
_ISOLATION: Final = "would give the agent its node's own, which the Pod Security Standard 'restricted' refuses"
_MADE_HERE: Final = "is made for each run; the agent's command, output and token depend on it"
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("spec.containers", "spec.initContainers", "spec.ephemeralContainers"), _MADE_HERE),
    "spec.volumes": "is made for each run; add volumes by extraVolumes",
    "spec.restartPolicy": "is Never: a container that starts a second time would run the agent twice",
    "spec.activeDeadlineSeconds": "follows from timeoutSec; set that one",
    "spec.terminationGracePeriodSeconds": "follows from graceSec; set that one",
    "spec.serviceAccountName": _OWN_FIELD,
    "spec.serviceAccount": "is the old name of serviceAccountName; set that field of the agent's configuration",
    "spec.automountServiceAccountToken": "is true only with a serviceAccountName: no agent gets a token unasked",
    **dict.fromkeys(("spec.hostNetwork", "spec.hostPID", "spec.hostIPC"), _ISOLATION),
    "spec.shareProcessNamespace": "would show the agent the sidecar's processes, which have Paperclip's token",
    "spec.nodeName": "passes the scheduler by; set nodeSelector or affinity",
    **dict.fromkeys(("spec.nodeSelector", "spec.tolerations", "spec.affinity"), _OWN_FIELD),
    **dict.fromkeys(("spec.topologySpreadConstraints", "spec.runtimeClassName", "spec.priorityClassName"), _OWN_FIELD),
    "spec.priority": "follows from priorityClassName; set that one",
    "spec.preemptionPolicy": "follows from priorityClassName; set that one",
    "spec.overhead": "follows from runtimeClassName; set that one",
    "spec.imagePullSecrets": "is what the worker's or Paperclip's own pod has; ask the operator to change it there",
    "spec.enableServiceLinks": "is false: variables after the names of Services could be taken for settings",
    "spec.schedulingGates": "would hold the pod until somebody removes them",
    **{
        f"spec.securityContext.{name}": _FIXED
        for name in (
            *("runAsUser", "runAsGroup", "runAsNonRoot", "fsGroup", "fsGroupChangePolicy", "supplementalGroups"),
            *("supplementalGroupsPolicy", "sysctls", "windowsOptions", "seLinuxChangePolicy"),
        )
    },
}
"""Keys of a pod's template that no overlay may have, each with the reason."""

_OTHERS_LABELS: Final = ("kubernetes.io", "k8s.io", "paperclip.io")


def _label_key(value: str) -> str:
    prefix = value.partition("/")[0] if "/" in value else ""
    if value in {"job-name", "controller-uid"} or f".{prefix}".endswith(tuple(f".{each}" for each in _OTHERS_LABELS)):
        raise refuse("is a label by which the run, its Job or a policy finds the pod; choose another")
    return value


def _address(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise refuse("must be an IP address") from None


_Address = Annotated[str, AfterValidator(_address)]
_Text = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[!-~]+$")]


class _Metadata(PodOption):
    labels: dict[Annotated[LabelKey, AfterValidator(_label_key)], LabelValue] = {}
    annotations: dict[LabelKey, str] = {}


class _HostAlias(PodOption):
    ip: _Address
    hostnames: Annotated[list[ObjectName], Field(min_length=1, max_length=MAX_ITEMS)]


class _DnsOption(PodOption):
    name: _Text
    value: _Text | None = None


class _DnsConfig(PodOption):
    nameservers: Annotated[list[_Address], Field(max_length=3)] = []
    searches: Annotated[list[_Text], Field(max_length=MAX_ITEMS)] = []
    options: Annotated[list[_DnsOption], Field(max_length=MAX_ITEMS)] = []


class _Profile(PodOption):
    type: Literal["RuntimeDefault", "Localhost"]
    localhostProfile: _Text | None = None

    @model_validator(mode="after")
    def _a_profile_of_the_node_by_name(self) -> Self:
        if (self.type == "Localhost") != (self.localhostProfile is not None):
            raise refuse("needs localhostProfile with type Localhost, and none with RuntimeDefault")
        return self


class _SeLinuxOptions(PodOption):
    level: _Text | None = None
    type: Literal["container_t", "container_init_t", "container_kvm_t", "container_engine_t"] | None = None


class _SecurityContext(PodOption):
    seccompProfile: _Profile | None = None
    appArmorProfile: _Profile | None = None
    seLinuxOptions: _SeLinuxOptions | None = None


class _Spec(PodOption):
    hostAliases: Annotated[list[_HostAlias], Field(max_length=MAX_ITEMS)] = []
    dnsConfig: _DnsConfig | None = None
    dnsPolicy: Literal["ClusterFirst", "Default", "None"] | None = None
    hostUsers: Literal[False] | None = None
    schedulerName: ObjectName | None = None
    securityContext: _SecurityContext | None = None

    @model_validator(mode="after")
    def _names_are_resolved_somewhere(self) -> Self:
        if self.dnsPolicy == "None" and not (self.dnsConfig and self.dnsConfig.nameservers):
            raise refuse("needs dnsConfig.nameservers with dnsPolicy None")
        return self


class _Template(PodOption):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


def template_keys(template: Mapping[str, Any]) -> Iterator[str]:
    """The keys that an overlay sets, by their path: `spec.dnsPolicy`, `spec.securityContext.seccompProfile`."""
    for part, content in template.items():
        if not isinstance(content, dict):
            continue
        for key, value in content.items():
            if key == "securityContext" and isinstance(value, dict):
                yield from (f"{part}.{key}.{name}" for name in value)
            else:
                yield f"{part}.{key}"


def _without_refused_keys(template: dict[str, Any]) -> dict[str, Any]:
    reasons = [f"{key}: {REFUSED[key]}" for key in template_keys(template) if key in REFUSED]
    if reasons:
        raise refuse("; ".join(reasons[:2]))
    return template


PodTemplate = Annotated[
    Annotated[dict[str, Any], AfterValidator(_without_refused_keys), of_form(_Template)] | None,
    BeforeValidator(from_json),
]
