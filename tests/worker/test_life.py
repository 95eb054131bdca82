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
from client.attach import attach
from client.permissions import missing
from client.polling import Polling
from client.settings import WorkerSettings
from contracts.messages import StreamEnd
from contracts.request import RunRequest
from tests.runs.ground import ground
from tests.runs.test_restarts import LINES, assert_whole, gated, written
from tests.workflows.steps import ENDED, Steps


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
    while (told := await answer(url))[0] != status:
        assert process.returncode is None, "the worker ended"
        await asyncio.sleep(0.1)
    return told[1]


@pytest.fixture
def temporal_host(temporal: Client) -> str:
    return temporal.service_client.config.target_host


async def test_a_worker_serves_health_and_metrics_and_ends_by_sigterm_without_an_error(
    temporal: Client, temporal_host: str, tmp_path: Path
) -> None:
    health, metrics = free(), free()
    async with ground(temporal, tmp_path) as system:
        own = {
            "AGENT_RUNS_TEMPORAL_ADDRESS": temporal_host,
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
            told = await until_answers(f"http://{metrics}/metrics", 200, process)
            assert "temporal_worker_task_slots_available{" in told
            process.send_signal(signal.SIGTERM)
            _, complaints = await process.communicate()
    assert (process.returncode, complaints) == (0, b"")


async def test_a_worker_that_is_told_to_stop_while_it_starts_stops_at_once(temporal: Client, tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        while await reader.read(1024):
            pass
        writer.close()

    async with ground(temporal, tmp_path) as system, await asyncio.start_server(say_nothing, "127.0.0.1", 0) as silent:
        address = silent.sockets[0].getsockname()
        own = {
            "AGENT_RUNS_TEMPORAL_ADDRESS": f"127.0.0.1:{address[1]}",
            "AGENT_RUNS_KUBECONFIG": str(system.embedded.kubeconfig_path),
            "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json"),
            "AGENT_RUNS_TRANSCRIPTS_URL": system.settings.transcripts,
        }
        async with started(own) as process:
            await reached.wait()
            process.send_signal(signal.SIGTERM)
            told, complaints = await process.communicate()
    assert (process.returncode, complaints) == (0, b"")
    assert b"worker.stopped_while_starting" in told
    assert b"worker.ready" not in told


async def test_a_second_sigterm_does_not_disturb_the_hand_over(temporal: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with ground(temporal, tmp_path) as system:
        raw = system.agent(gated([gate]))
        ticket = await system.start(raw)
        async with system.worker_process() as process:
            await written(system, raw, LINES // 2)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
        gate.touch()
        async with system.worker():
            outcome = await ticket.handle(temporal).result()
        assert_whole(await system.said(raw), outcome)


async def test_a_worker_with_more_runs_than_slots_says_so_and_goes_on_when_one_is_free(
    temporal: Client, queue: str, request_of_a_run: RunRequest
) -> None:
    follows, ended = asyncio.Semaphore(0), asyncio.Event()

    async def stream(_order: object) -> StreamEnd:
        follows.release()
        while not ended.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.05)
        return ENDED

    settings = WorkerSettings(task_queue=queue, max_runs=1)
    slots, name, steps = worker.slots_of(settings), worker.identity(), Steps({"stream_logs": stream})
    agents = [request_of_a_run.agent.model_copy(update={"id": f"{queue}-{number}"}) for number in range(3)]
    requests = [request_of_a_run.model_copy(update={"agent": it, "run_id": f"run-{it.id}"}) for it in agents]
    with capture_logs() as logs:
        async with worker.temporal_worker(settings, temporal, steps.activities, slots, name):
            handles = [(await attach(temporal, settings, it)).handle(temporal) for it in requests[:2]]
            await follows.acquire()
            await follows.acquire()
            handles.append((await attach(temporal, settings, requests[2])).handle(temporal))
            polls = await Polling(temporal, queue, name, slots).look()
            assert (slots.full, polls.seen) == (True, True)
            assert any(entry["event"] == "worker.slots_exhausted" and entry["slots"] == 2 for entry in logs)
            assert not [order for name, order in steps.calls if requests[2].run_id in str(order)], steps.calls
            ended.set()
            outcomes = [await handle.result() for handle in handles]
    assert [outcome.exit_code for outcome in outcomes] == [0, 0, 0]
    assert slots.used == 0
    assert any(entry["event"] == "worker.slots_free" for entry in logs)


async def test_what_the_worker_may_not_do_is_known_by_verb_and_resource() -> None:
    class Strict:
        async def allowed(self, verb: str, resource: str, namespace: str) -> bool:
            return namespace == "agents" and (verb, resource) not in {("get", "pods/log"), ("watch", "pods")}

    lacking = await missing(Strict(), "agents")  # type: ignore[arg-type]  # a port of forty methods, of which one is asked
    assert sorted(lacking) == ["get pods/log", "watch pods"]
