"""What the API server refuses about an object, as far as this cluster checks it.

Checked: names, labels, finalizers, Secrets and ConfigMaps, the parts of pods and Jobs that a manifest builder gets
wrong, and what may not be changed later. Not checked: everything else; a real API server refuses more.
"""

from __future__ import annotations

import base64
import binascii
import re
from decimal import Decimal
from typing import Any

from local.cluster.kinds import CLAIMS, CONFIG_MAPS, JOBS, NAMESPACES, PODS, SECRETS, Kind, Object
from local.cluster.objects import containers
from local.cluster.refusals import Problems, bad_request

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)")
_IN_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_IN_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_IN_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
    "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_IN_KEY = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_SUFFIXES = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_SUFFIXES |= {letter: Decimal(1000) ** (power + 1) for power, letter in enumerate("kMGTPE")}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")}
_DATA_LIMIT = 1024 * 1024  # bytes of a Secret or ConfigMap
_POLICIES = ["Always", "Never", "OnFailure"]
_FIELDS = {
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
    "status.hostIP", "status.podIP", "status.hostIPs", "status.podIPs",
}  # fmt: skip


def check_shape(body: Object) -> None:
    """400 for what the server could not even decode."""
    meta = body.get("metadata")
    if not isinstance(meta, dict):
        raise bad_request("metadata: expected an object")
    for name in ("labels", "annotations"):
        entries = meta.get(name) or {}
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise bad_request(
                f"json: cannot unmarshal non-string into Go struct field ObjectMeta.metadata.{name} of type string"
            )
    for pod_spec in _pod_specs(body):
        for _, container in containers(pod_spec):
            _check_container_shape(container)


def _pod_specs(body: Object) -> list[Object]:
    spec = body.get("spec")
    if not isinstance(spec, dict):
        return []
    if body.get("kind") == "Pod":
        return [spec]
    template = spec.get("template")
    inner = template.get("spec") if isinstance(template, dict) else None
    return [inner] if isinstance(inner, dict) else []


def _check_container_shape(container: Object) -> None:
    for variable in container.get("env") or ():
        if not isinstance(variable.get("value", ""), str | None):
            raise bad_request("json: cannot unmarshal non-string into Go struct field EnvVar.env.value of type string")
    for amounts in (container.get("resources") or {}).values():
        for amount in amounts.values() if isinstance(amounts, dict) else ():
            if not _QUANTITY.fullmatch(str(amount)):
                raise bad_request(
                    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                )


def check(kind: Kind, body: Object) -> None:
    """422 for a new object that breaks a rule."""
    name = body["metadata"].get("name", "")
    problems = Problems(kind, name)
    _check_metadata(problems, kind, body["metadata"])
    if kind is PODS:
        _check_pod_spec(problems, "spec", body.get("spec") or {})
    elif kind is JOBS:
        _check_job(problems, body.get("spec") or {})
    elif kind in (SECRETS, CONFIG_MAPS):
        _check_data(problems, kind, body)
    elif kind is CLAIMS:
        _check_claim(problems, body.get("spec") or {})
    problems.raise_if_any()


def check_change(kind: Kind, body: Object, before: Object) -> None:
    """422 for a change that breaks a rule or touches what cannot be changed."""
    name = before["metadata"]["name"]
    problems = Problems(kind, name)
    _check_metadata(problems, kind, body["metadata"])
    new, old = body.get("spec") or {}, before.get("spec") or {}
    if kind is JOBS:
        for field in ("selector", "template", "completions", "completionMode"):
            if new.get(field) != old.get(field) and not (field == "template" and old.get("suspend")):
                problems.invalid(f"spec.{field}", new.get(field), "field is immutable")
    elif kind is PODS and _fixed(new) != _fixed(old):
        problems.forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to "
            "existing tolerations), `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was "
            "previously negative)",
        )
    elif kind in (SECRETS, CONFIG_MAPS):
        _check_data(problems, kind, body)
        if before.get("immutable") and body.get("data") != before.get("data"):
            problems.forbidden("data", "field is immutable when `immutable` is set")
        if body.get("type") != before.get("type"):
            problems.invalid("type", body.get("type"), "field is immutable")
    problems.raise_if_any()


def _fixed(spec: Object) -> Object:
    fixed = {key: value for key, value in spec.items() if key not in ("activeDeadlineSeconds", "tolerations")}
    for group in ("initContainers", "containers"):
        if group in fixed:
            fixed[group] = [{**container, "image": None} for container in fixed[group] or ()]
    return fixed


def _check_metadata(problems: Problems, kind: Kind, meta: Object) -> None:
    name = meta.get("name", "")
    if not name:
        problems.required("metadata.name", "name or generateName is required")
    else:
        short = kind is NAMESPACES
        pattern, rule, limit = (_LABEL, _IN_LABEL, 63) if short else (_SUBDOMAIN, _IN_SUBDOMAIN, 253)
        if len(name) > limit:
            problems.invalid("metadata.name", name, f"must be no more than {limit} characters")
        if not pattern.fullmatch(name):
            problems.invalid("metadata.name", name, rule)
    _check_labels(problems, "metadata.labels", meta.get("labels") or {})
    _check_annotations(problems, meta.get("annotations") or {})
    for finalizer in meta.get("finalizers") or ():
        if not _qualified(finalizer):
            problems.invalid("metadata.finalizers", finalizer, _IN_KEY)
        elif "/" not in finalizer and finalizer not in ("orphan", "foregroundDeletion", "kubernetes"):
            problems.invalid(
                "metadata.finalizers", finalizer, "name is neither a standard finalizer name nor is it fully qualified"
            )
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                problems.invalid(f"metadata.ownerReferences[{index}].{field}", "", f"{field} must not be empty")


def _check_labels(problems: Problems, path: str, labels: dict[str, str]) -> None:
    for key, value in labels.items():
        if not _qualified(key):
            problems.invalid(path, key, _IN_KEY)
        if len(value) > 63:
            problems.invalid(path, value, "must be no more than 63 characters")
        if not _VALUE.fullmatch(value):
            problems.invalid(path, value, _IN_VALUE)


def _check_annotations(problems: Problems, annotations: dict[str, str]) -> None:
    for key in annotations:
        if not _qualified(key):
            problems.invalid("metadata.annotations", key, _IN_KEY)
    if sum(len(key) + len(value.encode()) for key, value in annotations.items()) > 256 * 1024:
        problems.too_long("metadata.annotations", 256 * 1024)


def _qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
        return False
    return bool(_QUALIFIED.fullmatch(name)) and len(name) <= 63


def _check_data(problems: Problems, kind: Kind, body: Object) -> None:
    size = 0
    for key, text in (body.get("data") or {}).items():
        if not _DATA_KEY.fullmatch(key) or key in (".", ".."):
            problems.invalid(
                f"data[{key}]", key,
                "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
                "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')",
            )  # fmt: skip
        if kind is SECRETS:
            try:
                size += len(base64.b64decode(text, validate=True))
            except (binascii.Error, TypeError, ValueError):
                message = f'{kind.name} in version "v1" cannot be handled as a {kind.name}: illegal base64 data'
                raise bad_request(f"{message} at input byte 0") from None
        else:
            size += len(str(text).encode())
    for text in (body.get("binaryData") or {}).values():
        size += len(base64.b64decode(text))
    if size > _DATA_LIMIT:
        problems.too_long("data" if kind is SECRETS else "", _DATA_LIMIT)


def _check_claim(problems: Problems, spec: Object) -> None:
    if not spec.get("accessModes"):
        problems.required("spec.accessModes", "at least 1 access mode is required")
    if not ((spec.get("resources") or {}).get("requests") or {}).get("storage"):
        problems.required("spec.resources[storage]")


def _check_job(problems: Problems, spec: Object) -> None:
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"):
        value = spec.get(field)
        if value is not None and (not isinstance(value, int) or value < 0):
            problems.invalid(f"spec.{field}", value, "must be greater than or equal to 0")
    template = spec.get("template") or {}
    meta, pod_spec = template.get("metadata") or {}, template.get("spec") or {}
    _check_labels(problems, "spec.template.labels", meta.get("labels") or {})
    if pod_spec.get("restartPolicy") not in ("OnFailure", "Never"):
        problems.required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    _check_pod_spec(problems, "spec.template.spec", pod_spec)


def _check_pod_spec(problems: Problems, path: str, spec: Object) -> None:
    policy = spec.get("restartPolicy", "Always")
    if policy not in _POLICIES:
        problems.unsupported(f"{path}.restartPolicy", policy, _POLICIES)
    if not spec.get("containers"):
        problems.required(f"{path}.containers")
    volumes = _check_volumes(problems, f"{path}.volumes", spec.get("volumes") or [])
    names: set[str] = set()
    places: dict[str, int] = {}
    for group, container in containers(spec):
        index = places.get(group, 0)
        places[group] = index + 1
        where = f"{path}.{group}[{index}]"
        _check_container(problems, where, container, volumes)
        if (name := container.get("name", "")) in names:
            problems.duplicate(f"{where}.name", name)
        names.add(name)


def _check_volumes(problems: Problems, path: str, volumes: list[Object]) -> set[str]:
    names: set[str] = set()
    for index, volume in enumerate(volumes):
        where, name = f"{path}[{index}]", volume.get("name", "")
        _check_short_name(problems, f"{where}.name", name)
        if name in names:
            problems.duplicate(f"{where}.name", name)
        names.add(name)
        if len(set(volume) - {"name"}) > 1:
            problems.forbidden(where, "may not specify more than 1 volume type")
        for source, field in (("secret", "secretName"), ("configMap", "name"), ("persistentVolumeClaim", "claimName"),
                              ("hostPath", "path")):  # fmt: skip
            if source in volume and not (volume[source] or {}).get(field):
                problems.required(f"{where}.{source}.{field}")
    return names


def _check_short_name(problems: Problems, path: str, name: str) -> None:
    if not name:
        problems.required(path)
    elif not _LABEL.fullmatch(name):
        problems.invalid(path, name, _IN_LABEL)
    elif len(name) > 63:
        problems.invalid(path, name, "must be no more than 63 characters")


def _check_container(problems: Problems, path: str, container: Object, volumes: set[str]) -> None:
    _check_short_name(problems, f"{path}.name", container.get("name", ""))
    if not container.get("image"):
        problems.required(f"{path}.image")
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        where = f"{path}.volumeMounts[{index}]"
        if mount.get("name") not in volumes:
            problems.missing(f"{where}.name", mount.get("name"))
        if not mount.get("mountPath"):
            problems.required(f"{where}.mountPath")
        if ".." in str(mount.get("subPath", "")).split("/"):
            problems.invalid(f"{where}.subPath", mount["subPath"], "must not contain '..'")
    paths = [mount.get("mountPath") for mount in container.get("volumeMounts") or ()]
    for index, mount_path in enumerate(paths):
        if mount_path in paths[:index]:
            problems.invalid(f"{path}.volumeMounts[{index}].mountPath", mount_path, "must be unique")
    _check_resources(problems, f"{path}.resources.requests", container.get("resources") or {})
    for index, variable in enumerate(container.get("env") or ()):
        _check_variable(problems, f"{path}.env[{index}]", variable)


def _check_resources(problems: Problems, path: str, resources: Object) -> None:
    limits = resources.get("limits") or {}
    for name, amount in (resources.get("requests") or {}).items():
        if name in limits and _amount(amount) > _amount(limits[name]):
            problems.invalid(path, str(amount), f"must be less than or equal to {name} limit")


def _amount(quantity: object) -> Decimal:
    number, suffix = _QUANTITY.fullmatch(str(quantity)).groups()  # type: ignore[union-attr] # its shape is checked
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        return Decimal(number + suffix)
    return Decimal(number) * _SUFFIXES.get(suffix, Decimal(1))


def _check_variable(problems: Problems, path: str, variable: dict[str, Any]) -> None:
    source = variable.get("valueFrom")
    if not variable.get("name"):
        problems.required(f"{path}.name")
    if source is None:
        return
    if variable.get("value"):
        problems.invalid(f"{path}.valueFrom", "", "may not be specified when `value` is not empty")
    for kind in ("secretKeyRef", "configMapKeyRef"):
        if kind in source and not source[kind].get("key"):
            problems.required(f"{path}.valueFrom.{kind}.key")
    field = (source.get("fieldRef") or {}).get("fieldPath", "metadata.name")
    if field not in _FIELDS and not re.fullmatch(r"metadata\.(labels|annotations)\['[^']+'\]", field):
        problems.unsupported(f"{path}.valueFrom.fieldRef.fieldPath", field, sorted(_FIELDS))
