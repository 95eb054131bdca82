"""A run is one trace, whichever processes work on it."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import Client

from agent_runs.client import spans
from agent_runs.client.connection import connect
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.client.spans import RunTracing
from tests.runs.system import open_system, replay_script
from tests.support.collector import Collector

STEPS = frozenset(
    {
        *("introspect_pod", "bundle_prompt", "create_job", "await_schedule", "stream_logs", "parse_transcript"),
        "finish",
    }
)
AN_HOUR_MS = "3600000"


async def test_caller_and_worker_send_one_trace_and_a_stopped_worker_what_it_has_left(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = Collector()
    async with collector.serving() as address, open_system(temporal, tmp_path) as system:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", AN_HOUR_MS)  # only the end of a process sends anything
        settings = ClientSettings.read({**system.environment, "OTEL_TRACES_EXPORTER": "otlp"})
        caller = replace(system, temporal=await connect(settings))
        async with system.worker_process() as worker:
            (tracing,) = caller.temporal.config()["interceptors"]
            with cast("RunTracing", tracing).tracer.start_as_current_span("wake"):
                ticket = await caller.start(system.agent(replay_script("text")))
                await outcome_at_close(ticket.handle(caller.temporal))
            worker.send_signal(signal.SIGTERM)
            assert await worker.wait() == 0
        await spans.close()
        received = list(collector.spans())
    assert len({span.trace_id for _, span in received}) == 1
    assert named(received, "agent-runs") == {"wake"}
    assert named(received, "agent-runs-worker") >= {f"RunActivity:{step}" for step in STEPS}


def named(received: list[tuple[str, Any]], service: str) -> set[str]:
    return {span.name for name, span in received if name == service}
