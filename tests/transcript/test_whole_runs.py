"""Whole runs on each dialect: through a killed worker, and through a store that is away for half a minute."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from temporalio.client import Client

from agent_runs.client import links
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.client.transcripts import ServiceTranscripts
from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.tokens import authorization
from tests.runs.system import System, attempt_key, open_system
from tests.support.sqlite import locked
from tests.transcript.event_lines import step_finish, step_start
from tests.transcript.postgres import Postgres, drop_database, make_database
from tests.transcript.stored_runs import stored_runs
from tests.transcript.test_store_outage import killed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
AWAY = timedelta(seconds=31)
"""Longer than SQLite's own time-out for a locked file, which is 30 s."""
WORDS = (
    '{{"type":"text","timestamp":1,"sessionID":"ses_1","part":{{"messageID":"msg_1","type":"text","text":"text {}"}}}}'
)
HALF = 300
START, FINISH = step_start().decode(), step_finish("stop").decode()
Outage = Callable[[], AbstractContextManager[None]]


def talkative(gate: Path) -> str:
    """An agent as OpenCode writes; half of its texts wait for a file."""
    say = f"""say() {{ i=$1; while [ $i -lt $2 ]; do echo '{WORDS.format("'$i'")}'; i=$((i+1)); done; }}"""
    wait = f"until [ -e {gate} ]; do sleep 0.05; done"
    return f"{say}; cat > /dev/null; echo '{START}'; say 0 {HALF}; {wait}; say {HALF} {2 * HALF}; echo '{FINISH}'"


async def stored(system: System, raw: dict[str, object], count: int) -> None:
    """Returns once so many lines of the run are stored."""
    notifier = system.store.notifier(attempt_key(raw))
    while sum(run.lines for run in await stored_runs(system.store)) < count:
        await notifier.wait_for_change(notifier.changes, timedelta(milliseconds=20))


async def page_with(settings: ClientSettings, run: RunKey, words: str, query: str = "") -> str:
    """The run's page, once it contains this: Temporal's list is a moment behind its histories."""
    headers = authorization(links.load_tokens(settings).mint(run))
    async with aiohttp.ClientSession(settings.transcripts_public_url, headers=headers) as http:
        while True:
            async with http.get(f"/runs/{run.name}{query}") as answer:
                if answer.status == 200 and words in (page := await answer.text()):
                    return page
            await asyncio.sleep(0.05)


async def test_a_run_on_postgresql_is_followed_and_shown_through_a_killed_worker(
    temporal: Client, tmp_path: Path, postgres_url: str
) -> None:
    async with open_system(temporal, tmp_path, postgres_url) as system, system.service_process() as settings:
        raw = system.agent(talkative(tmp_path / "gate"))
        ticket = await system.start(raw)
        key = attempt_key(raw)
        base = str(settings.transcripts_public_url)

        async def sealed() -> bool:
            return await system.store.receipt(key) is not None

        async def follow() -> list[int]:
            async with (
                ServiceTranscripts.at(base, settings) as service,
                aclosing(service.follow(key, 0, done=sealed)) as lines,
            ):
                return [line.sequence async for line in lines if line.stream == "stdout"]

        following = asyncio.create_task(follow())
        async with system.worker_process() as worker:
            await stored(system, raw, HALF)
            assert f"text {HALF - 1}" in await page_with(settings, key.run, ">running<")
            worker.kill()
            await worker.wait()
        (tmp_path / "gate").touch()
        async with system.worker_process():
            outcome = await outcome_at_close(ticket.handle(temporal))
            page = await page_with(settings, key.run, ">succeeded<")
            newest = await page_with(settings, key.run, f"text {2 * HALF - 1}", "?at=end")
        seen = await following
        said = await system.stdout(raw)
    assert said == [START.encode(), *(WORDS.format(n).encode() for n in range(2 * HALF)), FINISH.encode()]
    assert seen == sorted(set(seen))
    assert len(seen) == len(said)
    assert outcome.receipt is not None
    assert (outcome.error_code, outcome.receipt.state) == (None, "verified")
    assert "verified" in page
    assert "text 0<" in page
    assert "stop" in newest


@pytest.fixture(params=["sqlite", "postgresql"])
async def fragile(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[str, Outage]]:
    """A place for a store, and how to take it away."""
    if request.param == "sqlite":
        file = tmp_path / "fragile.db"
        yield f"sqlite:///{file}", lambda: locked(file)
        return
    server: Postgres = request.getfixturevalue("postgres")
    await make_database(server.url(), "whole-runs")
    yield server.url("whole-runs"), lambda: killed(server)
    await drop_database(server.url(), "whole-runs")


async def test_a_run_outlives_an_outage_of_the_store_of_half_a_minute(
    temporal: Client, tmp_path: Path, fragile: tuple[str, Outage]
) -> None:
    url, outage = fragile
    stop = tmp_path / "stop"
    async with open_system(temporal, tmp_path, url) as system, system.worker_process():
        count = f"i=0; until [ -e {stop} ]; do echo line $i; i=$((i+1)); sleep 0.01; done"
        raw = system.agent(f"cat > /dev/null; {count}; echo '{START}'; echo '{FINISH}'")
        ticket = await system.start(raw)
        await stored(system, raw, 100)
        with outage():
            before = asyncio.get_running_loop().time()
            await asyncio.sleep(AWAY.total_seconds())
        away = asyncio.get_running_loop().time() - before
        at_its_end = len(await system.stdout(raw))
        await stored(system, raw, at_its_end + 1)
        stop.touch()
        outcome = await outcome_at_close(ticket.handle(temporal))
        *numbers, start, finish = await system.stdout(raw)
    assert away > 30
    assert numbers == [b"line %d" % number for number in range(len(numbers))]
    assert len(numbers) > at_its_end > 100 - 1
    assert (start, finish) == (START.encode(), FINISH.encode())
    assert outcome.receipt is not None
    assert (outcome.error_code, outcome.receipt.state, outcome.receipt.gaps) == (None, "verified", ())
