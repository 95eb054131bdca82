"""The worker of `bench.follow`: the real one with the one step that is measured, and a watch on its heartbeats."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

import worker
from activities.stream_logs import LogStreaming
from client.connection import run_to_end
from client.settings import WorkerSettings
from cluster.client import KubernetesCluster
from tests.activities.secretive import Secretive
from transcripts.store import SqlTranscripts
from web.facts import NoRuns
from web.serving import transcript_service

QUEUE = "bench"


class Pulse(ClientInterceptor, Interceptor):
    """The longest time between two heartbeats of any step, and the tries that were not the first."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.retries = 0
        self._last: dict[str, float] = {}

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 (the SDK's name)
        return _Inbound(next, self)

    def beat(self, run: str) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last.get(run, now))
        self._last[run] = now


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, pulse: Pulse) -> None:
        super().__init__(following)
        self._pulse = pulse

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self._pulse))

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 (the SDK's name)
        self._pulse.retries += activity.info().attempt > 1
        self._pulse.beat(activity.info().workflow_id or "")
        return await super().execute_activity(input)


class _Outbound(ActivityOutboundInterceptor):
    def __init__(self, following: ActivityOutboundInterceptor, pulse: Pulse) -> None:
        super().__init__(following)
        self._pulse = pulse

    def heartbeat(self, *details: Any) -> None:
        self._pulse.beat(activity.info().workflow_id or "")
        super().heartbeat(*details)


def settings(folder: Path) -> WorkerSettings:
    """Everything in one folder. The transcript service's port is in `listen`."""
    return WorkerSettings(
        sealing_key_file=folder / "key.json",
        kubeconfig=folder / "kubeconfig",
        temporal_address=(folder / "temporal").read_text(),
        task_queue=QUEUE,
        transcripts_listen="127.0.0.1:0",
    )


async def serve(folder: Path) -> None:
    """Works until stdin ends; says on stdout where transcripts are, and at the end how its heartbeats went."""
    told, pulse = settings(folder), Pulse()
    client = await Client.connect(told.temporal_address, data_converter=pydantic_data_converter, interceptors=[pulse])
    async with await KubernetesCluster.connect(str(told.kubeconfig)) as cluster:
        store = await SqlTranscripts.open(told.transcripts)
        steps = [LogStreaming(cluster, store, Secretive()).stream_logs]
        async with transcript_service(told, store, NoRuns()) as base, worker.temporal_worker(told, client, steps):
            print(base, flush=True)
            await asyncio.to_thread(sys.stdin.read)
        await store.close()
    print(json.dumps({"longest": pulse.longest, "retries": pulse.retries}), flush=True)


if __name__ == "__main__":
    run_to_end(lambda: serve(Path(sys.argv[1])))
