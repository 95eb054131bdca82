"""The list of runs over real HTTP: what it shows, whom it admits, and what it says when a part is away."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from html import unescape
from http.cookies import SimpleCookie
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_runs.client.names import Names
from agent_runs.client.run_list import PAGE_RUNS, RunFilter
from agent_runs.client.settings import SettingsError
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import RunKey
from agent_runs.transcript.fleet import FleetQueries
from agent_runs.transcript.tokens import authorization
from agent_runs.web.operators import COOKIE, SESSION_LIFETIME
from agent_runs.web.wrong_tokens import LIMIT
from tests.web.parts import RUN, Site, key, line, payloads, run_info, site, text_event
from tests.web.run_list_parts import BEARER, TOKEN, operated, run, store_run, usage

HTML = {"Accept": "text/html"}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with operated(tmp_path) as made:
        yield made


async def get(here: Site, path: str, status: int = 200, /, **headers: str) -> str:
    """A page as a browser of nobody in particular gets it; with `Authorization` as an operator's."""
    sent = {**HTML, **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with aiohttp.ClientSession(here.base) as person, person.get(path, headers=sent) as answer:
        text = await answer.text()
        assert answer.status == status, text
        return text


async def page(here: Site, path: str = "/runs", status: int = 200) -> str:
    return unescape(await get(here, path, status, **BEARER))


# what it shows


async def test_a_row_has_what_temporal_and_the_store_know_of_a_run(here: Site) -> None:
    here.source.runs = [run(1, task_key="ISSUE-7"), run(2, "failed", failure_code="k8s_pod_lost")]
    await store_run(here, 1)
    text = await page(here)
    for expected in (
        *('href="runs/agent-1~run-1"', "agent agent-1", "task ISSUE-7", "I look around", "fake/model", "6.83k"),
        *("$0.0125", "1,200 in, 5,600 cached, 34 out, 2 steps", "1 min 00 s", "k8s_pod_lost", ">failed<"),
    ):
        assert expected in text
    assert "Totals since" in text
    assert re.search(r"by agent.*agent-1.*6\.83k.*\$0\.0125", text, re.DOTALL)


async def test_a_row_begins_with_the_names_of_agent_and_task(here: Site) -> None:
    here.source.runs = [run(1, task_key="t-1", names=Names("Ada", "ACM-7 A long task")), run(2, task_key="t-2"), run(3)]
    text = await page(here)
    assert re.findall(r'<td><span class="one-line" title="(.*?)"><a.*?>(.*?)</a>', text) == [
        ("agent agent-1, task t-1", "Ada · ACM-7 A long task"),
        ("agent agent-2, task t-2", "agent-2 · t-2"),
        ("agent agent-3", "agent-3"),
    ]
    async with aiohttp.ClientSession(here.base, headers=BEARER) as program, program.get("/runs") as answer:
        named, other, _ = (await answer.json())["runs"]
    assert (named["agentName"], named["taskName"], named["taskKey"]) == ("Ada", "ACM-7 A long task", "t-1")
    assert other["agentName"] is other["taskName"] is None


async def test_a_run_that_does_not_go_on_says_why(here: Site) -> None:
    here.source.runs = [run(1), run(2)]
    here.source.obstacles = {"agent-2~run-2": f"the run waits for a worker since 40.0 s{''.join(payloads())}"}
    text = await get(here, "/runs", **BEARER)
    assert text.count("the run waits for a worker since 40.0 s") == 1
    assert "<script>window" not in text
    async with aiohttp.ClientSession(here.base, headers=BEARER) as program, program.get("/runs") as answer:
        first, second = (await answer.json())["runs"]
    assert first["obstacle"] is None
    assert second["obstacle"].startswith("the run waits for a worker")


async def test_a_run_and_its_task_are_links_to_paperclip_where_its_address_is_set(tmp_path: Path) -> None:
    agent, run_id, task = (f"{digit * 8}-aaaa-4bbb-8ccc-{digit * 12}" for digit in "123")
    of_paperclip = RunKey(agent_id=agent, company_id="acme", run_id=run_id)
    async with operated(tmp_path, paperclip_pages_url="https://paperclip.example") as here:
        here.source.runs = [run(1, key=of_paperclip, task_key=task), run(2, task_key="ISSUE-7")]
        text = await page(here)
    assert f'href="https://paperclip.example/agents/{agent}/runs/{run_id}"' in text
    assert f'href="https://paperclip.example/issues/{task}"' in text
    assert text.count("https://paperclip.example") == 2


async def test_an_unpriced_run_has_no_cost_of_zero(here: Site) -> None:
    here.source.runs = [run(1)]
    await store_run(here, 1, usage(cost=None))
    text = await page(here)
    assert text.count("unpriced") == 4  # the row, and its agent, company and day
    assert "$0.0000" not in text


async def test_filters_reach_temporal_as_they_are_and_stay_in_the_form(here: Site) -> None:
    text = await page(here, "/runs?search=abc&task=it%27s+%3Cb%3E&phase=timed+out&failure=k8s_pod_lost&state=working")
    ((wanted, cursor),) = here.source.asked
    assert wanted == RunFilter("abc", task="it's <b>", phase="timed out", failure="k8s_pod_lost", state="working")
    assert cursor is None
    assert "<option selected>timed out</option>" in text
    assert "<summary>Filters: task it's <b>, phase timed out, failure k8s_pod_lost, state working</summary>" in text


@pytest.mark.parametrize(
    "query", ["task=a%5C", "phase=nothing", "failure=x", "since=yesterday", "cursor=AAAA", "cursor=*"]
)
async def test_a_filter_that_cannot_be_used_is_named(here: Site, query: str) -> None:
    assert f"{query.partition('=')[0]}: " in await page(here, f"/runs?{query}", 400)
    assert here.source.asked == []


async def test_pages_hold_fifty_runs_and_lead_to_the_next_with_the_same_filters(here: Site) -> None:
    here.source.runs = [run(number) for number in range(PAGE_RUNS + 3)]
    first = await page(here, "/runs?company=acme")
    assert len(re.findall('href="runs/agent-', first)) == PAGE_RUNS
    (following,) = re.findall(r'href="(runs\?company=acme&cursor=[^"]+)" rel="next"', first)
    assert "data-live" in first
    second = await page(here, f"/{following}")
    assert len(re.findall('href="runs/agent-', second)) == 3
    assert 'rel="next"' not in second
    assert "data-live" not in second
    assert here.source.asked[1] == (RunFilter(company="acme"), b"50")


async def test_the_rows_alone_are_what_the_script_replaces(here: Site) -> None:
    here.source.runs = [run(1)]
    rows = await page(here, "/runs?part=list")
    assert 'href="runs/agent-1~run-1"' in rows
    assert "<html" not in rows
    assert "Totals" not in rows


async def test_a_program_gets_the_list_as_json(here: Site) -> None:
    here.source.runs = [run(number) for number in range(PAGE_RUNS + 1)]
    await store_run(here, 0)
    async with here.http.get("/runs", headers=BEARER) as answer:
        first = await answer.json()
    assert (first["runs"][0]["runId"], first["runs"][0]["usage"]["costUsd"]) == ("run-0", "0.0125")
    async with here.http.get("/runs", params={"cursor": first["cursor"]}, headers=BEARER) as answer:
        assert [one["runId"] for one in (await answer.json())["runs"]] == [f"run-{PAGE_RUNS}"]


async def test_nothing_of_an_agent_becomes_markup(here: Site) -> None:
    for number, payload in enumerate(payloads()):
        changes = {"model": payload, "phase": payload, "failure_code": payload, "task_key": payload}
        here.source.runs = [*here.source.runs, run(number, **changes)]
        await store_run(here, number, usage(payload))
    raw = await get(here, "/runs", 200, **BEARER)
    lowered = raw.lower()
    assert lowered.count("<script") == 1  # ours
    for tag in ("<img", "<svg", "<iframe", "<style", "<base", "<object"):
        assert tag not in lowered
    assert "\x1b" not in raw
    assert "\u202e" not in raw


# while a part is away


async def test_without_temporal_the_stores_list_is_shown_and_says_what_it_lacks(here: Site) -> None:
    here.source.down = True
    for number in range(PAGE_RUNS + 2):
        await store_run(here, number)
    text = await page(here, "/runs?phase=failed")
    assert "Temporal does not answer: this is the transcript store's list" in text
    assert "These filters have no effect until then: phase." in text
    (following,) = re.findall(r'href="(runs\?[^"]+)" rel="next"', text)
    rest = await page(here, f"/{following}")
    named = re.findall(r'href="runs/agent-\d+~(run-\d+)"', text + rest)
    assert set(named) == {f"run-{n}" for n in range(PAGE_RUNS + 2)}


async def test_without_the_store_temporals_list_is_shown_and_says_what_it_lacks(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> dict[str, Any]:
        raise TranscriptsUnavailable("away")

    here.source.runs = [run(1)]
    for name in ("usage", "totals", "newest"):
        monkeypatch.setattr(FleetQueries, name, away)
    text = await page(here)
    assert 'href="runs/agent-1~run-1"' in text
    assert text.count("The transcript store does not answer: tokens, cost and last output are missing here.") == 1
    here.source.down = True
    assert "nothing can be listed now" in await page(here)


# whom it admits


async def test_without_a_setting_the_list_is_off_and_says_how_to_switch_it_on(tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        text = await page(here, status=403)
        assert "AGENT_RUNS_OPERATOR_TOKEN_FILE" in text
        assert "AGENT_RUNS_OPERATOR_HEADER" in text
        async with here.http.post("/sign-in", data={"token": TOKEN}) as answer:
            assert answer.status == 403
        async with here.http.get("/runs") as answer:
            assert (answer.status, answer.content_type) == (403, "application/json")


async def test_nobody_lists_runs_without_the_operator_token(here: Site) -> None:
    here.source.runs = [run(1)]
    guesses: list[Mapping[str, str]] = [
        {},
        authorization(here.token()),
        authorization(TOKEN[:-1]),
        authorization(f"{TOKEN}x"),
        authorization(here.token("*")),
        {"Cookie": f"{COOKIE}={TOKEN}"},
        {"Cookie": f"{COOKIE}={here.token()}"},
        {"X-Forwarded-User": "ada"},
    ]
    for headers in guesses:
        for path in ("/runs", "/runs?part=list", "/runs?cursor=x"):
            text = await get(here, path, 401, **headers)
            assert "run-1" not in text
            assert TOKEN not in text
    assert here.source.asked == []


async def test_a_person_signs_in_by_a_form_and_gets_a_cookie_without_the_token(here: Site) -> None:
    here.source.runs = [run(1)]
    text = await get(here, "/runs", 401)
    assert '<form class="sign-in" method="post" action="sign-in">' in text
    jar = aiohttp.CookieJar(unsafe=True)  # of hosts that are addresses, too
    async with aiohttp.ClientSession(here.base, cookie_jar=jar) as browser:
        async with browser.post("/sign-in", data={"token": f" {TOKEN} "}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "runs")
            cookie = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE]
        assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == ("/runs", True, "strict")
        assert int(cookie["max-age"]) == SESSION_LIFETIME.total_seconds()
        assert TOKEN not in cookie.value
        async with browser.get("/runs", headers=HTML) as answer:
            assert answer.status == 200
            assert "Sign out" in await answer.text()
        async with browser.post("/sign-out", allow_redirects=False) as answer:
            assert answer.status == 303
        async with browser.get("/runs", headers=HTML) as answer:
            assert answer.status == 401


async def test_a_wrong_token_signs_nobody_in(here: Site) -> None:
    for data in ({"token": "wrong"}, {"token": ""}, {}, {"other": TOKEN}):
        async with here.http.post("/sign-in", data=data) as answer:
            assert answer.status == 401
            assert "Set-Cookie" not in answer.headers
            assert "That is not the operator token." in await answer.text()
    for data, status in (({"token": "x" * 5000}, 413), ({f"f{n}": "x" for n in range(20)}, 400)):
        async with here.http.post("/sign-in", data=data) as answer:
            assert answer.status == status
    async with here.http.get("/sign-in") as answer:
        assert answer.status == 405


async def test_an_address_that_sends_many_wrong_tokens_has_to_wait(here: Site) -> None:
    session = here.access_tokens()
    async with here.http.post("/sign-in", data={"token": TOKEN}, allow_redirects=False) as answer:
        cookie = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE].value
    for number in range(LIMIT):
        if number % 2:
            async with here.http.post("/sign-in", data={"token": f"wrong-{number}"}) as answer:
                assert answer.status == 401
        else:
            await get(here, f"/runs/{RUN}" if number % 4 else "/runs", 401, **authorization(f"wrong-{number}"))
    for token in ("wrong", TOKEN):  # a right one gets no other answer, or guesses would go on
        async with here.http.post("/sign-in", data={"token": token}, headers=HTML) as answer:
            text = await answer.text()
            assert (answer.status, answer.content_type) == (429, "text/html")
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
        assert "Too many wrong tokens" in text
        assert re.search(r"wait \d+ s, then send the right one", text)
        for path in ("/runs", "/usage", f"/runs/{RUN}", f"/runs/{RUN}/cancel"):
            async with here.http.get(path, headers=authorization(token)) as answer:
                assert (answer.status, answer.content_type) == (429, "application/json")
    await here.store.append(key(), [line(1, text_event("x"))])
    await get(
        here, f"/runs/{RUN}", 200, **authorization(session.mint(RunKey.named(RUN)))
    )  # a link of a run still opens it
    await get(here, "/runs", 200, Cookie=f"{COOKIE}={cookie}")  # and who is signed in stays so


async def test_tokens_of_links_are_no_attempts_at_the_operator_token(here: Site) -> None:
    for _ in range(LIMIT + 1):
        await get(here, f"/runs/{RUN}", 403, **authorization(here.token("another")))
        await get(here, "/runs", 401, **authorization("a.b.c"))
    await get(here, "/runs", 200, **BEARER)


async def test_a_changed_operator_token_ends_earlier_sessions(tmp_path: Path) -> None:
    async with operated(tmp_path) as here, aiohttp.ClientSession() as browser:
        async with browser.post(f"{here.base}/sign-in", data={"token": TOKEN}, allow_redirects=False) as answer:
            session = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE].value
        await get(here, "/runs", 200, Cookie=f"{COOKIE}={session}")
    (tmp_path / "other").write_text("another-token-0123456789abcdefghijk")
    async with site(tmp_path, operator_token_file=tmp_path / "other") as here:
        await get(here, "/runs", 401, Cookie=f"{COOKIE}={session}")


@pytest.mark.parametrize("content", ["", "short", "x" * 31, "two words of some length, more than 32", "ü" * 40, None])
async def test_a_file_without_a_usable_token_stops_the_start_without_quoting_it(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "operator-token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=r"^AGENT_RUNS_OPERATOR_TOKEN_FILE: ") as refused:
        async with site(tmp_path, operator_token_file=file):
            pass
    assert not content or content not in str(refused.value)


# a proxy that signs people in

LOCAL = (ip_network("127.0.0.1/32"),)


async def test_the_proxys_header_counts_from_its_addresses_alone(tmp_path: Path) -> None:
    async with site(tmp_path, operator_header="X-Auth-Email", operator_proxies=LOCAL) as here:
        await get(here, "/runs", 200, X_Auth_Email="ada@example.org")
        await get(here, "/runs", 401)
        await get(here, "/runs", 401, X_Auth_Email="  ")
        await get(here, "/runs", 401, X_Other="ada@example.org")
        forwarded = {"X_Forwarded_For": "10.0.0.9", "X_Auth_Email": "ada@example.org"}
        await get(here, "/runs", 200, **forwarded)  # the connection's address counts, not what somebody claims
    elsewhere = (ip_network("10.0.0.0/8"),)
    async with site(tmp_path, operator_header="X-Auth-Email", operator_proxies=elsewhere) as here:
        await get(here, "/runs", 401, X_Auth_Email="ada@example.org")
        await get(here, "/runs", 401, X_Forwarded_For="10.0.0.9", X_Auth_Email="ada@example.org")


async def test_a_header_that_came_twice_names_nobody(tmp_path: Path) -> None:
    async with site(tmp_path, operator_header="X-Auth-Email", operator_proxies=LOCAL) as here:
        twice = [("X-Auth-Email", "eve@example.org"), ("X-Auth-Email", "ada@example.org")]
        async with here.http.get("/runs", headers=twice) as answer:
            assert answer.status == 401


# runs of operators, and people without a token


async def test_an_operator_opens_every_run_also_one_whose_links_are_revoked(here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(1, text_event("hello"))])
    await here.store.revoke_links(RunKey.named(RUN), run_info().run.started_at + timedelta(days=3650))
    text = await page(here, f"/runs/{RUN}")
    assert "hello" in text
    assert '<a href="../runs">' in text
    for path in ("attempts", "transcript"):
        async with here.http.get(f"/runs/{RUN}/{path}", headers=BEARER) as answer:
            assert answer.status == 200


async def test_the_reader_of_one_run_sees_no_link_to_the_list(here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(1, text_event("hello"))])
    assert "all runs" not in await here.get(f"/runs/{RUN}")


async def test_a_person_without_a_token_is_shown_how_to_get_one_and_a_program_a_short_error(here: Site) -> None:
    text = unescape(await get(here, f"/runs/{RUN}", 401))
    for expected in ("This page needs its link", "transcriptPage", f"agent-runs show {RUN}", 'action="../sign-in"'):
        assert expected in text
    assert "Authorization" not in text
    async with aiohttp.ClientSession(here.base) as program, program.get(f"/runs/{RUN}") as answer:
        assert (answer.status, list(await answer.json())) == (401, ["detail"])


async def test_who_signs_in_on_the_page_of_a_run_goes_on_to_that_run_and_nowhere_else(here: Site) -> None:
    for run_id, target in (
        ("ada~run-1", "runs/ada~run-1"),
        ("//evil.example", "runs/%2F%2Fevil.example"),
        ("https://evil.example", "runs/https%3A%2F%2Fevil.example"),
        ("a\r\nSet-Cookie: x=y", "runs/a%0D%0ASet-Cookie%3A%20x%3Dy"),
    ):
        data = {"token": TOKEN, "run": run_id}
        async with here.http.post("/sign-in", data=data, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, target)


async def test_a_link_of_another_site_is_loaded_once_more_and_only_once(here: Site) -> None:
    from_elsewhere = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for path, target in (
        ("/runs?phase=failed", "./runs?phase=failed"),
        ("/runs/https:evil.example", "./https:evil.example"),
    ):
        text = await get(here, path, 401, **from_elsewhere)
        assert f'http-equiv="refresh" content="0; url={target}"' in text
        text = await get(here, path, 401, **from_elsewhere | {"Sec-Fetch-Site": "same-origin"})
        assert "refresh" not in text


# programs


async def test_a_program_with_the_key_reads_the_usage_of_runs_and_nobody_else(here: Site) -> None:
    await store_run(here, 1)
    operator = authorization(here.access_tokens().mint_operator(timedelta(minutes=1)))
    async with here.http.get("/usage?run=agent-1~run-1&run=agent-2~run-2", headers=operator) as answer:
        (found,) = await answer.json()
    tokens = {"input_tokens": 1200, "cached_tokens": 5600, "output_tokens": 34, "steps": 2}
    cost = {"cost_usd": "0.0125", "unpriced": 0}
    others = {"run_id": "run-1", "attempts": 1, "model": "fake/model", "last_output": "I look around"}
    assert found | tokens | cost | others == found
    expired = authorization(here.access_tokens().mint_operator(timedelta(seconds=-1)))
    for headers in ({}, authorization(here.token()), expired):
        async with here.http.get("/usage?run=agent-1~run-1", headers=headers) as answer:
            assert answer.status == 401
            assert "last_output" not in json.dumps(await answer.json())
    async with here.http.get("/runs", headers=operator) as answer:
        assert answer.status == 401  # the list is for operators
    many = "&".join(f"run={n}" for n in range(101))
    async with here.http.get(f"/usage?{many}", headers=operator) as answer:
        assert answer.status == 400
