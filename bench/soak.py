"""What many wakes of one agent leave behind: memory and open files of its server and its sidecar.

The agent is the real OpenCode with the scripted model, in the embedded cluster. `python -m bench.soak [WAKES]` prints a
line every so often; each wake must end with the answer of its own task, and two tasks take turns. A server ends after a
number of turns (`agent_runs.pod.sidecar.driving.MAX_TURNS`), and its pod with it.
"""

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from agent_runs.client.connection import run_to_end
from agent_runs.contracts.outcome import Outcome
from bench.reports import machine
from bench.wake import Bench, open_bench
from dev_stack.demo import later_context
from tests.runs.real_opencode import opencode_agent

TASKS: Final = 2
SHARED_DATABASE: dict[str, Any] = {"agentDbMode": "dedicated_pvc", "agentDbStorageClass": "standard"}
"""So that all tasks of the agent can have one pod; by default each has a folder of its own for its sessions."""
LINES: Final = 20


def usage(*words: bytes) -> tuple[int, int]:
    """Resident MB and open files of the processes with these words in their command line."""
    pages = files = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if all(word in line for word in words):
                files += sum(1 for _ in (folder / "fd").iterdir())
                pages += int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 10**6, files


def task(raw: Mapping[str, Any], number: int) -> dict[str, Any]:
    """The agent's context for another of its tasks."""
    key = {"taskKey": str(uuid.UUID(int=number + 1))}
    context = {**raw["context"], **key, "taskId": key["taskKey"]}
    return {**raw, "runtime": {**raw["runtime"], **key}, "context": context}


async def soak(bench: Bench, wakes: int) -> None:
    """Wake the agent so often and print what it uses."""
    raw = await opencode_agent(bench.system, "text:0", transport="serve", keepWarmSec=300, **SHARED_DATABASE)
    tasks = [task(raw, number) for number in range(TASKS)]
    last: list[Outcome | None] = [None] * TASKS
    pods = set[str]()
    print("| wakes | pods | s of each wake | server MB | server files | sidecar MB | sidecar files |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    began, every = time.monotonic(), max(wakes // LINES, 1)
    for number in range(1, wakes + 1):
        place = number % TASKS
        before = last[place]
        tasks[place] = later_context(tasks[place], before.session_params if before else None)
        outcome = await bench.system.outcome(tasks[place])
        assert (outcome.failure, len(outcome.attempts)) == (None, 1), outcome
        assert before is None or outcome.session_id == before.session_id, "a task has lost its session"
        last[place] = outcome
        pods.add(outcome.attempts[0].job_name or "")
        if number % every == 0:
            each, began = (time.monotonic() - began) / every, time.monotonic()
            columns = (number, len(pods), f"{each:.2f}", *usage(b"opencode\0serve"), *usage(b"sidecar.pyz\0run"))
            print(f"| {' | '.join(map(str, columns))} |", flush=True)
    assert len({outcome.session_id for outcome in last if outcome}) == TASKS, "two tasks have one session"


def main() -> None:
    wakes = int(sys.argv[1]) if len(sys.argv) > 1 else 500

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with open_bench(Path(folder)) as bench:
                await soak(bench, wakes)
        print(f"\n{machine()}.")

    run_to_end(run)


if __name__ == "__main__":
    main()
