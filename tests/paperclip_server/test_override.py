"""The plugin in place of Paperclip's own OpenCode adapter: agents of type `opencode_local` run in Kubernetes."""

import json
from typing import Final

import pytest

from agent_runs.contracts.identity import workflow_id
from tests.paperclip_server.api import ADAPTER, ApiError, Entry, Object
from tests.paperclip_server.environment import (
    FOLDERS,
    OVERRIDDEN,
    OVERRIDE,
    READABLE,
    Environment,
    Instance,
    events,
    parse_as_opencode,
)
from tests.paperclip_server.scenarios import Schedule, scenario
from tests.paperclip_server.scripted_agents import Plan
from tests.paperclip_server.test_cancel import assert_cancelled
from tests.paperclip_server.test_runs import WORK, woken_by
from tests.support.pages import fenced, run_block

FORM: Final = {"dangerouslySkipPermissions": True, "timeoutSec": 0, "command": "opencode", "variant": ""}
"""What Paperclip's own form for this type writes."""
SKILLS: Final = {"paperclipSkillSync": {"desiredSkills": ["paperclipai/paperclip/paperclip"]}}
"""The skills that somebody has chosen for an agent, as Paperclip keeps them."""
OURS: Final = ("[agent-runs] ", "[paperclip] ", "OpenCode 1.")


@scenario(Schedule.CONCURRENT)
async def test_an_agent_of_paperclips_own_type_runs_in_kubernetes_and_its_log_is_a_chat(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    installed = await instance.api.installed()
    assert (installed["source"], installed["overriddenBuiltin"]) == ("external", True), installed
    agent = await instance.create_opencode_agent("Local", "script", **FORM)
    issue = await instance.issue(agent, "Work it off", WORK)
    run = await instance.api.wait_ended(await instance.run(issue, agent=agent))
    log = await instance.api.log(run["id"])
    assert run["status"] == "succeeded", (run["error"], log[-5:])
    assert (await instance.api.get(f"/agents/{agent}"))["adapterType"] == OVERRIDE
    assert (await instance.api.read_issue(issue))["status"] == "done"
    await assert_ran_in_kubernetes(env, run, agent)
    stored = await env.transcript(run["id"], agent, instance.company)
    shown = await parse_as_opencode(env, stdout_lines(log))
    assert_chat(shown)
    said = [entry["text"] for entry in shown_of(shown, "assistant")]
    assert said == [part["text"].strip() for part in events(stored, "text")]
    assert said[-1] == "All of it is done."
    calls = [entry["name"] for entry in shown_of(shown, "tool_call")]
    assert calls == [part["tool"] for part in events(stored, "tool_use")]
    assert len(shown_of(shown, "tool_result")) == len(calls)
    # no parser of ours replaces Paperclip's own, which was asked here
    with pytest.raises(ApiError, match="No UI parser"):
        await instance.api.ui_parser()


@scenario(Schedule.CONCURRENT)
async def test_one_paperclip_runs_agents_of_both_types(env: Environment) -> None:
    instances = {name: await env.instance(name) for name in (READABLE, OVERRIDDEN)}
    assert instances[READABLE].server is instances[OVERRIDDEN].server
    for name, instance in instances.items():
        ada = await instance.create_scripted_agent(f"Both {name}", Plan(lines=3))
        issue = await instance.issue(ada.agent, f"Both {name}")
        run = await instance.api.wait_ended(await instance.run(issue, agent=ada.agent))
        assert run["status"] == "succeeded", run["error"]
        assert (await instance.api.get(f"/agents/{ada.agent}"))["adapterType"] == instance.api.adapter
        await assert_ran_in_kubernetes(env, run, ada.agent)
        # each log is for who shows it: Paperclip's own parser, or people
        is_chat = any(line.startswith("{") for line in stdout_lines(await instance.api.log(run["id"])))
        assert is_chat == (name == OVERRIDDEN)


async def assert_ran_in_kubernetes(env: Environment, run: Object, agent: str) -> None:
    """One Job, one workflow, and no process of Paperclip's."""
    assert len(env.observer.jobs(run["id"])) == 1
    assert run["resultJson"]["workflowId"] == workflow_id(agent)
    described = await env.stack.client.get_workflow_handle(workflow_id(agent)).describe()
    assert described.run_id == run["resultJson"]["workflowRunId"]
    assert (run["processPid"], run["processGroupId"]) == (None, None)


def stdout_lines(log: list[Entry]) -> list[str]:
    """The lines as Paperclip's transcript view gives them to a parser, one by one."""
    return "".join(entry.chunk for entry in log if entry.stream == "stdout").splitlines()


def shown_of(shown: list[list[Object]], kind: str) -> list[Object]:
    return [entry for entries in shown for entry in entries if entry["kind"] == kind]


def assert_chat(shown: list[list[Object]]) -> None:
    """Every line is an entry of the chat, or a sentence of the plugin's or of Paperclip's."""
    kinds = {entry["kind"] for entries in shown for entry in entries}
    assert {"assistant", "thinking", "tool_call", "tool_result", "result"} <= kinds
    unread = [entry["text"] for entry in shown_of(shown, "stdout") if not entry["text"].startswith(OURS)]
    assert unread == []


@scenario(Schedule.CONCURRENT)
async def test_a_comment_resumes_the_session_of_an_agent_of_paperclips_own_type(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    ada = await instance.create_scripted_agent("Resume", Plan(lines=3), **FORM)
    issue = await instance.issue(ada.agent, "Talk")
    first = await instance.api.wait_ended(await instance.run(issue, agent=ada.agent))
    assert first["status"] == "succeeded", first["error"]
    await instance.stored_session(ada.agent, issue, "ses_scripted")
    comment = await instance.api.comment(issue, "Please look again at the violets.", reopen=True)
    second = await woken_by(instance, issue, comment["id"])
    assert second["status"] == "succeeded", second["error"]
    starts = ada.program.starts()
    assert [start["run"] for start in starts] == [first["id"], second["id"]]
    assert [start["resumed"] for start in starts] == [None, "ses_scripted"]
    assert "violets" in starts[1]["prompt"]
    await assert_ran_in_kubernetes(env, second, ada.agent)


@scenario(Schedule.CONCURRENT)
async def test_the_documented_call_moves_an_agent_to_the_plugins_own_type_with_its_configuration(
    env: Environment,
) -> None:
    instance = await env.instance(OVERRIDDEN)
    secret = {"MINE": {"type": "plain", "value": "kept"}, "MY_API_KEY": {"type": "plain", "value": "kept-too"}}
    config = FORM | SKILLS | {"variant": "high", "maxTokens": 10**6, "env": secret}
    ada = await instance.create_scripted_agent("Moved", Plan(lines=3, records=[*secret]), **config)
    issue = await instance.issue(ada.agent, "Move")
    first = await instance.api.wait_ended(await instance.run(issue, agent=ada.agent))
    assert first["status"] == "succeeded", first["error"]
    await instance.stored_session(ada.agent, issue, "ses_scripted")
    before = (await instance.api.get(f"/agents/{ada.agent}"))["adapterConfig"]
    [(_, call)] = fenced("moving.md")
    await run_block(call, PAPERCLIP=instance.server.url, AGENT=ada.agent)
    moved = await instance.api.get(f"/agents/{ada.agent}")
    assert moved["adapterType"] == ADAPTER
    assert before.pop("maxTokens") == "***REDACTED***"
    assert before.keys() >= SKILLS.keys()
    assert moved["adapterConfig"] == before
    assert before["variant"] == "high"
    comment = await instance.api.comment(issue, "Go on in the other type.", reopen=True)
    second = await woken_by(instance, issue, comment["id"])
    assert second["status"] == "succeeded", second["error"]
    # Paperclip keeps the session of a task by the agent's type
    assert [start["resumed"] for start in ada.program.starts()] == [None, None]
    assert {name: ada.program.recorded()[name] for name in secret} == {"MINE": "kept", "MY_API_KEY": "kept-too"}


@scenario(Schedule.CONCURRENT)
async def test_a_change_of_the_type_alone_loses_what_paperclips_form_loses(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    emptied = dict.fromkeys(("model", "effort", "modelReasoningEffort", "variant", "mode"), "")
    for name, sent in {"alone": {}, "by the form": {"adapterConfig": emptied}}.items():
        agent = await instance.create_opencode_agent(name, "text", **FORM | SKILLS | {"variant": "high"})
        before = (await instance.api.get(f"/agents/{agent}"))["adapterConfig"]
        changed = await instance.api.call("PATCH", f"/agents/{agent}", {"adapterType": ADAPTER, **sent})
        kept = {field for field, value in changed["adapterConfig"].items() if value != ""}
        assert kept >= {"instructionsFilePath", "env", "graceSec", "timeoutSec", *SKILLS}
        assert before.keys() - kept == {"model", "variant", "dangerouslySkipPermissions", "command", "keepWarmSec"}


@scenario(Schedule.CONCURRENT)
async def test_a_failed_run_of_paperclips_own_type_leaves_a_task_that_a_comment_wakes(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    ada = await instance.create_scripted_agent("Failing", Plan(lines=2, reports={}, error=404), **FORM)
    issue = await instance.issue(ada.agent, "Fail")
    run = await instance.api.wait_ended(await instance.run(issue, agent=ada.agent))
    assert (run["status"], run["errorCode"]) == ("failed", "provider_rejected")
    assert (await instance.api.read_issue(issue))["status"] == "blocked"
    # Paperclip itself needs a moment to release what it leased for the run
    await instance.api.wait_until(lambda: is_not_held(instance, issue), f"issue {issue} is not held")
    ada.program.set_plan(Plan())
    comment = await instance.api.comment(issue, "Corrected, go on.")
    woken = await woken_by(instance, issue, comment["id"])
    assert woken["status"] == "succeeded", woken["error"]
    assert (await instance.api.read_issue(issue))["status"] == "done"
    # A retry, unlike a comment, begins a new session: Paperclip's rule for its own types.
    retried = await ada.fail_and_retry()
    last = ada.program.starts()[-1]
    assert (last["run"], last["resumed"]) == (retried, None)


async def is_not_held(instance: Instance, issue: str) -> bool:
    return (await instance.api.read_issue(issue)).get("executionBlocker") is None


@scenario(Schedule.CONCURRENT)
async def test_a_run_of_paperclips_own_type_can_be_cancelled(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    ada = await instance.create_scripted_agent("Cancelled", Plan(lines=10, hold=5), **FORM)
    issue = await instance.issue(ada.agent, "Works")
    run = await instance.run(issue, agent=ada.agent)
    log = await instance.api.wait_logged(run, "line 5")
    shown = await parse_as_opencode(env, stdout_lines(log))
    assert [entry["text"] for entry in shown_of(shown, "assistant")] == Plan(lines=5).texts
    await assert_cancelled(env, ada, issue, run)
    assert [start["resumed"] for start in ada.program.starts()] == [None, "ses_scripted"]


@scenario(Schedule.CONCURRENT)
async def test_an_agent_of_paperclips_own_type_needs_a_git_repository_in_a_project(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    ada = await instance.create_scripted_agent("Project", Plan(), **FORM)
    project, folder = await instance.project("Repository")
    issue = await instance.api.issue(instance.company, ada.agent, "Without", project=project)
    refused = await instance.api.wait_ended(await instance.run(issue, agent=ada.agent))
    assert refused["status"] == "failed"
    assert ".git" in refused["error"], refused["error"]
    assert env.observer.jobs(refused["id"]) == set()
    (folder / ".git").mkdir()
    other = await instance.api.issue(instance.company, ada.agent, "With", project=project)
    run = await instance.api.wait_ended(await instance.run(other, agent=ada.agent))
    assert run["status"] == "succeeded", run["error"]
    assert [instance.server.local_path(start["cwd"]) for start in ada.program.starts()] == [folder]


@scenario(Schedule.EXCLUSIVE)
async def test_a_run_of_paperclips_own_type_survives_a_restart_of_paperclip(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    ada = await instance.create_scripted_agent("Restarted", Plan(lines=10, hold=5), **FORM)
    issue = await instance.issue(ada.agent, "Go on")
    first = await instance.run(issue, agent=ada.agent)
    await instance.api.wait_logged(first, "line 5")
    await instance.server.terminate()
    await instance.server.start()
    assert await external_types(instance) == set(FOLDERS)
    assert (await instance.api.run(first))["status"] == "interrupted"
    second = await instance.run(issue, 1, agent=ada.agent)
    log = await instance.api.wait_logged(second, "line 5")
    assert f"[agent-runs] joined run {first}, " in "".join(stdout_lines(log))
    ada.program.release()
    ended = await instance.api.wait_ended(second)
    assert ended["status"] == "succeeded", ended["error"]
    shown = shown_of(await parse_as_opencode(env, stdout_lines(await instance.api.log(second))), "assistant")
    assert [entry["text"] for entry in shown][:10] == Plan(lines=10).texts
    assert [start["run"] for start in ada.program.starts()] == [first]
    assert len(env.observer.jobs_of(ada.agent)) == 1
    assert (await instance.api.read_issue(issue))["status"] == "done"


@scenario(Schedule.EXCLUSIVE)
async def test_deleting_the_plugin_brings_paperclips_own_adapter_back(env: Environment) -> None:
    instance = await env.instance(OVERRIDDEN)
    await instance.api.uninstall()
    own = await instance.api.installed()
    assert own["source"] == "builtin", json.dumps(own)
    assert await external_types(instance) == {ADAPTER}
    assert (await instance.api.install(FOLDERS[OVERRIDE]))["type"] == OVERRIDE
    assert (await instance.api.installed())["overriddenBuiltin"] is True


async def external_types(instance: Instance) -> set[str]:
    return {each["type"] for each in await instance.api.get("/adapters") if each["source"] == "external"}
