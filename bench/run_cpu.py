"""What a run costs its worker: CPU of a worker process for runs of 150 lines that go on at the same time.

The agents are shell scripts that write OpenCode's events for half a minute, in the embedded cluster; everything but the
worker is in this process. `python -m bench.run_cpu [RUNS]` prints a table.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from agent_runs.client.connection import run_to_end
from bench.overhead import EVENTS
from bench.reports import cpu_seconds, machine
from tests.runs.system import System, open_system
from tests.support.temporal import start_temporal

LINES = 150
STEP = "".join(f"printf '{event}\\n' $(date +%s%3N); sleep 0.2\n" for event in EVENTS)
SCRIPT = f"cat > /dev/null\nfor step in $(seq {LINES // len(EVENTS)}); do\n{STEP}done"


async def runs(system: System, count: int) -> int:
    """So many runs at the same time; how many lines were stored."""
    agents = [system.agent(SCRIPT) for _ in range(count)]
    outcomes = await asyncio.gather(*map(system.outcome, agents))
    assert all(outcome.receipt and outcome.receipt.state == "verified" for outcome in outcomes)
    return sum(outcome.receipt.lines for outcome in outcomes if outcome.receipt)


async def measure(count: int) -> tuple[float, float, int]:
    """CPU seconds of the worker during the runs, those of as long without any, and lines."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            await start_temporal() as environment,
            open_system(environment.client, Path(folder)) as system,
            system.worker_process() as worker,
        ):
            loop = asyncio.get_running_loop()
            await runs(system, 1)  # imports, connections, caches
            before, began = cpu_seconds(worker.pid), loop.time()
            lines = await runs(system, count)
            used, took = cpu_seconds(worker.pid) - before, loop.time() - began
            before = cpu_seconds(worker.pid)
            await asyncio.sleep(took)
            return used, cpu_seconds(worker.pid) - before, lines


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10

    async def run() -> None:
        used, idle, lines = await measure(count)
        print("| runs at a time | lines each | worker, CPU s per run | of which an idle worker's |\n|---|---|---|---|")
        print(f"| {count} | {lines // count} | {used / count:.2f} | {idle / count:.2f} |")
        print(f"\n{machine()}.")

    run_to_end(run)


if __name__ == "__main__":
    main()
