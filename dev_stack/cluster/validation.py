"""What the API server refuses about an object: Kubernetes' own schemas, and a few rules that no schema has.

The schemas come with `kubernetes-validate`. The rules are those that the contract tests hold against a real API server;
a real one has more.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from decimal import Decimal
from typing import Any

from dev_stack.cluster.discovery import VERSION
from dev_stack.cluster.errors import FieldErrors, bad_request
from dev_stack.cluster.kinds import CLAIMS, CONFIG_MAPS, JOBS, NAMESPACES, PODS, SECRETS, Kind, Object

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eE][-+]?[0-9]+|[numkKMGTPE]?i?)")
_UNITS = {"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")}
_UNITS |= {letter: Decimal(1000) ** (power + 1) for power, letter in enumerate("kMGTPE")}
_UNITS |= {f"{letter}i": Decimal(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")}
_DATA_LIMIT = 1024 * 1024  # bytes of a Secret or ConfigMap


@functools.cache
def _schema(kind: Kind) -> Any:
    """The validator of a kind. The first one costs a third of a second: see `load`."""
    import jsonschema  # noqa: PLC0415 - as above
    from kubernetes_validate.utils import schema_contents  # noqa: PLC0415 - as above
    from referencing import Registry, Resource  # noqa: PLC0415 - as above

    def contents(name: str) -> Any:
        return schema_contents(f"kubernetes-json-schema/{VERSION}-local/{name}.json", VERSION)

    schema = contents(f"{kind.name.lower()}-{kind.api_version.replace('/', '-')}")
    registry: Any = Resource.from_contents(contents("_definitions")) @ Registry()
    return jsonschema.Draft202012Validator(schema, registry=Resource.from_contents(schema) @ registry)


def load() -> None:
    """Read the schemas of the kinds that clients create first, so that no request waits for it."""
    for kind in (CLAIMS, SECRETS, JOBS):
        _schema(kind)


def check(kind: Kind, body: Object) -> None:
    """Check a new object.

    Raises:
        ApiError: 400 for a value of the wrong type; 422, with every error, for anything else.
    """
    errors = FieldErrors(kind, body["metadata"].get("name", ""))
    _check_schema(errors, kind, body)
    _check_metadata(errors, kind, body["metadata"])
    if kind is PODS:
        _check_pod_spec(errors, "spec", body["spec"])
    elif kind is JOBS:
        _check_job(errors, body["metadata"].get("name", ""), body["spec"])
    elif kind is CLAIMS and not body["spec"].get("accessModes"):
        errors.required("spec.accessModes", "at least 1 access mode is required")
    _check_data(errors, kind, body)
    errors.raise_if_any()


def check_change(kind: Kind, body: Object, before: Object) -> None:
    """Check a changed object, also for what cannot be changed; raises as `check`."""
    errors = FieldErrors(kind, before["metadata"]["name"])
    _check_schema(errors, kind, body)
    _check_metadata(errors, kind, body["metadata"])
    new, old = body.get("spec") or {}, before.get("spec") or {}
    if kind is JOBS and new.get("template") != old.get("template") and not old.get("suspend"):
        errors.invalid("spec.template", new.get("template"), "field is immutable")
    elif kind is PODS and {**new, "activeDeadlineSeconds": 0} != {**old, "activeDeadlineSeconds": 0}:
        errors.forbidden("spec", "pod updates may not change fields other than `spec.activeDeadlineSeconds`")
    _check_data(errors, kind, body)
    if before.get("immutable") and body.get("data") != before.get("data"):
        errors.forbidden("data", "field is immutable when `immutable` is set")
    errors.raise_if_any()


def _check_schema(errors: FieldErrors, kind: Kind, body: Object) -> None:
    for error in _schema(kind).iter_errors(body):
        path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)[1:]
        if error.validator != "required":
            raise bad_request(f"{kind.name} in version {kind.api_version} cannot be handled: {path}: {error.message}")
        for field in error.validator_value:
            if field not in error.instance:
                errors.required(f"{path}.{field}".lstrip("."))


def _check_metadata(errors: FieldErrors, kind: Kind, meta: Object) -> None:
    name = meta.get("name", "")
    pattern, limit = (_LABEL, 63) if kind is NAMESPACES else (_SUBDOMAIN, 253)
    if not name:
        errors.required("metadata.name", "name or generateName is required")
    elif len(name) > limit or not pattern.fullmatch(name):
        errors.invalid("metadata.name", name, f"must be no more than {limit} characters of {pattern.pattern}")
    _check_labels(errors, "metadata.labels", meta.get("labels") or {})
    for key in meta.get("annotations") or {}:
        if not _qualified(key):
            errors.invalid("metadata.annotations", key, f"name part must match {_QUALIFIED.pattern}")


def _check_labels(errors: FieldErrors, path: str, labels: dict[str, str]) -> None:
    for key, value in labels.items():
        if not _qualified(key):
            errors.invalid(path, key, f"name part must match {_QUALIFIED.pattern}")
        if len(value) > 63:
            errors.invalid(path, value, "must be no more than 63 bytes")
        if not _VALUE.fullmatch(value):
            errors.invalid(path, value, f"a valid label must match {_VALUE.pattern}")


def _qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    if slash and not (_SUBDOMAIN.fullmatch(prefix) and len(prefix) <= 253):
        return False
    return bool(_QUALIFIED.fullmatch(name)) and len(name) <= 63


def _check_data(errors: FieldErrors, kind: Kind, body: Object) -> None:
    if kind not in (SECRETS, CONFIG_MAPS):
        return
    size = 0
    for key, text in (body.get("data") or {}).items():
        if not _DATA_KEY.fullmatch(key):
            errors.invalid(f"data[{key}]", key, f"a valid config key must match {_DATA_KEY.pattern}")
        try:
            size += len(base64.b64decode(text, validate=True) if kind is SECRETS else text.encode())
        except (binascii.Error, ValueError):
            raise bad_request("Secret in version v1 cannot be handled as a Secret: illegal base64 data") from None
    if size > _DATA_LIMIT:
        errors.add("data", "FieldValueTooLong", f"Too long: must have at most {_DATA_LIMIT} bytes")


def _check_job(errors: FieldErrors, name: str, spec: Object) -> None:
    if len(name) > 63:  # it becomes a label of the pods
        errors.invalid("spec.template.labels", name, "must be no more than 63 bytes")
    template = spec.get("template") or {}
    _check_labels(errors, "spec.template.labels", (template.get("metadata") or {}).get("labels") or {})
    pod_spec = template.get("spec") or {}
    if pod_spec.get("restartPolicy") not in ("OnFailure", "Never"):
        errors.required("spec.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
    _check_pod_spec(errors, "spec.template.spec", pod_spec)


def _check_pod_spec(errors: FieldErrors, path: str, spec: Object) -> None:
    volumes = {volume.get("name", "") for volume in spec.get("volumes") or ()}
    for index, volume in enumerate(spec.get("volumes") or ()):
        _check_short_name(errors, f"{path}.volumes[{index}].name", volume.get("name", ""))
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or ()):
            _check_container(errors, f"{path}.{group}[{index}]", container, volumes)


def _check_short_name(errors: FieldErrors, path: str, name: str) -> None:
    if not name:
        errors.required(path)
    elif len(name) > 63 or not _LABEL.fullmatch(name):
        errors.invalid(path, name, f"a lowercase RFC 1123 label must be 63 characters at most of {_LABEL.pattern}")


def _check_container(errors: FieldErrors, path: str, container: Object, volumes: set[str]) -> None:
    _check_short_name(errors, f"{path}.name", container.get("name", ""))
    if not container.get("image"):
        errors.required(f"{path}.image")
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        if mount.get("name") not in volumes:
            errors.add(f"{path}.volumeMounts[{index}].name", "FieldValueNotFound", f"Not found: {mount.get('name')}")
    resources = container.get("resources") or {}
    limits = {name: _amount(quantity) for name, quantity in (resources.get("limits") or {}).items()}
    for name, quantity in (resources.get("requests") or {}).items():
        if _amount(quantity) > limits.get(name, _amount(quantity)):
            errors.invalid(f"{path}.resources.requests", quantity, f"must be less than or equal to {name} limit")


def _amount(quantity: object) -> Decimal:
    match = _QUANTITY.fullmatch(str(quantity))
    if match is None:
        raise bad_request(f"quantities must match the regular expression '^{_QUANTITY.pattern}$'")
    number, unit = match.groups()
    return Decimal(number) * _UNITS[unit] if unit in _UNITS else Decimal(number + unit)
