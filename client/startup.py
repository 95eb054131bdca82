"""Opens what a worker needs, and says in one line, naming setting and remedy, what cannot be had."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
from temporalio.client import Client
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from client.connection import TemporalUnreachable, connect
from client.links import tokens
from client.permissions import missing
from client.search import register
from client.settings import SettingsError, WorkerSettings
from cluster.client import KubernetesCluster
from cluster.credentials import NoCluster
from contracts.errors import RunError
from paperclip.sealing import Opener, UnusableKey, load_or_create
from transcripts.store import SqlTranscripts
from transcripts.tokens import UnusableTokenKey

ROLE: Final = "deploy/base/rbac.yaml"

log: Final[Any] = structlog.get_logger()


class CannotStart(Exception):
    """Something the worker needs is missing or set wrong. One line that names the setting and the remedy."""


@contextmanager
def needed(setting: str, remedy: str, *refusals: type[Exception]) -> Iterator[None]:
    """Turn `refusals` into `CannotStart`, under the name of the setting that decides what is used."""
    try:
        yield
    except refusals as error:
        said = error.message if isinstance(error, RunError) else str(error)
        told = " ".join(said.split()).removeprefix(f"{setting}: ").rstrip(".")
        raise CannotStart(f"{setting}: {told}. {remedy}") from None


async def cluster_of(settings: WorkerSettings) -> KubernetesCluster:
    """The cluster, which has just answered. What the worker may not do there is logged: most of it can wait.

    Raises:
        CannotStart: it cannot be addressed, does not answer, or refuses the credentials.
    """
    remedy = "Set it, and AGENT_RUNS_KUBE_CONTEXT, to a cluster that answers; unset, the worker's own pod says where"
    with needed("AGENT_RUNS_KUBECONFIG", remedy, NoCluster, RunError):
        cluster = await KubernetesCluster.connect(
            str(settings.kubeconfig) if settings.kubeconfig else None, settings.kube_context, settings.namespace
        )
        try:
            log.info("cluster.answers", version=await cluster.version(), namespace=cluster.namespace)
            if lacking := await missing(cluster, cluster.namespace):
                log.warning("worker.forbidden", namespace=cluster.namespace, missing=lacking, remedy=f"apply {ROLE}")
        except BaseException:
            await cluster.close()
            raise
    return cluster


async def store_of(settings: WorkerSettings) -> SqlTranscripts:
    """The transcript store, brought up to date.

    Raises:
        CannotStart: its URL is wrong, or the file or server cannot be used.
    """
    remedy = (
        "Set it to sqlite:////absolute/file.db or postgresql://USER:PASSWORD@HOST/DATABASE, and see that it answers"
    )
    # TypeError: an option in the URL that the driver does not know
    with needed("AGENT_RUNS_TRANSCRIPTS_URL", remedy, RunError, ValueError, TypeError):
        return await SqlTranscripts.open(settings.transcripts)


async def temporal_of(settings: WorkerSettings) -> Client:
    """Temporal, with our search attributes in its namespace.

    Raises:
        TemporalUnreachable: nobody answers.
        CannotStart: the namespace does not exist, or metrics cannot be served.
    """
    client = await connect(settings, _runtime(settings))
    try:
        await register(client)
    except RPCError as error:
        _judge(error, settings)
    return client


def _judge(error: RPCError, settings: WorkerSettings) -> None:
    """Where attributes are registered by an administrator (Temporal Cloud), a worker need not be allowed to."""
    match error.status:
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNIMPLEMENTED:
            log.warning("worker.search_attributes_unknown", remedy="register those of docs/temporal.md by hand")
        case RPCStatusCode.NOT_FOUND:
            raise CannotStart(
                f"AGENT_RUNS_TEMPORAL_NAMESPACE: there is no namespace {settings.temporal_namespace} at "
                f"{settings.temporal_address}. Create it (`temporal operator namespace create`) or name another"
            ) from None
        case status:
            raise TemporalUnreachable(
                f"Temporal at {settings.temporal_address} refuses: {status.name}. Check its state, "
                "AGENT_RUNS_TEMPORAL_API_KEY and AGENT_RUNS_TEMPORAL_NAMESPACE"
            ) from None


def _runtime(settings: WorkerSettings) -> Runtime | None:
    """A runtime that serves the SDK's metrics; None means the default one, which serves none."""
    if settings.metrics_listen is None:
        return None
    remedy = "Give it the IP address and port of this machine where nothing listens, such as 0.0.0.0:9464"
    with needed("AGENT_RUNS_METRICS_LISTEN", remedy, ValueError):
        served = PrometheusConfig(settings.metrics_listen, counters_total_suffix=True, durations_as_seconds=True)
        return Runtime(telemetry=TelemetryConfig(metrics=served))


def opener_of(settings: WorkerSettings) -> Opener:
    """What opens sealed fields.

    Raises:
        CannotStart: there is no usable key.
    """
    remedy = "Set it to a readable file with a private P-256 or X25519 JWK"
    with needed("AGENT_RUNS_SEALING_KEY_FILE", remedy, UnusableKey, OSError):
        return Opener(load_or_create(settings.sealing_key_file, make=not settings.production))


def check_keys(settings: WorkerSettings) -> None:
    """The keys, before anything is opened.

    Raises:
        CannotStart: a key cannot be used.
    """
    opener_of(settings)
    if settings.transcripts_listen is not None:
        remedy = "Set it to a readable file with a JWK of kty oct"
        with needed("AGENT_RUNS_TRANSCRIPTS_KEY_FILE", remedy, UnusableTokenKey, OSError):
            tokens(settings)


REFUSALS: Final = (SettingsError, TemporalUnreachable, CannotStart)
"""What ends a start-up with one line."""
