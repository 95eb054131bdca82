"""How soon a caller has the result of an agent on a real cluster: from its last line, and from its container's end.

    KUBECONFIG=... python -m bench.last_line IMAGE [RUNS]

The whole stack for that cluster; one run after another of an agent whose image, a real OpenCode, talks to the scripted
model. The last line has OpenCode's own time; node and caller are the same machine.
"""

import json
import os
import sys
import tempfile
import time
import uuid
from datetime import timedelta
from pathlib import Path

from agent_runs.client.attach import attach
from agent_runs.client.connection import run_to_end
from agent_runs.client.outcome import fetch_outcome, outcome_at_close
from agent_runs.client.wake import build_wake
from agent_runs.contracts.identity import AttemptKey
from agent_runs.paperclip.sealing import Sealer, load_or_create
from agent_runs.transcript.store import TranscriptStore
from bench.reports import machine, milliseconds
from dev_stack import demo
from dev_stack.plan import Plan, Ports
from dev_stack.stack import Stack

RESOURCES = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}
RETENTION = timedelta(hours=1)


async def measure(stack: Stack, store: TranscriptStore, count: int) -> dict[str, list[float]]:
    """Seconds of each run; the first warms up and does not count."""
    rows: dict[str, list[float]] = {"last line to result": [], "start to result": [], "result to close": []}
    sealer = Sealer(load_or_create(stack.settings.sealing_key_file)[0].public)
    for number in range(count + 1):
        raw = demo.context("text", str(uuid.uuid4()))
        raw["config"]["resources"] = RESOURCES
        wake = build_wake(raw, sealer, outcome_retention_sec=int(RETENTION.total_seconds()))
        began = time.time()
        handle = (await attach(stack.client, stack.settings, wake)).handle(stack.client)
        outcome = await fetch_outcome(handle, collect=True)
        ended = time.time()
        await outcome_at_close(handle)
        closed = time.time()
        if outcome.failure is not None:
            raise SystemExit(f"the run failed: {outcome.error_message}")
        lines = [line for line in await store.read(AttemptKey(run=wake.key)) if line.stream == "stdout"]
        last = json.loads(lines[-1].data)["timestamp"] / 1000
        if number:
            for name, value in zip(rows, (ended - last, ended - began, closed - ended), strict=True):
                rows[name].append(value)
    return rows


def main() -> None:
    image, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            plan = Plan(Path(folder), Ports(), Path(os.environ["KUBECONFIG"]), image, None)
            async with Stack.up(plan) as stack:
                store = await TranscriptStore.open(stack.settings.transcripts)
                try:
                    rows = await measure(stack, store, count)
                finally:
                    await store.close()
        print(f"{machine()}\n{milliseconds(rows)}")

    run_to_end(run)


if __name__ == "__main__":
    main()
