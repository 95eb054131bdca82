"""Validates what an agent's configuration chooses for its pod: labels, annotations, selectors, tolerations, resources.

Checked here because the API server would refuse it only after the agent's Secrets exist. Errors name the field.
"""

from collections.abc import Mapping
from typing import Any, Final

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import LABEL_LIMIT, label_value
from agent_runs.contracts.request import Resources, RunConfig
from agent_runs.contracts.syntax import is_label_key, is_label_value
from agent_runs.kube.objects import amount

_RESERVED_PREFIXES: Final = ("app.kubernetes.io/", "paperclip.io/")
_RESERVED_ANNOTATIONS: Final = (
    *("app.kubernetes.io/", "paperclip.io/", "kubernetes.io/", "kubectl.kubernetes.io/", "batch.kubernetes.io/"),
    *("container.apparmor.security.beta.kubernetes.io/", "seccomp.security.alpha.kubernetes.io/"),
    *("container.seccomp.security.alpha.kubernetes.io/", "pod-security.kubernetes.io/"),
)
"""Beginnings of annotations of this program, of Kubernetes' controllers, and of the restrictions of a pod."""
ANNOTATIONS_LIMIT: Final = 16 * 1024
"""Characters of all of an agent's annotations together."""
_CONTROLLER_LABELS: Final = {"job-name", "controller-uid"}
_DEFAULT_RESOURCES: Final[Mapping[str, Mapping[str, str]]] = {
    "requests": {"cpu": "1000m", "memory": "2Gi"},
    "limits": {"cpu": "4000m", "memory": "8Gi"},
}
DATABASE_CLAIMS: Final = "opencode-db-"
"""Beginning of the names of agents' own database claims."""
DISK: Final = "ephemeral-storage"
INIT_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "16Mi"},
    "limits": {"cpu": "100m", "memory": "64Mi"},
}
SIDECAR_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "32Mi"},
    "limits": {"cpu": "500m", "memory": "128Mi"},
}


QUOTED_LIMIT: Final = 80
"""Characters of a wrong value that an error quotes."""


def extra_labels(config: RunConfig) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the agent's own labels with valid values, and a warning for each reserved or shortened one."""
    labels: dict[str, str] = {}
    warnings: list[str] = []
    for key, value in config.labels.items():
        if is_reserved(key):
            warnings.append(f"labels: {key} is reserved and was left out")
            continue
        labels[key] = label_value(value)
        if labels[key] != value.lower()[:LABEL_LIMIT]:
            warnings.append(f"labels: the value of {key} was cut down to {labels[key]!r}")
    return labels, tuple(warnings)


def extra_annotations(config: RunConfig) -> dict[str, str]:
    """Return the agent's own annotations of its pod.

    Raises:
        InvalidRequest: a key that another part of the pod relies on, or too much text.
    """
    chosen: dict[str, str] = {}
    overlay = (config.pod_template or {}).get("metadata", {}).get("annotations", {})
    for field, annotations in (("annotations", config.annotations), ("podTemplate.metadata.annotations", overlay)):
        for key in annotations:
            if key.startswith(_RESERVED_ANNOTATIONS):
                raise InvalidRequest(f"{field}: {key[:QUOTED_LIMIT]} is reserved; remove it")
        chosen |= annotations
    if sum(len(key) + len(value) for key, value in chosen.items()) > ANNOTATIONS_LIMIT:
        raise InvalidRequest(f"annotations: must not have more than {ANNOTATIONS_LIMIT} characters together")
    return chosen


def is_reserved(key: str) -> bool:
    """Return whether this program or Kubernetes itself relies on this label."""
    prefix = key.partition("/")[0] if "/" in key else ""
    return (
        key in _CONTROLLER_LABELS
        or key.startswith(_RESERVED_PREFIXES)
        or prefix in {"kubernetes.io", "k8s.io"}
        or prefix.endswith((".kubernetes.io", ".k8s.io"))
    )


def node_selector(config: RunConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the agent's node selector, else the worker's own. An explicit empty one inherits nothing.

    Raises:
        InvalidRequest: a value that no node can have as a label.
    """
    chosen = dict(inherited if config.node_selector is None else config.node_selector)
    for key, value in chosen.items():
        if not is_label_value(value):
            raise InvalidRequest(f"nodeSelector: the value of {key} is not a Kubernetes label value (63 at most)")
    return chosen


def tolerations(config: RunConfig, inherited: tuple[Mapping[str, Any], ...]) -> list[dict[str, Any]]:
    """Return the agent's tolerations, else the worker's own. An explicit empty list inherits nothing.

    The two that Kubernetes itself adds to every pod are not inherited: the agent's pod gets its own.

    Raises:
        InvalidRequest: a combination the API server refuses.
    """
    if config.tolerations is None:
        return [dict(each) for each in inherited if not _is_default_toleration(each)]
    chosen = []
    for index, each in enumerate(config.tolerations):
        toleration = each.model_dump(by_alias=True, exclude_none=True)
        if error := _toleration_error(toleration):
            raise InvalidRequest(f"tolerations[{index}]: {error}")
        chosen.append(toleration)
    return chosen


def _is_default_toleration(toleration: Mapping[str, Any]) -> bool:
    return toleration.get("key") in {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} and (
        toleration.get("tolerationSeconds") == 300
    )


def _toleration_error(toleration: Mapping[str, Any]) -> str | None:
    key, operator = toleration.get("key"), toleration.get("operator", "Equal")
    if key and not is_label_key(key):
        return "key is not a Kubernetes label key"
    if not key and operator != "Exists":
        return "without a key, operator must be Exists"
    if operator == "Exists" and toleration.get("value"):
        return "with operator Exists, value must be empty"
    if operator == "Equal" and not is_label_value(toleration.get("value", "")):
        return "value is not a Kubernetes label value (63 at most)"
    if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
        return "tolerationSeconds needs effect NoExecute"
    return None


def resources(chosen: Resources) -> dict[str, dict[str, str]]:
    """Return requests and limits of the agent container, with defaults.

    A limit below the default request lowers that request: a default must not make the limit invalid.

    Raises:
        InvalidRequest: a request above its limit, or a limit of 0, which a node takes for none.
    """
    amounts: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for kind in ("cpu", "memory"):
        limit = getattr(chosen.limits, kind) or _DEFAULT_RESOURCES["limits"][kind]
        configured = getattr(chosen.requests, kind)
        request = configured or _DEFAULT_RESOURCES["requests"][kind]
        if _amount(f"limits.{kind}", limit) < _amount(f"requests.{kind}", request):
            if configured:
                raise InvalidRequest(
                    f"resources.requests.{kind}: {configured} is more than the limit {limit}; "
                    f"lower it or raise resources.limits.{kind}"
                )
            request = limit
        amounts["requests"][kind], amounts["limits"][kind] = request, limit
    _add_disk(chosen, amounts)
    for kind, limit in amounts["limits"].items():
        if not _amount(f"limits.{kind}", limit):
            raise InvalidRequest(f"resources.limits.{kind}: {limit} is no limit; it must be more than 0")
    return amounts


def _add_disk(chosen: Resources, amounts: dict[str, dict[str, str]]) -> None:
    """Add the room on the node's disk, which has no default: without a limit it is what the node has."""
    limit, request = chosen.limits.ephemeral_storage, chosen.requests.ephemeral_storage
    if limit and request and _amount(f"limits.{DISK}", limit) < _amount(f"requests.{DISK}", request):
        raise InvalidRequest(
            f"resources.requests.{DISK}: {request} is more than the limit {limit}; lower it or raise "
            f"resources.limits.{DISK}"
        )
    for kind, given in (("requests", request), ("limits", limit)):
        if given:
            amounts[kind][DISK] = given


def _amount(field: str, quantity: str) -> Any:
    try:
        return amount(quantity)
    except ValueError:
        raise InvalidRequest(f"resources.{field}: {quantity[:QUOTED_LIMIT]!r} is not a Kubernetes quantity") from None
