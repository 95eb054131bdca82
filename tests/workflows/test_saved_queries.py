"""Each saved query of docs/temporal.md finds exactly the runs that its name says, in a real visibility store."""

import asyncio
import re
import uuid
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio.client import Client

from agent_runs.client.attach import attach
from agent_runs.client.outcome import cancel, fetch_outcome, outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.errors import ProviderQuota
from agent_runs.contracts.identity import CHECK_WORKFLOW_TYPE
from agent_runs.contracts.outcome import Report
from dev_stack.plan import ROOT
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import FakeActivities, FakeAgent, answer_with
from tests.workflows.fake_worker import Handle, Start, configured, reached, running_worker

EXPECTED: Final = {
    "work now, or wait for a worker": {"works", "queued"},
    "no worker has begun them": {"queued"},
    "ended, and kept for the next wake": {"kept", "failed and kept"},
    "failed or timed out since then": {"failed", "failed and kept", "timed out"},
    "one kind of failure": {"failed", "failed and kept"},
    "cancelled": {"cancelled"},
    "closed without an outcome": {"terminated"},
}


def saved_queries(now: datetime) -> dict[str, str]:
    """The queries of the page by their names; the day in it is replaced by the last hour."""
    text = (ROOT / "docs/temporal.md").read_text()
    table = text.partition("Saved queries for the Web UI")[2].partition("\n## ")[0]
    since = (now - timedelta(hours=1)).isoformat(timespec="seconds")
    return {
        name: re.sub(r"'2026[^']*'", f"'{since}'", query) for name, query in re.findall(r"\| (.+) \| `(.+)` \|", table)
    }


def over_quota(_input: object) -> Report:
    return Report(failure=ProviderQuota.as_failure("the limit is reached"), exit_code=1)


class Runs:
    """Runs by their names, each of an agent of its own."""

    def __init__(self, temporal: Client, request: FakeRequest) -> None:
        self._temporal = temporal
        self._request = request
        self.names: dict[str, str] = {}

    def request(self, name: str, retention: int = 0) -> FakeRequest:
        agent = self._request.agent.model_copy(update={"id": str(uuid.uuid4())})
        ids = {"agent": agent, "run_id": str(uuid.uuid4()), "outcome_retention_sec": retention}
        self.names[f"agent-run:{agent.id}"] = name
        return self._request.model_copy(update=ids)

    async def found(self, query: str) -> set[str]:
        return {self.names[run.id] async for run in self._temporal.list_workflows(query) if run.id in self.names}

    async def unserved(self, name: str) -> Handle:
        """A run that no worker takes."""
        ticket = await attach(self._temporal, ClientSettings(task_queue="nobody"), self.request(name).wake)
        return ticket.handle(self._temporal)

    async def check(self) -> str:
        """A check of a configuration, which is no run and which no worker takes; its workflow's id."""
        name = f"check:{uuid.uuid4()}"
        self.names[name] = "a check"
        await self._temporal.start_workflow(CHECK_WORKFLOW_TYPE, id=name, task_queue="nobody")
        return name


async def kept(handle: Handle) -> Handle:
    await fetch_outcome(handle, collect=False)
    return handle


async def test_each_saved_query_finds_the_runs_that_it_names(temporal: Client, request_of_a_run: FakeRequest) -> None:
    runs = Runs(temporal, request_of_a_run)
    over = FakeActivities({"parse_transcript": answer_with(over_quota)})
    agents = [FakeAgent(), FakeAgent(), FakeAgent()]
    async with AsyncExitStack() as workers:

        async def worker(steps: FakeActivities) -> Start:
            return await workers.enter_async_context(running_worker(temporal, f"queue-{uuid.uuid4()}", steps))

        succeed, fail = await worker(FakeActivities()), await worker(over)
        late, cancelled, works = [await worker(FakeActivities(agent.answers)) for agent in agents]
        await outcome_at_close(await succeed(runs.request("succeeded")))
        await outcome_at_close(await fail(runs.request("failed")))
        await outcome_at_close(await late(configured(runs.request("timed out"), timeout_sec=1)))
        ended = [await kept(await succeed(runs.request("kept", 3600)))]
        ended.append(await kept(await fail(runs.request("failed and kept", 3600))))
        await cancel(await cancelled(runs.request("cancelled")), "wrong branch")
        working = await works(runs.request("works"))
        await reached(agents[2].started)
        queued, terminated = await runs.unserved("queued"), await runs.unserved("terminated")
        await terminated.terminate("by hand")
        check = await runs.check()
        queries = saved_queries(datetime.now(UTC))
        assert queries.keys() == EXPECTED.keys()
        found: dict[str, set[str]] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(60):  # Temporal lists a change a moment after it
                while found != EXPECTED:
                    found = {name: await runs.found(query) for name, query in queries.items()}
        assert found == EXPECTED
        for handle in ended:
            await fetch_outcome(handle, collect=True)
        await cancel(working, "the test ends")
        await queued.terminate("the test ends")
        await temporal.get_workflow_handle(check).terminate("the test ends")
