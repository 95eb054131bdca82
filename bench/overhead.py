"""What a run costs beyond OpenCode: from start to the Job's POST, and from the container's end to the caller's result.

Runs 50 agents, one after another, on the dev server and the embedded cluster in this process. The agent is a shell
script whose last line, the end of a successful step, has the time. `python -m bench.overhead [RUNS]` prints a table.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_runs.client.attach import attach
from agent_runs.client.connection import run_to_end
from agent_runs.client.outcome import fetch_outcome, outcome_at_close
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Job, Manifest
from bench.reports import milliseconds
from tests.runs.system import System, attempt_key, open_system
from tests.support.temporal import start_temporal

EVENT = '{{"type":"{0}","timestamp":%s,"sessionID":"ses_1","part":{{"id":"prt_{1}","messageID":"msg_1"{2}}}}}'
TOKENS = '"tokens":{"input":5,"output":2,"reasoning":0,"cache":{"read":0,"write":0}},"cost":0.5'
EVENTS = (
    EVENT.format("step_start", 1, ""),
    EVENT.format("text", 2, ',"type":"text","text":"done"'),
    EVENT.format("step_finish", 3, f',"type":"step-finish","reason":"stop",{TOKENS}'),
)
SCRIPT = "cat > /dev/null\n" + "".join(f"printf '{event}\\n' $(date +%s%3N)\n" for event in EVENTS)

RETENTION_SEC = 3600
"""The caller collects the outcome, as Paperclip does."""


@dataclass
class Posts:
    """When each Job was posted."""

    at: dict[str, float] = field(default_factory=dict)

    def watch(self, cluster: Cluster) -> None:
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
    with tempfile.TemporaryDirectory() as folder:
        async with (
            await start_temporal() as environment,
            open_system(environment.client, Path(folder)) as system,
            system.worker(),
        ):
            posts = Posts()
            posts.watch(system.kubernetes)
            return [await sample(system, posts) for _ in range(count + 1)][1:]


async def sample(system: System, posts: Posts) -> Sample:
    raw = system.agent(SCRIPT)
    wake, key = system.wake(raw, outcome_retention_sec=RETENTION_SEC), attempt_key(raw)
    started = time.time()
    handle = (await attach(system.temporal, system.settings, wake)).handle(system.temporal)
    await fetch_outcome(handle, collect=True)
    ended = time.time()
    await outcome_at_close(handle)
    last = (await system.events(raw))[-1]
    info = (await handle.describe()).raw_description.workflow_execution_info
    return Sample(
        posts.at[key.job_name] - started,
        ended - last["timestamp"] / 1000,
        info.history_length,
        info.history_size_bytes,
    )


def table(samples: Sequence[Sample]) -> str:
    """Markdown, in milliseconds."""
    rows = {
        "start to Job POST": [sample.to_post for sample in samples],
        "last line to result": [sample.to_result for sample in samples],
    }
    events, sizes = [sample.events for sample in samples], [sample.size for sample in samples]
    return (
        f"{milliseconds(rows)}\n\n| history, the caller's messages included | p50 | most |\n|---|---|---|\n"
        f"| events | {statistics.median(events):.0f} | {max(events)} |\n"
        f"| bytes | {statistics.median(sizes):.0f} | {max(sizes)} |"
    )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50

    async def run() -> None:
        print(table(await measure(count)))

    run_to_end(run)


if __name__ == "__main__":
    main()
