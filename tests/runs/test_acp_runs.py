"""Whole runs of the real Claude Code, Codex, Gemini CLI, Qwen Code and pi on the embedded cluster."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.agents.profile import load
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.tell import tell
from agent_runs.contracts.request import SessionParams
from agent_runs.contracts.start import HostTexts
from agent_runs.transcript.entries import entry
from dev_stack.demo import later_context
from tests.conftest import UNKNOWN_SESSION
from tests.pod.driving import bash, script
from tests.pod.paperclip import serving
from tests.runs.real_agents import COUNTED, KEY, SPENT, AgentSystem, key_of, real_agents, spent
from tests.runs.real_opencode import later
from tests.security.canaries import Record
from tests.support.ends import assert_whole

pytestmark = [pytest.mark.slow, pytest.mark.real_agents]


READS_A_SKILL: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "claude": lambda skill, _: {"tools": [{"name": "Skill", "args": {"skill": skill}}]},
    "codex": lambda _, path: bash(f"cat {path}"),
    "gemini": lambda skill, _: {"tools": [{"name": "activate_skill", "args": {"name": skill}}]},
    "pi": lambda _, path: {"tools": [{"name": "read", "args": {"path": path}}]},
    "qwen": lambda skill, _: {"tools": [{"name": "skill", "args": {"skill": skill}}]},
}
"""What the model of each agent calls to read a skill, by its name and file."""


TODOS = [
    {"content": "Look", "activeForm": "Look", "status": "completed"},
    {"content": "Write", "activeForm": "Write", "status": "in_progress"},
]


@pytest.fixture(scope="module")
async def agents(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentSystem]:
    async with real_agents(temporal, tmp_path_factory.mktemp("agents")) as opened:
        yield opened


async def test_a_run_with_a_tool_is_whole_and_says_what_it_used(agents: AgentSystem, name: str) -> None:
    late = "sleep 1; " if name == "codex" else ""  # it loses what a command prints at once
    raw = await agents.plays(name, {**bash(f"{late}echo heron"), **COUNTED}, {"text": "Done.", **COUNTED})
    outcome = await agents.system.outcome(raw)
    assert_whole(outcome, "Done.")
    seen = await agents.system.events(raw)
    (tool,) = [each["part"] for each in seen if each["type"] == "tool_use"]
    assert (tool["state"]["status"], "heron" in str(tool["state"]["output"])) == ("completed", name != "gemini")
    assert spent(outcome) == SPENT[name]
    assert (outcome.cost_usd is None) == (name != "claude")
    assert outcome.session_params is not None
    assert outcome.session_params.agent == name
    assert await agents.left_of(raw) == []


async def test_the_next_run_continues_the_session(agents: AgentSystem, name: str) -> None:
    first = await agents.plays(name, {"text": "The word is heron."})
    one = await agents.system.outcome(first)
    assert_whole(one, "The word is heron.")
    second = later_context(first, one.session_params)
    second["config"]["model"] = "fake/scenario/echo"
    two = await agents.system.outcome(second)
    assert two.failure is None, two.failure
    assert two.session_id == one.session_id
    assert "not resumed" not in str(two.result_json.get("notes"))
    assert "The word is heron." in str(agents.model.requests[-1])


async def test_an_agent_that_takes_no_messages_while_it_works_gets_one_as_its_next_prompt(
    agents: AgentSystem, name: str, tmp_path: Path
) -> None:
    if load()[name].takes_messages:
        pytest.skip(f"{name} takes messages while it works")
    system, may_end = agents.system, tmp_path / "may-end"
    raw = await agents.plays(name, bash(f"until [ -e {may_end} ]; do sleep 0.2; done"), {"text": "Done."})
    ticket = await system.start(raw)
    handle = ticket.handle(system.temporal)
    await system.until_tools_began(raw)
    text = f"The word is heron. {script({'text': 'I have read it.'})}"
    answer = await tell(handle, system.wake(raw).start.key, system.sealer, text, "ada")
    may_end.touch()
    outcome = await outcome_at_close(handle)
    assert answer.queued
    assert_whole(outcome, "I have read it.")
    assert len(outcome.attempts) == 2
    assert "Done." in str(agents.model.requests[-1])  # it is the same session
    assert await agents.left_of(raw) == []


def skill(agents: AgentSystem, raw: dict[str, Any], name: str) -> tuple[str, HostTexts]:
    """Gives the run this skill and no other. Returns its folder, which has another name, and what the host read."""
    own = f"{name}--{raw['agent']['id']}"
    path = f"instances/default/skills/{raw['agent']['companyId']}/{own}"
    file = agents.system.volume("homes") / path / "SKILL.md"
    file.parent.mkdir(parents=True)
    description = f"All about a {name}. {'Use it whenever birds are the matter. ' * 10}"
    text = f"---\nname: {name}\ndescription: {description}\n---\nFeed the {name}.\n"
    file.write_text(text)
    raw["config"]["paperclipRuntimeSkills"] = [{"key": name, "source": f"/paperclip/{path}", "required": True}]
    return own, HostTexts(skills={name: text})


@pytest.mark.parametrize("skip", [True, False], ids=["any folder", "its directory only"])
async def test_an_agent_offers_its_model_the_skills_of_paperclip_and_can_read_them(
    agents: AgentSystem, name: str, skip: bool
) -> None:
    if not skip and load()[name].permissions.reject is None:
        pytest.skip(f"{name} denies nothing")
    reading = READS_A_SKILL[name]("heron", f"/home/agent/{load()[name].skills}/heron/SKILL.md")
    raw = await agents.plays(name, reading, {"text": "Done."}, dangerouslySkipPermissions=skip)
    for bird in ("heron", "stork"):
        folder, host = skill(agents, raw, bird)
        assert_whole(await agents.system.outcome(raw, host), "Done.")
        asked = [text for each in agents.model.requests if folder in (text := str(each)) and "aux/title" not in text]
        assert f"All about a {bird}." in asked[0]
        assert ("All about a heron." in asked[0], "Feed the heron." in asked[-1]) == (bird == "heron",) * 2
        raw = later_context(raw, None)


async def test_an_agent_can_read_a_skill_that_comes_with_paperclip(agents: AgentSystem, name: str) -> None:
    reading = READS_A_SKILL[name]("heron", f"/home/agent/{load()[name].skills}/heron/SKILL.md")
    raw = await agents.plays(name, reading, {"text": "Done."})
    raw["config"]["paperclipRuntimeSkills"] = [{"key": "heron", "source": "/app/skills/heron", "required": True}]
    text = "---\nname: heron\ndescription: All about a heron.\n---\nFeed the heron.\n"
    agents.model.requests.clear()
    outcome = await agents.system.outcome(raw, HostTexts(skills={"heron": text}, skill_files={"heron": {}}))
    assert_whole(outcome, "Done.")
    requests = map(str, agents.model.requests)
    asked = [each for each in requests if "/agent-run/skills/heron" in each and "aux/title" not in each]
    assert "All about a heron." in asked[0]
    assert "Feed the heron." not in asked[0]
    assert "Feed the heron." in asked[-1]


async def test_an_unknown_session_is_replaced_by_a_fresh_one(agents: AgentSystem, name: str) -> None:
    raw = later_context(await agents.plays(name, {"text": "Fresh."}), SessionParams(session_id=UNKNOWN_SESSION))
    outcome = await agents.system.outcome(raw)
    assert_whole(outcome, "Fresh.")
    assert [attempt.failure_code for attempt in outcome.attempts] == ["session_unavailable", None]
    assert outcome.session_id not in (None, UNKNOWN_SESSION)


async def test_an_error_of_the_provider_has_the_name_of_its_cause(agents: AgentSystem, name: str) -> None:
    raw = await agents.agent(name, "error:401")
    outcome = await agents.system.outcome(raw)
    assert outcome.failure is not None
    assert outcome.failure.code == "provider_credentials"


async def test_notices_of_retries_are_shown_and_are_no_answer(agents: AgentSystem) -> None:
    raw = await agents.agent("pi", "error:429")
    outcome = await agents.system.outcome(raw)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.summary) == ("provider_quota", None)
    shown = [shown.title for line in await agents.system.stdout(raw) if (shown := entry(line)) and shown.kind == "log"]
    assert "notice: Retrying (attempt 1/3, waiting 2s)..." in shown


async def test_the_plan_of_an_agent_is_shown(agents: AgentSystem) -> None:
    raw = await agents.plays("claude", {"tools": [{"name": "TodoWrite", "args": {"todos": TODOS}}]}, {"text": "Done."})
    assert_whole(await agents.system.outcome(raw), "Done.")
    shown = [entry(line) for line in await agents.system.stdout(raw)]
    assert [(each.title, each.body) for each in shown if each and each.title.startswith("plan")] == [
        ("plan  1 of 2 done", "✓ Look\n▸ Write")
    ]


async def test_the_key_of_the_provider_is_in_secrets_and_nowhere_else(agents: AgentSystem, name: str) -> None:
    raw = await agents.plays(name, bash("env; cat ~/.*/*.json ~/.*/*.toml ~/.*/*/*.json"), {"text": f"It is {KEY}."})
    async with Record(agents.system).recording() as record:
        ticket = await agents.system.start(raw)
        outcome = await outcome_at_close(ticket.handle(agents.system.temporal))
    assert outcome.failure is None, outcome.failure
    lines = b"\n".join(line.data for line in await agents.system.lines(raw))
    assert f"[[secret:{key_of(name)}" in lines.decode()
    assert KEY.encode() not in lines
    assert KEY.encode() not in await agents.system.history_bytes(ticket)
    assert KEY not in outcome.model_dump_json()
    assert [place for place, text in record.objects().items() if KEY.encode() in text] == []


async def test_a_change_of_the_agent_begins_a_fresh_session_and_says_so(agents: AgentSystem) -> None:
    first = await agents.plays("codex", {"text": "One."})
    one = await agents.system.outcome(first)
    second = later(first, one, {"text": "Two."})
    second["config"] |= {**(await agents.agent("qwen", "script"))["config"], "model": "fake/scenario/script"}
    two = await agents.system.outcome(second)
    assert_whole(two, "Two.")
    assert two.session_id != one.session_id
    assert f"session {one.session_id} is not resumed: it is codex's, and the agent is qwen now" in str(two.result_json)
    assert len(two.attempts) == 1


@pytest.mark.parametrize(
    ("name", "model", "where"),
    [
        ("claude", "fake/scenario/script", "output_config"),
        ("codex", "openai/gpt-5.2-codex", "reasoning"),  # it sends none to a model that it does not know
    ],
)
async def test_the_effort_of_the_configuration_reaches_the_model(
    agents: AgentSystem, name: str, model: str, where: str
) -> None:
    for effort in ("low", "high"):
        await agents.system.outcome(await agents.plays(name, {"text": "Done."}, variant=effort, model=model))
        asked = [each for each in agents.model.requests if each.get("model") == model.partition("/")[2]][-1]
        assert asked[where]["effort"] == effort


@pytest.mark.parametrize("name", ["claude", "gemini", "qwen"])
async def test_a_tool_that_leaves_the_workspace_is_denied_where_the_configuration_says_so(
    agents: AgentSystem, name: str
) -> None:
    raw = await agents.plays(
        name,
        bash("touch /paperclip/outside; echo left > /tmp/left"),
        {"text": "Done."},
        dangerouslySkipPermissions=False,
        askTimeoutSec=0,
    )
    await agents.system.outcome(raw)
    seen = await agents.system.events(raw)
    assert [each["type"] for each in seen if each["type"] == "permission_rejected"] == ["permission_rejected"]
    tools = [each["part"]["state"]["status"] for each in seen if each["type"] == "tool_use"]
    assert "completed" not in tools


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "qwen"])
async def test_an_mcp_server_of_paperclips_is_reached_through_the_pods_proxy(agents: AgentSystem, name: str) -> None:
    with serving() as paperclip:
        raw = await agents.plays(name, {"text": "Done."}, paperclipApiUrl=paperclip.url)
        raw["authToken"], paperclip.owner = "token-of-the-run", ("token-of-the-run", raw["runId"])
        headers = {"Authorization": "Bearer token-of-the-run"}
        raw["config"]["mcpServers"] = {"tools": {"url": f"{paperclip.url}/api/mcp/tools", "headers": headers}}
        assert_whole(await agents.system.outcome(raw), "Done.")
        sent = {each.headers["Authorization"] for each in paperclip.requests if each.path == "/api/mcp/tools"}
    assert sent == {"Bearer token-of-the-run"}
