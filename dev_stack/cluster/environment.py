"""A container's environment and command as pure functions: `$(VAR)` expansion and references to Secrets."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping

from dev_stack.cluster.kinds import Object

Secrets = Callable[[str], Object | None]
"""The Secret of this name, in the pod's namespace."""
_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


class NotConfigured(Exception):
    """Something the container's configuration refers to does not exist; the text is the kubelet's."""


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value; `$$` is one dollar, unknown names stay as they are."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else known.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def data_of(secret: Object) -> dict[str, bytes]:
    return {key: base64.b64decode(text) for key, text in (secret.get("data") or {}).items()}


def environment(container: Object, namespace: str, secrets: Secrets) -> dict[str, str]:
    """The variables of `env`.

    Raises:
        NotConfigured: a Secret or key that is not optional is missing, or a source is not imitated here.
    """
    if container.get("envFrom"):
        raise NotConfigured("envFrom: the embedded cluster knows only `env`")
    variables: dict[str, str] = {}
    for variable in container.get("env") or ():
        source = variable.get("valueFrom")
        if source is None:
            variables[variable["name"]] = expand(variable.get("value") or "", variables)
        elif "secretKeyRef" not in source:
            raise NotConfigured(f"{variable['name']}: the embedded cluster knows only values and secretKeyRef")
        elif (value := _entry(source["secretKeyRef"], namespace, secrets)) is not None:
            variables[variable["name"]] = value
    return variables


def _entry(reference: Object, namespace: str, secrets: Secrets) -> str | None:
    name, key = reference.get("name", ""), reference["key"]
    secret = secrets(name)
    if secret is not None and key in (entries := data_of(secret)):
        return entries[key].decode(errors="surrogateescape")
    if reference.get("optional"):
        return None
    if secret is None:
        raise NotConfigured(f'secret "{name}" not found')
    raise NotConfigured(f"couldn't find key {key} in Secret {namespace}/{name}")


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
