"""Wires: settings -> clients -> Temporal worker. No logic."""

import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import structlog
from pydantic import ValidationError
from temporalio.client import Client
from temporalio.worker import Worker

from activities.await_schedule import Scheduling
from activities.bundle_prompt import PromptBundling
from activities.create_job import JobCreation, PodPlan, provider_settings
from activities.examine_silence import SilenceExamination
from activities.finish import Cleanup
from activities.introspect_pod import PodIntrospection, PodOverrides
from activities.known_secrets import SealedSecrets
from activities.parse_transcript import TranscriptParsing
from activities.reap_leftovers import Reaping
from activities.requests import HistoryRequests
from activities.rotate_token import TokenRotation
from activities.stop_agent import Stopping
from activities.stream_logs import LogStreaming
from client import links, startup
from client.connection import run_to_end
from client.history import build_id
from client.polling import Polling
from client.settings import WorkerSettings
from client.slots import PER_RUN, Slots
from client.stopping import StopSignals
from cluster.port import Cluster
from contracts.errors import InvalidRequest
from transcripts.retention import sweeping
from transcripts.service import CannotListen
from transcripts.store import TranscriptStore
from web.facts import TemporalRuns
from web.health import Health, health_service, questions
from web.serving import transcript_service
from workflows.agent_run import AgentRunWorkflow

log: Final[Any] = structlog.get_logger()

HAND_OVER: Final = timedelta(seconds=8)
"""Activities hand over within 0.1 s of SIGTERM; the rest is for calls that are just being answered."""
STICKY: Final = timedelta(seconds=5)
"""After a killed worker the next workflow task waits this long for it; the default is 10 s."""
THROTTLE: Final = timedelta(seconds=2)
"""Heartbeats are sent this often at the most, so a cancel arrives within it."""

CANNOT_START: Final = (*startup.REFUSALS, CannotListen)
"""What ends a start-up with one line: something is missing or set wrong, and the text names it and the remedy."""


def activities(
    settings: WorkerSettings, client: Client, cluster: Cluster, store: TranscriptStore
) -> Sequence[Callable[..., Any]]:
    """Every step of the card, each with the ports it knows."""
    requests = HistoryRequests(client)
    opener = startup.opener_of(settings)
    overrides = PodOverrides(settings.image, settings.namespace, settings.data_claim)
    with startup.needed("AGENT_RUNS_OPENCODE_CONFIG", "Set it to a JSON file, or to nothing", InvalidRequest):
        provider_settings(settings.opencode_config)
    plan = PodPlan(
        init_image=settings.init_image,
        inherit_env=settings.inherit_env,
        paperclip_api_url=settings.paperclip_api_url,
        api_proxy_image=settings.api_proxy_image,
        opencode_config=settings.opencode_config,
        page=links.addresses(settings),
    )
    return [
        PodIntrospection(cluster, overrides).introspect_pod,
        PromptBundling(cluster, requests, opener, settings.data_root).bundle_prompt,
        Reaping(cluster).reap_leftovers,
        JobCreation(cluster, requests, opener, plan).create_job,
        Scheduling(cluster).await_schedule,
        TokenRotation(cluster, opener).rotate_token,
        LogStreaming(cluster, store, SealedSecrets(requests, opener)).stream_logs,
        SilenceExamination(cluster, store).examine_silence,
        Stopping(cluster).stop_agent,
        TranscriptParsing(store).parse_transcript,
        Cleanup(cluster).finish,
    ]


def temporal_worker(
    settings: WorkerSettings,
    client: Client,
    steps: Sequence[Callable[..., Any]],
    slots: Slots | None = None,
    name: str | None = None,
) -> Worker:
    """The worker: slots for `max_runs` runs (the default of 100 stalls silently), bad input fails a run at once.

    Workflow tasks keep the SDK's own 100 slots and 5 pollers: each task lasts milliseconds. See docs/worker.md.
    """
    slots = slots or slots_of(settings)
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[AgentRunWorkflow],
        activities=steps,
        interceptors=[slots],
        build_id=build_id(),  # else the SDK hashes every loaded module: 3 CPU seconds
        identity=name or identity(),
        max_concurrent_activities=slots.slots,
        max_cached_workflows=slots.slots,
        max_heartbeat_throttle_interval=THROTTLE,
        graceful_shutdown_timeout=HAND_OVER,
        sticky_queue_schedule_to_start_timeout=STICKY,
        workflow_failure_exception_types=[ValidationError],
    )


def slots_of(settings: WorkerSettings) -> Slots:
    """As many as `max_runs` runs ever need at once."""
    return Slots(settings.max_runs * PER_RUN)


def identity() -> str:
    """Names one worker among those of all time: in a restarted container host and process id are the same again."""
    return f"{build_id()}@{socket.gethostname()}/{secrets.token_hex(3)}:{os.getpid()}"


@asynccontextmanager
async def wired(settings: WorkerSettings, health: Health) -> AsyncIterator[Worker]:
    """The worker with everything it needs, closed in reverse order."""
    startup.check_keys(settings)
    async with AsyncExitStack() as parts:
        cluster = await startup.cluster_of(settings)
        parts.push_async_callback(cluster.close)
        store = await startup.store_of(settings)
        parts.push_async_callback(store.close)
        client = await startup.temporal_of(settings)
        await parts.enter_async_context(sweeping(store, settings.transcript_retention))
        pages = transcript_service(settings, store, TemporalRuns(client, settings))
        log.info("transcripts.served", at=await parts.enter_async_context(pages))
        slots, name = slots_of(settings), identity()
        health.ask(*questions(Polling(client, settings.task_queue, name, slots), store, cluster))
        yield temporal_worker(settings, client, activities(settings, client, cluster, store), slots, name)


async def serve(settings: WorkerSettings) -> None:
    """Works until SIGTERM or SIGINT, then hands its activities over to another worker."""
    with StopSignals.caught() as stopping:
        async with health_service(settings) as health, wired(settings, health) as worker, worker:
            stopping.started()
            log.info("worker.ready", task_queue=settings.task_queue, build=build_id())
            await stopping.asked.wait()
            health.drain()
            log.info("worker.stopping")


def main() -> None:
    """Starts the worker. What is missing ends the start-up with one clear line."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ]
    )
    try:
        run_to_end(lambda: serve(WorkerSettings.read()))
    except CANNOT_START as error:
        sys.exit(f"worker: {error}")


if __name__ == "__main__":
    main()
