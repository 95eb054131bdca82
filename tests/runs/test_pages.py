"""The page of a real run: run info from a real Temporal, output through the embedded cluster."""

import asyncio
import json
import re
import shlex
from datetime import timedelta
from decimal import Decimal
from urllib.parse import urlencode

import aiohttp
import pytest

from agent_runs.client import links
from agent_runs.client.outcome import cancel, outcome_at_close
from agent_runs.contracts.errors import MessageNotDelivered
from agent_runs.logs import usage
from agent_runs.service.settings import WorkerSettings
from agent_runs.transcript.tokens import authorization
from agent_runs.web.run_info import TemporalRunInfo
from agent_runs.web.serving import transcript_service
from tests.runs.system import System, attempt_key, replay_script

MESSAGE = "6f0c4c4e-5b0e-4d53-9f3f-2f4d0b5d8a51"


def with_page(system: System) -> WorkerSettings:
    """The system's settings with an HTTP address and Temporal's Web UI."""
    addresses = {"transcripts_listen": "127.0.0.1:0", "web_ui": "http://127.0.0.1:8233"}
    return system.settings.model_copy(update=addresses)


async def test_the_page_of_a_finished_run_shows_its_outcome(system: System) -> None:
    raw = system.agent(replay_script("tool-bash"))
    ticket = await system.start(raw)
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    settings = with_page(system)
    async with transcript_service(settings, system.store, TemporalRunInfo(system.temporal, settings)) as base:
        run = attempt_key(raw).run
        headers = authorization(links.load_tokens(settings).mint(run))
        async with aiohttp.ClientSession(headers=headers) as http:
            page = await _text(http, f"{base}/runs/{run.name}")
            while "succeeded" not in page:  # Temporal's list is a moment behind its histories
                await asyncio.sleep(0)
                page = await _text(http, f"{base}/runs/{run.name}")
    assert "The command printed its greeting." in page
    assert "hello-from-bash" in page
    assert str(outcome.session_id) in page
    assert f"{outcome.usage.input_tokens if outcome.usage else 0:,} in" in page
    assert "verified" in page
    for step in ("reading the worker&#39;s pod", "creating the Job", "following the agent&#39;s output", "judging"):
        assert step in page
    assert "gets messages (agent-runs tell): as its next prompt" in page  # its transport is the command line
    assert re.search(r'href="http://127.0.0.1:8233/namespaces/default/workflows/agent-run%3A', page)


async def test_the_page_of_a_run_shows_only_that_run_of_its_agent(system: System) -> None:
    raw = system.agent(replay_script("text-stdin"))
    await system.outcome(raw)
    runs = TemporalRunInfo(system.temporal, system.settings)
    run = attempt_key(raw).run
    assert await runs.run_info(run) is not None
    for other in ({"run_id": run.agent_id}, {"agent_id": run.run_id}):
        assert await runs.run_info(run.model_copy(update=other)) is None
    for field in ("run_id", "agent_id"):
        assert await runs.run_info(run.model_copy(update={field: "no' OR RunPhase = 'succeeded"})) is None


async def test_the_list_has_a_finished_run_with_exactly_the_usage_of_its_outcome(system: System) -> None:
    raw = system.agent(replay_script("tool-bash"))
    outcome = await system.outcome(raw)
    token = system.programs / "operator-token"
    token.write_text("0123456789" * 4)
    settings = with_page(system).model_copy(update={"operator_token_file": token})
    wanted = {"company": raw["agent"]["companyId"], "search": raw["runId"]}
    async with (
        transcript_service(settings, system.store, TemporalRunInfo(system.temporal, settings)) as base,
        aiohttp.ClientSession(headers=authorization(token.read_text())) as http,
    ):
        url = f"{base}/runs?{urlencode(wanted)}"
        while not (rows := json.loads(await _text(http, url))["runs"]) or rows[0]["phase"] != "succeeded":  # noqa: ASYNC110 (Temporal's list is a moment behind)
            await asyncio.sleep(0)
    (row,) = rows
    known = row["usage"]
    assert outcome.usage is not None
    assert (known["inputTokens"], known["cachedInputTokens"], known["outputTokens"]) == (
        outcome.usage.input_tokens,
        outcome.usage.cached_input_tokens,
        outcome.usage.output_tokens,
    )
    assert known["costUsd"] is not None
    assert Decimal(known["costUsd"]) == outcome.cost_usd
    assert known["lastOutput"] == "The command printed its greeting."
    assert (row["runId"], row["model"], row["failureCode"]) == (raw["runId"], raw["config"]["model"], None)


async def test_the_store_has_the_usage_of_an_agent_that_is_at_work_and_silent(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "RECORD_INTERVAL", timedelta(milliseconds=50))
    step = {"id": "p", "reason": "tool-calls", "cost": 0.25, "tokens": {"input": 100, "output": 7}}
    event = json.dumps({"type": "step_finish", "sessionID": "ses_1", "part": step})
    raw = system.agent(f"echo {shlex.quote(event)}; exec sleep 600")
    ticket = await system.start(raw)
    async with asyncio.timeout(60):
        usage_of, run = system.store.fleet.usage, attempt_key(raw).run.name
        while not (found := await usage_of([run])) or not found[run].tokens:  # noqa: ASYNC110 (no event)
            await asyncio.sleep(0.05)
    known = found[run]
    assert (known.tokens, known.steps, known.cost_usd, known.model) == (107, 1, Decimal("0.25"), raw["config"]["model"])
    assert not known.sealed
    await cancel(ticket.handle(system.temporal), "enough")


async def test_the_page_says_why_a_message_was_not_delivered(system: System) -> None:
    raw = system.agent("exec sleep 600")
    ticket = await system.start(raw)
    with pytest.raises(MessageNotDelivered, match="its session ends with its pod"):
        await TemporalRunInfo(system.temporal, system.settings).tell(attempt_key(raw).run, "go on", "ada", MESSAGE)
    await cancel(ticket.handle(system.temporal), "enough")


async def test_a_link_opens_the_service_it_was_made_for(system: System) -> None:
    raw = system.agent(replay_script("reasoning"))
    await system.outcome(raw)
    settings = with_page(system)
    async with transcript_service(settings, system.store, TemporalRunInfo(system.temporal, settings)) as base:
        public = settings.model_copy(update={"transcripts_public_url": base})
        link = links.page_url(public, attempt_key(raw).run)
        assert link is not None
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
            assert "refresh" in await _text(browser, link)
            assert "The answer is 42." in await _text(browser, link.partition("?")[0])


async def _text(http: aiohttp.ClientSession, url: str) -> str:
    async with http.get(url) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()
