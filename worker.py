"""Wires: settings -> clients -> Temporal worker. No logic."""

import asyncio
import hashlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError
from temporalio.client import Client
from temporalio.worker import Worker

from activities.await_schedule import Scheduling
from activities.bundle_prompt import PromptBundling
from activities.create_job import JobCreation, PodPlan
from activities.examine_silence import SilenceExamination
from activities.finish import Cleanup
from activities.introspect_pod import PodIntrospection, PodOverrides
from activities.parse_transcript import TranscriptParsing
from activities.reap_leftovers import Reaping
from activities.requests import HistoryRequests
from activities.stop_agent import Stopping
from activities.stream_logs import LogStreaming
from client import links
from client.connection import TemporalUnreachable, connect, run_to_end
from client.search import register
from client.settings import SettingsError, WorkerSettings
from cluster.client import KubernetesCluster
from cluster.credentials import NoCluster
from cluster.port import Cluster
from contracts.errors import RunError
from paperclip.sealing import Opener, UnusableKey, load_or_create
from transcripts.retention import sweeping
from transcripts.store import SqlTranscripts, TranscriptStore
from transcripts.tokens import UnusableTokenKey
from web.facts import TemporalRuns
from web.serving import transcript_service
from workflows.agent_run import AgentRunWorkflow

log: Final[Any] = structlog.get_logger()

HAND_OVER: Final = timedelta(seconds=8)
"""Activities hand over within 0.1 s of SIGTERM; the rest is for calls that are just being answered."""
STICKY: Final = timedelta(seconds=5)
"""After a killed worker the next workflow task waits this long for it; the default is 10 s."""
THROTTLE: Final = timedelta(seconds=2)
"""Heartbeats are sent this often at the most, so a cancel arrives within it."""

CANNOT_START: Final = (
    SettingsError,
    TemporalUnreachable,
    UnusableKey,
    UnusableTokenKey,
    NoCluster,
    RunError,
    ValueError,
)
"""What ends a start-up with one line: something is missing or set wrong, and the text names it and the remedy."""


def activities(
    settings: WorkerSettings, client: Client, cluster: Cluster, store: TranscriptStore
) -> Sequence[Callable[..., Any]]:
    """Every step of the card, each with the ports it knows."""
    requests = HistoryRequests(client)
    opener = Opener(load_or_create(settings.sealing_key_file, make=not settings.production))
    overrides = PodOverrides(settings.image, settings.namespace, settings.data_claim)
    plan = PodPlan(
        init_image=settings.init_image,
        inherit_env=settings.inherit_env,
        paperclip_api_url=settings.paperclip_api_url,
        opencode_config=settings.opencode_config,
        page=links.addresses(settings),
    )
    return [
        PodIntrospection(cluster, overrides).introspect_pod,
        PromptBundling(cluster, requests, opener, settings.data_root).bundle_prompt,
        Reaping(cluster).reap_leftovers,
        JobCreation(cluster, requests, opener, plan).create_job,
        Scheduling(cluster).await_schedule,
        LogStreaming(cluster, store).stream_logs,
        SilenceExamination(cluster, store).examine_silence,
        Stopping(cluster).stop_agent,
        TranscriptParsing(store).parse_transcript,
        Cleanup(cluster).finish,
    ]


def temporal_worker(settings: WorkerSettings, client: Client, steps: Sequence[Callable[..., Any]]) -> Worker:
    """The worker: slots for `max_runs` runs (the default of 100 stalls silently), bad input fails a run at once."""
    return Worker(
        client,
        task_queue=settings.task_queue,
        workflows=[AgentRunWorkflow],
        activities=steps,
        build_id=build_id(),  # else the SDK hashes every loaded module: 3 CPU seconds
        identity=f"{build_id()}@{socket.gethostname()}:{os.getpid()}",
        max_concurrent_activities=settings.max_runs * 2,
        max_cached_workflows=settings.max_runs * 2,
        max_heartbeat_throttle_interval=THROTTLE,
        graceful_shutdown_timeout=HAND_OVER,
        sticky_queue_schedule_to_start_timeout=STICKY,
        workflow_failure_exception_types=[ValidationError],
    )


def build_id() -> str:
    """Names the code that runs: the image's build, else a digest of the workflow code."""
    if given := os.environ.get("BUILD_ID"):
        return given
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).with_name("workflows").glob("*.py")):
        digest.update(file.read_bytes())
    return f"dev-{digest.hexdigest()[:8]}"


@asynccontextmanager
async def wired(settings: WorkerSettings) -> AsyncIterator[Worker]:
    """The worker with everything it needs, closed in reverse order."""
    cluster = await KubernetesCluster.connect(
        str(settings.kubeconfig) if settings.kubeconfig else None, settings.kube_context, settings.namespace
    )
    try:
        store = await SqlTranscripts.open(settings.transcripts)
        try:
            client = await connect(settings)
            await register(client)
            log.info("worker.ready", task_queue=settings.task_queue, cluster=await cluster.version(), build=build_id())
            sweep = sweeping(store, settings.transcript_retention)
            async with sweep, transcript_service(settings, store, TemporalRuns(client, settings)) as transcripts:
                log.info("transcripts.served", at=transcripts)
                yield temporal_worker(settings, client, activities(settings, client, cluster, store))
        finally:
            await store.close()
    finally:
        await cluster.close()


async def serve(settings: WorkerSettings) -> None:
    """Works until SIGTERM or SIGINT, then hands its activities over to another worker."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with wired(settings) as worker, worker:
        await stop.wait()
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
