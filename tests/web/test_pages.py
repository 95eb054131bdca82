"""The page of a run over real HTTP."""

import asyncio
import json
import random
import re
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_runs.client import links
from agent_runs.client.names import Names
from agent_runs.client.obstacles import Obstacle
from agent_runs.client.settings import ClientSettings
from agent_runs.client.timeline import Step
from agent_runs.contracts.errors import PodScheduleFailed
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.outcome import AttemptReport, Gap, Outcome, OutputReceipt, Peaks, Usage
from agent_runs.transcript.fold import Fold
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.tokens import authorization
from agent_runs.web.render import Templates
from agent_runs.web.run_view import RunView
from agent_runs.web.serving import application
from agent_runs.web.usage import AttemptProgress, AttemptUsage
from tests.support.cases import case
from tests.web.parts import (
    KEY,
    NOON,
    RUN,
    FakeRunInfo,
    Site,
    answered,
    event,
    hostile,
    key,
    line,
    run_info,
    site,
    text_event,
    tool,
)

PAGE = f"/runs/{RUN}"
HTML = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


def on(page: str) -> list[int]:
    """The lines that are on a page."""
    return [int(found) for found in re.findall(r'<li class="entry[^"]*" id="line-(\d+)">', page)]


# access


async def test_a_link_becomes_a_cookie_for_this_run_alone_and_leaves_the_address(here: Site) -> None:
    await here.store.append(key(), [line(1, text_event("hello"))])
    async with aiohttp.ClientSession(here.base) as browser, browser.get(here.link) as answer:
        assert answer.status == 200
        cookie = SimpleCookie(answer.headers["Set-Cookie"])["agent-runs-token"]
        assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == (PAGE, True, "strict")
        assert f'content="0; url={RUN}"' in await answer.text()
        assert "hello" not in await answer.text()
        async with aiohttp.ClientSession(here.base, cookies={cookie.key: cookie.value}) as returning:
            for path in (PAGE, f"{PAGE}/attempts", f"{PAGE}/transcript"):
                async with returning.get(path) as page:
                    assert page.status == 200
            async with returning.get("/runs/ada~run-2") as other:
                assert other.status == 403


async def test_a_cookie_of_a_published_service_is_kept_to_its_path_and_to_https(tmp_path: Path) -> None:
    async with site(tmp_path, transcripts_public_url="https://runs.example/here/") as made:
        async with made.http.get(f"{PAGE}?open={made.token()}") as answer:
            cookie = SimpleCookie(answer.headers["Set-Cookie"])["agent-runs-token"]
        assert (cookie["path"], cookie["secure"]) == (f"/here{PAGE}", True)


@pytest.mark.parametrize("path", [f"{PAGE}?open=", PAGE, f"{PAGE}/live"])
async def test_a_revoked_link_opens_nothing_and_sets_nothing(here: Site, path: str) -> None:
    await here.store.append(key(), [line(1, text_event("hello"))])
    await here.store.revoke_links(RunKey.named(RUN), datetime.now(UTC))
    async with here.http.get(path + here.token() if path.endswith("=") else path, headers=HTML) as answer:
        assert answer.status == 401
        assert "Set-Cookie" not in answer.headers
        text = await answer.text()
    assert "was revoked" in text
    assert "hello" not in text


async def test_a_link_lives_no_longer_than_the_transcripts(tmp_path: Path) -> None:
    async with site(tmp_path, transcript_retention_days="1") as made, made.http.get(made.link) as answer:
        cookie = SimpleCookie(answer.headers["Set-Cookie"])["agent-runs-token"]
    expiry = parsedate_to_datetime(cookie["expires"])
    assert expiry <= datetime.now(UTC) + timedelta(days=1)


@pytest.mark.parametrize("path", [PAGE, f"{PAGE}/live", f"{PAGE}/transcript"])
async def test_a_request_without_a_link_is_refused_with_the_reason(here: Site, path: str) -> None:
    async with aiohttp.ClientSession(here.base) as stranger:
        async with stranger.get(path) as answer:
            assert (answer.status, answer.content_type) == (401, "application/json")
        async with stranger.get(path, headers=HTML) as answer:
            assert (answer.status, answer.content_type) == (401, "text/html")
            assert "This page needs its link" in await answer.text()


async def test_a_link_of_another_run_is_refused_and_sets_nothing(here: Site) -> None:
    async with aiohttp.ClientSession(here.base) as stranger:
        for token, status in ((here.token("run-2"), 403), ("nonsense", 401)):
            async with stranger.get(f"{PAGE}?open={token}", headers=HTML) as answer:
                assert answer.status == status
                assert "Set-Cookie" not in answer.headers
                assert token not in await answer.text()


@pytest.mark.parametrize("path", [PAGE, f"{PAGE}/transcript", f"{PAGE}/nothing", "/healthz", "/assets/page.js"])
async def test_every_response_forbids_the_browser_to_run_anything_of_it(here: Site, path: str) -> None:
    async with here.http.get(path) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"


# what the page tells


async def test_a_finished_run_shows_everything_without_a_script(here: Site) -> None:
    here.source.info = run_info(
        "succeeded",
        Outcome(
            usage=Usage(input_tokens=1000, cache_write_tokens=200, output_tokens=34, cached_input_tokens=5600),
            cost_usd="0.0125",
        ),
        web_ui="http://127.0.0.1:8233/namespaces/default/workflows/x/y",
    )
    await here.store.append(
        key(),
        [
            line(1, event("reasoning", text="first I look")),
            line(2, text_event("I **look** around")),
            line(3, tool("a.txt\n", command="ls")),
            line(4, b"INFO starting", "stderr"),
        ],
    )
    await here.store.seal(key(), OutputReceipt(state="verified", lines=3, bytes=99))
    page = await here.get(PAGE)
    for text in (
        *("first I look", "I <strong>look</strong> around", "bash  ls", "a.txt", "INFO starting"),
        "6,834 tokens",
        *("1,200 in, 5,600 cached, 34 out", "$0.0125", "verified", "creating the Job", "succeeded", "3 min 20 s"),
        'href="http://127.0.0.1:8233/namespaces/default/workflows/x/y"',
    ):
        assert text in page
    assert on(page) == [1, 2, 3, 4]
    assert "<script" not in page
    assert "so far" not in page


async def test_the_run_and_its_task_are_links_to_paperclip_where_its_address_is_set(tmp_path: Path) -> None:
    agent, run_id, task = (f"{digit * 8}-aaaa-4bbb-8ccc-{digit * 12}" for digit in "123")
    async with site(tmp_path, paperclip_pages_url="https://paperclip.example") as here:
        shown = run_info(facts={"agent": "Ada", "task": task, "model": "fake/model"})
        of_paperclip = RunKey(agent_id=agent, company_id="acme", run_id=run_id)
        here.source.info = replace(shown, run=replace(shown.run, key=of_paperclip))
        text = await here.get(PAGE)
        here.source.info = run_info(facts={"task": "ISSUE-7"})
        other = await here.get(PAGE)
    assert f'href="https://paperclip.example/agents/{agent}/runs/{run_id}"' in text
    assert f'task <a href="https://paperclip.example/issues/{task}"' in text
    assert "https://paperclip.example" not in other
    assert "task <span>ISSUE-7</span>" in other


async def test_gaps_are_shown(here: Site) -> None:
    await here.store.append(key(), [line(1, text_event("a")), line(2, b'{"frames": 7, "afterSequence": 1}', "gap")])
    gaps = (Gap(after_sequence=1, frames=7), Gap(after_sequence=90))
    await here.store.seal(key(), OutputReceipt(state="differs", lines=1, gaps=gaps))
    page = await here.get(PAGE)
    assert "output is missing here: 7 frames" in page
    assert "after line 1: 7 frames of output is missing" in page
    assert "after line 90: an unknown amount of output is missing" in page
    assert "differs" in page


async def test_a_failure_comes_with_its_next_step(here: Site) -> None:
    failure = PodScheduleFailed.as_failure("no node has 64 GiB")
    here.source.info = run_info(
        "failed", Outcome(failure=failure, error_code=failure.code, error_message=failure.message)
    )
    page = await here.get(PAGE)
    assert failure.code in page
    assert "no node has 64 GiB" in page
    assert failure.next_step.split("'")[0] in page


async def test_the_peaks_of_an_attempt_are_shown(here: Site) -> None:
    peaks = Peaks(memory=300 * 1024**2, memory_limit=512 * 1024**2, output_disk=4096)
    here.source.info = run_info("succeeded", Outcome(attempts=(AttemptReport(attempt=1, job_name="j", peaks=peaks),)))
    await here.store.append(key(), [line(1, text_event("done"))])
    assert "<dd>memory 300 MiB of 512 MiB, output on disk 4096 bytes</dd>" in await here.get(PAGE)


async def test_attempts_are_listed_and_the_newest_is_shown(here: Site) -> None:
    reports = tuple(AttemptReport(attempt=n, job_name="j", failure_code=code) for n, code in ((1, "lost"), (2, None)))
    here.source.info = run_info("succeeded", Outcome(attempts=reports))
    await here.store.append(key(1), [line(1, text_event("first try"))])
    await here.store.append(key(2), [line(1, text_event("second try"))])
    page = await here.get(PAGE)
    assert "second try" in page
    assert "first try" not in page
    assert "attempt 1: lost" in page
    assert "first try" in await here.get(f"{PAGE}?attempt=1")


async def test_the_page_works_while_temporal_is_unavailable(here: Site) -> None:
    here.source.down = True
    await here.store.append(key(), [line(1, text_event("still here"))])
    page = await here.get(PAGE)
    assert "still here" in page
    assert "Temporal does not answer" in page


async def test_an_unknown_run_is_404_and_the_page_reloads(here: Site) -> None:
    async with here.http.get(PAGE, headers=HTML) as answer:
        assert answer.status == 404
        assert 'http-equiv="refresh"' in await answer.text()


async def test_a_run_without_output_shows_its_steps(here: Site) -> None:
    here.source.info = run_info("scheduling")
    page = await here.get(PAGE)
    assert "creating the Job" in page
    assert "The agent has written no output yet" in page
    assert f'data-live="{RUN}/live?attempt=1&amp;after=0"' in page


# long transcripts


async def test_a_long_transcript_is_read_page_by_page_in_both_directions(here: Site) -> None:
    chance = random.Random(3)
    numbers = sorted(chance.sample(range(1, 60_000), 1800))  # lines of many frames leave holes in the sequence
    await here.store.append(key(), [line(n, text_event(f"text {n}")) for n in numbers])
    await here.store.seal(key(), OutputReceipt())

    async def walk(path: str, rel: str) -> list[list[int]]:
        seen = []
        while True:
            page = await here.get(path)
            seen.append(on(page))
            assert len(seen[-1]) <= 500
            found = re.search(rf'<a href="([^"]+)" rel="{rel}">', page)
            if found is None:
                return seen
            path = f"/runs/{found[1].replace('&amp;', '&')}"

    forward = await walk(PAGE, "next")
    assert [n for page in forward for n in page] == numbers
    backward = await walk(f"{PAGE}?at=end", "prev")
    assert [n for page in reversed(backward) for n in page] == numbers


async def test_a_live_page_begins_at_the_newest_output(here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(n, text_event(f"text {n}")) for n in range(1, 1201)])
    page = await here.get(PAGE)
    assert on(page) == list(range(701, 1201))
    assert f'data-live="{RUN}/live?attempt=1&amp;after=1200"' in page


async def test_the_newest_page_of_long_lines_ends_at_the_newest_line_and_none_is_skipped(tmp_path: Path) -> None:
    settings = ClientSettings(sealing_key_file=tmp_path / "key.json")
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    source = FakeRunInfo(run_info("running"))
    await store.append(key(), [line(n, text_event(f"{n} {'x' * 10_000}")) for n in range(1, 301)])
    pages, headers = application(settings, store, source), authorization(links.load_tokens(settings).mint(KEY))
    seen: list[int] = []
    for query in ("at=end", "before=197", "before=93"):
        page = (await answered(pages, PAGE, {**HTML, **headers}, query)).decode()
        assert ("data-live" in page) == (query == "at=end")
        seen = on(page) + seen
    assert seen == list(range(1, 301))
    await store.close()


async def test_a_huge_output_is_cut_with_a_link_to_all_of_it(here: Site) -> None:
    huge = tool("x" * 3_000_000, command="yes")
    await here.store.append(key(), [line(1, text_event("before")), line(2, huge), line(3, b"y" * 70_000, "stderr")])
    await here.store.seal(key(), OutputReceipt())
    seen = ""
    for query in ("", "?after=1", "?after=2"):
        page = await here.get(PAGE + query)
        assert len(page) < 60_000
        seen += page
    assert "2,992,000 more characters" in seen
    found = re.search(rf'href="({RUN}/transcript\?attempt=1&amp;after=1&amp;limit=1)"', seen)
    assert found is not None
    (whole,) = (await here.get(f"/runs/{found[1].replace('&amp;', '&')}")).splitlines()
    assert json.loads(whole)["data"].encode() == huge
    assert f"{RUN}/transcript?attempt=1&amp;after=2&amp;limit=1" in seen


# hostile output


async def test_no_markup_and_no_control_character_of_the_agent_is_on_the_page(here: Site) -> None:
    lines = [line(n, data, "stderr" if n % 7 == 0 else "stdout") for n, data in enumerate(hostile(), 1)]
    await here.store.append(key(), lines)
    await here.store.seal(key(), OutputReceipt())
    page = await here.get(PAGE)
    assert len(on(page)) > 100
    assert not re.search(r"<(script|img|svg|iframe|style|form|base|body [^>]*on|javascript)", page)
    assert not re.search(r"\son\w+=[^&]*>", re.sub(r">[^<]*<", "><", page))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)
    assert str(7 * 191) not in re.sub(r'(id|href|title)="[^"]*"', "", page)
    assert len(re.findall("<link", page)) == 2


async def test_a_run_id_is_escaped_everywhere(here: Site) -> None:
    name = "x%22%3E%3Cscript%3Ealert(1)%3C%2Fscript%3E"
    async with aiohttp.ClientSession(here.base) as stranger, stranger.get(f"/runs/{name}", headers=HTML) as answer:
        assert "<script>" not in await answer.text()


# live


async def read(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, int | None, Any]]:
    """(event, id, data) of a stream of server-sent events."""
    fields: dict[str, str] = {}
    while raw := await answer.content.readuntil(b"\n"):
        name, _, value = raw.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
            continue
        if "data" in fields:
            yield fields["event"], int(fields["id"]) if "id" in fields else None, json.loads(fields["data"])
        fields = {}


async def test_a_live_page_gets_entries_and_header_as_they_come(here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(1, text_event("one"))])
    async with here.http.get(f"{PAGE}/live?after=0") as answer:
        message = read(answer)
        name, number, html = await anext(message)
        assert (name, number, on(html)) == ("entries", 1, [1])
        name, _, html = await anext(message)
        assert name == "header"
        assert "running" in html
        await here.store.append(key(), [line(2, text_event("two"))])
        name, number, html = await anext(message)
        assert (name, number, on(html)) == ("entries", 2, [2])
        await here.store.seal(key(), OutputReceipt(state="verified"))
        here.source.info = run_info("succeeded", Outcome())
        (name, _, html), (last, _, _) = await anext(message), await anext(message)
        assert (name, last) == ("header", "end")
        assert "verified" in html


async def test_a_live_reader_gets_an_event_for_the_next_attempt(here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(1), [line(1, text_event("one"))])
    await here.store.seal(key(1), OutputReceipt())
    async with here.http.get(f"{PAGE}/live?after=1") as answer:
        message = read(answer)
        assert (await anext(message))[0] == "header"
        await here.store.append(key(2), [line(1, text_event("again"))])
        assert [name async for name, _, _ in _until_end(message)] == ["attempt"]


async def _until_end(message: AsyncIterator[Any]) -> AsyncIterator[Any]:
    try:
        async for found in message:
            yield found
    except asyncio.IncompleteReadError:
        return


@pytest.mark.parametrize("seed", [11, 12])
async def test_a_live_reader_that_is_cut_at_random_50_times_gets_every_entry_once(here: Site, seed: int) -> None:
    """An event holds all that was new, so the writer waits for the cuts: else a few events would tell everything."""
    chance = random.Random(seed)
    total = 1200
    here.source.info = run_info("running")
    reading = asyncio.Event()

    async def write() -> None:
        for first in range(1, total + 1, 10):
            await here.store.append(key(), [line(n, text_event(f"text {n}")) for n in range(first, first + 10)])
            await reading.wait()
            reading.clear()
        await here.store.seal(key(), OutputReceipt())
        here.source.info = run_info("succeeded", Outcome())

    writing = asyncio.create_task(write())
    seen: list[int] = []
    after, cuts, ended = 0, 0, False
    while not ended:
        resumed = {"Last-Event-ID": str(after)} if after else {}
        async with here.http.get(f"{PAGE}/live", headers=resumed) as answer:
            assert answer.status == 200
            left = chance.randint(1, 2)
            async for name, number, html in read(answer):
                ended = name == "end"
                if name == "entries" and number is not None:
                    seen += on(html)
                    after = number
                    reading.set()
                    left -= 1
                if ended or (left <= 0 and cuts < 60):
                    break
        cuts += not ended
    await writing
    assert seen == list(range(1, total + 1))
    assert cuts >= 50


async def test_a_live_reader_that_reconnects_after_the_end_gets_204(here: Site) -> None:
    here.source.info = run_info("succeeded", Outcome())
    await here.store.append(key(), [line(1, text_event("one"))])
    await here.store.seal(key(), OutputReceipt())
    async with here.http.get(f"{PAGE}/live", headers={"Last-Event-ID": "1"}) as answer:
        assert answer.status == 204


async def test_a_retry_is_shown_as_an_attempt_of_its_own_with_its_reason(here: Site) -> None:
    steps = [
        Step("create_job", NOON, NOON + timedelta(seconds=1)),
        Step("parse_transcript", NOON, NOON + timedelta(seconds=2)),
        Step("create_job", NOON, NOON + timedelta(seconds=3), attempt=2),
    ]
    reasons = {1: "session_unavailable: Session not found"}
    here.source.info = replace(run_info(), steps=steps, reasons=reasons)
    page = await here.get(PAGE)
    assert "Attempt 2, because of session_unavailable: Session not found" in page
    assert page.index("judging the output") < page.index("Attempt 2") < page.rindex("creating the Job")


async def test_the_top_of_the_page_says_who_runs_and_what_keeps_it(here: Site) -> None:
    facts = {"agent": "Ada", "task": "ISS-1", "woken by": "issue_assigned", "pod": "pod-1", "node": "node-7"}
    obstacle = Obstacle("no_worker", "the run", "the run waits for a worker since 40.0 s: none polls", NOON)
    here.source.info = run_info(facts=facts, obstacles=[obstacle])
    page = await here.get(PAGE)
    assert "<h1>Ada</h1>" in page
    for each in (*facts.values(), obstacle.text):
        assert each in page
    assert page.index("the run waits for a worker") < page.index("Transcript")


async def test_the_page_begins_with_the_names_and_the_runs_id_is_below_them(here: Site) -> None:
    info = run_info(facts={"agent": "Ada", "task": "task-id"})
    here.source.info = replace(info, run=replace(info.run, names=Names("Ada", "ACM-7 A long task")))
    named = await here.get(PAGE)
    here.source.info = run_info()
    unnamed = await here.get(PAGE)
    assert "<title>running · Ada · ACM-7 A long task</title>" in named
    assert "<h1>Ada · ACM-7 A long task</h1>" in named
    assert "<h1>ada</h1>" in unnamed
    for page in (named, unnamed):
        assert page.index("run <code>run-1</code>") < page.index("<details")


async def test_a_summary_stands_before_the_transcript(here: Site) -> None:
    here.source.info = run_info("succeeded", Outcome(summary="All **three** tests pass."))
    page = await here.get(PAGE)
    assert page.index("All <strong>three</strong> tests pass.") < page.index("Transcript")


async def test_a_page_says_which_tool_runs_and_how_much_of_the_context_is_used(here: Site) -> None:
    here.source.info = run_info("running")
    log = b"timestamp=2026-11-23T10:00:00.000Z level=INFO message=%b"
    began = [log % b"loop session.id=ses_1 step=1 x", log % b'evaluated permission="bash" pattern=*']
    tokens = {"input": 900, "output": 5, "cache": {"read": 100, "write": 0}}
    output = [line(1, event("step_finish", reason="tool-calls", tokens=tokens, cost=0.0))]
    await here.store.append(key(), [*output, *(line(n, data, "stderr") for n, data in enumerate(began, 2))])
    page = await here.get(PAGE)
    assert '<p class="doing">runs bash</p>' in page
    assert "1,000 tokens in the largest prompt" in page


async def test_no_redirect_takes_a_token_to_the_host_that_a_request_names(here: Site) -> None:
    for path in (f"/runs/{RUN}/?open={here.token()}", f"/runs/?open={here.token()}", "/healthz/", "/assets?open=x"):
        with case(path):
            async with here.http.get(path, headers={"Host": "evil.example"}, allow_redirects=False) as answer:
                assert answer.status == 404
                assert "Location" not in answer.headers


def test_a_phase_has_the_colour_of_its_end() -> None:
    for phase, style in {"running": "open", "succeeded": "good", "failed": "bad", "terminated": "bad"}.items():
        with case(phase):
            running = phase == "running"
            info = run_info(phase, None if running else Outcome())
            progress = AttemptProgress(Fold().progress, complete=True)
            view = RunView(KEY, 1, replace(info, outcome=None), (), progress, live=running)
            assert f'class="phase {style}"' in Templates().html("run_header.html", view=view)


async def test_output_that_a_reader_left_behind_while_it_was_counted_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await TranscriptStore.open(f"sqlite:///{tmp_path}/transcripts.db")
    tokens = {"input": 10, "output": 5, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    await store.append(key(), [line(1, event("step_finish", reason="stop", cost=0.5, tokens=tokens))])
    counting, go_on, add = threading.Event(), threading.Event(), Fold.add

    def add_slowly(fold: Fold, one: Line) -> None:
        counting.set()
        go_on.wait(60)
        add(fold, one)

    monkeypatch.setattr(Fold, "add", add_slowly)
    usage = AttemptUsage(store)
    leaving = asyncio.create_task(usage.progress(key()))
    await asyncio.to_thread(counting.wait, 60)
    leaving.cancel()
    await asyncio.wait([leaving])
    staying = asyncio.create_task(usage.progress(key()))
    for _ in range(3):
        await store.read(key())  # so that the other reader has read, too
    go_on.set()
    assert (await staying).progress.usage.input_tokens == 10
    assert (await usage.progress(key())).progress.usage.input_tokens == 10
    await store.close()
