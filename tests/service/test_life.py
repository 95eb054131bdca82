"""A worker process from its first second to its last."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs
from temporalio import activity
from temporalio.client import Client

import worker
from agent_runs.client.attach import attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.messages import StreamEnd
from agent_runs.service.polling import Polling
from agent_runs.service.settings import WorkerSettings
from tests.runs.system import open_system
from tests.runs.test_restarts import LINES, assert_whole, pausing_agent
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import ENDED, FakeActivities


def free() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def started(environment: dict[str, str]) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "worker", env={**os.environ, **environment}, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def answer(url: str) -> tuple[int, str]:
    """Status and body; 0 while nobody listens."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as reply:
            return reply.status, await reply.text()
    except aiohttp.ClientError:
        return 0, ""


async def until_answers(url: str, status: int, process: Process) -> str:
    while (response := await answer(url))[0] != status:
        assert process.returncode is None, "the worker ended"
        await asyncio.sleep(0.1)
    return response[1]


@pytest.fixture
def temporal_host(temporal: Client) -> str:
    return temporal.service_client.config.target_host


async def test_a_worker_serves_health_and_metrics_and_ends_by_sigterm_without_an_error(
    temporal: Client, temporal_host: str, tmp_path: Path
) -> None:
    health, metrics = free(), free()
    async with open_system(temporal, tmp_path) as system:
        own = {
            "TEMPORAL_ADDRESS": temporal_host,
            "AGENT_RUNS_KUBECONFIG": str(system.embedded.kubeconfig_path),
            "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json"),
            "AGENT_RUNS_TRANSCRIPTS_URL": system.settings.transcripts,
            "AGENT_RUNS_TASK_QUEUE": system.settings.task_queue,
            "AGENT_RUNS_HEALTH_LISTEN": health,
            "AGENT_RUNS_METRICS_LISTEN": metrics,
        }
        async with started(own) as process:
            assert '"polling","state":"ok"' in await until_answers(f"http://{health}/readyz", 200, process)
            assert (await answer(f"http://{health}/livez"))[0] == 200
            response = await until_answers(f"http://{metrics}/metrics", 200, process)
            assert "temporal_worker_task_slots_available{" in response
            process.send_signal(signal.SIGTERM)
            _, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")


async def test_a_sigterm_during_the_start_ends_the_worker_at_once(temporal: Client, tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        while await reader.read(1024):
            pass
        writer.close()

    async with (
        open_system(temporal, tmp_path) as system,
        await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent,
    ):
        address = silent.sockets[0].getsockname()
        own = {
            "TEMPORAL_ADDRESS": f"127.0.0.1:{address[1]}",
            "AGENT_RUNS_KUBECONFIG": str(system.embedded.kubeconfig_path),
            "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json"),
            "AGENT_RUNS_TRANSCRIPTS_URL": system.settings.transcripts,
        }
        async with started(own) as process:
            await reached.wait()
            process.send_signal(signal.SIGTERM)
            response, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert b"worker.start_cancelled" in response
    assert b"worker.started" not in response


async def test_a_second_sigterm_does_not_disturb_the_graceful_shutdown(temporal: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_system(temporal, tmp_path) as system:
        raw = system.agent(pausing_agent([gate]))
        ticket = await system.start(raw)
        async with system.worker_process() as process:
            await system.until_stored(raw, LINES // 2)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        gate.touch()
        async with system.worker():
            outcome = await outcome_at_close(ticket.handle(temporal))
        assert_whole(await system.stdout(raw), outcome)


async def test_a_worker_with_more_runs_than_slots_logs_it_and_continues_when_one_is_free(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    follows, ended = asyncio.Semaphore(0), asyncio.Event()

    async def stream(_order: object) -> StreamEnd:
        follows.release()
        while not ended.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.05)
        return ENDED

    settings = WorkerSettings(task_queue=queue, max_runs=1)
    slots, name, steps = (
        worker.activity_slots(settings),
        worker.worker_identity(),
        FakeActivities({"stream_logs": stream}),
    )
    agents = [request_of_a_run.agent.model_copy(update={"id": f"{queue}-{number}"}) for number in range(3)]
    requests = [request_of_a_run.model_copy(update={"agent": it, "run_id": f"run-{it.id}"}) for it in agents]
    with capture_logs() as logs:
        async with worker.temporal_worker(settings, temporal, steps.activities, slots, name):
            handles = [(await attach(temporal, settings, it.wake)).handle(temporal) for it in requests[:2]]
            await follows.acquire()
            await follows.acquire()
            handles.append((await attach(temporal, settings, requests[2].wake)).handle(temporal))
            polls = await Polling(temporal, queue, name, slots).observe()
            assert (slots.full, polls.polls) == (True, True)
            assert any(entry["event"] == "worker.slots_exhausted" and entry["slots"] == 2 for entry in logs)
            assert not [order for name, order in steps.calls if requests[2].run_id in str(order)], steps.calls
            ended.set()
            outcomes = [await outcome_at_close(handle) for handle in handles]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0]
    assert slots.used == 0
    assert any(entry["event"] == "worker.slots_freed" for entry in logs)
