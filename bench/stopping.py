"""How long a cancel takes: until the agent's process has ended, and until the caller has the answer.

The agent writes the time as it ends. `python -m bench.stopping [RUNS]` prints a Markdown table.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from agent_runs.client.connection import run_to_end
from agent_runs.client.outcome import cancel
from agent_runs.contracts.identity import AttemptKey
from bench.overhead import milliseconds
from bench.system import System, system

SCRIPT = "#!/bin/sh\ncat > /dev/null\ntrap 'date +%s.%N; exit 143' TERM\necho hello\nwhile :; do sleep 0.02; done\n"


@dataclass(frozen=True)
class Sample:
    """Seconds from the cancel's request."""

    to_end: float
    to_answer: float


async def sample(environment: System) -> Sample:
    """One run, cancelled once its first line is stored."""
    wake = environment.wake()
    ticket, key = await environment.start(wake), AttemptKey(run=wake.key)
    notifier = environment.store.notifier(key)
    while not await environment.store.last(key):
        await notifier.wait_for_change(notifier.changes, timedelta(seconds=1))
    began = time.time()
    answer = await cancel(ticket.handle(environment.client), "bench")
    ended = time.time()
    if not answer.stop.agent_stopped:
        raise RuntimeError(f"the agent did not stop: {answer}")
    lines = [line for line in await environment.store.read(key) if line.stream == "stdout"]
    return Sample(float(lines[-1].data) - began, ended - began)


def table(samples: Sequence[Sample]) -> str:
    """Markdown, in milliseconds."""
    rows = {
        "cancel to the agent's end": [each.to_end for each in samples],
        "cancel to the caller's answer": [each.to_answer for each in samples],
    }
    return milliseconds(rows)


def main() -> None:
    """Prints the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20

    async def run() -> None:
        async with system(SCRIPT) as environment:
            await sample(environment)  # warms up and does not count
            print(table([await sample(environment) for _ in range(count)]))

    run_to_end(run)


if __name__ == "__main__":
    main()
