"""Versioned workers (Worker Versioning): a run moves on to the current version, and no activity stays behind."""

import asyncio
from pathlib import Path

import pytest
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

import worker
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import SettingsError
from agent_runs.contracts import activities
from agent_runs.service.build_id import DEPLOYMENT, VERSION, worker_deployment
from agent_runs.service.polling import Polling
from tests.runs.system import open_system
from tests.runs.test_restarts import LINES, assert_whole, pausing_agent

NAME = "agent-runs-versions"


async def make_current(temporal: Client, version: str) -> None:
    """Make a version current as soon as Temporal knows it, as an operator or the Worker Controller does."""
    service, namespace = temporal.workflow_service, temporal.namespace
    async with asyncio.timeout(60):
        while True:
            try:
                known = await service.describe_worker_deployment(
                    DescribeWorkerDeploymentRequest(namespace=namespace, deployment_name=NAME)
                )
                await service.set_worker_deployment_current_version(
                    SetWorkerDeploymentCurrentVersionRequest(
                        namespace=namespace, deployment_name=NAME, build_id=version, conflict_token=known.conflict_token
                    )
                )
            except RPCError:
                await asyncio.sleep(0.1)  # no worker of this version has polled yet
            else:
                return


async def test_a_run_continues_on_the_current_version_and_on_one_that_comes_after_its_worker_is_gone(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"continue-{number}" for number in range(2)]
    monkeypatch.setenv(DEPLOYMENT, NAME)
    async with open_system(temporal, tmp_path) as system:
        raw = system.agent(pausing_agent(files))
        share = LINES // 3
        monkeypatch.setenv(VERSION, "1")
        first = system.worker()
        monkeypatch.setenv(VERSION, "2")
        second = system.worker()
        monkeypatch.setenv(VERSION, "3")
        third = system.worker()
        async with first:
            await make_current(temporal, "1")
            ticket = await system.start(raw)
            await system.until_stored(raw, share)
            second_runs = asyncio.create_task(second.run())
            await make_current(temporal, "2")
        files[0].touch()
        await system.until_stored(raw, 2 * share)
        await second.shutdown()
        await second_runs
        async with third:  # no worker of the current version is left
            await make_current(temporal, "3")
            files[1].touch()
            outcome = await outcome_at_close(ticket.handle(temporal))
        stdout = await system.stdout(raw)
    assert_whole(stdout, outcome)


async def test_temporal_shows_that_a_versioned_worker_polls(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEPLOYMENT, NAME)
    monkeypatch.setenv(VERSION, "1")
    async with open_system(temporal, tmp_path) as system:
        slots, name = worker.activity_slots(system.settings), worker.worker_identity()
        polling = Polling(temporal, system.settings.task_queue, name, slots)
        async with (
            worker.temporal_worker(system.settings, temporal, [activities.finish], slots, name),
            asyncio.timeout(60),
        ):
            while not await polls(polling):  # noqa: ASYNC110 - the server announces no polls
                await asyncio.sleep(0.1)


async def polls(polling: Polling) -> bool:
    try:
        return (await polling.observe()).polls
    except RPCError:  # a busy machine: the server has 2 s to answer
        return False


def test_one_variable_without_the_other_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VERSION, raising=False)
    monkeypatch.setenv(DEPLOYMENT, NAME)
    with pytest.raises(SettingsError, match=VERSION):
        worker_deployment()
