"""What agent pods inherit from the worker's own pod, as pure functions of that pod's JSON.

An agent never gets what only the worker may have: its API credentials, its sealing key, its connection to Temporal. So
literals are inherited only by name, and references, `envFrom` and Secret mounts are filtered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from agent_runs.contracts.errors import PodIntrospectionFailed
from agent_runs.contracts.messages import EnvReference, PodProfile, SecretMount
from agent_runs.contracts.pod import DATA_DIRECTORY

PREFERRED_CONTAINER: Final = "paperclip"


@dataclass(frozen=True)
class Exclusions:
    """What agents do not inherit, as shell patterns.

    Attributes:
        variables: names of environment variables, literal or by reference.
        mounts: mount paths of Secrets. On Kubernetes up to 1.23 the worker's own API token is one of them.
        secrets: names of Secrets and ConfigMaps, for `envFrom`, whose keys are not known here.
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


def pod_profile(
    pod: Mapping[str, Any],
    *,
    namespace: str | None = None,
    image: str | None = None,
    exclusions: Exclusions | None = None,
) -> PodProfile:
    """Return what an agent pod inherits from `pod`, the worker's own as raw JSON.

    Args:
        namespace: of Jobs, if not the pod's own.
        image: the settings' image; it replaces the pod's own.

    Raises:
        PodIntrospectionFailed: the pod has no spec, no container or no image.
    """
    excluded = exclusions or Exclusions()
    name = _text(_part(pod, "metadata"), "name") or "unknown"
    container = _container(pod, name)
    image = image or _text(container, "image")
    if not image:
        raise PodIntrospectionFailed(f"pod {name} has no container image")
    spec = _part(pod, "spec")
    home = _text(_part(pod, "metadata"), "namespace") or "default"
    return PodProfile(
        namespace=namespace or home,
        image=image,
        image_pull_secrets=tuple(secret for each in _list(spec, "imagePullSecrets") if (secret := _text(each, "name"))),
        dns_config=dict(_part(spec, "dnsConfig")) or None,
        data_claim=_data_claim(spec, container),
        secret_mounts=tuple(_secret_mounts(spec, container, excluded)),
        env_references=tuple(_references(container, excluded)),
        env_from=tuple(_env_from(container, excluded)),
        node_selector={key: str(value) for key, value in _part(spec, "nodeSelector").items()},
        tolerations=tuple(dict(each) for each in _list(spec, "tolerations")),
        source=f"pod {home}/{name}",
    )


def inherited_literals(
    pod: Mapping[str, Any], allow: Sequence[str], *, exclusions: Exclusions | None = None
) -> dict[str, str]:
    """Return the literal variables of the worker's pod whose names match one of `allow`, in order. They are secret.

    Without a pattern none is inherited: a worker's environment is not meant for agents.

    Raises:
        PodIntrospectionFailed: as for `pod_profile`.
    """
    name = _text(_part(pod, "metadata"), "name") or "unknown"
    excluded = (exclusions or Exclusions()).variables
    return {
        variable: value
        for each in _list(_container(pod, name), "env")
        if (variable := _text(each, "name"))
        and isinstance(value := each.get("value", None if "valueFrom" in each else ""), str)
        and _matches(variable, allow)
        and not _matches(variable, excluded)
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
        (_text(each, "name") for each in _list(container, "volumeMounts") if each.get("mountPath") == DATA_DIRECTORY),
        None,
    )
    claims = {
        _text(each, "name"): _text(_part(each, "persistentVolumeClaim"), "claimName") for each in _list(spec, "volumes")
    }
    return claims.get(volume) if volume else None


def _secret_mounts(
    spec: Mapping[str, Any], container: Mapping[str, Any], exclusions: Exclusions
) -> Iterable[SecretMount]:
    secrets = {_text(each, "name"): _part(each, "secret") for each in _list(spec, "volumes") if _part(each, "secret")}
    for mount in _list(container, "volumeMounts"):
        volume, path = _text(mount, "name"), _text(mount, "mountPath")
        secret = secrets.get(volume)
        name = _text(secret, "secretName") if secret else None
        if (
            not (volume and path and secret and name)
            or _matches(path, exclusions.mounts)
            or _matches(name, exclusions.secrets)
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


def _references(container: Mapping[str, Any], exclusions: Exclusions) -> Iterable[EnvReference]:
    """Yield references to Secrets and ConfigMaps. A fieldRef would refer to the agent's pod, so none is inherited."""
    for each in _list(container, "env"):
        name, source = _text(each, "name"), _part(each, "valueFrom")
        if name and not _matches(name, exclusions.variables) and {"secretKeyRef", "configMapKeyRef"} & set(source):
            yield EnvReference(name=name, value_from=dict(source))


def _env_from(container: Mapping[str, Any], exclusions: Exclusions) -> Iterable[dict[str, Any]]:
    for each in _list(container, "envFrom"):
        names = [_text(_part(each, kind), "name") for kind in ("secretRef", "configMapRef")]
        if not any(name and _matches(name, exclusions.secrets) for name in names):
            yield dict(each)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _part(value: Any, key: str) -> Mapping[str, Any]:
    part = value.get(key) if isinstance(value, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _list(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    items = value.get(key)
    return [each for each in items if isinstance(each, Mapping)] if isinstance(items, list) else []


def _text(value: Mapping[str, Any], key: str) -> str | None:
    text = value.get(key)
    return text if isinstance(text, str) and text else None
