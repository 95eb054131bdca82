"""A whole system for one test: real Temporal, embedded cluster, transcript store, worker; only OpenCode is a script."""

import asyncio
import os
import sys
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

import worker
from client.attach import Ticket, attach
from client.settings import WorkerSettings
from cluster.client import KubernetesCluster
from contracts.identity import AttemptKey, RunKey
from contracts.outcome import Outcome
from local.cluster import EmbeddedCluster
from local.demo import context
from paperclip.preparation import prepare
from paperclip.sealing import Sealer, load_or_create
from transcripts.store import Line, SqlTranscripts


@dataclass
class Ground:
    """What a test can do with the system."""

    temporal: Client
    embedded: EmbeddedCluster
    kubernetes: KubernetesCluster
    store: SqlTranscripts
    settings: WorkerSettings
    programs: Path

    def agent(self, script: str) -> dict[str, Any]:
        """The execution context of a new agent whose `opencode` is this shell script."""
        folder = self.programs / str(uuid.uuid4())
        folder.mkdir()
        program = folder / "opencode"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        raw = context(agent_id=str(uuid.uuid4()))
        raw["config"]["env"] = {**raw["config"].get("env", {}), "PATH": f"{folder}:{os.environ['PATH']}"}
        raw["config"]["graceSec"] = 2
        return raw

    async def start(self, raw: dict[str, Any]) -> Ticket:
        """Attach, as every caller does."""
        keys = load_or_create(self.settings.sealing_key_file)
        return await attach(self.temporal, self.settings, prepare(raw, Sealer(keys[0].public)))

    async def outcome(self, raw: dict[str, Any]) -> Outcome:
        """Start and wait."""
        return await (await self.start(raw)).handle(self.temporal).result()

    async def lines(self, raw: dict[str, Any], attempt: int = 1) -> list[Line]:
        """The stored transcript of a run."""
        return await self.store.read(attempt_key(raw, attempt), limit=1_000_000)

    def worker(self) -> Worker:
        """A worker like the one in production; several may work side by side."""
        steps = worker.activities(self.settings, self.temporal, self.kubernetes, self.store)
        return worker.temporal_worker(self.settings, self.temporal, steps)

    @asynccontextmanager
    async def worker_process(self) -> AsyncIterator[Process]:
        """A worker in a process of its own, as `python -m worker` starts it; killed at the end if it still lives."""
        settings = self.settings
        given = {
            "AGENT_RUNS_TEMPORAL_ADDRESS": self.temporal.service_client.config.target_host,
            "AGENT_RUNS_TASK_QUEUE": settings.task_queue,
            "AGENT_RUNS_SEALING_KEY_FILE": str(settings.sealing_key_file),
            "AGENT_RUNS_TRANSCRIPTS_URL": settings.transcripts,
            "AGENT_RUNS_IMAGE": settings.image or "",
            "AGENT_RUNS_DATA_ROOT": str(settings.data_root),
            "AGENT_RUNS_KUBECONFIG": str(self.embedded.kubeconfig_path),
        }
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "worker", env={**os.environ, **given})
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def attempt_key(raw: dict[str, Any], attempt: int = 1) -> AttemptKey:
    """The key of one attempt of the run that this context asks for."""
    agent = raw["agent"]
    run = RunKey(agent_id=agent["id"], company_id=agent["companyId"], run_id=raw["runId"])
    return AttemptKey(run=run, attempt=attempt)


@asynccontextmanager
async def ground(temporal: Client, folder: Path) -> AsyncIterator[Ground]:
    """The system, without a worker yet."""
    settings = WorkerSettings(
        task_queue=f"runs-{uuid.uuid4()}",
        sealing_key_file=folder / "key.json",
        transcripts_url=f"sqlite+aiosqlite:///{folder}/transcripts.db",
        image="agent:test",
        data_root=folder / "data",
        paperclip_api_url="http://127.0.0.1:3100",
    )
    programs = folder / "programs"
    programs.mkdir()
    async with AsyncExitStack() as parts:
        embedded = await parts.enter_async_context(EmbeddedCluster(folder / "cluster"))
        connecting = await KubernetesCluster.connect(str(embedded.kubeconfig_path))
        kubernetes = await parts.enter_async_context(connecting)
        store = await SqlTranscripts.open(settings.transcripts)
        parts.push_async_callback(store.close)
        yield Ground(temporal, embedded, kubernetes, store, settings, programs)
