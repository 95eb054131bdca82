"""Whole runs of the real Claude Code, Codex, Gemini CLI, Qwen Code and pi on the embedded cluster."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.request import SessionParams
from dev_stack.agent_programs import PROGRAMS
from dev_stack.demo import later_context
from tests.pod.paperclip import serving
from tests.runs.real_agents import KEY, AgentSystem, events, real_agents
from tests.runs.real_opencode import playing
from tests.security.canaries import Record

pytestmark = [pytest.mark.slow, pytest.mark.real_agents]

COUNTED = {"usage": {"prompt": 1000, "completion": 50, "cached": 400, "reasoning": 10}}
UNKNOWN = "0199c0de-0000-7000-8000-000000000000"
SPENT = {
    "claude": (1200, 100, 800, 0),
    "codex": (1200, 100, 800, 20),
    "gemini": (2000, 80, 0, 0),
    "qwen": (1200, 100, 800, 20),
    "pi": (1200, 100, 800, 20),
}
"""Input without the cache, output, cache and reasoning of two such answers, as far as each agent tells them."""


def bash(command: str) -> dict[str, Any]:
    return {"tools": [{"name": "bash", "args": {"command": command, "description": "a command"}}]}


@pytest.fixture(scope="module")
async def agents(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentSystem]:
    async with real_agents(temporal, tmp_path_factory.mktemp("agents")) as opened:
        yield opened


@pytest.fixture(params=PROGRAMS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_whole(outcome: Outcome, summary: str) -> None:
    assert outcome.failure is None, outcome.failure
    assert outcome.summary == summary
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"


async def test_a_run_with_a_tool_is_whole_and_says_what_it_used(agents: AgentSystem, name: str) -> None:
    raw = await agents.plays(name, {**bash("echo heron"), **COUNTED}, {"text": "Done.", **COUNTED})
    outcome = await agents.system.outcome(raw)
    assert_whole(outcome, "Done.")
    seen = await events(agents.system, raw)
    (tool,) = [each["part"] for each in seen if each["type"] == "tool_use"]
    assert (tool["state"]["status"], "heron" in str(tool["state"]["output"])) == ("completed", name != "gemini")
    used = outcome.usage
    assert used is not None
    assert (used.input_tokens, used.output_tokens, used.cached_input_tokens, used.reasoning_tokens) == SPENT[name]
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


async def test_an_unknown_session_is_replaced_by_a_fresh_one(agents: AgentSystem, name: str) -> None:
    raw = later_context(await agents.plays(name, {"text": "Fresh."}), SessionParams(session_id=UNKNOWN))
    outcome = await agents.system.outcome(raw)
    assert_whole(outcome, "Fresh.")
    assert [attempt.failure_code for attempt in outcome.attempts] == ["session_unavailable", None]
    assert outcome.session_id not in (None, UNKNOWN)


async def test_an_error_of_the_provider_has_the_name_of_its_cause(agents: AgentSystem, name: str) -> None:
    raw = await agents.agent(name, "error:401")
    outcome = await agents.system.outcome(raw)
    assert outcome.failure is not None
    assert outcome.failure.code == "provider_credentials"


async def test_the_key_of_the_provider_is_in_secrets_and_nowhere_else(agents: AgentSystem, name: str) -> None:
    raw = await agents.plays(name, bash("env; cat ~/.*/*.json ~/.*/*.toml ~/.*/*/*.json"), {"text": f"It is {KEY}."})
    async with Record(agents.system).recording() as record:
        ticket = await agents.system.start(raw)
        outcome = await outcome_at_close(ticket.handle(agents.system.temporal))
    assert outcome.failure is None, outcome.failure
    lines = b"\n".join(line.data for line in await agents.system.lines(raw))
    assert f"[[secret:{agents.key_of(name)}" in lines.decode()
    assert KEY.encode() not in lines
    assert KEY.encode() not in await agents.system.history_bytes(ticket)
    assert KEY not in outcome.model_dump_json()
    assert [place for place, text in record.objects().items() if KEY.encode() in text] == []


async def test_a_change_of_the_agent_begins_a_fresh_session_and_says_so(agents: AgentSystem) -> None:
    first = await agents.plays("codex", {"text": "One."})
    one = await agents.system.outcome(first)
    second = playing(later_context(first, one.session_params), {"text": "Two."})
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
    )
    await agents.system.outcome(raw)
    seen = await events(agents.system, raw)
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
