"""The agent's form: in Paperclip's own page, and what its one field for all other settings does to a run."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from agent_runs.agents.form import CAPTIONS, FORM
from tests.paperclip_server.environment import STABLE, Environment
from tests.paperclip_server.observer import JOBS
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.web.chromium import Tab, chromium, installed

WRONG = "resources:\n  limits: {memory: lots}\n"
RIGHT = "resources:\n  limits: {memory: 3Gi}\nmaxSteps: 50\n"
PATH = "config.advanced.resources.limits.memory must be a Kubernetes quantity"
OLD: dict[str, Any] = {"agentDbMode": "ephemeral", "silenceTimeoutSec": 600, "resources.limits.memory": "3Gi"}
"""What the form of an earlier state has saved, and this one does not show."""
CLOSED = ("timeoutSec", "graceSec")
"""In a section of Paperclip's page that is closed."""


@scenario(Schedule.CONCURRENT)
async def test_a_wrong_advanced_setting_is_named_with_its_path_and_a_right_one_counts(env: Environment) -> None:
    instance = await env.instance(STABLE)
    api = instance.api
    tested = await api.test_environment(instance.company, {"model": "fake/scenario/text", "advanced": WRONG})
    assert tested["status"] == "fail"
    assert [check["message"] for check in tested["checks"] if check["message"].startswith(PATH)], tested["checks"]
    ada = await instance.create_scripted_agent("Advanced", advanced=WRONG)
    refused = await api.wait_ended(await instance.run(await instance.issue(ada.agent, "Be refused")))
    assert (refused["status"], refused["errorCode"]) == ("failed", "invalid_request")
    assert PATH in refused["error"]
    config = {"advanced": RIGHT}
    await api.call("PATCH", f"/agents/{ada.agent}", {"adapterConfig": config})
    tested = await api.test_environment(instance.company, {"model": "fake/scenario/text", **config})
    assert [check for check in tested["checks"] if check["code"].startswith("agent_configuration")] == []
    run = await api.wait_ended(await instance.run(await instance.issue(ada.agent, "Be made")))
    assert run["status"] == "succeeded", run["error"]
    (job,) = env.observer.jobs(run["id"])
    bodies = (body for body in env.observer.seen[JOBS] if body["metadata"]["uid"] == job)
    containers = next(bodies)["spec"]["template"]["spec"]["containers"]
    assert "3Gi" in [container["resources"]["limits"]["memory"] for container in containers]


@pytest.mark.skipif(installed() is None, reason="no Chromium on PATH: install Debian's package chromium")
@scenario(Schedule.CONCURRENT)
async def test_paperclips_form_shows_few_fields_and_keeps_the_others(env: Environment) -> None:
    instance = await env.instance(STABLE)
    api = instance.api
    ada = await instance.create_scripted_agent("Saved by an earlier form", **OLD)
    agent = await api.get(f"/agents/{ada.agent}")
    prefix = (await api.get(f"/companies/{instance.company}"))["issuePrefix"]
    page = f"{instance.server.url}/{prefix}/agents/{agent['urlKey']}/runtime"
    async with (
        asyncio.timeout(180),
        chromium(str(installed()), env.folder / "chromium") as browser,
        browser.tab() as tab,
    ):
        await tab.call("Emulation.setDeviceMetricsOverride", width=1400, height=2200, deviceScaleFactor=1, mobile=False)
        await tab.call("Page.navigate", url=page)
        await tab.until("document.body && document.body.textContent.includes('YAML or JSON')")
        text = await tab.evaluate("document.body.innerText")
        for caption in CAPTIONS[FORM]:
            assert (str(caption.label) in text.splitlines()) == (caption.key not in CLOSED), caption.key
        assert not [key for key in OLD if key in text]
        await write(tab, "maxSteps: many\n")
        # on a busy machine a worker may answer too late, and the test has to be repeated
        found = "document.body.textContent.includes('config.advanced.maxSteps must be a whole number')"
        await tab.until(f"{found} || {pressed('Run test', 'Test again')}")
        await tab.picture(Path(os.environ.get("TEST_PICTURES") or env.folder) / "paperclip-form.png")
        await write(tab, "maxSteps: 50\n")
        await tab.until(pressed("Save changes", answer=True))

        async def saved() -> dict[str, object] | None:
            found: dict[str, object] = (await api.get(f"/agents/{ada.agent}"))["adapterConfig"]
            return found if "advanced" in found else None

        after = await api.wait_until(saved, "the form is saved")
    assert after == {**agent["adapterConfig"], "advanced": "maxSteps: 50\n"}
    assert {key: after[key] for key in OLD} == OLD
    run = await api.wait_ended(await instance.run(await instance.issue(ada.agent, "Go on")))
    assert run["status"] == "succeeded", run["error"]


async def write(tab: Tab, text: str) -> None:
    """Writes into the page's text area as a person does; React overrides the property of the element itself."""
    await tab.until("document.querySelector('textarea')")
    await tab.evaluate(
        f"""(() => {{
            const area = document.querySelector("textarea");
            Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(area, {json.dumps(text)});
            area.dispatchEvent(new Event("input", {{bubbles: true}}));
        }})()"""
    )


def pressed(*labels: str, answer: bool = False) -> str:
    """An expression that presses an enabled button with one of these labels; it is `answer`, or false without one."""
    named = f"one => {json.dumps(labels)}.includes(one.textContent)"
    button = f"[...document.querySelectorAll('button:enabled')].find({named})"
    return f"(one => !!one && (one.click(), {json.dumps(answer)}))({button})"
