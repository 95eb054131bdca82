"""How long the slowest of many wakes waits for its ticket, when all come at once: `python -m bench.attaches [WAKES]`.

The first has started a run whose agent works; half of the others are of its task and want to join it, half are not.
Temporal is the dev server; the worker is in this process, with fake activities, and so are the callers.
"""

import asyncio
import sys
import time
import uuid
from collections import Counter
from typing import Final

from agent_runs.client.attach import JOIN_TIMEOUT, Ticket, attach
from agent_runs.client.connection import run_to_end
from agent_runs.client.outcome import fetch_outcome
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.request import AgentRef, RunConfig, WakeContext
from tests.support.requests import FakeRequest
from tests.support.temporal import start_temporal
from tests.workflows.fake_activities import FakeActivities, FakeAgent
from tests.workflows.fake_worker import reached, running_worker

WAKES: Final = 400
QUEUE: Final = "bench"


def wake(agent: str, task: str) -> FakeRequest:
    """A wake with an id like Paperclip's."""
    return FakeRequest(
        run_id=str(uuid.uuid4()),
        agent=AgentRef(id=agent, company_id="acme", name="Ada"),
        config=RunConfig(model="fake/scenario/text"),
        context=WakeContext(task_id=task),
    )


async def main() -> None:
    number = int(sys.argv[1]) if len(sys.argv) > 1 else WAKES
    agent, settings, name = FakeAgent(), ClientSettings(task_queue=QUEUE), str(uuid.uuid4())
    async with await start_temporal() as environment:
        client = environment.client

        async def timed(request: FakeRequest) -> tuple[Ticket, float]:
            began = time.monotonic()
            return await attach(client, settings, request.wake), time.monotonic() - began

        async with running_worker(client, QUEUE, FakeActivities(agent.answers), replays=False) as start:
            handle = await start(wake(name, "task"))
            await reached(agent.started)
            requests = [wake(name, ("task", "another")[n % 2]) for n in range(number)]
            answers = await asyncio.gather(*map(timed, requests))
            await agent.end()
            await fetch_outcome(handle, collect=True)
    kinds = Counter((ticket.kind, ticket.holder.note if ticket.holder else None) for ticket, _ in answers)
    for (kind, note), count in kinds.most_common():
        print(f"{count:4} {kind}{f': {note}' if note else ''}")
    slowest = max(seconds for _, seconds in answers)
    print(f"slowest ticket {slowest:.1f} s; a join waits {JOIN_TIMEOUT.total_seconds():g} s")


if __name__ == "__main__":
    run_to_end(main)
