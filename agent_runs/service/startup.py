"""Opens the connections and keys that a worker needs; an error is one line that names setting and remedy."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar

import structlog
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.agents.profile import AgentProfile, load
from agent_runs.client.connection import TemporalAway, TemporalUnreachable, connect
from agent_runs.client.links import load_tokens
from agent_runs.client.outcome import NON_RETRYABLE
from agent_runs.client.settings import SettingsError
from agent_runs.client.workspaces import open_workspaces as open_by_settings
from agent_runs.contracts.errors import ClusterForbidden, InvalidRequest, RunError
from agent_runs.contracts.identity import WORKFLOW_TYPE
from agent_runs.doctor.permissions import missing_permissions, needed_grants
from agent_runs.files import UnusableKey
from agent_runs.job.pod_profile import DeploymentChoice, Inheritance, own_data_claim
from agent_runs.job.pod_source import deployment_namespace, inherited_pod
from agent_runs.job.policy import Policy
from agent_runs.kube.client import Cluster
from agent_runs.kube.credentials import ClusterConfigError
from agent_runs.metrics.recorder import NOT_RECORDED, Recorder, histogram_buckets
from agent_runs.paperclip.sealing import Opener, load_or_create
from agent_runs.service.health import Health, awaited
from agent_runs.service.logs import CORE_LOGS
from agent_runs.service.settings import WorkerSettings
from agent_runs.transcript.store import TranscriptStore
from agent_runs.web.operators import Operators
from agent_runs.web.server import CannotListen
from agent_runs.workspace.store import WorkspaceStore
from workflows.attributes import ALL

FIRST_PAUSE: Final = timedelta(seconds=1)
"""Before a server that does not answer is tried again; doubles up to `MAX_PAUSE`."""
MAX_PAUSE: Final = timedelta(seconds=30)

Connected = TypeVar("Connected")

log: Final[Any] = structlog.get_logger()


class CannotStart(Exception):
    """Something that the worker needs is missing or invalid. The text is one line that names setting and remedy."""


STARTUP_ERRORS: Final = (SettingsError, TemporalUnreachable, CannotStart, CannotListen)
"""They end the start-up with their text, one line that names setting, reason and remedy."""


@contextmanager
def blame(setting: str, remedy: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn `errors` into `CannotStart` with the name of the setting that causes them."""
    try:
        yield
    except errors as error:
        reason = " ".join(_reason(error).split()).removeprefix(f"{setting}: ").rstrip(".")
        raise CannotStart(f"{setting}: {reason}. {remedy}") from None


def _reason(error: Exception) -> str:
    """Our own texts as they are; of the operating system its message and the file; of libraries nothing."""
    match error:
        case RunError():
            return error.message
        case OSError(strerror=str(reason)):
            return f"{error.filename}: {reason}" if error.filename else reason
        case TypeError():
            return "it has an option that the database driver does not know"
        case _:
            return str(error)


async def when_answered(
    server: str, connect: Callable[[], Awaitable[Connected]], away: type[Exception], health: Health
) -> Connected:
    """Connect to a server. While it is `away` this waits, with back-off; the worker is not ready then, and says why."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await connect()
        except away as error:
            health.set_checks(awaited(server))
            log.warning("server.awaited", server=server, cause=str(error), next_try_in=pause.total_seconds())
        await asyncio.sleep(pause.total_seconds())
        pause = min(pause * 2, MAX_PAUSE)


async def connect_kubernetes(settings: WorkerSettings) -> Cluster:
    """Connect to the cluster and check that it answers. Missing permissions are only logged.

    Raises:
        CannotStart: it has no usable address, or denies the version.
        ClusterUnavailable: it does not answer, or not to this token.
    """
    remedy = "Set it, and AGENT_RUNS_KUBE_CONTEXT, to a cluster that answers; unset it in a pod of the cluster"
    with blame("AGENT_RUNS_KUBECONFIG", remedy, ClusterConfigError, ClusterForbidden):
        cluster = await Cluster.connect(
            str(settings.kubeconfig) if settings.kubeconfig else None, settings.kube_context, settings.namespace
        )
        try:
            log.info("kubernetes.connected", version=await cluster.version(), namespace=cluster.namespace)
            await _log_missing_permissions(cluster, settings)
        except BaseException:
            await cluster.close()
            raise
    return cluster


async def _log_missing_permissions(cluster: Cluster, settings: WorkerSettings) -> None:
    selector = settings.inherit_deployment
    choice = DeploymentChoice(selector, settings.inherit_namespace) if selector else None
    paperclip = deployment_namespace(cluster, choice) if choice else None
    for namespace, verbs, file in needed_grants(cluster, cluster.namespace, paperclip):
        if denied := await missing_permissions(cluster, namespace, verbs):
            missing = [f"{verb} {resource}" for verb, resource in denied]
            log.warning("worker.permissions_denied", namespace=namespace, missing=missing, remedy=f"apply {file}")


def load_policy(settings: WorkerSettings) -> Policy:
    """The operator's policy; without a file its defaults.

    Raises:
        CannotStart: the file cannot be read, or has a wrong key or value.
    """
    if settings.policy is None:
        return Policy()
    with blame("AGENT_RUNS_POLICY", "Correct the file as docs/policy.md describes it", OSError, ValueError, RunError):
        return Policy.parse(settings.policy.read_text(), settings.policy.name)


def load_profiles(settings: WorkerSettings) -> dict[str, AgentProfile]:
    """The profiles of agents other than OpenCode, by name; with the images that the settings name.

    Raises:
        CannotStart: a file cannot be read or is no profile; or a setting names an agent that has none.
    """
    with blame("AGENT_RUNS_AGENTS", "Correct the profile as docs/agents.md describes it", InvalidRequest):
        profiles = load(settings.agents)
    if unknown := sorted(settings.agent_images.keys() - profiles.keys()):
        raise CannotStart(
            f"AGENT_RUNS_AGENT_IMAGES: there is no agent {', '.join(unknown)}. "
            f"Name some of {', '.join(sorted(profiles))}, or add its profile with AGENT_RUNS_AGENTS"
        )
    return profiles


def agent_images(settings: WorkerSettings, profiles: Mapping[str, AgentProfile]) -> dict[str, str]:
    """The images of agents other than OpenCode: the setting's, else the profile's."""
    return {name: profile.image for name, profile in profiles.items() if profile.image} | settings.agent_images


async def own_account(cluster: Cluster) -> str | None:
    """The ServiceAccount of the worker's own pod; None outside a pod.

    Raises:
        ClusterUnavailable: the API server refused or timed out.
    """
    pod = await cluster.own_pod()
    return pod["spec"].get("serviceAccountName") or "default" if pod else None


async def data_claim(cluster: Cluster, setting: str | None, inheritance: Inheritance) -> str | None:
    """The claim of Paperclip's data that agents share: the setting's, else that of what they inherit from.

    Raises:
        PodIntrospectionFailed: it is not known which container of the worker's pod is the worker's; or the settings
            match not one Deployment.
        ClusterUnavailable: the API server refused or timed out.
    """
    pod = None if setting else await inherited_pod(cluster, inheritance)
    return own_data_claim(pod) if pod else setting


async def open_store(settings: WorkerSettings, metrics: Recorder = NOT_RECORDED) -> TranscriptStore:
    """Open the transcript store and migrate its schema.

    Raises:
        CannotStart: its URL is invalid, or the file or server cannot be used.
    """
    remedy = "Set it to sqlite:////absolute/file.db or postgresql://USER:PASSWORD@HOST/DATABASE of a store that answers"
    # TypeError: an option in the URL that the driver does not know
    with blame("AGENT_RUNS_TRANSCRIPTS_URL", remedy, RunError, ValueError, TypeError):
        connections = settings.transcripts_connections
        return await TranscriptStore.open(settings.transcripts, connections=connections, metrics=metrics)


def open_workspaces(settings: WorkerSettings) -> WorkspaceStore | None:
    """Open the workspace store; without the setting return None.

    Raises:
        CannotStart: its key cannot be used, or its folder not be made.
        SettingsError: its URL is of no storage.
    """
    remedy = "Mount the key there; `agent-runs keys` makes it, and with --previous adds it to a Secret"
    with (
        blame("AGENT_RUNS_WORKSPACE_KEY_FILE", remedy, UnusableKey),
        blame("AGENT_RUNS_WORKSPACE_STORE", "Mount a volume there in which the worker may write", OSError),
    ):
        return open_by_settings(settings)


async def connect_temporal(settings: WorkerSettings, runtime: Runtime | None = None) -> Client:
    """Connect to Temporal and register the search attributes in its namespace.

    Raises:
        TemporalAway: no server answers.
        TemporalUnreachable: it refuses the worker.
        CannotStart: the namespace does not exist.
    """
    client = await connect(settings, runtime, "agent-runs-worker")
    try:
        await register_search_attributes(client)
    except RPCError as error:
        _handle_registration_error(error, settings)
    return client


def _handle_registration_error(error: RPCError, settings: WorkerSettings) -> None:
    """Where an administrator registers attributes (Temporal Cloud), a worker need not be allowed to: log a warning."""
    match error.status:
        case RPCStatusCode.PERMISSION_DENIED | RPCStatusCode.UNIMPLEMENTED:
            log.warning("worker.search_attributes_unregistered", remedy="register those of docs/temporal.md by hand")
        case RPCStatusCode.NOT_FOUND:
            raise CannotStart(
                f"TEMPORAL_NAMESPACE: there is no namespace {settings.temporal.namespace} at "
                f"{settings.temporal.address}. Create it (`temporal operator namespace create`) or name another"
            ) from None
        case status:
            kind = TemporalUnreachable if status in NON_RETRYABLE else TemporalAway
            raise kind(
                f"Temporal at {settings.temporal.address} refused the search attributes: {status.name}. Check its "
                "state, TEMPORAL_API_KEY and TEMPORAL_NAMESPACE"
            ) from None


def temporal_runtime(settings: WorkerSettings) -> Runtime:
    """The runtime of Temporal's SDK: it serves all metrics, if they have an address, and its logs are JSON.

    Raises:
        CannotStart: metrics cannot be served.
    """
    metrics = settings.metrics_listen and PrometheusConfig(
        settings.metrics_listen,
        counters_total_suffix=True,
        durations_as_seconds=True,
        histogram_bucket_overrides=histogram_buckets(),
    )
    try:
        return Runtime(telemetry=TelemetryConfig(logging=CORE_LOGS, metrics=metrics or None))
    except ValueError:
        raise CannotStart(
            f"AGENT_RUNS_METRICS_LISTEN: the worker cannot listen at {settings.metrics_listen}. "
            "Set it to an IP address of this machine and a free port, such as 0.0.0.0:9464"
        ) from None


def metrics_recorder(settings: WorkerSettings, runtime: Runtime) -> Recorder:
    """Records into this runtime; every counter begins with 0, also those of workflows, with the labels the SDK adds."""
    meter = runtime.metric_meter
    recorder = Recorder(meter)
    recorder.zero_counters(in_workflow=False)
    of_workflows = {
        "namespace": settings.temporal.namespace,
        "task_queue": settings.task_queue,
        "workflow_type": WORKFLOW_TYPE,
    }
    Recorder(meter.with_additional_attributes(of_workflows)).zero_counters(in_workflow=True)
    return recorder


def load_opener(settings: WorkerSettings) -> Opener:
    """Load the key that opens sealed texts.

    Raises:
        CannotStart: the file holds no usable key.
    """
    remedy = "Set it to a readable file with a private P-256 or X25519 JWK"
    with blame("AGENT_RUNS_SEALING_KEY_FILE", remedy, UnusableKey):
        return Opener(load_or_create(settings.sealing_key_file, create=not settings.production))


def check_keys(settings: WorkerSettings) -> None:
    """Check that the keys can be loaded.

    Raises:
        CannotStart: a key cannot be used.
        SettingsError: the operator token cannot be used.
    """
    load_opener(settings)
    if settings.transcripts_listen is not None:
        remedy = "Set it to a readable file with a JWK of kty oct"
        with blame("AGENT_RUNS_TRANSCRIPTS_KEY_FILE", remedy, UnusableKey):
            tokens = load_tokens(settings)
        Operators.load(settings, tokens)


async def register_search_attributes(client: Client) -> None:
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = {
        key.name: IndexedValueType.ValueType(key.indexed_value_type)
        for key in ALL
        if key.name not in listed.custom_attributes
    }
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
        )
