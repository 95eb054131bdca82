"""Which user-chosen parts of a pod are valid: labels, node selectors, tolerations, resources.

Checked here because the API server would only say no after the agent's Secrets exist. Errors name the field.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from cluster.quantity import amount
from contracts.errors import InvalidRequest
from contracts.identity import LABEL_LIMIT, label_value
from contracts.request import Resources, RunConfig

_PART: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
SUBDOMAIN: Final = re.compile(rf"{_PART}(?:\.{_PART})*")
_KEY_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_RESERVED_PREFIXES: Final = ("app.kubernetes.io/", "paperclip.io/")
_CONTROLLERS: Final = {"job-name", "controller-uid"}
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    "requests": {"cpu": "1000m", "memory": "2Gi"},
    "limits": {"cpu": "4000m", "memory": "8Gi"},
}
INIT_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "16Mi"},
    "limits": {"cpu": "100m", "memory": "64Mi"},
}
PROXY_RESOURCES: Final = {
    "requests": {"cpu": "10m", "memory": "32Mi"},
    "limits": {"cpu": "500m", "memory": "128Mi"},
}


def is_label_key(key: str) -> bool:
    """Whether Kubernetes takes `key` as the key of a label. Source: kubernetes.io, Labels and Selectors, Syntax."""
    prefix, slash, name = key.rpartition("/")
    return bool(_KEY_NAME.fullmatch(name)) and (not slash or is_subdomain(prefix))


def is_label_value(value: str) -> bool:
    """Whether Kubernetes takes `value` as the value of a label."""
    return bool(_VALUE.fullmatch(value))


def is_subdomain(name: str) -> bool:
    """Whether `name` is a DNS subdomain, as names of most objects are."""
    return len(name) <= 253 and bool(SUBDOMAIN.fullmatch(name))


def extra_labels(config: RunConfig) -> tuple[dict[str, str], tuple[str, ...]]:
    """The agent's own labels with valid values, and a warning for each one that is not its to set.

    Raises:
        InvalidRequest: a key Kubernetes would refuse.
    """
    kept: dict[str, str] = {}
    warnings: list[str] = []
    for key, value in config.labels.items():
        if not is_label_key(key):
            raise InvalidRequest(f"labels: {key[:80]!r} is not a Kubernetes label key ('[prefix/]name')")
        if is_reserved(key):
            warnings.append(f"labels: {key} is reserved and was left out")
            continue
        kept[key] = label_value(value)
        if kept[key] != value.lower()[:LABEL_LIMIT]:
            warnings.append(f"labels: the value of {key} was cut down to {kept[key]!r}")
    return kept, tuple(warnings)


def is_reserved(key: str) -> bool:
    """Labels that this program or Kubernetes itself relies on."""
    prefix = key.partition("/")[0] if "/" in key else ""
    return (
        key in _CONTROLLERS
        or key.startswith(_RESERVED_PREFIXES)
        or prefix in {"kubernetes.io", "k8s.io"}
        or prefix.endswith((".kubernetes.io", ".k8s.io"))
    )


def node_selector(config: RunConfig, inherited: Mapping[str, str]) -> dict[str, str]:
    """The agent's node selector, else the worker's own. An explicit empty one opts out of the inheritance.

    Raises:
        InvalidRequest: a key or value that no node can have as a label.
    """
    chosen = dict(inherited if config.node_selector is None else config.node_selector)
    for key, value in chosen.items():
        if not is_label_key(key):
            raise InvalidRequest(f"nodeSelector: {key[:80]!r} is not a Kubernetes label key")
        if not is_label_value(value):
            raise InvalidRequest(f"nodeSelector: the value of {key} is not a Kubernetes label value (63 at most)")
    return chosen


def tolerations(config: RunConfig, inherited: tuple[Mapping[str, Any], ...]) -> list[dict[str, Any]]:
    """The agent's tolerations, else the worker's own. An explicit empty list opts out of the inheritance.

    The two that Kubernetes itself adds to every pod are not inherited: the agent's pod gets its own.

    Raises:
        InvalidRequest: a combination the API server refuses.
    """
    if config.tolerations is None:
        return [dict(each) for each in inherited if not _automatic(each)]
    chosen = []
    for index, each in enumerate(config.tolerations):
        wrong = _wrong_toleration(each.model_dump(by_alias=True, exclude_none=True))
        if wrong:
            raise InvalidRequest(f"tolerations[{index}]: {wrong}")
        chosen.append(each.model_dump(by_alias=True, exclude_none=True))
    return chosen


def _automatic(toleration: Mapping[str, Any]) -> bool:
    return toleration.get("key") in {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"} and (
        toleration.get("tolerationSeconds") == 300
    )


def _wrong_toleration(toleration: Mapping[str, Any]) -> str | None:
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
    """Requests and limits of the agent container, with defaults.

    A limit below the default request lowers that request; nobody asked for it.

    Raises:
        InvalidRequest: a request above its limit.
    """
    amounts: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for kind in ("cpu", "memory"):
        limit = getattr(chosen.limits, kind) or _DEFAULTS["limits"][kind]
        asked = getattr(chosen.requests, kind)
        request = asked or _DEFAULTS["requests"][kind]
        if _amount(f"limits.{kind}", limit) < _amount(f"requests.{kind}", request):
            if asked:
                raise InvalidRequest(
                    f"resources.requests.{kind}: {asked} is more than the limit {limit}; "
                    f"lower it or raise resources.limits.{kind}"
                )
            request = limit
        amounts["requests"][kind], amounts["limits"][kind] = request, limit
    return amounts


def _amount(field: str, quantity: str) -> Any:
    try:
        return amount(quantity)
    except ValueError:
        raise InvalidRequest(f"resources.{field}: {quantity[:40]!r} is not a Kubernetes quantity") from None
