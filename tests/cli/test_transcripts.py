"""`agent-runs transcripts`, and `logs` through it, as people start them."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from temporalio.client import Client

from agent_runs.client import links
from agent_runs.client.attach import attach
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.transcript.store import Line, TranscriptStore
from tests.support.process_pool import commands
from tests.support.requests import FakeRequest

PROGRAM = str(Path(sys.executable).with_name("agent-runs"))
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LINE = Line(1, "stdout", b"one", at=NOON)


@pytest.fixture
def environment(temporal: Client, queue: str, tmp_path: Path) -> dict[str, str]:
    """Variables of a command."""
    return {
        "TEMPORAL_ADDRESS": temporal.service_client.config.target_host,
        "AGENT_RUNS_TASK_QUEUE": queue,
        "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json"),
        "AGENT_RUNS_TRANSCRIPTS_URL": f"sqlite:///{tmp_path}/transcripts.db",
    }


async def run(*arguments: str, **environment: str) -> tuple[int | None, str, str]:
    done = await asyncio.to_thread(commands().run, arguments, {**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


@asynccontextmanager
async def service(environment: dict[str, str]) -> AsyncIterator[str]:
    """Run the service in a process of its own; its URL. It must end by itself at SIGINT."""
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "transcripts", "--listen", "127.0.0.1:0"),
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        while b"transcripts  " not in (line := await process.stdout.readline()):
            assert line, "the service ended before it listened"
        yield line.decode().split()[-1]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def test_logs_come_through_the_service_whose_url_is_set(
    temporal: Client, environment: dict[str, str], request_of_a_run: FakeRequest, tmp_path: Path
) -> None:
    settings = ClientSettings.read(environment)
    await attach(temporal, settings, request_of_a_run.wake)
    store = await TranscriptStore.open(settings.transcripts)
    key = AttemptKey(run=request_of_a_run.key)
    await store.append(key, [Line(n, "stdout", b"line %d" % n, at=NOON) for n in (1, 2, 3)])
    await store.seal(key, OutputReceipt())
    await store.close()
    async with service(environment) as base:
        with_service = {**environment, "AGENT_RUNS_TRANSCRIPTS_URL": f"sqlite:///{tmp_path}/elsewhere.db"}
        with_service["AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL"] = base
        code, out, error = await run("logs", key.run.run_id, "--json", **with_service)
        assert (code, error) == (0, "")
        assert [json.loads(row)["text"] for row in out.splitlines()] == ["line 1", "line 2", "line 3"]
        page = links.page_url(ClientSettings.read(with_service), key.run)
        assert page is not None
        async with aiohttp.ClientSession() as browser, browser.get(page) as answer:
            assert answer.status == 200
        code, out, error = await run(
            "logs", key.run.run_id, **with_service, AGENT_RUNS_TRANSCRIPTS_KEY_FILE=str(tmp_path / "other.json")
        )
        assert code == 2
        assert "AGENT_RUNS_TRANSCRIPTS_KEY_FILE" in error


async def test_the_links_of_a_run_are_revoked_without_temporal(environment: dict[str, str]) -> None:
    alone = {**environment, "TEMPORAL_ADDRESS": "127.0.0.1:1"}
    settings = ClientSettings.read(alone)
    store = await TranscriptStore.open(settings.transcripts)
    await store.append(AttemptKey(run=RunKey(agent_id="ada", company_id="acme", run_id="run-1")), [LINE])
    before = datetime.now(UTC)
    code, out, error = await run("revoke-links", "run-1", "--json", **alone)
    assert (code, error) == (0, "")
    assert json.loads(out.splitlines()[0])["run"] == "run-1"
    revoked_at = await store.links_revoked_at(RunKey.named("ada~run-1"))
    assert revoked_at is not None
    assert before <= revoked_at <= datetime.now(UTC)
    await store.close()


async def test_the_links_of_an_agents_newest_run_are_revoked(
    temporal: Client, environment: dict[str, str], request_of_a_run: FakeRequest
) -> None:
    settings = ClientSettings.read(environment)
    await attach(temporal, settings, request_of_a_run.wake)
    key = AttemptKey(run=request_of_a_run.key)
    code, _, error = await run("revoke-links", key.run.agent_id, **environment)
    assert code == 2
    assert "AGENT_RUNS_TRANSCRIPTS_URL" in error
    store = await TranscriptStore.open(settings.transcripts)
    await store.append(key, [LINE])
    code, out, _ = await run("revoke-links", key.run.agent_id, **environment)
    assert code == 0
    assert key.run.run_id in out
    assert await store.links_revoked_at(key.run) is not None
    await store.close()


async def test_a_service_without_an_address_names_the_missing_setting(environment: dict[str, str]) -> None:
    code, _, error = await run("transcripts", **environment)
    assert code == 2
    assert "AGENT_RUNS_TRANSCRIPTS_LISTEN" in error


async def test_an_address_in_use_is_one_line_with_the_remedy(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, error = await run("transcripts", "--listen", address, **environment)
    assert code == 2
    assert address in error
    assert len(error.splitlines()) == 1


async def test_production_creates_no_key(environment: dict[str, str]) -> None:
    code, _, error = await run("transcripts", "--listen", "127.0.0.1:0", AGENT_RUNS_PRODUCTION="1", **environment)
    assert code == 2
    assert "transcripts-key.json does not exist" in error


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AGENT_RUNS_TRANSCRIPTS_LISTEN", "8090"),
        ("AGENT_RUNS_TRANSCRIPTS_LISTEN", "localhost:port"),
        ("AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", "localhost:8090"),
        ("AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", "https://runs.example/?a=b"),
    ],
)
async def test_a_setting_of_the_wrong_shape_is_named(environment: dict[str, str], name: str, value: str) -> None:
    code, _, error = await run("list", **{**environment, name: value})
    assert code == 2
    assert name in error
