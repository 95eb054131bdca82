"""What a run asks of the API server: little, and nothing over and over."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from tests.runs.system import attempt_key, open_system
from tests.runs.test_hostile_output import ANSWER

REQUESTS_PER_RUN = 12
"""Three of them look for leftovers of earlier runs of the agent; one reads a status that comes before the output."""
SHARED_REQUESTS = 2
"""One list and one watch of pods, for all runs of a worker."""
SCRIPT = f"cat > /dev/null; i=0; while [ $i -lt 30 ]; do echo line $i; sleep 0.1; i=$((i+1)); done; {ANSWER}"
RUNS_AT_A_TIME = 10


def listing(requests: Iterable[tuple[str, str]]) -> str:
    """One line each, for the failure message."""
    return "\n".join(f"{method:6} {path}" for method, path in requests)


def of_single_runs(requests: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that serve one run; the watch and the list before it serve all."""
    return [
        (method, path) for method, path in requests if not re.search(r"/pods\?labelSelector=[^&]*agent-job(&|$)", path)
    ]


async def test_a_run_needs_few_requests(temporal: Client, tmp_path: Path) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        outcome = await system.outcome(system.agent(SCRIPT))
        requests = list(system.embedded.requests)
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"
    assert len(requests) <= REQUESTS_PER_RUN + SHARED_REQUESTS, f"{len(requests)} requests:\n{listing(requests)}"


async def test_runs_at_a_time_share_one_watch(temporal: Client, tmp_path: Path) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        agents = [system.agent(SCRIPT) for _ in range(RUNS_AT_A_TIME)]
        tickets = [await system.start(agent) for agent in agents]
        for ticket in tickets:
            await outcome_at_close(ticket.handle(temporal))
        requests = list(system.embedded.requests)
    shared = Counter(requests) - Counter(of_single_runs(requests))
    assert shared.total() == SHARED_REQUESTS, listing(shared.elements())
    names = [attempt_key(agent).job_name for agent in agents]
    named = Counter(name for _, path in requests for name in names if name in path)
    assert max(named.values()) <= REQUESTS_PER_RUN, listing(requests)
    assert len(of_single_runs(requests)) <= RUNS_AT_A_TIME * REQUESTS_PER_RUN, listing(requests)
