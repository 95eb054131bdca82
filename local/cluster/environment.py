"""A container's environment and command as pure functions: `$(VAR)` expansion, references, downward fields."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping

from local.cluster.kinds import CONFIG_MAPS, SECRETS, Kind, Object

Lookup = Callable[[Kind, str], Object | None]
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


class NotConfigured(Exception):
    """Something the container's configuration refers to is not there; the text is the kubelet's."""


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by what is known; `$$` is one dollar, unknown names stay as they are."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def data_of(kind: Kind, body: Object) -> dict[str, bytes]:
    """The entries of a Secret or ConfigMap as bytes."""
    if kind is SECRETS:
        return {key: base64.b64decode(text) for key, text in (body.get("data") or {}).items()}
    entries = {key: text.encode() for key, text in (body.get("data") or {}).items()}
    return entries | {key: base64.b64decode(text) for key, text in (body.get("binaryData") or {}).items()}


def field_value(pod: Object, path: str) -> str:
    """A downward API field such as `metadata.name` or `metadata.labels['x']`."""
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path):
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    found: object = pod
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def environment(container: Object, pod: Object, lookup: Lookup) -> dict[str, str]:
    """The variables of `env` and `envFrom`, in the kubelet's order of precedence.

    Raises:
        NotConfigured: a Secret, ConfigMap or key that is not optional is missing.
    """
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for kind, field in ((CONFIG_MAPS, "configMapRef"), (SECRETS, "secretRef")):
            if field in source:
                entries = _entries(kind, source[field], pod, lookup)
                prefix = source.get("prefix", "")
                names = {prefix + key: data for key, data in entries.items() if _ENV_NAME.fullmatch(prefix + key)}
                variables |= {name: data.decode(errors="surrogateescape") for name, data in names.items()}
    for variable in container.get("env") or ():
        value = _value(variable, pod, lookup, variables)
        if value is not None:
            variables[variable["name"]] = value
    return variables


def _value(variable: Object, pod: Object, lookup: Lookup, known: Mapping[str, str]) -> str | None:
    source = variable.get("valueFrom")
    if source is None:
        return expand(variable.get("value") or "", known)
    if "fieldRef" in source:
        return field_value(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return "0"  # resources are accepted and ignored
    for kind, field in ((SECRETS, "secretKeyRef"), (CONFIG_MAPS, "configMapKeyRef")):
        if field in source:
            return _key(kind, source[field], pod, lookup)
    return None


def _key(kind: Kind, wanted: Object, pod: Object, lookup: Lookup) -> str | None:
    entries = _entries(kind, wanted, pod, lookup)
    if wanted["key"] in entries:
        return entries[wanted["key"]].decode(errors="surrogateescape")
    if wanted.get("optional"):
        return None
    where = f"{pod['metadata']['namespace']}/{wanted['name']}"
    raise NotConfigured(f"couldn't find key {wanted['key']} in {kind.name} {where}")


def _entries(kind: Kind, wanted: Object, pod: Object, lookup: Lookup) -> dict[str, bytes]:
    del pod  # the lookup is already bound to the pod's namespace
    body = lookup(kind, wanted.get("name", ""))
    if body is not None:
        return data_of(kind, body)
    if wanted.get("optional"):
        return {}
    raise NotConfigured(f'{kind.name.lower()} "{wanted.get("name", "")}" not found')


def command(container: Object, variables: Mapping[str, str]) -> list[str]:
    """`command` and `args` with variables expanded.

    Raises:
        NotConfigured: there is no `command`; an image would supply one, but images are only names here.
    """
    words = [expand(word, variables) for word in container.get("command") or ()]
    if not words:
        raise NotConfigured(
            "no command specified: images are only names to the embedded cluster, so `command` must be given"
        )
    return words + [expand(word, variables) for word in container.get("args") or ()]
