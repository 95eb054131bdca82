"""The page of a run in a real browser."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_runs.contracts.outcome import Gap, Outcome, OutputReceipt
from tests.web.chromium import Chromium, Tab, chromium, installed
from tests.web.parts import (
    RUN,
    Site,
    hostile,
    key,
    line,
    missing,
    payloads,
    run_info,
    site,
    text_event,
    tool,
    with_hostile_texts,
)

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH: install Debian's package chromium"),
]
MARKUP = "<img src=x onerror=window.pwned=1>"
FORBIDDEN = "script,img,svg,iframe,style,link,base,form,meta,object,embed,a[href^='javascript']"


@pytest.fixture(scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Chromium]:
    async with chromium(str(PROGRAM), tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
async def tab(browser: Chromium) -> AsyncIterator[Tab]:
    async with browser.tab() as found:
        yield found


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with site(tmp_path) as made:
        yield made


async def open_page(tab: Tab, here: Site) -> None:
    """Open the link and arrive at the page."""
    await tab.open(here.link, ends_at=f"{here.base}/runs/{RUN}")


def blocked(tab: Tab) -> list[str]:
    """What the Content-Security-Policy had to stop: markup that should not have been there at all."""
    entries = (one["params"]["entry"] for one in tab.happened if one["method"] == "Log.entryAdded")
    return [entry["text"] for entry in entries if entry["source"] == "security"]


def thrown(tab: Tab) -> list[dict[str, Any]]:
    return [one["params"] for one in tab.happened if one["method"] == "Runtime.exceptionThrown"]


@asynccontextmanager
async def served(handler: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[int]:
    """Another site; its port."""
    application = web.Application()
    application.router.add_get("/", handler)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def harmless(tab: Tab, here: Site) -> None:
    """Nothing of the agent's ran, is an element, or had to be blocked; with everything unfolded and clicked."""
    await tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    await tab.evaluate("document.querySelectorAll('li.entry :not(a)').forEach(one => one.click())")
    assert await tab.evaluate("window.pwned") is None
    assert await tab.evaluate(f'document.querySelectorAll(":is(#run-header, main) :is({FORBIDDEN})").length') == 0
    links = await tab.evaluate("[...document.links].map(one => one.href)")
    assert [link for link in links if not link.startswith(f"{here.base}/runs/{RUN}")] == []
    handlers = (
        "[...document.querySelectorAll('*')].flatMap(one => [...one.attributes]).filter(one => /^on/.test(one.name))"
    )
    assert await tab.evaluate(f"{handlers}.length") == 0
    assert blocked(tab) == []
    assert thrown(tab) == []


async def test_script_of_an_agent_does_not_run_in_the_page_of_a_finished_run(tab: Tab, here: Site) -> None:
    lines = hostile()
    await here.store.append(key(), [line(n, data) for n, data in enumerate(lines, 1)])
    await here.store.seal(key(), OutputReceipt())
    await open_page(tab, here)
    assert await tab.evaluate("document.querySelectorAll('#transcript > li').length") > 100
    assert await tab.evaluate("document.body.textContent.includes('<script>window.pwned=1</script>')")
    await harmless(tab, here)


async def test_script_of_an_agent_does_not_run_while_it_arrives_live(tab: Tab, here: Site) -> None:
    here.source.info = run_info("running")
    await open_page(tab, here)
    await here.store.append(key(), [line(n, data) for n, data in enumerate(hostile(), 1)])
    await here.store.append(key(), [line(9999, text_event("that was all"))])
    await tab.until("document.getElementById('line-9999')")
    assert await tab.evaluate("document.querySelectorAll('#transcript > li').length") > 100
    await harmless(tab, here)


async def test_script_in_run_info_and_gaps_does_not_run(tab: Tab, here: Site) -> None:
    here.source.info = with_hostile_texts()
    kept = [line(n, data, "gap") for n, data in enumerate(missing(), 1)]
    kept.append(line(len(kept) + 1, json.dumps({"type": "text", "sessionID": "".join(payloads())}).encode()))
    for attempt in (1, 2):
        await here.store.append(key(attempt), kept)
    await here.store.seal(key(2), OutputReceipt(state="differs", gaps=(Gap(after_sequence=1),)))
    await open_page(tab, here)
    assert await tab.evaluate("document.querySelectorAll('#transcript > li.gap').length") == len(missing())
    await tab.evaluate("document.querySelector('#run-header details').open = true")
    places = ["dd", ".phase", ".failure strong", ".failure p", ".failure em", ".steps li", ".attempts a"]
    for place in places:
        words = f"[...document.querySelectorAll('#run-header {place}')].map(one => one.innerText).join()"
        assert "<script>" in await tab.evaluate(words), place
    await harmless(tab, here)


async def test_script_in_the_session_a_running_agent_names_does_not_run(tab: Tab, here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(1, json.dumps({"type": "text", "sessionID": MARKUP, "part": {}}).encode())])
    await open_page(tab, here)
    await tab.until("document.getElementById('state').textContent === 'Live.'")
    await tab.evaluate("document.querySelector('#run-header details').open = true")
    assert await tab.evaluate(f"document.getElementById('run-header').innerText.includes({MARKUP!r})")
    await harmless(tab, here)


async def test_the_check_for_running_script_can_fail(tab: Tab) -> None:
    """The same payloads on a page that neither escapes nor forbids anything do run."""
    await tab.call("Page.setBypassCSP", enabled=True)
    await tab.open("about:blank")
    await tab.evaluate(f"document.write({''.join(payloads()).encode('ascii', 'ignore').decode()!r})")
    assert await tab.evaluate("window.pwned") == 1


async def test_the_policy_stops_markup_even_where_nothing_escapes_it(tab: Tab, here: Site) -> None:
    await here.store.append(key(), [line(1, text_event("hello"))])
    await open_page(tab, here)
    await tab.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=data:, onerror=window.pwned=1>');"
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.pwned=1'}))"
    )
    await tab.event("Log.entryAdded", lambda message: "inline" in message["entry"]["text"])
    assert await tab.evaluate("window.pwned") is None


async def test_a_finished_run_is_whole_with_javascript_off(tab: Tab, here: Site) -> None:
    here.source.info = run_info("succeeded", Outcome())
    lines = [line(n, text_event(f"text {n}")) for n in range(1, 700)]
    await here.store.append(key(), [*lines, line(700, tool("the end", command="ls"))])
    await here.store.seal(key(), OutputReceipt(state="verified", lines=700))
    await tab.call("Emulation.setScriptExecutionDisabled", value=True)
    await open_page(tab, here)
    page = await tab.html()
    assert "text 500" in page
    assert "verified" in page
    await tab.open(f"{here.base}/runs/{RUN}?attempt=1&after=500")
    page = await tab.html()
    assert "text 501" in page
    assert "the end" in page


async def test_a_live_run_shows_new_output_with_javascript_off(tab: Tab, here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(1, text_event("one"))])
    await tab.call("Emulation.setScriptExecutionDisabled", value=True)
    await open_page(tab, here)
    await here.store.append(key(), [line(2, text_event("two"))])
    seen = {one["params"]["loaderId"] for one in tab.happened if one["method"] == "Page.lifecycleEvent"}
    await tab.event(
        "Page.lifecycleEvent", lambda message: message["name"] == "load" and message["loaderId"] not in seen
    )
    assert "two" in await tab.html()


async def test_a_live_run_is_followed_to_its_end(tab: Tab, here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(1, text_event("one"))])
    await open_page(tab, here)
    await tab.until("document.getElementById('state').textContent === 'Live.'")
    for n in range(2, 30):
        await here.store.append(key(), [line(n, text_event(f"text {n}"))])
    await tab.until("document.getElementById('line-29')")
    await here.store.seal(key(), OutputReceipt(state="verified", lines=29))
    here.source.info = run_info("succeeded", Outcome())
    await tab.until("document.getElementById('state').textContent === 'The run has ended.'")
    ids = await tab.evaluate("[...document.querySelectorAll('#transcript > li')].map(one => one.id).join()")
    assert ids == ",".join(f"line-{n}" for n in range(1, 30))
    assert await tab.evaluate("document.getElementById('run-header').textContent.includes('verified')")
    assert thrown(tab) == []


async def test_a_live_page_continues_by_itself_after_a_restart_of_the_service(tab: Tab, tmp_path: Path) -> None:
    async with site(tmp_path) as here:
        here.source.info = run_info("running")
        await here.store.append(key(), [line(1, text_event("one"))])
        await open_page(tab, here)
        await tab.until("document.getElementById('state').textContent === 'Live.'")
        port = int(here.base.rsplit(":", 1)[1])
    await tab.until("document.getElementById('state').textContent === 'Reconnecting …'")
    async with site(tmp_path, port) as here:
        here.source.info = run_info("running")
        await here.store.append(key(), [line(2, text_event("two"))])
        await tab.until("document.getElementById('line-2')")
        assert await tab.evaluate("document.querySelectorAll('#transcript > li').length") == 2


async def test_a_link_from_another_site_works_and_the_token_leaves_the_address(tab: Tab, here: Site) -> None:
    await here.store.append(key(), [line(1, text_event("hello"))])

    async def elsewhere(_request: web.Request) -> web.Response:
        return web.Response(text=f'<a id=go href="{here.link}">the run</a>', content_type="text/html")

    async with served(elsewhere) as port:
        await tab.open(f"http://localhost:{port}/")  # another site than 127.0.0.1
        await tab.evaluate("document.getElementById('go').click()")
        await tab.event("Page.frameNavigated", lambda message: message["frame"]["url"] == f"{here.base}/runs/{RUN}")
    await tab.until("document.getElementById('line-1')")
    assert await tab.evaluate("document.cookie") == ""
    assert await tab.evaluate("document.referrer") == ""
    history = await tab.call("Page.getNavigationHistory")
    assert all("open=" not in entry["url"] for entry in history["entries"])


async def test_the_page_is_rendered_without_console_errors(tab: Tab, here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(1, text_event("hello"))])
    await open_page(tab, here)
    await tab.until("document.getElementById('state').textContent === 'Live.'")
    entries = [one["params"]["entry"] for one in tab.happened if one["method"] == "Log.entryAdded"]
    assert entries == []
    assert await tab.evaluate("getComputedStyle(document.querySelector('.run-info')).display") == "grid"
    await tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert await tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 28)"
