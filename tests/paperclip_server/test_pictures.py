"""What a person sees of a run on its task, in a browser on a real Paperclip. Each state leaves a picture."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent_runs.client.tell import tell
from tests.paperclip_server.environment import OVERRIDDEN, Environment, Instance
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.test_questions import ASKS, WORK, answered, said
from tests.pod.driving import bash, script
from tests.web.chromium import Tab, chromium, installed

pytestmark = pytest.mark.skipif(installed() is None, reason="no Chromium on PATH: install Debian's package chromium")
WIDTH, HEIGHT = 1400, 1000


@asynccontextmanager
async def browser(env: Environment, profile: str) -> AsyncIterator["Browser"]:
    folder = Path(os.environ.get("TEST_PICTURES") or env.folder / "pictures")
    async with chromium(str(installed()), env.folder / f"chromium-{profile}") as found, found.tab() as tab:
        await tab.call(
            "Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False
        )
        yield Browser(await env.instance(OVERRIDDEN), tab, folder)


class Browser:
    """A tab on the board of a Paperclip."""

    def __init__(self, instance: Instance, tab: Tab, folder: Path) -> None:
        self._instance, self._tab, self._folder = instance, tab, folder

    async def task(self, issue: str) -> None:
        """Opens a task."""
        found = await self._instance.api.read_issue(issue)
        prefix = found["identifier"].partition("-")[0]
        await self._tab.call("Page.navigate", url=f"{self._instance.server.url}/{prefix}/issues/{found['identifier']}")
        await self.shows(found["title"])

    async def page(self, link: str) -> None:
        """Opens the page of a run by the link in its log."""
        await self._tab.open(link, ends_at=link.partition("?")[0])

    async def shows(self, words: str) -> None:
        """Returns once the page shows these words."""
        await self._tab.until(f"document.body && document.body.innerText.includes({words!r})")

    async def click(self, words: str) -> None:
        """Clicks what has these words and nothing else, once it is there and can be clicked."""
        find = (
            "[...document.querySelectorAll('button, label, [role=radio], [role=checkbox]')]"
            f".filter(each => !each.disabled && each.innerText.trim().startsWith({words!r})).at(-1)"
        )
        await self._tab.until(f"!!{find}")
        await self._tab.evaluate(f"{find}.click()")

    async def picture(self, name: str) -> None:
        await self._tab.picture(self._folder / f"paperclip-{name}.png")


@scenario(Schedule.CONCURRENT)
async def test_a_person_sees_a_failed_run_on_its_task(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    agent = await instance.create_opencode_agent("Failing", "error:401")
    issue = await instance.issue(agent, "Ask the provider")
    async with browser(env, "failed") as seen:
        await seen.task(issue)
        await seen.shows("The run failed: provider_credentials")
        await seen.shows("Next step: Correct the provider")
        await seen.picture("failed")


@scenario(Schedule.CONCURRENT)
async def test_a_person_answers_an_agent_on_its_task(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    agent = await instance.create_opencode_agent("Asking", "script", **ASKS)
    issue = await instance.issue(agent, "Ask me", WORK)
    async with browser(env, "asked") as seen:
        await seen.task(issue)
        await seen.shows("The agent asks for a permission")
        await seen.picture("asked")
        await seen.click("Allow once")
        await seen.click("Submit answers")
        run = await instance.run(issue, agent=agent)
        await instance.api.wait_ended(run)
        await said(instance, issue, "All of it is done.")
        await seen.task(issue)
        await seen.shows("Worked")
        await seen.picture("answered")
    assert [answer["answers"] for answer in await answered(env, run, agent, instance.company)] == [[["Allow once"]]]


@scenario(Schedule.CONCURRENT)
async def test_a_person_sees_what_an_agent_does_what_it_is_sent_what_waits_for_it_and_its_cancel(
    env: Environment,
) -> None:
    instance = await env.instance(OVERRIDDEN)
    agent = await instance.create_opencode_agent("Steady", "script")
    work = script(bash("sleep 20"), bash("sleep 600"))
    issue = await instance.issue(agent, "A long task", work)
    run = await instance.run(issue, agent=agent)
    async with browser(env, "steady") as seen:
        await seen.task(issue)
        await seen.shows("The agent uses bash")
        await seen.picture("working")
        handle, key, sealer = env.run_of(instance, agent, run)
        text = f"The branch is heron. {script(bash('sleep 600'))}"
        assert not (await tell(handle, key, sealer, text, "ada")).queued
        log = "".join(entry.chunk for entry in await instance.api.log(run))
        await seen.page(re.findall(r"http\S+open=\S+", log)[0])
        await seen.shows("The branch is heron.")
        await seen.picture("steered")
        later = await instance.issue(agent, "The next task", script({"text": "Done."}))
        identifier = (await instance.api.read_issue(issue))["identifier"]
        await seen.task(later)
        await seen.shows(f"Queued behind {identifier}")
        await seen.picture("queued")
        await instance.api.cancel(run)
        assert (await instance.api.wait_ended(run))["status"] == "cancelled"
        await seen.task(issue)
        await seen.shows("fake-llm")  # what the task says comes with its runs
        await seen.picture("cancelled")
