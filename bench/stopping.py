"""How long a cancel takes: until the agent's process has ended, and until the caller has the answer.

The agent writes the time as it ends. `python -m bench.stopping [RUNS]` prints a Markdown table.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_runs.client.connection import run_to_end
from agent_runs.client.outcome import cancel
from bench.reports import milliseconds
from tests.runs.system import System, open_system
from tests.support.temporal import start_temporal

SCRIPT = "cat > /dev/null\ntrap 'date +%s.%N; exit 143' TERM\necho hello\nwhile :; do sleep 0.02; done\n"


@dataclass(frozen=True)
class Sample:
    """Seconds from the cancel's request."""

    to_end: float
    to_answer: float


async def sample(system: System) -> Sample:
    """One run, cancelled once its first line is stored."""
    raw = system.agent(SCRIPT)
    ticket = await system.start(raw)
    await system.until_stored(raw)
    began = time.time()
    answer = await cancel(ticket.handle(system.temporal), "bench")
    ended = time.time()
    if not answer.stop.agent_stopped:
        raise RuntimeError(f"the agent did not stop: {answer}")
    return Sample(float((await system.stdout(raw))[-1]) - began, ended - began)


def table(samples: Sequence[Sample]) -> str:
    """Markdown, in milliseconds."""
    rows = {
        "cancel to the agent's end": [each.to_end for each in samples],
        "cancel to the caller's answer": [each.to_answer for each in samples],
    }
    return milliseconds(rows)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with (
                await start_temporal() as environment,
                open_system(environment.client, Path(folder)) as system,
                system.worker(),
            ):
                await sample(system)  # warms up and does not count
                print(table([await sample(system) for _ in range(count)]))

    run_to_end(run)


if __name__ == "__main__":
    main()
