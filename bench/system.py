"""One whole system in this process: dev server, embedded cluster, store, worker. Its agent is a shell script."""

import os
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

import worker
from agent_runs.client.attach import Ticket, attach
from agent_runs.client.wake import Wake, build_wake
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.sealing import Sealer, load_or_create
from agent_runs.service.settings import WorkerSettings
from agent_runs.transcript.store import TranscriptStore
from dev_stack.cluster import EmbeddedCluster
from dev_stack.demo import context
from workflows.attributes import ALL


@dataclass(frozen=True)
class System:
    """What a benchmark can do with it."""

    client: Client
    settings: WorkerSettings
    cluster: Cluster
    store: TranscriptStore
    programs: Path

    def wake(self, *, retention: timedelta = timedelta()) -> Wake:
        """A run of an agent of its own; `retention` is how long its outcome waits for its caller."""
        raw = context(agent_id=str(uuid.uuid4()))
        raw["config"]["env"] = {**raw["config"].get("env", {}), "PATH": f"{self.programs}:{os.environ['PATH']}"}
        raw["config"]["transport"] = "run"  # a script is no server
        sealer = Sealer(load_or_create(self.settings.sealing_key_file)[0].public)
        return build_wake(raw, sealer, outcome_retention_sec=int(retention.total_seconds()))

    async def start(self, wake: Wake) -> Ticket:
        """Attach, as every caller does."""
        return await attach(self.client, self.settings, wake)


@asynccontextmanager
async def system(script: str) -> AsyncIterator[System]:
    """The system, working."""
    async with AsyncExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        environment = await parts.enter_async_context(
            await WorkflowEnvironment.start_local(
                dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
                data_converter=pydantic_data_converter,
                search_attributes=list(ALL),
                dev_server_log_level="error",
            )
        )
        embedded = await parts.enter_async_context(EmbeddedCluster(folder / "cluster"))
        cluster = await parts.enter_async_context(await Cluster.connect(str(embedded.kubeconfig_path)))
        settings = WorkerSettings(
            sealing_key_file=folder / "key.json",
            image="agent:bench",
            data_root=folder,
            task_queue="bench",
        )
        store = await TranscriptStore.open(f"sqlite:///{folder}/transcripts.db")
        parts.push_async_callback(store.close)
        program = folder / "bin" / "opencode"
        program.parent.mkdir()
        program.write_text(script)
        program.chmod(0o755)
        steps = worker.activities(settings, environment.client, cluster, store)
        await parts.enter_async_context(worker.temporal_worker(settings, environment.client, steps))
        yield System(environment.client, settings, cluster, store, program.parent)
