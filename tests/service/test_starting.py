"""A worker that cannot start prints one line: the setting, the remedy, and no secret."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client

from agent_runs.client.connection import TemporalAway
from agent_runs.contracts.errors import ClusterUnavailable
from agent_runs.service import startup
from agent_runs.service.health import Health
from agent_runs.service.settings import WorkerSettings
from dev_stack.cluster import EmbeddedCluster
from tests.runs.system import System, open_system
from tests.support.relay import open_relay

SECRET = "s3cr3t-canary"
CLOSED = "127.0.0.1:1"


@pytest.fixture(scope="session")
async def system(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """Everything that a worker needs, without a worker."""
    async with open_system(temporal, tmp_path_factory.mktemp("starting")) as running:
        yield running


@pytest.fixture(scope="session")
async def starter() -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.service.starts", stdin=PIPE, stdout=PIPE, limit=1024 * 1024
    )
    yield process
    process.kill()
    await process.wait()


def environment(system: System, folder: Path, **changes: str | None) -> dict[str, str]:
    """What a worker needs to start, with changes; None leaves a variable out."""
    whole = {
        "PATH": os.environ["PATH"],
        "TEMPORAL_ADDRESS": system.temporal.service_client.config.target_host,
        "AGENT_RUNS_KUBECONFIG": str(system.embedded.kubeconfig_path),
        "AGENT_RUNS_SEALING_KEY_FILE": str(folder / "sealing-key.json"),
        "AGENT_RUNS_TRANSCRIPTS_URL": f"sqlite:///{folder}/transcripts.db",
        "AGENT_RUNS_TASK_QUEUE": system.settings.task_queue,
        "TEMPORAL_API_KEY": SECRET,
        "TEMPORAL_TLS": "false",
    }
    named = {
        name.upper() if name.startswith("temporal_") else f"AGENT_RUNS_{name.upper()}": value
        for name, value in changes.items()
    }
    return {name: value for name, value in {**whole, **named}.items() if value is not None}


async def startup_error(starter: Process, environment: Mapping[str, str]) -> str:
    """The one line of a start that fails."""
    assert starter.stdin is not None
    assert starter.stdout is not None
    starter.stdin.write(json.dumps(environment).encode() + b"\n")
    ended: dict[str, Any] = json.loads(await starter.stdout.readline())
    assert ended["code"] == 1, ended
    assert SECRET not in ended["output"] + ended["log"]
    lines: list[str] = [line for line in ended["output"].splitlines() if line.strip()]
    assert len(lines) == 1, ended["output"]
    assert lines[0].startswith("worker: ")
    return lines[0]


def changed_kubeconfig(cluster: EmbeddedCluster, folder: Path, **changes: str) -> str:
    content = json.loads(cluster.kubeconfig_path.read_text())
    content["clusters"][0]["cluster"]["server"] = changes.get("server", cluster.url)
    content["users"][0]["user"]["token"] = changes.get("token", cluster.token)
    file = folder / "kubeconfig"
    file.write_text(json.dumps(content))
    return str(file)


@contextmanager
def taken() -> Any:
    """An address where somebody listens already."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_an_unknown_setting_is_named(starter: Process, system: System, tmp_path: Path) -> None:
    output = await startup_error(starter, environment(system, tmp_path, max_run="7"))
    assert output == "worker: AGENT_RUNS_MAX_RUN: no such setting; did you mean AGENT_RUNS_MAX_RUNS?"


async def test_a_wrong_setting_is_named(starter: Process, system: System, tmp_path: Path) -> None:
    assert "AGENT_RUNS_MAX_RUNS: " in await startup_error(starter, environment(system, tmp_path, max_runs="0"))


async def test_a_worker_without_a_cluster_names_the_setting(starter: Process, system: System, tmp_path: Path) -> None:
    output = await startup_error(starter, environment(system, tmp_path, kubeconfig=None))
    assert "AGENT_RUNS_KUBECONFIG: in-cluster access unavailable" in output


async def test_a_missing_kubeconfig_is_named(starter: Process, system: System, tmp_path: Path) -> None:
    output = await startup_error(starter, environment(system, tmp_path, kubeconfig=str(tmp_path / "none")))
    assert f"AGENT_RUNS_KUBECONFIG: kubeconfig {tmp_path}/none does not exist" in output


async def test_an_unreachable_store_is_named_without_its_password(
    starter: Process, system: System, tmp_path: Path
) -> None:
    url = f"postgresql://ada:{SECRET}@{CLOSED}/transcripts"
    output = await startup_error(starter, environment(system, tmp_path, transcripts_url=url))
    assert f"AGENT_RUNS_TRANSCRIPTS_URL: postgresql+asyncpg://ada:***@{CLOSED}/transcripts" in output


async def test_a_store_that_cannot_be_written_is_named(starter: Process, system: System, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/no/such/folder/transcripts.db"
    output = await startup_error(starter, environment(system, tmp_path, transcripts_url=url))
    assert "AGENT_RUNS_TRANSCRIPTS_URL: " in output
    assert "unable to open database file" in output


@pytest.mark.parametrize("url", ["{}", "postgresql://ada:{}@host:port/db", "postgresql://ada:{}@127.0.0.1:1/db?no=1"])
async def test_an_invalid_url_is_named_without_its_password(
    starter: Process, system: System, tmp_path: Path, url: str
) -> None:
    output = await startup_error(starter, environment(system, tmp_path, transcripts_url=url.format(SECRET)))
    assert "AGENT_RUNS_TRANSCRIPTS_URL: " in output


async def test_an_invalid_address_is_named(starter: Process, system: System, tmp_path: Path) -> None:
    output = await startup_error(starter, environment(system, tmp_path, temporal_address="not an address"))
    assert "TEMPORAL_ADDRESS" in output


async def test_a_profile_that_does_not_exist_is_named(starter: Process, system: System, tmp_path: Path) -> None:
    output = await startup_error(starter, environment(system, tmp_path, temporal_profile=SECRET))
    assert output.startswith("worker: TEMPORAL_PROFILE: ")


async def test_a_missing_namespace_is_named(starter: Process, system: System, tmp_path: Path) -> None:
    output = await startup_error(starter, environment(system, tmp_path, temporal_namespace="nowhere"))
    assert "TEMPORAL_NAMESPACE: there is no namespace nowhere" in output


async def test_production_creates_no_key(starter: Process, system: System, tmp_path: Path) -> None:
    output = await startup_error(starter, environment(system, tmp_path, production="true"))
    assert "AGENT_RUNS_SEALING_KEY_FILE: " in output
    assert "does not exist" in output


async def test_a_file_that_holds_no_key_is_named_without_its_content(
    starter: Process, system: System, tmp_path: Path
) -> None:
    for name in ("sealing-key.json", "transcripts-key.json"):
        (tmp_path / name).write_text(json.dumps({"kty": "EC", "d": SECRET}))
    own = {
        "sealing_key_file": str(tmp_path / "good.json"),
        "transcripts_key_file": str(tmp_path / "transcripts-key.json"),
    }
    assert "AGENT_RUNS_SEALING_KEY_FILE: " in await startup_error(starter, environment(system, tmp_path))
    output = await startup_error(starter, environment(system, tmp_path, transcripts_listen="127.0.0.1:0", **own))
    assert "AGENT_RUNS_TRANSCRIPTS_KEY_FILE: " in output


async def test_a_missing_key_of_workspaces_and_a_folder_that_cannot_be_made_are_named_with_the_next_step(
    starter: Process, system: System, tmp_path: Path
) -> None:
    store = {"workspace_store": f"file://{tmp_path}/workspaces", "workspace_url": "http://worker:8092"}
    missing = environment(system, tmp_path, **store, workspace_key_file=str(tmp_path / "workspace-key.json"))
    output = await startup_error(starter, missing)
    assert f"AGENT_RUNS_WORKSPACE_KEY_FILE: {tmp_path}/workspace-key.json does not exist" in output
    assert "`agent-runs keys` makes it" in output
    no_folder = environment(system, tmp_path, **store | {"workspace_store": "file:///dev/null/workspaces"})
    output = await startup_error(starter, no_folder)
    assert "AGENT_RUNS_WORKSPACE_STORE: /dev/null/workspaces: Not a directory. Mount a volume there" in output


async def test_an_operator_token_that_cannot_be_used_is_named(starter: Process, system: System, tmp_path: Path) -> None:
    (tmp_path / "operator-token").write_text(SECRET[:20])
    changes = {"operator_token_file": str(tmp_path / "operator-token"), "transcripts_listen": "127.0.0.1:0"}
    output = await startup_error(starter, environment(system, tmp_path, **changes))
    assert f"AGENT_RUNS_OPERATOR_TOKEN_FILE: {tmp_path}/operator-token must hold one token of 32 characters" in output


async def test_a_configuration_for_opencode_that_cannot_be_read_is_named(
    starter: Process, system: System, tmp_path: Path
) -> None:
    output = await startup_error(starter, environment(system, tmp_path, opencode_config=str(tmp_path / "none.json")))
    assert f"AGENT_RUNS_OPENCODE_CONFIG: {tmp_path}/none.json: No such file" in output


@pytest.mark.parametrize("setting", ["health_listen", "metrics_listen", "transcripts_listen"])
async def test_an_address_that_is_in_use_is_named_with_its_setting(
    starter: Process, system: System, tmp_path: Path, setting: str
) -> None:
    with taken() as address:
        output = await startup_error(starter, environment(system, tmp_path, **{setting: address}))
    assert f"AGENT_RUNS_{setting.upper()}" in output


def test_the_command_itself_ends_with_one_line(tmp_path: Path) -> None:
    given = {**os.environ, "AGENT_RUNS_NO_SUCH": SECRET, "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json")}
    ended = subprocess.run([sys.executable, "-m", "worker"], env=given, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (
        1,
        "worker: AGENT_RUNS_NO_SUCH: no such setting; correct its name or remove it\n",
    )


async def until_awaited(health: Health, server: str) -> None:
    """Return once probes say that the worker waits for this server."""
    async with asyncio.timeout(60):
        while not (report := await health.report()).checks:  # noqa: ASYNC110 - probes poll, too
            await asyncio.sleep(0.05)
    assert (report.ready, report.live) == (False, True)
    assert [(check.name, check.state) for check in report.checks] == [(server, "failing")]


async def test_a_worker_that_starts_while_temporal_is_away_waits_is_not_ready_and_says_why(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "FIRST_PAUSE", timedelta(seconds=0.05))
    health = Health(max_age=timedelta())
    async with open_relay(system.temporal.service_client.config.target_host) as relay:
        relay.refusals = 1_000_000
        settings = WorkerSettings.read(environment(system, tmp_path, temporal_address=relay.address))
        connecting = partial(startup.connect_temporal, settings)
        with capture_logs() as lines:
            start = asyncio.create_task(startup.when_answered("temporal", connecting, TemporalAway, health))
            await until_awaited(health, "temporal")
            relay.refusals = 0
            async with asyncio.timeout(60):
                client = await start
    assert client.namespace == system.temporal.namespace
    assert lines[0]["event"] == "server.awaited"
    assert f"Temporal does not answer at {relay.address}" in lines[0]["cause"]
    assert "TEMPORAL_ADDRESS" in lines[0]["cause"]
    assert SECRET not in str(lines)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [({"server": f"https://{CLOSED}"}, "cannot get version"), ({}, "401")],
    ids=["away", "refused"],
)
async def test_a_worker_that_starts_while_no_api_server_takes_its_token_waits_is_not_ready_and_says_why(
    system: System, tmp_path: Path, changes: dict[str, str], cause: str
) -> None:
    kubeconfig = changed_kubeconfig(system.embedded, tmp_path, token=SECRET, **changes)
    settings = WorkerSettings.read(environment(system, tmp_path, kubeconfig=kubeconfig))
    health, connecting = Health(max_age=timedelta()), partial(startup.connect_kubernetes, settings)
    with capture_logs() as lines:
        start = asyncio.create_task(startup.when_answered("kubernetes", connecting, ClusterUnavailable, health))
        await until_awaited(health, "kubernetes")
        start.cancel()
        await asyncio.wait([start])
    assert cause in next(line["cause"] for line in lines if line["event"] == "server.awaited")
    assert SECRET not in str(lines)
