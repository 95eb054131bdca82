"""How to reach the API server: a kubeconfig, else the pod's own service account.

Reads the configuration through the official client and mends three of its habits (37.0.2): an exec credential is
fetched once and never again, a failed exec plugin is only logged and the client goes on without credentials, and a
missing file is a warning. Every failure here is one line that says what to do.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

_load_in_cluster: Any = load_incluster_config  # untyped upstream
_load_kubeconfig: Any = load_kube_config

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoCluster(Exception):
    """The API server cannot be addressed at all: no or unusable configuration. One line, with the remedy."""


@dataclass(frozen=True)
class Access:
    """An API server and how to authenticate there.

    Attributes:
        configuration: the official client's; renews its token by itself where the source allows it.
        namespace: where Jobs go when nobody says otherwise.
        own_namespace: where the worker's own pod lives.
        own_name: the worker's own pod, None when it is not one of this cluster's.
    """

    configuration: Configuration
    namespace: str
    own_namespace: str
    own_name: str | None


async def access(
    kubeconfig: str | None, context: str | None, namespace: str | None, environ: Mapping[str, str]
) -> Access:
    """Access by the kubeconfig, else by the pod's service account.

    Raises:
        NoCluster: neither works.
    """
    return (
        await _by_kubeconfig(kubeconfig, context, namespace, environ)
        if kubeconfig
        else _in_cluster(namespace, environ, SERVICE_ACCOUNT)
    )


def _configuration() -> Configuration:
    configuration = Configuration()
    configuration.connection_pool_maxsize = 0  # 100 log follows would otherwise block every other call
    return configuration


def _in_cluster(namespace: str | None, environ: Mapping[str, str], account: Path) -> Access:
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        raise NoCluster(
            "in-cluster access unavailable: KUBERNETES_SERVICE_HOST is unset. "
            "Run the worker in a pod, or name a kubeconfig"
        )
    configuration = _configuration()
    try:
        _load_in_cluster(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise NoCluster(
            "in-cluster access unavailable: the pod's ServiceAccount token is not mounted "
            f"(set automountServiceAccountToken: true on the worker). Underlying error: {_line(error)}"
        ) from None
    home = _said(environ.get("POD_NAMESPACE")) or _content(account / "namespace") or "default"
    return Access(
        configuration=configuration,
        namespace=namespace or _said(environ.get("PAPERCLIP_NAMESPACE")) or home,
        own_namespace=home,
        own_name=_said(environ.get("POD_NAME")) or _said(environ.get("HOSTNAME")),
    )


async def _by_kubeconfig(
    kubeconfig: str, context: str | None, namespace: str | None, environ: Mapping[str, str]
) -> Access:
    if not await asyncio.to_thread(_any_file, kubeconfig):
        raise NoCluster(f"kubeconfig {kubeconfig} does not exist")
    configuration = _configuration()
    try:
        loader = await _load_kubeconfig(
            config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # noqa: BLE001 - the loader raises whatever a malformed file leads to
        raise NoCluster(f"kubeconfig {kubeconfig} cannot be used: {_line(error)}") from None
    _keep_credentials_fresh(kubeconfig, loader, configuration)
    named: object = loader.current_context.get("context", {}).get("namespace")
    chosen = namespace or (named if isinstance(named, str) and named else None)
    chosen = chosen or _said(environ.get("PAPERCLIP_NAMESPACE")) or "default"
    return Access(
        configuration=configuration,
        namespace=chosen,
        own_namespace=_said(environ.get("POD_NAMESPACE")) or chosen,
        own_name=_said(environ.get("POD_NAME")),  # HOSTNAME would name a pod of another cluster
    )


def _keep_credentials_fresh(kubeconfig: str, loader: Any, configuration: Configuration) -> None:
    """Run the exec plugin again shortly before its token expires. Its certificates, if any, are read only once."""
    token = configuration.api_key.get("BearerToken")
    if token is not None:
        configuration.api_key["BearerToken"] = token.strip()  # a token file ends with a newline
    user = getattr(loader, "_user", None)
    if user is None or "exec" not in user:
        return
    if token is None and not configuration.cert_file:
        raise NoCluster(
            f"kubeconfig {kubeconfig}: its exec plugin gave no credentials; run the plugin by hand to see why"
        )
    turn = asyncio.Lock()

    async def renewed(current: Any) -> None:
        if hasattr(loader, "exec_plugin_expiry"):
            async with turn:
                await loader.load_from_exec_plugin()  # does nothing until five minutes before the expiry
                current.api_key["BearerToken"] = loader.token

    hooked: Any = configuration  # upstream declares the hook as None
    hooked.refresh_api_key_hook = renewed


def _any_file(paths: str) -> bool:
    return any(Path(part).expanduser().is_file() for part in paths.split(":") if part)


def _said(value: str | None) -> str | None:
    return (value or "").strip() or None


def _content(path: Path) -> str | None:
    try:
        return _said(path.read_text())
    except OSError:
        return None


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
