"""What each surface says while a part of the system is away, as an engineer on call looks at it: commands and pages."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import aiohttp
import pytest
from temporalio.client import Client

from agent_runs.client import links
from agent_runs.client.attach import Ticket
from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.tokens import authorization
from agent_runs.web.run_info import TemporalRunInfo
from agent_runs.web.serving import transcript_service
from tests.faults.environment import Environment, open_environment
from tests.faults.scenarios import at_work
from tests.support.ports import free_port
from tests.support.process_pool import ProcessPool
from tests.transcript.postgres import CannotStart, Postgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(sys.executable).with_name("agent-runs")
TAGS = re.compile(r"<[^>]+>")


@dataclass
class Surfaces:
    """The surfaces of one system; each text is also printed, for a person to read."""

    env: Environment
    base: str
    token: str
    page_token: str
    run: RunKey

    async def command(self, *arguments: str) -> str:
        """The words that a command says, on stdout and stderr; tables wrap them."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGENT_RUNS_")}
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *arguments,
            env=inherited | self.env.system.environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output = (await process.communicate())[0].decode()
        print(f"$ agent-runs {' '.join(arguments)}\n{output}")
        assert "Traceback" not in output
        return " ".join(output.split())

    async def page(self, path: str) -> str:
        headers = {"Accept": "text/html", **authorization(self.page_token if "/runs/" in path else self.token)}
        async with aiohttp.ClientSession(self.base, headers=headers) as http, http.get(path) as answer:
            words = " ".join(unescape(TAGS.sub(" ", await answer.text())).split())
        print(f"GET {path}: {answer.status}\n{words[:1500]}\n")
        return words


@asynccontextmanager
async def open_surfaces(env: Environment, ticket: Ticket) -> AsyncIterator[Surfaces]:
    """The pages of a service of its own, and commands."""
    token = env.folder / "operator-token"
    token.write_text("t" * 40)
    changes = {"transcripts_listen": "127.0.0.1:0", "operator_token_file": token}
    settings = env.system.settings.model_copy(update=changes)
    info = TemporalRunInfo(env.system.temporal, settings)
    async with transcript_service(settings, env.system.store, info) as base:
        assert base is not None
        run = RunKey(agent_id=env.raw["agent"]["id"], company_id="", run_id=ticket.run_id)
        yield Surfaces(env, base, "t" * 40, links.load_tokens(settings).mint(run), run)


async def test_the_worker_was_killed(temporal: Client, process_pool: ProcessPool, tmp_path: Path) -> None:
    async with open_environment("killed", temporal, process_pool, tmp_path) as env:
        ticket = await at_work(env)
        env.workers[0].send(signal.SIGKILL)
        async with open_surfaces(env, ticket) as seen:
            await env.system.until_obstacle(ticket, "following the agent's output")
            expected = "following the agent's output"
            assert expected in await seen.command("show", ticket.run_id)
            assert expected in await seen.command("list", "--agent", env.agent_id)
            assert expected in await seen.page(f"/runs/{seen.run.name}")
            assert "line 0" in await seen.command("logs", ticket.run_id)
        env.release_agent()
        await env.worker()
        assert (await env.outcome(ticket)).failure is None


async def test_the_api_server_is_away(temporal: Client, process_pool: ProcessPool, tmp_path: Path) -> None:
    async with open_environment("api", temporal, process_pool, tmp_path) as env:
        env.agent(waits_for_release=False)
        env.system.embedded.faults.http(path="/jobs", status=503, message="etcd is away", times=None)
        await env.worker()
        ticket = await env.start()
        async with open_surfaces(env, ticket) as seen:
            await env.system.until_obstacle(ticket, "k8s_api_unavailable")
            for text in (
                await seen.command("show", ticket.run_id),
                await seen.command("list", "--agent", env.agent_id),
                await seen.page(f"/runs/{seen.run.name}"),
            ):
                assert "creating the Job failed" in text
                assert "Check the API server; the run continues by itself once it answers." in text
            env.system.embedded.faults.clear()
        assert (await env.outcome(ticket)).failure is None


async def test_the_stores_disk_is_full(temporal: Client, process_pool: ProcessPool, tmp_path: Path) -> None:
    async with open_environment("full", temporal, process_pool, tmp_path) as env:
        ticket = await at_work(env)
        (env.folder / "full").touch()
        env.release_agent()
        async with open_surfaces(env, ticket) as seen:
            await env.system.until_obstacle(ticket, "transcripts_unavailable")
            for text in (
                await seen.command("show", ticket.run_id),
                await seen.page(f"/runs/{seen.run.name}"),
            ):
                assert "following the agent's output failed" in text
                assert "Check the transcript store" in text
        (env.folder / "full").unlink()
        outcome = await env.outcome(ticket)
        assert (outcome.failure, outcome.receipt.state if outcome.receipt else None) == (None, "verified")


PASSWORD = "canary-password-5f21"
REVOKED = {
    "login": ("ALTER ROLE app NOLOGIN", 'role "app" is not permitted to log in', "ALTER ROLE app LOGIN"),
    "password": (
        "ALTER ROLE app PASSWORD 'another-canary-9d'",
        'password authentication failed for user "app"',
        f"ALTER ROLE app PASSWORD '{PASSWORD}'",
    ),
}


@pytest.fixture
async def database() -> AsyncIterator[tuple[Postgres, str]]:
    """A PostgreSQL, and the URL of a login with a password for it."""
    try:
        server = Postgres("127.0.0.1")
        server.start()
    except CannotStart as reason:
        pytest.skip(f"PostgreSQL cannot start here: {reason}")
    yield server, await server.remote_url("app", PASSWORD)
    server.remove()


@pytest.mark.parametrize("what", REVOKED)
async def test_the_login_to_the_database_is_revoked(
    temporal: Client, process_pool: ProcessPool, tmp_path: Path, database: tuple[Postgres, str], what: str
) -> None:
    revoke, reason, give_back = REVOKED[what]
    server, url = database
    health = f"127.0.0.1:{free_port()}"
    async with open_environment("revoked", temporal, process_pool, tmp_path, transcripts_url=url) as env:
        env.agent()
        await env.worker(AGENT_RUNS_HEALTH_LISTEN=health, FAULT_FULL="")  # which is for SQLite
        ticket = await env.start()
        await env.until_stored()
        async with open_surfaces(env, ticket) as seen:
            await server.execute(revoke, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")
            env.release_agent()
            await env.system.until_obstacle(ticket, "transcripts_unavailable")
            texts = [
                await seen.command("show", ticket.run_id),
                await seen.command("list", "--agent", env.agent_id),
                await seen.command("logs", ticket.run_id),
                await seen.page(f"/runs/{seen.run.name}"),
                await seen.page("/runs"),
                await ready(health),
            ]
            assert reason in texts[1]
            assert "tokens and cost are missing" in texts[1]
            assert reason in texts[2]
            assert f"agent-runs show {seen.run.name}" in texts[3]
            assert "Stored output cannot be read now" in texts[3]
            assert "The transcript store does not answer" in texts[4]
            assert texts[5].startswith('503 {"ready":false,"live":true')
            assert '"name":"transcripts","state":"failing"' in texts[5]
            for words in ("following the agent's output failed", reason, "Check the transcript store"):
                assert words in texts[0]
        await server.execute(give_back)
        outcome = await env.outcome(ticket)
        assert (outcome.failure, outcome.receipt.state if outcome.receipt else None) == (None, "verified")
        log = "".join(file.read_text() for file in env.folder.glob("worker-*.log"))
        print(log[-6000:])
        texts += [log, (await env.system.history_bytes(ticket)).decode(errors="replace")]
        assert not any(PASSWORD in text or "another-canary" in text for text in texts)


async def ready(address: str) -> str:
    async with aiohttp.ClientSession() as http, http.get(f"http://{address}/readyz") as answer:
        text = await answer.text()
    print(f"GET /readyz: {answer.status}\n{text}\n")
    return f"{answer.status} {text}"


async def test_temporal_is_stopped(temporal: Client, process_pool: ProcessPool, tmp_path: Path) -> None:
    async with open_environment("stopped", temporal, process_pool, tmp_path, own_server=True) as env:
        ticket = await at_work(env)
        assert env.server is not None
        async with open_surfaces(env, ticket) as seen:
            await env.server.running.shutdown()
            for command in ("show", "cancel"):
                assert "Temporal does not answer" in await seen.command(command, ticket.run_id)
            assert "Temporal does not answer" in await seen.command("list")
            logs = await seen.command("logs", ticket.run_id)
            assert "this is what is stored so far" in logs
            assert "line 0" in logs
            page = await seen.page(f"/runs/{seen.run.name}")
            assert "Temporal does not answer" in page
            assert "line 0" in page
            assert "Temporal does not answer" in await seen.page("/runs")
        await env.server.stop(0, env.release_agent)
