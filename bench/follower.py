"""The worker of `bench.follow`: the real one with the one activity that is measured; it times its heartbeats."""

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
from activities.stream_logs import StreamLogsActivity
from agent_runs.client.connection import run_to_end
from agent_runs.client.temporal_server import TemporalServer
from agent_runs.job.redactions import Redactions
from agent_runs.kube.client import Cluster
from agent_runs.service.settings import WorkerSettings
from agent_runs.transcript.store import TranscriptStore
from agent_runs.web.run_info import NoRunInfo
from agent_runs.web.serving import transcript_service
from tests.activities.fake_preparations import FakePreparations

QUEUE = "bench"


class HeartbeatTimes(ClientInterceptor, Interceptor):
    """The longest time between two heartbeats of any activity, and the activity attempts that were not the first."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.retries = 0
        self._last: dict[str, float] = {}

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 (the SDK's name)
        return _Inbound(next, self)

    def note(self, run: str) -> None:
        now = time.monotonic()
        self.longest = max(self.longest, now - self._last.get(run, now))
        self._last[run] = now


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, inner: ActivityInboundInterceptor, times: HeartbeatTimes) -> None:
        super().__init__(inner)
        self._times = times

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self._times))

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self._times.retries += activity.info().attempt > 1
        self._times.note(activity.info().workflow_id or "")
        return await super().execute_activity(input)


class _Outbound(ActivityOutboundInterceptor):
    def __init__(self, inner: ActivityOutboundInterceptor, times: HeartbeatTimes) -> None:
        super().__init__(inner)
        self._times = times

    def heartbeat(self, *details: Any) -> None:
        self._times.note(activity.info().workflow_id or "")
        super().heartbeat(*details)


def settings(folder: Path) -> WorkerSettings:
    """Settings with every file in one folder."""
    return WorkerSettings(
        sealing_key_file=folder / "key.json",
        kubeconfig=folder / "kubeconfig",
        temporal=TemporalServer(address=(folder / "temporal").read_text()),
        task_queue=QUEUE,
        transcripts_listen="127.0.0.1:0",
        transcripts_url=store.read_text() if (store := folder / "store").exists() else None,
    )


async def serve(folder: Path) -> None:
    """Serve until stdin ends; print the address of transcripts, and at the end the times of heartbeats."""
    own, times = settings(folder), HeartbeatTimes()
    client = await Client.connect(own.temporal.address, data_converter=pydantic_data_converter, interceptors=[times])
    async with await Cluster.connect(str(own.kubeconfig)) as cluster:
        store = await TranscriptStore.open(own.transcripts, connections=own.transcripts_connections)
        activities = [StreamLogsActivity(cluster, store, Redactions(cluster, FakePreparations())).stream_logs]
        async with transcript_service(own, store, NoRunInfo()) as base, worker.temporal_worker(own, client, activities):
            worker.freeze()
            print(base, flush=True)
            await asyncio.to_thread(sys.stdin.read)
        await store.close()
    print(json.dumps({"longest": times.longest, "retries": times.retries}), flush=True)


if __name__ == "__main__":
    run_to_end(lambda: serve(Path(sys.argv[1])))
