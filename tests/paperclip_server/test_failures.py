"""Failed runs leave their tasks wakeable, ends deadlock nothing, and people can read a run's log and page."""

import asyncio
import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import aiohttp

from tests.paperclip_server.api import Object
from tests.paperclip_server.environment import READABLE, Environment, Instance, ScriptedAgent
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.scripted_agents import Plan
from tests.paperclip_server.test_runs import WORK, woken_by

SWEEPS: Final = timedelta(seconds=25)
"""Two rounds of Paperclip's own recovery, which would repeat a run or hold its task."""
REPEATS: Final = 2
"""Of a run, by Paperclip itself."""
ENDS: Final = 60
AGENTS: Final = 6


@dataclass(frozen=True)
class Failing:
    """An agent that fails, and how."""

    code: str
    plan: Plan
    config: dict[str, Any] = field(default_factory=dict)
    repeated: bool = False
    """Paperclip repeats the run by itself: an outage may pass."""


def failing(code: str, /, *, repeated: bool = False, config: dict[str, Any] | None = None, **plan: Any) -> Failing:
    return Failing(code, Plan(**{"lines": 2, "reports": {}, **plan}), config or {}, repeated)


FAILURES: Final = (
    failing("adapter_failed", code=3),
    failing("provider_rejected", error=404, reports={"comment": "I have begun."}),
    failing("provider_rejected", error=404),
    failing("provider_credentials", error=401),
    failing("opencode_error", error=0),
    failing("provider_unavailable", error=503, repeated=True),
    failing("output_cut_off", reason="length"),
    failing("model_refused", reason="content-filter"),
    failing("step_limit_reached", reason="max_turns"),
    failing("opencode_crashed", signal=11),
    failing("opencode_start_failed", refuses_start=True),
    failing("timeout", hold=2, config={"timeoutSec": 15}),
    failing("invalid_request", config={"model": "no-slash"}),
)


@scenario(Schedule.CONCURRENT)
async def test_the_task_of_a_failed_run_says_why_and_is_woken_by_a_comment_and_not_repeated(env: Environment) -> None:
    instance = await env.instance(READABLE)
    failed: list[tuple[Failing, ScriptedAgent, str, Object]] = []
    for number, one in enumerate(FAILURES):
        ada = await instance.create_scripted_agent(f"Failing {number} {one.code}", one.plan, **one.config)
        issue = await instance.issue(ada.agent, f"Fail {number} with {one.code}")
        run = await instance.api.wait_ended(await instance.run(issue, agent=ada.agent))
        failed.append((one, ada, issue, run))
    assert [run["errorCode"] for _, _, _, run in failed] == [one.code for one, _, _, _ in failed]
    await asyncio.sleep(SWEEPS.total_seconds())  # nothing must happen, which nothing announces
    for one, ada, issue, _ in failed:
        runs = await instance.api.runs(instance.company, issue, ada.agent)
        task = await instance.api.read_issue(issue)
        repeats = 1 if recovered_meanwhile(instance, issue) else 0
        assert one.repeated or len(runs) <= 1 + repeats, (one.code, runs)
        assert one.repeated or task["status"] == "blocked", (one.code, task["status"])
        assert not task.get("executionBlocker"), (one.code, task["executionBlocker"])
        said = [each["body"] for each in await instance.api.comments(issue) if "**The run failed:" in each["body"]]
        assert len(said) in ({0, int(len(runs) > REPEATS)} if one.repeated else {len(runs)}), (one.code, said)
        assert all(f"`{one.code}`" in each and "**Next step:** " in each for each in said), (one.code, said)
    for one, ada, issue, _ in failed:
        ada.program.set_plan(Plan())
        ada.program.release()
        comment = await instance.api.comment(issue, "Corrected, go on.")
        woken = await woken_by(instance, issue, comment["id"])
        assert woken["status"] == "succeeded" or one.code == "invalid_request", (one.code, woken["error"])
    env.measurements["failures whose tasks a comment woke"] = str(len(failed))


def recovered_meanwhile(instance: Instance, issue: str) -> bool:
    """Whether Paperclip's own recovery repeated the task's run.

    On a busy machine one round of it takes ten seconds, and it acts on what it read at its begin, when the task was not
    yet blocked. Then the repeat fails and blocks the task again.
    """
    rounds = (
        line
        for line in instance.server.log.read_text(errors="replace").splitlines()
        if "heartbeat recovery changed assigned issue state" in line
    )
    return any(issue in each for each in rounds)


@scenario(Schedule.CONCURRENT)
async def test_a_failed_run_can_be_retried_by_a_person(env: Environment) -> None:
    instance = await env.instance(READABLE)
    ada = await instance.create_scripted_agent("Retried")
    await ada.fail_and_retry()


@scenario(Schedule.CONCURRENT)
async def test_sixty_ends_deadlock_nothing(env: Environment) -> None:
    instance = await env.instance(READABLE)
    adas = [await instance.create_scripted_agent(f"Ending {number}") for number in range(AGENTS)]
    ended = await asyncio.gather(*(end_often(instance, ada, ENDS // AGENTS) for ada in adas))
    runs = [run for each in ended for run in each]
    assert len(runs) == ENDS
    assert {run["status"] for run in runs} == {"succeeded"}, [run["error"] for run in runs if run["error"]]
    assert "deadlock detected" not in instance.server.log.read_text(errors="replace")
    env.measurements["ends without a deadlock"] = str(len(runs))


async def end_often(instance: Instance, ada: ScriptedAgent, times: int) -> list[Object]:
    """Runs one agent for so many issues of a project, one after the other."""
    runs = []
    project, _ = await instance.project(f"Project of {ada.agent}")
    for number in range(times):
        title = f"End {ada.agent} {number}"
        issue = await instance.api.issue(instance.company, ada.agent, title, project=project)
        runs.append(await instance.api.wait_ended(await instance.run(issue, agent=ada.agent)))
    return runs


@scenario(Schedule.CONCURRENT)
async def test_the_log_of_a_run_reads_as_text_and_the_link_to_its_page_opens(env: Environment) -> None:
    instance = await env.instance(READABLE)
    agent = await instance.create_opencode_agent("Readable", "script")
    issue = await instance.issue(agent, "Work it off", WORK)
    run = await instance.api.wait_ended(await instance.run(issue, agent=agent))
    log = await instance.api.log(run["id"])
    text = "".join(entry.chunk for entry in log)
    assert run["status"] == "succeeded", (run["error"], text[-2000:])
    assert f"[agent-runs] run {run['id']} started\n" in text
    assert "Here I go.\n" in text
    assert "> bash: pwd > where.txt; pwd\n  /paperclip/" in text
    assert "All of it is done.\n" in text
    assert "[agent-runs] succeeded\n" in text
    assert "level=INFO" not in text
    assert not [line for line in text.splitlines() if line.startswith("{") and "type" in json.loads(line)], text
    (env.folder / "readable-log.txt").write_text(text)
    (link,) = re.findall(r"http\S+open=\S+", text)  # Paperclip redacts what looks like a token in a log
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        await browser.get(link)  # stores the token in a cookie, and continues without it
        async with browser.get(link.partition("?")[0]) as page:
            assert page.status == 200, page.url
            assert "All of it is done." in await page.text()
