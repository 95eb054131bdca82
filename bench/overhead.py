"""What a run costs beyond OpenCode: from start to the Job's POST, and from the container's end to the caller's result.

Runs 50 agents, one after another, on the dev server and the embedded cluster in this process. The agent is a shell
script that writes the time as its last line. `python -m bench.overhead [RUNS]` prints a Markdown table.
"""

import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

import worker
from client.attach import attach
from client.connection import run_to_end
from client.settings import WorkerSettings
from cluster.client import KubernetesCluster
from cluster.objects import Job
from cluster.port import Manifest
from contracts.identity import AttemptKey
from local.cluster import EmbeddedCluster
from local.demo import context
from paperclip.preparation import prepare
from paperclip.sealing import Sealer, load_or_create
from transcripts.store import SqlTranscripts
from workflows.attributes import ALL

SCRIPT = "#!/bin/sh\ncat > /dev/null\ndate +%s.%N\n"


@dataclass
class Posts:
    """When each Job was posted."""

    at: dict[str, float] = field(default_factory=dict)

    def watch(self, cluster: KubernetesCluster) -> None:
        """Notes the moment before each create call of this client."""
        create = cluster.create_job

        async def timed(manifest: Manifest) -> Job:
            self.at[manifest["metadata"]["name"]] = time.time()
            return await create(manifest)

        cluster.create_job = timed  # type: ignore[method-assign]  # a stopwatch, for this process only


@dataclass(frozen=True)
class Sample:
    """Seconds of one run."""

    to_post: float
    to_result: float
    events: int
    size: int


async def measure(count: int) -> list[Sample]:
    """One system, `count` runs one after another; the first warms up and does not count."""
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
        cluster = await parts.enter_async_context(await KubernetesCluster.connect(str(embedded.kubeconfig_path)))
        settings = WorkerSettings(
            sealing_key_file=folder / "key.json", image="agent:bench", data_root=folder, task_queue="bench"
        )
        store = await SqlTranscripts.open(f"sqlite+aiosqlite:///{folder}/transcripts.db")
        parts.push_async_callback(store.close)
        posts = Posts()
        posts.watch(cluster)
        steps = worker.activities(settings, environment.client, cluster, store)
        await parts.enter_async_context(worker.temporal_worker(settings, environment.client, steps))
        program = folder / "bin" / "opencode"
        program.parent.mkdir()
        program.write_text(SCRIPT)
        program.chmod(0o755)
        sealer = Sealer(load_or_create(settings.sealing_key_file)[0].public)
        samples = []
        for _ in range(count + 1):
            raw = agent(program.parent)
            request = prepare(raw, sealer).model_copy(update={"linger_sec": 0})
            started = time.time()
            handle = (await attach(environment.client, settings, request)).handle(environment.client)
            await handle.result()
            ended = time.time()
            key = AttemptKey(run=request.key)
            said = [line for line in await store.read(key) if line.stream == "stdout"]
            info = (await handle.describe()).raw_description.workflow_execution_info
            samples.append(
                Sample(
                    posts.at[key.job_name] - started,
                    ended - float(said[-1].data),
                    info.history_length,
                    info.history_size_bytes,
                )
            )
        return samples[1:]


def agent(programs: Path) -> dict[str, Any]:
    """The demonstration's context with an agent of its own and our script as its `opencode`."""
    raw = context(agent_id=str(uuid.uuid4()))
    raw["config"]["env"] = {**raw["config"].get("env", {}), "PATH": f"{programs}:{os.environ['PATH']}"}
    return raw


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def table(samples: Sequence[Sample]) -> str:
    """Markdown, in milliseconds."""
    rows = {
        "start to Job POST": [sample.to_post for sample in samples],
        "container end to result": [sample.to_result for sample in samples],
    }
    lines = [f"| {len(samples)} runs | p50 ms | p99 ms |", "|---|---|---|"]
    lines += [
        f"| {name} | {statistics.median(values) * 1000:.0f} | {percentile(values, 0.99) * 1000:.0f} |"
        for name, values in rows.items()
    ]
    lines.append(
        f"| history | {max(sample.events for sample in samples)} events | {max(s.size for s in samples)} bytes |"
    )
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50

    async def run() -> None:
        print(table(await measure(count)))

    run_to_end(run)


if __name__ == "__main__":
    main()
