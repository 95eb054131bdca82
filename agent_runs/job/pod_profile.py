"""What agent pods inherit, as pure functions of a pod's JSON: the worker's own, or that of Paperclip's Deployment.

Only what the operator's settings list by name is inherited. What the worker's own settings point to (its sealing key,
its credentials for Kubernetes, Temporal and the transcript store) never is, whatever the lists say and wherever it is
mounted. What is Paperclip's own (its database, the secret of its sessions) is inherited only if a list has its exact
name: no pattern finds it.
"""

import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Final, Self

from agent_runs.contracts.errors import InvalidRequest, PodIntrospectionFailed
from agent_runs.contracts.messages import EnvReference, PodProfile, SecretMount
from agent_runs.contracts.pod import DATA_DIRECTORY
from agent_runs.contracts.request import OPENCODE, RunConfig

WORKER_CONTAINER: Final = "worker"
"""In a pod of several containers, the one that is asked (deploy/base/worker.yaml)."""
SETTINGS: Final = (
    "AGENT_RUNS_*",
    "TEMPORAL_*",
    "TRANSCRIPTS_*",
    "OTEL_EXPORTER_*",
    "KUBECONFIG",
    "POD_NAME",
    "POD_NAMESPACE",
)
"""Variables that are settings of the worker."""
PAPERCLIPS_OWN: Final = (
    *("PAPERCLIP_*", "BETTER_AUTH_*", "DATABASE_*", "*_DATABASE_URL", "POSTGRES_*", "PG*"),
    *("REDIS_*", "SMTP_*", "S3_*", "*_CLIENT_SECRET", "*_WEBHOOK_SECRET"),
)
"""Variables with which Paperclip itself works: its database, its sessions, logins, mail."""
WORKERS_MOUNTS: Final = ("/var/run/secrets/*", "/run/secrets/*", "/etc/agent-runs*")
"""Mount paths that only the worker has; on Kubernetes up to 1.23 its API token is the Secret of one of them."""
WORKERS_SECRETS: Final = ("agent-runs*",)
"""Secrets and ConfigMaps of this program itself. Only a list with its exact name has one of them inherited."""


@dataclass(frozen=True)
class DeploymentChoice:
    """Paperclip's Deployment, as the operator's settings name it.

    Attributes:
        selector: labels of the Deployment, `KEY=VALUE`, separated by commas.
        namespace: None: the worker's own.
        container: its container; None: it has one only.
    """

    selector: str
    namespace: str | None = None
    container: str | None = None


@dataclass(frozen=True)
class Inheritance:
    """What agents inherit, as shell patterns. By default nothing.

    Attributes:
        variables: names of environment variables, literal or by reference to one key of a Secret or ConfigMap.
        env_from: names of Secrets and ConfigMaps all of whose keys become variables.
        mounts: mount paths of Secrets.
        deployment: from which they inherit; None: from the worker's own pod.
    """

    variables: Sequence[str] = ()
    env_from: Sequence[str] = ()
    mounts: Sequence[str] = ()
    deployment: DeploymentChoice | None = None


@dataclass(frozen=True)
class PodOverrides:
    """Settings that override the worker's own pod; the only source when the worker runs outside a pod.

    Attributes:
        agent_images: of agents other than OpenCode, by their names; `image` is OpenCode's alone.
    """

    image: str | None = None
    data_claim: str | None = None
    agent_images: Mapping[str, str] = field(default_factory=dict)

    def image_for(self, config: RunConfig) -> str | None:
        """The image that a configuration or a setting names for the agent.

        Raises:
            InvalidRequest: neither does, for an agent that is not in the image of OpenCode.
        """
        if config.agent == OPENCODE:
            return config.image or self.image
        if image := config.image or self.agent_images.get(config.agent):
            return image
        raise InvalidRequest(
            f"config.image: agent {config.agent} has no image: set AGENT_RUNS_AGENT_IMAGES={config.agent}=IMAGE at the "
            "worker, or the agent's `image`"
        )


@dataclass(frozen=True)
class _OwnSettings:
    """What the settings of the worker, or of Paperclip, point to.

    Attributes:
        secrets: Secrets that hold a file which a setting names, such as a key or a kubeconfig.
        keys: (kind of reference, name, key) of the values of settings, such as the URL of a database.
    """

    secrets: frozenset[str]
    keys: frozenset[tuple[str, str, str]]

    @classmethod
    def of(cls, pod: Mapping[str, Any], inheritance: Inheritance) -> Self:
        spec, container = _part(pod, "spec"), own_container(pod)
        settings = [
            each
            for each in _list(container, "env")
            if (name := _text(each, "name")) and _is_setting(name, inheritance, of_paperclip=is_deployment(pod))
        ]
        files = [value for each in settings if (value := _text(each, "value")) and value.startswith("/")]
        secrets = _secret_volumes(spec)
        mounted = {
            name
            for mount in _list(container, "volumeMounts")
            if (name := secrets.get(_text(mount, "name"), {}).get("secretName"))
            and any(_holds(_text(mount, "mountPath") or "", file) for file in files)
        }
        keys = {key for each in settings for key in _keys(_part(each, "valueFrom"))}
        return cls(frozenset(mounted), frozenset(keys))

    def __or__(self, other: "_OwnSettings") -> "_OwnSettings":
        return _OwnSettings(self.secrets | other.secrets, self.keys | other.keys)

    def hides_variable(self, source: Mapping[str, Any]) -> bool:
        """Whether a reference would give an agent the value or the file of a setting."""
        return any(key in self.keys or self._hides_secret(*key[:2]) for key in _keys(source))

    def hides_all_of(self, kind: str, name: str) -> bool:
        """Whether a Secret or ConfigMap holds, among others, the value or the file of a setting."""
        return self._hides_secret(kind, name) or any(key[:2] == (kind, name) for key in self.keys)

    def _hides_secret(self, kind: str, name: str) -> bool:
        return kind == "secretKeyRef" and name in self.secrets


def agent_profile(
    pod: Mapping[str, Any] | None,
    config: RunConfig,
    overrides: PodOverrides,
    inheritance: Inheritance,
    *,
    home: str,
    worker: Mapping[str, Any] | None = None,
) -> PodProfile:
    """Return what the pod of an agent with this configuration inherits.

    Args:
        pod: what it inherits from, as raw JSON: the worker's own pod, None outside of one, or a `deployment_pod`.
        home: the namespace of Jobs whose agents name none.
        worker: the worker's own pod, if `pod` is another one: what its settings point to is not inherited either.

    Raises:
        PodIntrospectionFailed: there is no pod, and neither settings nor agent name an image; or it has several
            containers, none of which is called `worker`.
        InvalidRequest: nothing names an image for an agent other than OpenCode.
    """
    image = overrides.image_for(config)
    if pod:
        profile = pod_profile(pod, inheritance, worker=worker)
    elif image:
        profile = PodProfile(namespace=home, image=image)
    else:
        raise PodIntrospectionFailed(
            "the worker runs outside a pod and no image is set: set AGENT_RUNS_IMAGE or the agent's `image`"
        )
    chosen = {"namespace": config.namespace or home, "image": image, "data_claim": overrides.data_claim}
    return profile.model_copy(update={name: value for name, value in chosen.items() if value})


def pod_profile(
    pod: Mapping[str, Any],
    inheritance: Inheritance = Inheritance(),
    *,
    worker: Mapping[str, Any] | None = None,
) -> PodProfile:
    """Return what an agent pod inherits from `pod`, the worker's own as raw JSON or a `deployment_pod`.

    Args:
        worker: the worker's own pod, if `pod` is another one.

    Raises:
        PodIntrospectionFailed: the pod has no spec, no image, or several containers none of which is called `worker`.
    """
    name = _text(_part(pod, "metadata"), "name") or "unknown"
    container = own_container(pod)
    image = _text(container, "image")
    if not image:
        raise PodIntrospectionFailed(f"pod {name} has no container image")
    spec = _part(pod, "spec")
    home = _text(_part(pod, "metadata"), "namespace") or "default"
    own = _OwnSettings.of(pod, inheritance)
    if worker:
        own |= _OwnSettings.of(worker, inheritance)
    return PodProfile(
        namespace=home,
        image=image,
        image_pull_secrets=tuple(secret for each in _list(spec, "imagePullSecrets") if (secret := _text(each, "name"))),
        dns_config=dict(_part(spec, "dnsConfig")) or None,
        data_claim=_data_claim(spec, container),
        secret_mounts=tuple(_secret_mounts(spec, container, inheritance, own)),
        env_references=tuple(_references(pod, inheritance, own)),
        env_from=tuple(_env_from(pod, inheritance, own)),
        node_selector={key: str(value) for key, value in _part(spec, "nodeSelector").items()},
        tolerations=tuple(dict(each) for each in _list(spec, "tolerations")),
        source=f"{'Deployment' if is_deployment(pod) else 'pod'} {home}/{name}",
    )


def inherited_literals(pod: Mapping[str, Any], inheritance: Inheritance) -> dict[str, str]:
    """Return the literal variables of the pod that agents inherit, in order. They are secret.

    Raises:
        PodIntrospectionFailed: as for `pod_profile`.
    """
    return {
        variable: value
        for each in _list(own_container(pod), "env")
        if (variable := _text(each, "name"))
        and isinstance(value := each.get("value", None if "valueFrom" in each else ""), str)
        and _is_inherited(variable, pod, inheritance)
    }


def own_data_claim(pod: Mapping[str, Any]) -> str | None:
    """Return the claim that the worker's own container mounts as Paperclip's data volume.

    Raises:
        PodIntrospectionFailed: as for `pod_profile`.
    """
    return _data_claim(_part(pod, "spec"), own_container(pod))


def own_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the worker's own container.

    Raises:
        PodIntrospectionFailed: the pod has no spec, no container, or several none of which is called `worker`.
    """
    name, spec = _text(_part(pod, "metadata"), "name") or "unknown", _part(pod, "spec")
    if not spec:
        raise PodIntrospectionFailed(f"pod {name} has no spec")
    containers = _list(spec, "containers")
    if not containers:
        raise PodIntrospectionFailed(f"pod {name} has no container")
    named = [each for each in containers if each.get("name") == WORKER_CONTAINER]
    if not named and len(containers) > 1:
        raise PodIntrospectionFailed(
            f"pod {name} has {len(containers)} containers: call the worker's own `{WORKER_CONTAINER}`"
        )
    return (named or containers)[0]


def _data_claim(spec: Mapping[str, Any], container: Mapping[str, Any]) -> str | None:
    paths = {posixpath.normpath(_text(each, "mountPath") or ""): each for each in _list(container, "volumeMounts")}
    volume = _text(paths.get(DATA_DIRECTORY, {}), "name")
    claims = {
        _text(each, "name"): _text(_part(each, "persistentVolumeClaim"), "claimName") for each in _list(spec, "volumes")
    }
    return claims.get(volume) if volume else None


def _secret_mounts(
    spec: Mapping[str, Any], container: Mapping[str, Any], inheritance: Inheritance, own: _OwnSettings
) -> Iterable[SecretMount]:
    secrets = _secret_volumes(spec)
    for mount in _list(container, "volumeMounts"):
        volume, path = _text(mount, "name"), _text(mount, "mountPath")
        secret = secrets.get(volume)
        name = _text(secret, "secretName") if secret else None
        if (
            not (volume and path and secret and name)
            or not _matches(path, inheritance.mounts)
            or _matches(path, WORKERS_MOUNTS)
            or _matches(name, WORKERS_SECRETS)
            or own.hides_all_of("secretKeyRef", name)
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


def _references(pod: Mapping[str, Any], inheritance: Inheritance, own: _OwnSettings) -> Iterable[EnvReference]:
    """Yield references to Secrets and ConfigMaps. A fieldRef would refer to the agent's pod, so none is inherited."""
    for each in _list(own_container(pod), "env"):
        name, source = _text(each, "name"), _part(each, "valueFrom")
        keys = list(_keys(source))
        if not name or not keys or any(_is_ours(key[1], inheritance) for key in keys):
            continue
        if _is_inherited(name, pod, inheritance) and not own.hides_variable(source):
            yield EnvReference(name=name, value_from=dict(source))


def _env_from(pod: Mapping[str, Any], inheritance: Inheritance, own: _OwnSettings) -> Iterable[dict[str, Any]]:
    """Yield Secrets and ConfigMaps as a whole. Nobody knows what else one of Paperclip's holds: no pattern finds it."""
    chosen = [escape(name) for name in inheritance.env_from] if is_deployment(pod) else inheritance.env_from
    for each in _list(own_container(pod), "envFrom"):
        sources = {"secretKeyRef": _part(each, "secretRef"), "configMapKeyRef": _part(each, "configMapRef")}
        names = [(kind, name) for kind, source in sources.items() if (name := _text(source, "name"))]
        if names and all(
            _matches(name, chosen) and not _is_ours(name, inheritance) and not own.hides_all_of(kind, name)
            for kind, name in names
        ):
            yield dict(each)


def _is_ours(name: str, inheritance: Inheritance) -> bool:
    return _matches(name, WORKERS_SECRETS) and name not in inheritance.env_from


def is_deployment(pod: Mapping[str, Any]) -> bool:
    """Return whether this is a `deployment_pod`, and not the worker's own pod."""
    return pod.get("kind") == "Deployment"


def _is_inherited(variable: str, pod: Mapping[str, Any], inheritance: Inheritance) -> bool:
    return _matches(variable, inheritance.variables) and not _is_setting(
        variable, inheritance, of_paperclip=is_deployment(pod)
    )


def _is_setting(variable: str, inheritance: Inheritance, *, of_paperclip: bool) -> bool:
    """Whether the worker works with this variable, or Paperclip and the operator's list has not its exact name."""
    if _matches(variable, SETTINGS):
        return True
    return of_paperclip and _matches(variable, PAPERCLIPS_OWN) and variable not in inheritance.variables


def _keys(source: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """What a variable's `valueFrom` refers to: kind, name, key."""
    for kind in ("secretKeyRef", "configMapKeyRef"):
        reference = _part(source, kind)
        if (name := _text(reference, "name")) and (key := _text(reference, "key")):
            yield kind, name, key


def _secret_volumes(spec: Mapping[str, Any]) -> dict[str | None, Mapping[str, Any]]:
    return {_text(each, "name"): _part(each, "secret") for each in _list(spec, "volumes") if _part(each, "secret")}


def _holds(mount_path: str, file: str) -> bool:
    folder = posixpath.normpath(mount_path)
    return posixpath.normpath(file) == folder or posixpath.normpath(file).startswith(f"{folder.rstrip('/')}/")


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
