"""The list of runs in a real browser."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from agent_runs.client.names import Names
from agent_runs.contracts.identity import RunKey
from tests.web.chromium import Tab, chromium, installed
from tests.web.parts import RUN, Site, key, line, payloads, run_info, text_event
from tests.web.run_list_parts import TOKEN, operated, run, store_run, usage
from tests.web.test_browser import blocked, served, thrown

PROGRAM = installed()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH: install Debian's package chromium"),
]


@pytest.fixture
async def tab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tab]:
    """A tab of a browser in which nobody has signed in."""
    async with chromium(str(PROGRAM), tmp_path_factory.mktemp("chromium")) as browser, browser.tab() as found:
        yield found


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with operated(tmp_path) as made:
        yield made


async def sign_in(tab: Tab, here: Site, path: str = "/runs") -> None:
    """Sign in by the form and arrive where it was shown."""
    await tab.open(f"{here.base}{path}")
    loaded = {one["params"]["loaderId"] for one in tab.happened if one["method"] == "Page.lifecycleEvent"}
    await tab.evaluate(f"document.getElementById('token').value = {TOKEN!r}")
    await tab.evaluate("document.querySelector('form.sign-in').requestSubmit()")
    await tab.event(
        "Page.lifecycleEvent", lambda message: message["name"] == "load" and message["loaderId"] not in loaded
    )
    assert await tab.evaluate("location.pathname") == path


async def test_an_operator_signs_in_and_sees_changes_without_a_reload(tab: Tab, here: Site) -> None:
    here.source.runs = [run(1)]
    await store_run(here, 1, usage("first"))
    await sign_in(tab, here)
    assert await tab.evaluate("document.cookie") == ""
    here.source.runs = [run(2), run(1, "succeeded")]
    await store_run(here, 2, usage("second"))
    await tab.until("document.querySelector('.runs tbody')?.innerText.includes('second')")
    await tab.until("document.querySelector('.runs tbody').innerText.includes('succeeded')")
    assert await tab.evaluate("document.getElementById('state').textContent.startsWith('Live, as of ')")
    assert thrown(tab) == []


async def test_the_list_needs_no_script(tab: Tab, here: Site) -> None:
    here.source.runs = [run(1)]
    await sign_in(tab, here)
    await tab.call("Emulation.setScriptExecutionDisabled", value=True)
    await tab.open(f"{here.base}/runs?search=run-1&phase=running")
    page = await tab.html()
    assert 'href="runs/agent-1~run-1"' in page
    assert here.source.asked[-1][0].phase == "running"


async def test_nothing_that_an_agent_writes_runs_in_the_list(tab: Tab, here: Site) -> None:
    for number, payload in enumerate(payloads()):
        texts = dict.fromkeys(("model", "phase", "failure_code", "task_key"), payload)
        here.source.runs = [*here.source.runs, run(number, names=Names(payload, payload), **texts)]
        await store_run(here, number, usage(payload))
    await sign_in(tab, here)
    await tab.until("document.getElementById('state').textContent.startsWith('Live, as of ')")
    assert await tab.evaluate("document.querySelector('.runs').innerText.includes('<script>window.pwned=1</script>')")
    assert await tab.evaluate("window.pwned") is None
    assert (
        await tab.evaluate("document.querySelectorAll('main :is(script,img,svg,iframe,style,meta,object)').length") == 0
    )
    assert blocked(tab) == []
    assert thrown(tab) == []


def navigations(tab: Tab, here: Site) -> list[dict[str, Any]]:
    """Those that ended at the page of the run."""
    found = (one for one in tab.happened if one["method"] == "Page.frameNavigated")
    return [one for one in found if one["params"]["frame"]["url"] == f"{here.base}/runs/{RUN}"]


async def test_an_operator_who_follows_a_link_of_another_site_arrives_signed_in(tab: Tab, here: Site) -> None:
    here.source.info = run_info("running")
    await here.store.append(key(), [line(1, text_event("hello"))])
    await sign_in(tab, here, f"/runs/{RUN}")

    async def elsewhere(_request: web.Request) -> web.Response:
        return web.Response(text=f'<a id=go href="{here.base}/runs/{RUN}">the run</a>', content_type="text/html")

    async with served(elsewhere) as port:
        await tab.open(f"http://localhost:{port}/")  # another site than 127.0.0.1
        before = {one["params"]["frame"]["loaderId"] for one in navigations(tab, here)}
        await tab.evaluate("document.getElementById('go').click()")
        await tab.event("Page.lifecycleEvent", lambda _: len(navigations(tab, here)) == len(before) + 2)
        last = navigations(tab, here)[-1]["params"]["frame"]["loaderId"]
        await tab.event("Page.lifecycleEvent", lambda it: it["name"] == "load" and it["loaderId"] == last)
    await tab.until("document.getElementById('line-1')")
    assert await tab.evaluate("document.querySelector('.back a').textContent") == "← all runs"


async def test_twenty_runs_with_names_and_long_output_fit_on_a_screen(tab: Tab, here: Site) -> None:
    names = Names("Ada, backend engineer", "ACM-7 A long task that goes on and on")
    of_uuids = [RunKey(agent_id=str(UUID(int=n)), company_id="acme", run_id=str(UUID(int=n))) for n in range(25)]
    here.source.runs = [
        run(n, "failed", failure_code="k8s_pod_lost", names=names, key=each) for n, each in enumerate(of_uuids)
    ]
    for one in of_uuids:
        await here.store.append(
            key(run=one.name), [line(1, text_event("x"))], usage=usage("I look around in all of the files " * 10)
        )
    await tab.call("Emulation.setDeviceMetricsOverride", width=1920, height=1000, deviceScaleFactor=1, mobile=False)
    await sign_in(tab, here)
    bottoms = await tab.evaluate(
        "[...document.querySelectorAll('.runs tbody tr')].map(row => row.getBoundingClientRect().bottom)"
    )
    assert sum(bottom <= 1000 for bottom in bottoms) >= 20


@pytest.mark.parametrize("dark", [False, True])
async def test_on_a_phone_the_list_is_as_wide_as_the_screen(tab: Tab, here: Site, *, dark: bool) -> None:
    here.source.runs = [run(1, "failed", failure_code="k8s_pod_schedule_failed", task_key="x" * 200)]
    await store_run(here, 1, usage("long " * 100))
    await tab.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await tab.call("Emulation.setEmulatedMedia", features=[scheme])
    await sign_in(tab, here)
    assert await tab.evaluate("document.documentElement.scrollWidth") == 390
    assert await tab.evaluate("getComputedStyle(document.querySelector('.runs tbody tr')).display") == "grid"
    ground = "getComputedStyle(document.querySelector('.runs tbody tr')).backgroundColor"
    assert await tab.evaluate(ground) == ("rgb(26, 31, 41)" if dark else "rgb(255, 255, 255)")
