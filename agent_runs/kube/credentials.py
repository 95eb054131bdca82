"""How to reach the API server: a kubeconfig, else the pod's own service account.

Reads the configuration through the official client and corrects three of its defects (37.0.2): an exec credential is
fetched only once, a failed exec plugin is only logged and the client continues without credentials, and a missing file
is a warning. Every failure here is one line that says what to do.
"""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import structlog
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

_load_in_cluster: Any = load_incluster_config  # untyped upstream
_load_kubeconfig: Any = load_kube_config

log: Final[Any] = structlog.get_logger()

MIN_RELOAD_INTERVAL: Final = timedelta(seconds=5)
"""Between readings of refused credentials: hundreds of calls may be refused in one second."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def _user_agent() -> str:
    try:
        return f"agent-runs/{version('agent-runs')}"
    except PackageNotFoundError:  # run from a folder that was never installed
        return "agent-runs/unknown"


USER_AGENT: Final = _user_agent()
"""Of every request to the API server: its audit log, its metrics and its flow control tell clients apart by it."""


class ClusterConfigError(Exception):
    """There is no configuration of the API server, or an unusable one. The message is one line with the remedy."""


class Credentials:
    """What requests authenticate with. The API server may refuse it any time; its source may have another by then.

    Client certificates are read only once.

    Args:
        source: the official client's configuration as it was loaded; it renews its token where the source allows that.
        load: loads it again. Raises ClusterConfigError.

    Attributes:
        configuration: for the clients; it and its copies have the token of the newest source.
    """

    def __init__(self, source: Configuration, load: Callable[[], Awaitable[Configuration]]) -> None:
        self._source: Any = source
        self._load = load
        self._loaded_at = 0.0
        self._lock = asyncio.Lock()
        self.configuration = copy.copy(source)
        self.configuration.api_key = dict(source.api_key)
        untyped: Any = self.configuration  # upstream declares the hook as None
        untyped.refresh_api_key_hook = self._set_token

    async def reload(self) -> None:
        """Read what was refused again, unless that was done just now. If it cannot be read, it stays as it is."""
        async with self._lock:
            if time.monotonic() - self._loaded_at < MIN_RELOAD_INTERVAL.total_seconds():
                return
            self._loaded_at = time.monotonic()
            log.warning("kubernetes.credentials_refused")
            try:
                self._source = await self._load()
            except ClusterConfigError as error:
                log.warning("kubernetes.credentials_reload_failed", cause=str(error))

    async def _set_token(self, configuration: Configuration) -> None:
        if self._source.refresh_api_key_hook is not None:
            renewal = self._source.refresh_api_key_hook(self._source)
            if asyncio.iscoroutine(renewal):
                await renewal
        configuration.api_key |= self._source.api_key


@dataclass(frozen=True)
class ApiAccess:
    """An API server and how to authenticate there.

    Attributes:
        namespace: of Jobs, unless settings or agent name another one.
        own_namespace: of the worker's own pod.
        own_name: of the worker's own pod, None when it is not one of this cluster's.
    """

    credentials: Credentials
    namespace: str
    own_namespace: str
    own_name: str | None

    @property
    def configuration(self) -> Configuration:
        return self.credentials.configuration


async def load_access(
    kubeconfig: str | None, context: str | None, namespace: str | None, environ: Mapping[str, str]
) -> ApiAccess:
    """Return access by the kubeconfig, else by the pod's service account.

    Raises:
        ClusterConfigError: neither works.
    """
    return (
        await _by_kubeconfig(kubeconfig, context, namespace, environ)
        if kubeconfig
        else _in_cluster(namespace, environ, SERVICE_ACCOUNT)
    )


def api_client(configuration: Configuration, kind: type[ApiClient] = ApiClient) -> Any:
    """Return a client of the official library with our user agent. Any: much of it is untyped upstream."""
    untyped: Any = kind
    client = untyped(configuration)
    client.user_agent = USER_AGENT
    return client


def _configuration() -> Configuration:
    configuration = Configuration()
    configuration.connection_pool_maxsize = 0  # 100 log follows would otherwise block every other call
    return configuration


def _in_cluster(namespace: str | None, environ: Mapping[str, str], account: Path) -> ApiAccess:
    if not environ.get("KUBERNETES_SERVICE_HOST"):
        raise ClusterConfigError(
            "in-cluster access unavailable: KUBERNETES_SERVICE_HOST is unset. "
            "Run the worker in a pod, or name a kubeconfig"
        )

    async def load() -> Configuration:
        return _load_service_account()

    home = _non_empty(environ.get("POD_NAMESPACE")) or _read_text(account / "namespace") or "default"
    return ApiAccess(
        credentials=Credentials(_load_service_account(), load),
        namespace=namespace or _non_empty(environ.get("PAPERCLIP_NAMESPACE")) or home,
        own_namespace=home,
        own_name=_non_empty(environ.get("POD_NAME")) or _non_empty(environ.get("HOSTNAME")),
    )


def _load_service_account() -> Configuration:
    configuration = _configuration()
    try:
        _load_in_cluster(client_configuration=configuration)
    except (ConfigException, OSError) as error:
        raise ClusterConfigError(
            "in-cluster access unavailable: the pod's ServiceAccount token is not mounted "
            f"(set automountServiceAccountToken: true on the worker). Underlying error: {_one_line(error)}"
        ) from None
    return configuration


async def _by_kubeconfig(
    kubeconfig: str, context: str | None, namespace: str | None, environ: Mapping[str, str]
) -> ApiAccess:
    async def load() -> Configuration:
        return (await _load(kubeconfig, context))[0]

    configuration, loader = await _load(kubeconfig, context)
    of_context: object = loader.current_context.get("context", {}).get("namespace")
    namespace = namespace or (of_context if isinstance(of_context, str) and of_context else None)
    namespace = namespace or _non_empty(environ.get("PAPERCLIP_NAMESPACE")) or "default"
    return ApiAccess(
        credentials=Credentials(configuration, load),
        namespace=namespace,
        own_namespace=_non_empty(environ.get("POD_NAMESPACE")) or namespace,
        own_name=_non_empty(environ.get("POD_NAME")),  # HOSTNAME would name a pod of another cluster
    )


async def _load(kubeconfig: str, context: str | None) -> tuple[Configuration, Any]:
    """Return the configuration, and the official client's loader."""
    if not await asyncio.to_thread(_any_file, kubeconfig):
        raise ClusterConfigError(f"kubeconfig {kubeconfig} does not exist")
    configuration = _configuration()
    try:
        loader = await _load_kubeconfig(
            config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
        )
    except Exception as error:  # noqa: BLE001 - the loader raises whatever a malformed file leads to
        raise ClusterConfigError(f"kubeconfig {kubeconfig} cannot be used: {_one_line(error)}") from None
    _keep_credentials_fresh(kubeconfig, loader, configuration)
    return configuration, loader


def _keep_credentials_fresh(kubeconfig: str, loader: Any, configuration: Configuration) -> None:
    """Rerun the exec plugin shortly before its token expires. Its certificates, if any, are read only once."""
    token = configuration.api_key.get("BearerToken")
    if token is not None:
        configuration.api_key["BearerToken"] = token.strip()  # a token file ends with a newline
    user = getattr(loader, "_user", None)
    if user is None or "exec" not in user:
        return
    if token is None and not configuration.cert_file:
        raise ClusterConfigError(
            f"kubeconfig {kubeconfig}: its exec plugin returned no credentials; run the plugin by hand to see why"
        )
    lock = asyncio.Lock()

    async def renew(current: Any) -> None:
        if hasattr(loader, "exec_plugin_expiry"):
            async with lock:
                await loader.load_from_exec_plugin()  # does nothing until five minutes before the expiry
                current.api_key["BearerToken"] = loader.token

    untyped: Any = configuration  # upstream declares the hook as None
    untyped.refresh_api_key_hook = renew


def _any_file(paths: str) -> bool:
    return any(Path(part).expanduser().is_file() for part in paths.split(":") if part)


def _non_empty(value: str | None) -> str | None:
    return (value or "").strip() or None


def _read_text(path: Path) -> str | None:
    try:
        return _non_empty(path.read_text())
    except OSError:
        return None


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
