"""The page of a real run: facts from a real Temporal, output through the embedded cluster."""

import asyncio
import re

import aiohttp

from client import links
from client.settings import WorkerSettings
from tests.conftest import FIXTURES
from tests.runs.ground import Ground, attempt_key
from tests.runs.test_whole_runs import replay
from transcripts.access import headers
from web.facts import TemporalRuns
from web.serving import transcript_service


def served(system: Ground) -> WorkerSettings:
    """The system's settings with a page."""
    known = {"transcripts_listen": "127.0.0.1:0", "web_ui": "http://127.0.0.1:8233"}
    return system.settings.model_copy(update=known)


async def test_the_page_of_a_finished_run_tells_what_came_of_it(system: Ground) -> None:
    raw = system.agent(replay("tool-bash"))
    ticket = await system.start(raw)
    outcome = await ticket.handle(system.temporal).result()
    settings = served(system)
    async with transcript_service(settings, system.store, TemporalRuns(system.temporal, settings)) as base:
        run_id = raw["runId"]
        admitted = headers(links.tokens(settings).mint(run_id))
        async with aiohttp.ClientSession(headers=admitted) as http:
            page = await _text(http, f"{base}/runs/{run_id}")
            while "succeeded" not in page:  # Temporal's list is a moment behind its histories
                await asyncio.sleep(0)
                page = await _text(http, f"{base}/runs/{run_id}")
    assert "The command printed its greeting." in page
    assert "hello-from-bash" in page
    assert str(outcome.session_id) in page
    assert f"{outcome.usage.input_tokens if outcome.usage else 0:,} in" in page
    assert "verified" in page
    for step in ("introspect pod", "create job", "stream logs", "parse transcript", "finish"):
        assert step in page
    assert re.search(r'href="http://127.0.0.1:8233/namespaces/default/workflows/agent-run%3A', page)


async def test_the_page_of_a_run_shows_only_that_run_of_its_agent(system: Ground) -> None:
    raw = system.agent(replay("text-stdin"))
    await system.outcome(raw)
    runs = TemporalRuns(system.temporal, system.settings)
    assert await runs.facts(raw["agent"]["id"]) is None
    assert await runs.facts("no' OR RunPhase = 'succeeded") is None


async def test_a_link_opens_the_service_it_was_made_for(system: Ground) -> None:
    raw = system.agent(f"cat > /dev/null\ncat {FIXTURES / 'opencode' / 'reasoning' / 'events.jsonl'}")
    await system.outcome(raw)
    settings = served(system)
    async with transcript_service(settings, system.store, TemporalRuns(system.temporal, settings)) as base:
        public = settings.model_copy(update={"transcripts_public_url": base})
        link = links.page(public, attempt_key(raw).run.run_id)
        assert link is not None
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            assert "refresh" in await _text(browser, link)
            assert "The answer is 42." in await _text(browser, link.partition("?")[0])


async def _text(http: aiohttp.ClientSession, url: str) -> str:
    async with http.get(url) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()
