"""What a run asks of the API server: little, and nothing over and over."""

import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import TimeoutType
from temporalio.client import Client, WorkflowHandle

from activities import await_schedule, finish
from agent_runs.client.outcome import outcome_at_close
from tests.runs.system import open_system
from tests.runs.test_hostile_output import ANSWER
from tests.support.ends import assert_verified

REQUESTS_PER_RUN = 12
"""Three of them look for leftovers of earlier runs of the agent; one reads a status that comes before the output."""
CREATED = {"jobs": 1, "secrets": 2}
"""Objects of one run. All runs create them by the same path."""
SHARED_REQUESTS = 2
"""One list and one watch of pods, for all runs of a worker."""
CONFIRMATION = re.compile(r"/pods\?labelSelector=job-name%3D")
"""A Job's pods are listed when the watch has shown none for two seconds, since its silence proves nothing. On a busy
node the Job controller takes longer than that."""
SCRIPT = f"cat > /dev/null; i=0; while [ $i -lt 30 ]; do echo line $i; sleep 0.1; i=$((i+1)); done; {ANSWER}"
RUNS_AT_A_TIME = 10


@pytest.fixture(autouse=True)
def _every_pod_starts_and_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may be slow: what is read of a pod that does not start is not counted, nor the deletion
    of one whose sidecar does not end in its grace."""
    monkeypatch.setattr(await_schedule, "FIRST_POLL_DELAY", timedelta(hours=1))
    monkeypatch.setattr(finish, "SIDECAR_GRACE", timedelta(hours=1))


def listing(requests: Iterable[tuple[str, str]]) -> str:
    """One line each, for the failure message."""
    return "\n".join(f"{method:6} {path}" for method, path in requests)


def of_single_runs(requests: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Those that serve one run; the watch and the list before it serve all."""
    return [
        (method, path) for method, path in requests if not re.search(r"/pods\?labelSelector=[^&]*agent-job(&|$)", path)
    ]


def assert_few(requests: list[tuple[str, str]], runs: int) -> None:
    """Each request is made once, and there are few of them; all runs share the watch."""
    single = Counter(each for each in of_single_runs(requests) if not CONFIRMATION.search(each[1]))
    assert (Counter(requests) - Counter(of_single_runs(requests))).total() == SHARED_REQUESTS, listing(requests)
    for kind, count in CREATED.items():
        (path,) = [path for method, path in single if method == "POST" and path.endswith(f"/{kind}")]
        assert single.pop(("POST", path)) == count * runs, listing(requests)
    assert [each for each, count in single.items() if count > 1] == [], listing(requests)
    assert single.total() <= runs * (REQUESTS_PER_RUN - sum(CREATED.values())), listing(requests)


async def test_a_run_needs_few_requests(temporal: Client, tmp_path: Path) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        outcome = await system.outcome(system.agent(SCRIPT))
        requests = list(system.embedded.requests)
    assert_verified(outcome)
    assert_few(requests, 1)


async def test_runs_at_a_time_share_one_watch(temporal: Client, tmp_path: Path) -> None:
    for count in range(3):
        (folder := tmp_path / str(count)).mkdir()
        async with open_system(temporal, folder) as system, system.worker():
            agents = [system.agent(SCRIPT) for _ in range(RUNS_AT_A_TIME)]
            handles = [(await system.start(agent)).handle(temporal) for agent in agents]
            for handle in handles:
                await outcome_at_close(handle)
            requests = list(system.embedded.requests)
        if not any([await missed_a_heartbeat(handle) for handle in handles]):
            break  # else the machine stood still, and Temporal has repeated a step: counted again
    assert_few(requests, RUNS_AT_A_TIME)


async def missed_a_heartbeat(handle: WorkflowHandle[Any, Any]) -> bool:
    events = (await handle.fetch_history()).events
    ends = [event.activity_task_started_event_attributes.last_failure.timeout_failure_info for event in events]
    return any(end.timeout_type == TimeoutType.TIMEOUT_TYPE_HEARTBEAT for end in ends)
