"""Whatever is killed while an agent works in a carried folder, at most the step at work is lost, and it is named.

`TEST_KILLS=100 TEST_S3_TOOL=... pytest -m slow tests/faults/test_lost_work.py` kills a hundred times.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, NoReturn
from unittest import mock

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.pod import SIDECAR_CONTAINER
from agent_runs.workspace.store import WorkspaceStore, WorkspacesUnavailable
from agent_runs.workspace.tree import BLOCK
from dev_stack.cluster.kinds import PODS
from tests.faults.carried import STEPS, Carried, new_run, open_carrying, start_worker
from tests.faults.environment import POLL_SECONDS
from tests.runs.system import System
from tests.support.process_pool import ChildProcess, ProcessPool
from tests.workspace.s3 import TOOL, S3Server, s3_server

KILLS: Final = int(os.environ.get("TEST_KILLS", "8"))
FORGET_AFTER: Final = 2.0
FROZEN: Final = 60.0
"""Seconds."""
BOUND: Final = 300.0
"""Seconds that one run may take."""


@dataclass
class Setting:
    """A system for several runs, one after the other.

    Attributes:
        storage: the server of its workspace store; None: that is a folder.
    """

    system: System
    workspaces: WorkspaceStore
    pool: ProcessPool
    folder: Path
    storage: S3Server | None
    worker: ChildProcess | None = None

    async def start_worker(self) -> None:
        log = self.folder / f"worker-{len(self.pool.children)}.log"
        self.worker = await start_worker(self.pool, self.system, log)

    async def end_worker(self, number: signal.Signals) -> None:
        assert self.worker is not None
        self.worker.send(number)
        await self.worker.end()


@pytest.fixture(scope="module")
async def setting(
    temporal: Client, process_pool: ProcessPool, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Setting]:
    async with open_setting(temporal, process_pool, tmp_path_factory.mktemp("kills")) as opened:
        yield opened


@asynccontextmanager
async def open_setting(
    temporal: Client, process_pool: ProcessPool, folder: Path, *limit: str
) -> AsyncIterator[Setting]:
    """Args:
    limit: options of the server of the workspace store.
    """
    with ExitStack() as parts:
        storage, store = None, f"file://{folder}/workspaces"
        if TOOL in os.environ:
            storage = parts.enter_context(s3_server())
            variables = storage.up(*limit)
            parts.enter_context(mock.patch.dict(os.environ, variables))
            store = f"s3://{variables['S3_BUCKET']}/kills"
        async with open_carrying(temporal, folder, store) as (system, workspaces):
            opened = Setting(system, workspaces, process_pool, folder, storage)
            await opened.start_worker()
            try:
                yield opened
            finally:
                await opened.end_worker(signal.SIGTERM)


async def pod_of(run: Carried) -> str:
    (pod,) = await run.system.pods(run.raw)
    return pod.metadata.name


async def kill_pod(setting: Setting, run: Carried) -> None:
    setting.system.embedded.faults.delete_pod(await pod_of(run), grace=0)


async def kill_sidecar(setting: Setting, run: Carried) -> None:
    await setting.system.embedded.faults.kill_container(await pod_of(run), SIDECAR_CONTAINER)


async def kill_node(setting: Setting, _run: Carried) -> None:
    await setting.system.embedded.faults.lose_node(forget_after=FORGET_AFTER)
    while setting.system.embedded.store.every(PODS):  # noqa: ASYNC110 - those of other runs, too
        await asyncio.sleep(POLL_SECONDS)
    await setting.system.embedded.faults.recover_node()


async def kill_worker(setting: Setting, _run: Carried) -> None:
    """And with it the service that pods send their files to."""
    await setting.end_worker(signal.SIGKILL)
    await setting.start_worker()


async def kill_store(setting: Setting, _run: Carried) -> None:
    assert setting.storage is not None
    await asyncio.to_thread(setting.storage, "kill")
    await asyncio.to_thread(setting.storage.up)


async def freeze_store(setting: Setting, _run: Carried) -> None:
    assert setting.storage is not None
    await asyncio.to_thread(setting.storage, "freeze")
    await asyncio.sleep(FROZEN)
    await asyncio.to_thread(setting.storage, "thaw")


Kill = Callable[[Setting, Carried], Awaitable[None]]
LOSSES: Final[dict[str, Kill]] = {"pod": kill_pod, "sidecar": kill_sidecar, "node": kill_node}
"""Of the pod with its files."""
OUTAGES: Final[dict[str, Kill]] = {"worker": kill_worker}
STORAGE: Final[dict[str, Kill]] = {"store": kill_store, "store-frozen": freeze_store}
"""Of a server of the workspace store."""
KINDS: Final = {**LOSSES, **OUTAGES, **(STORAGE if TOOL in os.environ else {})}


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kind"), [(seed, list(KINDS)[seed % len(KINDS)]) for seed in range(KILLS)])
async def test_at_most_the_step_at_work_is_lost(setting: Setting, tmp_path: Path, seed: int, kind: str) -> None:
    random = Random(seed)
    run = await new_run(setting.system, setting.workspaces, tmp_path / "agent", random)
    ticket = await setting.system.start(run.raw)
    after, pause = random.randrange(1, STEPS), random.uniform(0, 1)
    async with asyncio.timeout(BOUND):
        while after not in run.steps("began"):  # noqa: ASYNC110 - the agent notes it in a file
            await asyncio.sleep(0.02)
        await asyncio.sleep(pause)
        await KINDS[kind](setting, run)
        outcome = await outcome_at_close(ticket.handle(setting.system.temporal))
    await assert_nothing_else_lost(run, outcome, lost=kind in LOSSES)


async def assert_nothing_else_lost(run: Carried, outcome: Outcome, *, lost: bool) -> None:
    """The last attempt went on from the last checkpoint: nothing is doubled, or lost without a name."""
    assert (outcome.failure, outcome.summary) == (None, "Done.")
    records = await run.records()
    begun = [record for record in records if record.kind == "begin"]
    kept = "after 0 steps" not in str(outcome.result_json)
    sessions = [await run.session(attempt) for attempt in range(1, len(outcome.attempts) + 1)]
    assert len(outcome.attempts) == (
        1 if not lost else 2 if kept else 3
    )  # without a checkpoint, its session is unknown
    assert len(begun) == len(outcome.attempts)
    assert len(set(sessions)) == 1 or not kept
    for number, record in enumerate(begun, 1):
        assert run.noted(f"begin-{number}") == await run.tree(record)
    log = run.steps("log")
    assert log == sorted(set(log))
    missing = set(range(1, STEPS + 1)) - set(log)
    assert len(missing) <= lost
    if lost:
        assert outcome.attempts[0].lost is not None
    # what it left
    assert run.noted("at-end") == await run.tree(records[-1])
    assert (records[-1].kind, records[-1].attempt) == ("end", len(outcome.attempts))


@pytest.mark.slow
@pytest.mark.skipif(TOOL not in os.environ, reason=f"{TOOL} not set")
async def test_what_a_full_store_did_not_take_is_named(
    temporal: Client, process_pool: ProcessPool, tmp_path: Path
) -> None:
    async with open_setting(temporal, process_pool, tmp_path, "--limit", "64") as setting:
        run = await new_run(setting.system, setting.workspaces, tmp_path / "agent", Random(0))
        ticket = await setting.system.start(run.raw)
        async with asyncio.timeout(BOUND):
            while 2 not in run.steps("ended"):  # noqa: ASYNC110 - the agent notes it in a file
                await asyncio.sleep(0.02)
            with pytest.raises(WorkspacesUnavailable):
                await fill(setting.workspaces)
            outcome = await outcome_at_close(ticket.handle(setting.system.temporal))
        records = await run.records()
        assert (outcome.failure, outcome.summary) == (None, "Done.")
        assert records[-1].kind == "checkpoint"


async def fill(store: WorkspaceStore) -> NoReturn:
    while True:
        await store.add_blocks("another", [os.urandom(BLOCK) for _ in range(8)])
