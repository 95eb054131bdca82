"""What agent pods inherit from the worker's own pod, read from that pod as it is. Pure.

What the worker itself lives by never goes to an agent: its API credentials, its sealing key, its connection to
Temporal. So literals are inherited only by name, and references, `envFrom` and Secret mounts are filtered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from contracts.errors import PodIntrospectionFailed
from contracts.messages import EnvReference, PodProfile, SecretMount

DATA: Final = "/paperclip"
PREFERRED_CONTAINER: Final = "paperclip"


@dataclass(frozen=True)
class Withheld:
    """What agents do not inherit, as shell patterns.

    Attributes:
        variables: names of environment variables, literal or by reference.
        mounts: mount paths of Secrets. On Kubernetes up to 1.23 the worker's own API token is one of them.
        secrets: names of Secrets and ConfigMaps, for `envFrom`, whose keys cannot be seen here.
    """

    variables: tuple[str, ...] = (
        "AGENT_RUNS_*",
        "TEMPORAL_*",
        "TRANSCRIPTS_*",
        "KUBECONFIG",
        "POD_NAME",
        "POD_NAMESPACE",
    )
    mounts: tuple[str, ...] = ("/var/run/secrets/*", "/run/secrets/*", "/etc/agent-runs*")
    secrets: tuple[str, ...] = ("agent-runs*",)


def profile(
    pod: Mapping[str, Any], *, namespace: str | None = None, image: str | None = None, withheld: Withheld | None = None
) -> PodProfile:
    """What an agent pod inherits from `pod`, the worker's own as raw JSON.

    Args:
        namespace: where Jobs go, if not where the pod lives.
        image: the settings' image; it replaces the pod's own.

    Raises:
        PodIntrospectionFailed: the pod has no spec, no container or no image.
    """
    kept_back = withheld or Withheld()
    name = _text(_part(pod, "metadata"), "name") or "unknown"
    container = _container(pod, name)
    chosen = image or _text(container, "image")
    if not chosen:
        raise PodIntrospectionFailed(f"pod {name} has no container image")
    spec = _part(pod, "spec")
    home = _text(_part(pod, "metadata"), "namespace") or "default"
    return PodProfile(
        namespace=namespace or home,
        image=chosen,
        image_pull_secrets=tuple(found for each in _list(spec, "imagePullSecrets") if (found := _text(each, "name"))),
        dns_config=dict(_part(spec, "dnsConfig")) or None,
        data_claim=_data_claim(spec, container),
        secret_mounts=tuple(_secret_mounts(spec, container, kept_back)),
        env_references=tuple(_references(container, kept_back)),
        env_from=tuple(_env_from(container, kept_back)),
        node_selector={key: str(value) for key, value in _part(spec, "nodeSelector").items()},
        tolerations=tuple(dict(each) for each in _list(spec, "tolerations")),
        source=f"pod {home}/{name}",
    )


def inherited_literals(
    pod: Mapping[str, Any], allow: Sequence[str], *, withheld: Withheld | None = None
) -> dict[str, str]:
    """The literal variables of the worker's pod whose names match one of `allow`, in order. Secret: never logged.

    Without a pattern none is inherited: a worker's environment is not made for agents to read.

    Raises:
        PodIntrospectionFailed: as for `profile`.
    """
    name = _text(_part(pod, "metadata"), "name") or "unknown"
    kept_back = (withheld or Withheld()).variables
    return {
        variable: value
        for each in _list(_container(pod, name), "env")
        if (variable := _text(each, "name"))
        and isinstance(value := each.get("value", None if "valueFrom" in each else ""), str)
        and _matches(variable, allow)
        and not _matches(variable, kept_back)
    }


def _container(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    spec = _part(pod, "spec")
    if not spec:
        raise PodIntrospectionFailed(f"pod {name} has no spec")
    containers = _list(spec, "containers")
    if not containers:
        raise PodIntrospectionFailed(f"pod {name} has no container")
    return next((each for each in containers if each.get("name") == PREFERRED_CONTAINER), containers[0])


def _data_claim(spec: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    volume = next(
        (_text(each, "name") for each in _list(container, "volumeMounts") if each.get("mountPath") == DATA), None
    )
    claims = {
        _text(each, "name"): _text(_part(each, "persistentVolumeClaim"), "claimName") for each in _list(spec, "volumes")
    }
    return claims.get(volume) if volume else None


def _secret_mounts(spec: Mapping[str, Any], container: Mapping[str, Any], withheld: Withheld) -> Iterable[SecretMount]:
    secrets = {_text(each, "name"): _part(each, "secret") for each in _list(spec, "volumes") if _part(each, "secret")}
    for mount in _list(container, "volumeMounts"):
        volume, path = _text(mount, "name"), _text(mount, "mountPath")
        secret = secrets.get(volume)
        name = _text(secret, "secretName") if secret else None
        if (
            not (volume and path and secret and name)
            or _matches(path, withheld.mounts)
            or _matches(name, withheld.secrets)
        ):
            continue
        mode = secret.get("defaultMode")
        yield SecretMount(
            volume_name=volume,
            secret_name=name,
            mount_path=path,
            default_mode=mode if isinstance(mode, int) else None,
            items=tuple(dict(each) for each in _list(secret, "items")),
            sub_path=_text(mount, "subPath"),
        )


def _references(container: Mapping[str, Any], withheld: Withheld) -> Iterable[EnvReference]:
    """References to Secrets and ConfigMaps. A fieldRef would name the agent's own pod there, so it stays here."""
    for each in _list(container, "env"):
        name, source = _text(each, "name"), _part(each, "valueFrom")
        if name and not _matches(name, withheld.variables) and {"secretKeyRef", "configMapKeyRef"} & set(source):
            yield EnvReference(name=name, value_from=dict(source))


def _env_from(container: Mapping[str, Any], withheld: Withheld) -> Iterable[dict[str, Any]]:
    for each in _list(container, "envFrom"):
        named = [_text(_part(each, kind), "name") for kind in ("secretRef", "configMapRef")]
        if not any(name and _matches(name, withheld.secrets) for name in named):
            yield dict(each)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _part(value: Any, key: str) -> Mapping[str, Any]:
    part = value.get(key) if isinstance(value, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _list(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = value.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _text(value: Mapping[str, Any], key: str) -> str | None:
    found = value.get(key)
    return found if isinstance(found, str) and found else None
