"""Runs from wake to end, as Paperclip's board sees them."""

import json
from typing import Final

from tests.paperclip_server.api import ADAPTER, Entry, Object
from tests.paperclip_server.environment import (
    REPORT,
    STABLE,
    Environment,
    Instance,
    events,
    logged,
    output,
    parse_in_ui,
    statuses,
    texts,
)
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.scripted_agents import Plan
from tests.pod.driving import bash, script

STEPS: Final = (
    {"reasoning": "I look around first.", "text": "Here I go.", **bash("pwd > where.txt; pwd")},
    {"tools": [{"name": "read", "args": {"filePath": "no-such-file"}}]},
    bash(f"""sh {REPORT} '{{"status":"done","comment":"The agent was here."}}'"""),
    {"text": "All of it is done.", "usage": {"prompt": 2000, "completion": 30, "cached": 500}},
)
WORK: Final = f"Please do it.\n\n{script(*STEPS)}"
"""An issue's text with these steps of the model."""


@scenario(Schedule.CONCURRENT)
async def test_the_real_opencode_completes_its_issue_and_every_line_is_in_the_log_once(env: Environment) -> None:
    instance = await env.instance(STABLE)
    agent = await instance.create_opencode_agent("Ada", "script")
    issue = await instance.issue(agent, "Work it off", WORK)
    run = await instance.api.wait_ended(await instance.run(issue))
    log = await instance.api.log(run["id"])
    assert run["status"] == "succeeded", (run["error"], log[-5:])
    stored = await env.transcript(run["id"], agent, instance.company)
    for stream in ("stdout", "stderr"):
        assert output(log, stream) == logged(stored, stream)
    written = texts(log)
    assert written[0] == "Here I go."
    assert written[-1] == "All of it is done."
    # the agent worked in the very folder that Paperclip prepared, and reached its board
    cwd = run["contextSnapshot"]["paperclipWorkspace"]["cwd"]
    assert instance.server.local_path(f"{cwd}/where.txt").read_text().strip() == cwd
    assert instance.server.local_path(f"{cwd}/answer.txt").exists()
    assert (await instance.api.read_issue(issue))["status"] == "done"
    assert "The agent was here." in await instance.comment_texts(issue)
    assert_costs_of_steps(run, events(stored, "step_finish"))
    session = await instance.stored_session(agent, issue, session_of(log))
    assert session["sessionParamsJson"]["cwd"] == cwd
    assert [run["id"] for run in await instance.api.runs(instance.company, issue)] == [run["id"]]
    await assert_ui_shows_events(env, instance, run["id"])


def assert_costs_of_steps(run: Object, steps: list[Object]) -> None:
    tokens = [step["tokens"] for step in steps]
    usage = run["usageJson"]
    assert usage["inputTokens"] == sum(each["input"] for each in tokens)
    assert usage["outputTokens"] == sum(each["output"] + each["reasoning"] for each in tokens)
    assert usage["cachedInputTokens"] == sum(each["cache"]["read"] for each in tokens)
    assert abs(usage["costUsd"] - sum(step["cost"] for step in steps)) < 1e-6
    assert usage["usageSource"] == "per_run"


async def assert_ui_shows_events(env: Environment, instance: Instance, run: str) -> None:
    """The log, parsed by Paperclip's own worker bootstrap with the parser that the server serves."""
    lines = [entry.chunk.removesuffix("\n") for entry in await instance.api.log(run) if entry.stream == "stdout"]
    shown = await parse_in_ui(env, await instance.api.ui_parser(), lines)
    for line, entries in zip(lines, shown, strict=True):
        if line.startswith("{"):
            assert entries, line
            assert "stdout" not in [entry["kind"] for entry in entries], line
    kinds = {entry["kind"] for entries in shown for entry in entries}
    assert {"assistant", "thinking", "tool_call", "tool_result", "result", "system"} <= kinds


def session_of(log: list[Entry]) -> str:
    """The agent's session, as the plugin reported it."""
    return next(status.split()[1] for status in statuses(log) if status.startswith("session "))


@scenario(Schedule.CONCURRENT)
async def test_lines_are_in_the_log_while_the_agent_still_works(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Live", Plan(lines=20, hold=12))
    issue = await instance.issue(ada.agent, "Count")
    run = await instance.run(issue)
    log = await instance.api.wait_logged(run, "line 12")
    assert texts(log) == [f"line {number}" for number in range(1, 13)]
    assert (await instance.api.run(run))["status"] == "running"
    ada.program.release()
    assert (await instance.api.wait_ended(run))["status"] == "succeeded"
    assert texts(await instance.api.log(run))[:20] == Plan(lines=20).texts


@scenario(Schedule.CONCURRENT)
async def test_a_comment_wakes_the_agent_in_the_same_session_and_the_summary_is_posted(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Resume", Plan(lines=3, reports={"status": "done"}))
    issue = await instance.issue(ada.agent, "Talk")
    first = await instance.api.wait_ended(await instance.run(issue))
    assert first["status"] == "succeeded", first["error"]
    await instance.api.wait_until(lambda: has_comment_with("line 3", instance, issue), "the summary as a comment")
    await instance.api.comment(issue, "Please look again at the violets.", reopen=True)
    second = await instance.api.wait_ended(await instance.run(issue, 1))
    assert second["status"] == "succeeded", second["error"]
    starts = ada.program.starts()
    assert [start["resumed"] for start in starts] == [None, "ses_scripted"]
    assert "violets" in starts[1]["prompt"]
    assert "violets" not in starts[0]["prompt"]
    await instance.stored_session(ada.agent, issue, "ses_scripted")


async def has_comment_with(words: str, instance: Instance, issue: str) -> bool:
    return any(words in text for text in await instance.comment_texts(issue))


@scenario(Schedule.CONCURRENT)
async def test_the_real_opencode_remembers_its_session_in_a_run_after_a_comment(env: Environment) -> None:
    instance = await env.instance(STABLE)
    agent = await instance.create_opencode_agent("Bea", "echo")
    issue = await instance.issue(agent, "Remember", "The word is marigold.")
    first = await instance.api.wait_ended(await instance.run(issue))
    assert first["status"] == "succeeded", first["error"]
    comment = await instance.api.comment(issue, "And now the word is tulip.", reopen=True)
    second = await woken_by(instance, issue, comment["id"])
    assert second["status"] == "succeeded", second["error"]
    stored = await env.transcript(second["id"], agent, instance.company)
    prompts = " ".join(part["text"] for part in events(stored, "text"))
    assert "marigold" in prompts
    assert "tulip" in prompts


async def woken_by(instance: Instance, issue: str, comment: str) -> Object:
    """The run that a comment woke, once it has ended; Paperclip may have started another run before it."""

    async def woken_run() -> Object | None:
        runs = await instance.api.runs(instance.company, issue)
        woken = [run for run in runs if comment in json.dumps(run["contextSnapshot"])]
        return woken[0] if woken else None

    found = await instance.api.wait_until(woken_run, f"the run that a comment in issue {issue} wakes")
    return await instance.api.wait_ended(found["id"])


@scenario(Schedule.CONCURRENT)
async def test_two_issues_of_one_agent_run_one_after_the_other(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Two", Plan(lines=6, hold=3))
    one = await instance.issue(ada.agent, "First")
    first = await instance.run(one)
    await instance.api.wait_logged(first, "line 3")
    other = await instance.issue(ada.agent, "Second")
    second = await instance.run(other)
    waiting = await instance.api.wait_logged(second, "the agent is held by")
    assert any(first in status for status in statuses(waiting))
    ada.program.release()
    for run in (first, second):
        assert (await instance.api.wait_ended(run))["status"] == "succeeded"
        assert texts(await instance.api.log(run))[:6] == Plan(lines=6).texts
    assert [start["run"] for start in ada.program.starts()] == [first, second]
    for issue in (one, other):
        assert (await instance.api.read_issue(issue))["status"] == "done"


@scenario(Schedule.CONCURRENT)
async def test_an_unknown_session_is_replaced_by_a_fresh_one_within_the_run(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Amnesia", Plan(session="ses_first"))
    issue = await instance.issue(ada.agent, "Forget")
    assert (await instance.api.wait_ended(await instance.run(issue)))["status"] == "succeeded"
    ada.program.set_plan(Plan(session="ses_second", unknown_session="ses_first"))
    await instance.api.comment(issue, "And now?", reopen=True)
    second = await instance.api.wait_ended(await instance.run(issue, 1))
    assert second["status"] == "succeeded", second["error"]
    assert [start["resumed"] for start in ada.program.starts()] == [None, "ses_first", None]
    await instance.stored_session(ada.agent, issue, "ses_second")


@scenario(Schedule.CONCURRENT)
async def test_a_failed_agent_is_a_failed_run_with_a_reason_and_its_session(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Failing", Plan(reports={}, code=3))
    issue = await instance.issue(ada.agent, "Fail")
    run = await instance.api.wait_ended(await instance.run(issue))
    assert run["status"] == "failed"
    assert run["errorCode"]
    assert run["error"]
    assert texts(await instance.api.log(run["id"])) == Plan().texts
    await instance.stored_session(ada.agent, issue, "ses_scripted")
    assert len(env.observer.jobs(run["id"])) == 1


@scenario(Schedule.CONCURRENT)
async def test_an_evicted_pod_is_replaced_within_the_run(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Evicted", Plan(lines=8, hold=4))
    issue = await instance.issue(ada.agent, "Survive")
    run = await instance.run(issue)
    await instance.api.wait_logged(run, "line 4")
    await env.observer.inject_fault("evict", pod=await env.observer.pod(run))
    ada.program.release()
    ended = await instance.api.wait_ended(run)
    assert ended["status"] == "succeeded", ended["error"]
    assert [found["id"] for found in await instance.api.runs(instance.company, issue)] == [run]
    assert len(ada.program.starts()) == 2
    written = texts(await instance.api.log(run))
    assert written[:4] == Plan(lines=4).texts
    assert written[4:12] == Plan(lines=8).texts
    stored = [await env.transcript(run, ada.agent, instance.company, attempt) for attempt in (1, 2)]
    assert output(await instance.api.log(run)) == logged([*stored[0], *stored[1]])


@scenario(Schedule.CONCURRENT)
async def test_the_environment_test_passes_and_names_a_wrong_field(env: Environment) -> None:
    instance = await env.instance(STABLE)
    good = await instance.api.test_environment(instance.company, {"model": "fake/scenario/text"})
    assert good["adapterType"] == ADAPTER
    assert good["status"] != "fail", good["checks"]
    bad = await instance.api.test_environment(instance.company, {"model": "no-slash"})
    assert bad["status"] == "fail"
    assert any("model" in check["message"] for check in bad["checks"] if check["level"] == "error"), bad["checks"]


@scenario(Schedule.CONCURRENT)
async def test_a_wrong_configuration_never_starts_and_names_the_field(env: Environment) -> None:
    instance = await env.instance(STABLE)
    ada = await instance.create_scripted_agent("Wrong", model="no-slash")
    issue = await instance.issue(ada.agent, "Never")
    run = await instance.api.wait_ended(await instance.run(issue))
    assert run["status"] == "failed"
    assert "config.model" in run["error"]
    assert ada.program.starts() == []
    assert env.observer.jobs_of(ada.agent) == set()
