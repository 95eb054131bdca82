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

from client import links
from client.attach import attach
from client.settings import ClientSettings
from contracts.identity import AttemptKey
from contracts.outcome import OutputReceipt
from contracts.request import RunRequest
from transcripts.store import Line, SqlTranscripts

PROGRAM = str(Path(sys.executable).with_name("agent-runs"))
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def told(temporal: Client, queue: str, tmp_path: Path) -> dict[str, str]:
    """What the environment says."""
    return {
        "AGENT_RUNS_TEMPORAL_ADDRESS": temporal.service_client.config.target_host,
        "AGENT_RUNS_TASK_QUEUE": queue,
        "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json"),
        "AGENT_RUNS_TRANSCRIPTS_URL": f"sqlite+aiosqlite:///{tmp_path}/transcripts.db",
    }


async def run(*arguments: str, **environment: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    return process.returncode, out.decode(), error.decode()


@asynccontextmanager
async def service(told: dict[str, str]) -> AsyncIterator[str]:
    """The service in a process of its own; its URL. It must end by itself when it is asked to."""
    process = await asyncio.create_subprocess_exec(
        *(PROGRAM, "transcripts", "--listen", "127.0.0.1:0"),
        env={**os.environ, **told},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        while b"transcripts  " not in (said := await process.stdout.readline()):
            assert said, "the service ended before it listened"
        yield said.decode().split()[-1]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


async def test_logs_come_through_the_service_where_it_is_known(
    temporal: Client, told: dict[str, str], request_of_a_run: RunRequest, tmp_path: Path
) -> None:
    settings = ClientSettings.read(told)
    await attach(temporal, settings, request_of_a_run)
    store = await SqlTranscripts.open(settings.transcripts)
    key = AttemptKey(run=request_of_a_run.key)
    await store.append(key, [Line(n, "stdout", b"line %d" % n, at=NOON) for n in (1, 2, 3)])
    await store.seal(key, OutputReceipt())
    await store.close()
    async with service(told) as base:
        there = {**told, "AGENT_RUNS_TRANSCRIPTS_URL": f"sqlite:///{tmp_path}/elsewhere.db"}
        there["AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL"] = base
        code, out, error = await run("logs", key.run.run_id, "--json", **there)
        assert (code, error) == (0, "")
        assert [json.loads(row)["text"] for row in out.splitlines()] == ["line 1", "line 2", "line 3"]
        page = links.page(ClientSettings.read(there), key.run.run_id)
        assert page is not None
        async with aiohttp.ClientSession() as browser, browser.get(page) as answer:
            assert answer.status == 200
        code, out, error = await run(
            "logs", key.run.run_id, **there, AGENT_RUNS_TRANSCRIPTS_KEY_FILE=str(tmp_path / "other.json")
        )
        assert code == 2
        assert "AGENT_RUNS_TRANSCRIPTS_KEY_FILE" in error


async def test_a_service_without_an_address_says_which_setting_is_missing(told: dict[str, str]) -> None:
    code, _, error = await run("transcripts", **told)
    assert code == 2
    assert "AGENT_RUNS_TRANSCRIPTS_LISTEN" in error


async def test_an_address_in_use_is_one_line_with_the_remedy(told: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, error = await run("transcripts", "--listen", address, **told)
    assert code == 2
    assert address in error
    assert len(error.splitlines()) == 1


async def test_production_makes_no_key(told: dict[str, str]) -> None:
    code, _, error = await run("transcripts", "--listen", "127.0.0.1:0", AGENT_RUNS_PRODUCTION="1", **told)
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
async def test_a_setting_of_the_wrong_shape_is_named(told: dict[str, str], name: str, value: str) -> None:
    code, _, error = await run("list", **{**told, name: value})
    assert code == 2
    assert name in error
