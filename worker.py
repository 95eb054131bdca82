"""Wires settings, clients, activities and the Temporal worker. No logic."""

import gc
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.await_schedule import AwaitScheduleActivity
from activities.bundle_prompt import BundlePromptActivity
from activities.check_configuration import CheckConfigurationActivity
from activities.create_job import CreateJobActivity
from activities.finish import FinishActivity
from activities.introspect_pod import IntrospectPodActivity
from activities.parse_transcript import ParseTranscriptActivity
from activities.prepare_run import PrepareRunActivity
from activities.rotate_token import RotateTokenActivity
from activities.stop_agent import StopAgentActivity
from activities.stream_logs import StreamLogsActivity
from activities.tell_agent import TellAgentActivity
from agent_runs.agents.profile import keys
from agent_runs.client import links
from agent_runs.client.connection import TemporalAway, run_to_end
from agent_runs.contracts.errors import ClusterUnavailable, InvalidRequest
from agent_runs.doctor.objects import Objects
from agent_runs.doctor.surroundings import Surroundings
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.carried import CarriedWorkspaces
from agent_runs.job.checks import Checks
from agent_runs.job.pod_profile import DeploymentChoice, Inheritance, PodOverrides
from agent_runs.job.prompts import Prompts
from agent_runs.job.redactions import Redactions, provider_settings
from agent_runs.job.resting_pods import RestingPods
from agent_runs.kube.client import Cluster
from agent_runs.metrics.recorder import NOT_RECORDED, Recorder
from agent_runs.service import startup
from agent_runs.service.activity_context import SLOTS_PER_RUN, ActivityContext, Slots
from agent_runs.service.build_id import build_id, worker_deployment
from agent_runs.service.health import Health, health_checks, health_service
from agent_runs.service.logs import configure_logs
from agent_runs.service.polling import Polling
from agent_runs.service.preparations import HistoryPreparations
from agent_runs.service.sampling import sampling
from agent_runs.service.settings import WorkerSettings
from agent_runs.service.stop_signals import StopSignals
from agent_runs.transcript.retention import purging
from agent_runs.transcript.store import TranscriptStore
from agent_runs.web.run_info import TemporalRunInfo
from agent_runs.web.serving import transcript_service, workspace_service
from agent_runs.workspace.retention import collecting
from agent_runs.workspace.store import WorkspaceStore
from workflows.agent_check import AgentCheckWorkflow
from workflows.agent_run import AgentRunWorkflow

log: Final[Any] = structlog.get_logger()

GRACEFUL_SHUTDOWN_TIMEOUT: Final = timedelta(seconds=8)
"""`stream_logs` ends within 0.1 s of SIGTERM; the rest is for calls to other servers that are under way."""
STICKY_TIMEOUT: Final = timedelta(seconds=5)
"""The next workflow task waits this long for a killed worker; the default is 10 s."""
HEARTBEAT_THROTTLE: Final = timedelta(seconds=2)
"""Longest interval between heartbeats that are sent, so a cancel arrives within it."""


def activities(
    settings: WorkerSettings,
    client: Client,
    cluster: Cluster,
    store: TranscriptStore,
    metrics: Recorder = NOT_RECORDED,
    workspaces: WorkspaceStore | None = None,
) -> Sequence[Callable[..., Any]]:
    """All activities, each with the ports it needs."""
    opener = startup.load_opener(settings)
    policy = startup.load_policy(settings)
    inheritance = inheritance_of(settings)
    data_claim = partial(startup.data_claim, cluster, settings.data_claim, inheritance)
    profiles = startup.load_profiles(settings)
    images = startup.agent_images(settings, profiles)
    overrides = PodOverrides(settings.image, settings.data_claim, images)
    checks = Checks(
        policy,
        cluster.namespace,
        own_account=partial(startup.own_account, cluster),
        data_claim=data_claim,
        agents=profiles,
        overrides=overrides,
        carries=workspaces is not None,
    )
    preparations = HistoryPreparations(client, opener)
    with startup.blame("AGENT_RUNS_OPENCODE_CONFIG", "Set it to a readable JSON file, or unset it", InvalidRequest):
        provider_settings(settings.opencode_config)
    redactions = Redactions(
        cluster, preparations, inheritance, settings.opencode_config, opener, keys(profiles.values())
    )
    pods = AgentPodSettings(
        data=policy.data,
        init_image=settings.init_image,
        inheritance=inheritance,
        paperclip_api_url=settings.paperclip_api_url,
        sidecar_image=settings.sidecar_image,
        page=links.page_url_without_token(settings),
        agents=profiles,
    )
    prompts = Prompts(preparations, opener, data_claim, profiles)
    carried = None
    if workspaces and settings.workspace_url:
        carried = CarriedWorkspaces(workspaces, links.load_tokens(settings), settings.workspace_url, profiles)
    surroundings = Surroundings(store, Objects(cluster, pods, overrides, settings.workspace_url), workspaces)
    checking = CheckConfigurationActivity(
        opener, checks, settings.paperclip_api_url, redactions.worker_values, surroundings
    )
    return [
        PrepareRunActivity(preparations, checks, store.open_run).prepare_run,
        checking.check_configuration,
        checking.try_pod,
        IntrospectPodActivity(cluster, overrides, inheritance).introspect_pod,
        BundlePromptActivity(cluster, prompts).bundle_prompt,
        CreateJobActivity(
            cluster, preparations, opener, pods, redactions.worker_values, RestingPods(cluster, prompts.of), carried
        ).create_job,
        AwaitScheduleActivity(cluster, redactions, metrics).await_schedule,
        RotateTokenActivity(cluster, opener).rotate_token,
        TellAgentActivity(cluster, opener).tell_agent,
        StreamLogsActivity(
            cluster, store, redactions, settings.max_output_mib * 1024 * 1024, metrics=metrics
        ).stream_logs,
        StopAgentActivity(cluster).stop_agent,
        ParseTranscriptActivity(store, redactions, profiles).parse_transcript,
        FinishActivity(cluster).finish,
    ]


def inheritance_of(settings: WorkerSettings) -> Inheritance:
    """What agents inherit, and from which pod."""
    selector, namespace, container = settings.inherit_deployment, settings.inherit_namespace, settings.inherit_container
    deployment = DeploymentChoice(selector, namespace, container) if selector else None
    return Inheritance(settings.inherit_env, settings.inherit_env_from, settings.inherit_mounts, deployment)


def temporal_worker(
    settings: WorkerSettings,
    client: Client,
    steps: Sequence[Callable[..., Any]],
    slots: Slots | None = None,
    name: str | None = None,
) -> Worker:
    """Create the worker, with slots for `max_runs` runs (the default of 100 stalls silently).

    Workflow tasks keep the SDK's own 100 slots and 5 pollers: each task lasts milliseconds. See docs/worker.md.
    """
    slots, deployment = slots or activity_slots(settings), worker_deployment()
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[AgentRunWorkflow, AgentCheckWorkflow],
        activities=steps,
        interceptors=[ActivityContext(slots)],
        build_id=None if deployment else build_id(),  # else the SDK hashes every loaded module: 3 CPU seconds
        deployment_config=deployment,
        identity=name or worker_identity(),
        max_concurrent_activities=slots.slots,
        max_cached_workflows=slots.slots,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        graceful_shutdown_timeout=GRACEFUL_SHUTDOWN_TIMEOUT,
        sticky_queue_schedule_to_start_timeout=STICKY_TIMEOUT,
    )


def activity_slots(settings: WorkerSettings) -> Slots:
    """As many slots as `max_runs` runs ever need at the same time."""
    return Slots(settings.max_runs * SLOTS_PER_RUN)


def worker_identity() -> str:
    """A unique name of this worker: a restarted container has the same host name and process id."""
    return f"{build_id()}@{socket.gethostname()}/{secrets.token_hex(3)}:{os.getpid()}"


@asynccontextmanager
async def wire(settings: WorkerSettings, health: Health) -> AsyncIterator[Worker]:
    """The worker with everything it needs, which is closed in reverse order."""
    startup.check_keys(settings)
    workspaces = startup.open_workspaces(settings)
    async with AsyncExitStack() as parts:
        runtime = startup.temporal_runtime(settings)
        metrics = startup.metrics_recorder(settings, runtime)
        to_kubernetes = partial(startup.connect_kubernetes, settings)
        cluster = await startup.when_answered("kubernetes", to_kubernetes, ClusterUnavailable, health)
        parts.push_async_callback(cluster.close)
        store = await startup.open_store(settings, metrics)
        parts.push_async_callback(store.close)
        to_temporal = partial(startup.connect_temporal, settings, runtime)
        client = await startup.when_answered("temporal", to_temporal, TemporalAway, health)
        await parts.enter_async_context(purging(store, settings.transcript_retention))
        pages = transcript_service(settings, store, TemporalRunInfo(client, settings))
        log.info("transcripts.served", at=await parts.enter_async_context(pages))
        await parts.enter_async_context(collecting(workspaces, settings.transcript_retention))
        await parts.enter_async_context(workspace_service(settings, settings.workspace_listen, workspaces))
        slots, name = activity_slots(settings), worker_identity()
        health.set_checks(*health_checks(Polling(client, settings.task_queue, name, slots), store, cluster))
        await parts.enter_async_context(sampling(client, health, metrics))
        steps = activities(settings, client, cluster, store, metrics, workspaces)
        yield temporal_worker(settings, client, steps, slots, name)


def freeze() -> None:
    """Leaves what is in memory out of garbage collection: a whole one then takes 90 ms, and all threads wait for it."""
    gc.collect()
    gc.freeze()


async def serve(settings: WorkerSettings) -> None:
    """Run the worker until SIGTERM or SIGINT; its activities then continue on another worker."""
    with StopSignals.installed() as stop:
        async with health_service(settings) as health, wire(settings, health) as worker, worker:
            stop.started()
            freeze()
            log.info("worker.started", task_queue=settings.task_queue, build=build_id())
            await stop.requested.wait()
            health.drain()
            log.info("worker.stop_requested")


def main() -> None:
    """Start the worker; a start-up error is one line on stderr."""
    configure_logs()
    try:
        run_to_end(lambda: serve(WorkerSettings.read()))
    except startup.STARTUP_ERRORS as error:
        sys.exit(f"worker: {error}")


if __name__ == "__main__":
    main()
