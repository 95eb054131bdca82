"""Runs from wake to end, as Paperclip's board sees them."""

import json
from typing import Any, Final

from tests.paperclip_server.agents import Plan
from tests.paperclip_server.api import ADAPTER, Object
from tests.paperclip_server.stage import Act, story
from tests.paperclip_server.system import REPORT, STEADY, Office, System, fed_to_ui, output, statuses, texts

WORKED: Final = {
    "steps": [
        {
            "reasoning": "I look around first.",
            "text": "Here I go.",
            "tools": [{"name": "bash", "args": {"command": "pwd > where.txt; pwd", "description": "where am I"}}],
        },
        {"tools": [{"name": "read", "args": {"filePath": "no-such-file"}}]},
        {
            "tools": [
                {
                    "name": "bash",
                    "args": {
                        "command": f"""sh {REPORT} '{{"status":"done","comment":"The agent was here."}}'""",
                        "description": "report",
                    },
                }
            ]
        },
        {"text": "All of it is done.", "usage": {"prompt": 2000, "completion": 30, "cached": 500}},
    ]
}


def script(steps: Object) -> str:
    """An issue's text with the lines of the scripted model."""
    return f"Please do it.\n\n<<<fake-llm\n{json.dumps(steps, indent=1)}\nfake-llm>>>"


@story(Act.TOGETHER)
async def test_the_real_opencode_works_its_issue_off_and_every_line_is_in_the_log_once(whole: System) -> None:
    office = await whole.office(STEADY)
    agent = await office.real("Ada", "script")
    issue = await office.issue(agent, "Work it off", script(WORKED))
    run = await office.api.ended(await office.run(issue))
    log = await office.api.log(run["id"])
    assert run["status"] == "succeeded", (run["error"], log[-5:])
    stored = await whole.transcript(run["id"], agent, office.company)
    for stream in ("stdout", "stderr"):
        assert output(log, stream) == [line.data.decode() for line in stored if line.stream == stream]
    said = texts(output(log))
    assert said[0] == "Here I go."
    assert said[-1] == "All of it is done."
    # the agent worked in the very folder that Paperclip prepared, and reached its board
    cwd = run["contextSnapshot"]["paperclipWorkspace"]["cwd"]
    assert office.server.here(f"{cwd}/where.txt").read_text().strip() == cwd
    assert office.server.here(f"{cwd}/answer.txt").exists()
    assert (await office.api.read_issue(issue))["status"] == "done"
    assert "The agent was here." in await office.said(issue)
    await costs_are_those_of_the_steps(run, output(log))
    session = await office.session(agent, issue, session_of(output(log)))
    assert session["sessionParamsJson"]["cwd"] == cwd
    assert [run["id"] for run in await office.api.runs(office.company, issue)] == [run["id"]]
    await the_ui_shows_every_event(whole, office, run["id"])


async def costs_are_those_of_the_steps(run: Object, lines: list[str]) -> None:
    steps = [event["part"] for line in lines if (event := json.loads(line))["type"] == "step_finish"]
    tokens = [step["tokens"] for step in steps]
    usage = run["usageJson"]
    assert usage["inputTokens"] == sum(each["input"] for each in tokens)
    assert usage["outputTokens"] == sum(each["output"] + each["reasoning"] for each in tokens)
    assert usage["cachedInputTokens"] == sum(each["cache"]["read"] for each in tokens)
    assert abs(usage["costUsd"] - sum(step["cost"] for step in steps)) < 1e-6
    assert usage["usageSource"] == "per_run"


async def the_ui_shows_every_event(whole: System, office: Office, run: str) -> None:
    """Paperclip's own worker bootstrap, with the parser as the server serves it, fed with the log."""
    lines = [entry.chunk.removesuffix("\n") for entry in await office.api.log(run) if entry.stream == "stdout"]
    shown = await fed_to_ui(whole, await office.api.ui_parser(), lines)
    for line, entries in zip(lines, shown, strict=True):
        event = json.loads(line) if line.startswith("{") else {}
        if event:
            assert "stdout" not in [entry["kind"] for entry in entries], line
        if event.get("type") in {"text", "reasoning", "tool_use", "step_start", "step_finish", "error"}:
            assert entries, line
    kinds = {entry["kind"] for entries in shown for entry in entries}
    assert {"init", "assistant", "thinking", "tool_call", "tool_result", "result", "system"} <= kinds


def session_of(lines: list[str]) -> Any:
    return json.loads(lines[0])["sessionID"]


@story(Act.TOGETHER)
async def test_lines_are_in_the_log_while_the_agent_still_works(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Live", Plan(lines=20, hold=12))
    issue = await office.issue(ada.agent, "Count")
    run = await office.run(issue)
    log = await office.api.logged(run, "line 12")
    assert texts(output(log)) == [f"line {number}" for number in range(1, 13)]
    assert (await office.api.run(run))["status"] == "running"
    ada.program.release()
    assert (await office.api.ended(run))["status"] == "succeeded"
    assert texts(output(await office.api.log(run)))[:20] == Plan(lines=20).said


@story(Act.TOGETHER)
async def test_a_comment_wakes_the_agent_in_the_same_session_and_the_summary_is_posted(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Resume", Plan(lines=3, tells={"status": "done"}))
    issue = await office.issue(ada.agent, "Talk")
    first = await office.api.ended(await office.run(issue))
    assert first["status"] == "succeeded", first["error"]
    await office.api.until(lambda: any_has("line 3", office, issue), "the summary as a comment")
    await office.api.comment(issue, "Please look again at the violets.", reopen=True)
    second = await office.api.ended(await office.run(issue, 1))
    assert second["status"] == "succeeded", second["error"]
    starts = ada.program.starts()
    assert [start["resumed"] for start in starts] == [None, "ses_scripted"]
    assert "violets" in starts[1]["prompt"]
    assert "violets" not in starts[0]["prompt"]
    await office.session(ada.agent, issue, "ses_scripted")


async def any_has(words: str, office: Office, issue: str) -> bool:
    return any(words in text for text in await office.said(issue))


@story(Act.TOGETHER)
async def test_the_real_opencode_remembers_what_was_said_before_a_comment(whole: System) -> None:
    office = await whole.office(STEADY)
    agent = await office.real("Bea", "echo")
    issue = await office.issue(agent, "Remember", "The word is marigold.")
    first = await office.api.ended(await office.run(issue))
    assert first["status"] == "succeeded", first["error"]
    comment = await office.api.comment(issue, "And now the word is tulip.", reopen=True)
    second = await woken_by(office, issue, comment["id"])
    assert second["status"] == "succeeded", second["error"]
    stored = await whole.transcript(second["id"], agent, office.company)
    heard = " ".join(texts([line.data.decode() for line in stored if line.stream == "stdout"]))
    assert "marigold" in heard
    assert "tulip" in heard


async def woken_by(office: Office, issue: str, comment: str) -> Object:
    """The end of the run that a comment woke; Paperclip may have begun one for want of a disposition before it."""

    async def there() -> Object | None:
        runs = await office.api.runs(office.company, issue)
        woken = [run for run in runs if comment in json.dumps(run["contextSnapshot"])]
        return woken[0] if woken else None

    found = await office.api.until(there, f"the run that a comment in issue {issue} wakes")
    return await office.api.ended(found["id"])


@story(Act.TOGETHER)
async def test_two_issues_of_one_agent_run_one_after_the_other(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Two", Plan(lines=6, hold=3))
    one = await office.issue(ada.agent, "First")
    first = await office.run(one)
    await office.api.logged(first, "line 3")
    other = await office.issue(ada.agent, "Second")
    second = await office.run(other)
    waiting = await office.api.logged(second, '"busy"')
    assert first in json.dumps(statuses(waiting))
    ada.program.release()
    for run in (first, second):
        assert (await office.api.ended(run))["status"] == "succeeded"
        assert texts(output(await office.api.log(run)))[:6] == Plan(lines=6).said
    assert [start["run"] for start in ada.program.starts()] == [first, second]
    for issue in (one, other):
        assert (await office.api.read_issue(issue))["status"] == "done"


@story(Act.TOGETHER)
async def test_an_unknown_session_is_begun_afresh_within_the_run(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Amnesia", Plan(session="ses_first"))
    issue = await office.issue(ada.agent, "Forget")
    assert (await office.api.ended(await office.run(issue)))["status"] == "succeeded"
    ada.program.change(Plan(session="ses_second", unknown_session="ses_first"))
    await office.api.comment(issue, "And now?", reopen=True)
    second = await office.api.ended(await office.run(issue, 1))
    assert second["status"] == "succeeded", second["error"]
    assert [start["resumed"] for start in ada.program.starts()] == [None, "ses_first", None]
    await office.session(ada.agent, issue, "ses_second")


@story(Act.TOGETHER)
async def test_a_failed_agent_is_a_failed_run_with_a_reason_and_its_session(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Failing", Plan(tells={}, code=3))
    issue = await office.issue(ada.agent, "Fail")
    run = await office.api.ended(await office.run(issue))
    assert run["status"] == "failed"
    assert run["errorCode"]
    assert run["error"]
    assert texts(output(await office.api.log(run["id"]))) == Plan().said
    await office.session(ada.agent, issue, "ses_scripted")
    assert len(whole.witness.jobs(run["id"])) == 1


@story(Act.TOGETHER)
async def test_an_evicted_pod_is_replaced_within_the_run(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Evicted", Plan(lines=8, hold=4))
    issue = await office.issue(ada.agent, "Survive")
    run = await office.run(issue)
    await office.api.logged(run, "line 4")
    await whole.witness.order("evict", pod=await whole.witness.pod(run))
    ada.program.release()
    ended = await office.api.ended(run)
    assert ended["status"] == "succeeded", ended["error"]
    assert [found["id"] for found in await office.api.runs(office.company, issue)] == [run]
    assert len(ada.program.starts()) == 2
    said = texts(output(await office.api.log(run)))
    assert said[:4] == Plan(lines=4).said
    assert said[4:12] == Plan(lines=8).said
    stored = [
        line.data.decode()
        for attempt in (1, 2)
        for line in await whole.transcript(run, ada.agent, office.company, attempt)
        if line.stream == "stdout"
    ]
    assert output(await office.api.log(run)) == stored


@story(Act.TOGETHER)
async def test_the_environment_test_passes_and_names_what_is_wrong(whole: System) -> None:
    office = await whole.office(STEADY)
    good = await office.api.test_environment(office.company, {"model": "fake/scenario/text"})
    assert good["adapterType"] == ADAPTER
    assert good["status"] != "fail", good["checks"]
    bad = await office.api.test_environment(office.company, {"model": "no-slash"})
    assert bad["status"] == "fail"
    assert any("model" in check["message"] for check in bad["checks"] if check["level"] == "error"), bad["checks"]


@story(Act.TOGETHER)
async def test_a_wrong_configuration_never_starts_and_names_the_field(whole: System) -> None:
    office = await whole.office(STEADY)
    ada = await office.scripted("Wrong", model="no-slash")
    issue = await office.issue(ada.agent, "Never")
    run = await office.api.ended(await office.run(issue))
    assert run["status"] == "failed"
    assert "config.model" in run["error"]
    assert ada.program.starts() == []
    assert whole.witness.jobs_of(ada.agent) == set()
