"""The real agents against the scripted model: turns, tools, sessions, errors, and what they say they used."""

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from agent_runs.agents.profile import load
from dev_stack.agent_programs import ensure_program
from dev_stack.scripted_model import ScriptedModel, Usage
from tests.agents.acp import AcpClient, RequestFailed, running
from tests.agents.gemini_sessions import protect
from tests.agents.launch import KEY, launch
from tests.agents.usage import spent
from tests.conftest import UNKNOWN_SESSION

pytestmark = [pytest.mark.slow, pytest.mark.real_agents]

UNKNOWN_ERRORS = {
    "claude": (-32002, "Resource not found"),
    "codex": (-32002, "Resource not found"),
    "gemini": (-32603, "No previous sessions found for this project."),
    "qwen": (-32002, "Resource not found: session:"),
    "pi": (-32602, "Unknown sessionId: "),
}


class Agent:
    """An agent with a home of its own, to be started as often as a test wants."""

    def __init__(self, name: str, installed: Path, folder: Path, model: ScriptedModel) -> None:
        self.name, self.installed, self.model = name, installed, model
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()

    def start(self, scenario: str, prefix: str = "scenario/") -> AbstractAsyncContextManager[AcpClient]:
        started = launch(self.name, self.installed, self.home, f"{prefix}{scenario}", self.model.origin)
        return running(started, self.work)


@pytest.fixture
async def agent(name: str, tmp_path: Path, model: ScriptedModel) -> Agent:
    return Agent(name, await ensure_program(name), tmp_path, model)


async def test_an_agent_reports_the_tokens_that_its_model_used(agent: Agent) -> None:
    async with agent.start("usage") as client:
        session = await client.new(agent.work)
        results = [await client.prompt(session, "count"), await client.prompt(session, "count again")]
    assert client.text.count("Counted.") == 2
    turns = [each.usage for each in agent.model.sent if each.model == "scenario/usage"]
    assert turns == [Usage(prompt=1000, cached=400, completion=50, reasoning=10)] * 2
    expected = {
        "claude": Usage(prompt=2000, cached=800, completion=100, reasoning=0),
        "gemini": Usage(prompt=2000, cached=0, completion=80, reasoning=0),
    }.get(agent.name, Usage(prompt=2000, cached=800, completion=100, reasoning=20))
    assert spent(agent.name, results, client.updates, agent.home) == expected


async def test_an_agent_runs_a_command_and_writes_a_file(agent: Agent) -> None:
    written = agent.work / "written.txt"
    async with agent.start("tool-bash") as client:
        await client.prompt(await client.new(agent.work), "greet")
    assert "The command printed its greeting." in client.text
    async with agent.start(f"tool-write:{written}") as client:
        await client.prompt(await client.new(agent.work), "write")
    assert written.read_text() == "written by the fake model\n"
    assert client.asked == []
    assert {"tool_call", "tool_call_update"} <= {update["sessionUpdate"] for update in client.updates}


async def test_a_session_goes_on_after_the_agent_was_killed(agent: Agent) -> None:
    async with agent.start("echo") as client:
        session = await client.new(agent.work)
        await client.prompt(session, "the first prompt")
    for prompt in ("the second prompt", "the third prompt"):
        protect(agent.home)
        async with agent.start("echo") as client:
            await client.load(session, agent.work)
            await client.prompt(session, prompt)
    received = json.dumps(agent.model.requests[-1])
    for prompt in ("the first prompt", "the second prompt", "the third prompt"):
        assert prompt in received


async def test_a_session_that_is_unknown_has_an_error_of_its_own(agent: Agent) -> None:
    async with agent.start("text") as client:
        with pytest.raises(RequestFailed) as raised:
            await client.load(UNKNOWN_SESSION, agent.work)
    code, text = UNKNOWN_ERRORS[agent.name]
    assert raised.value.error["code"] == code
    assert text in json.dumps(raised.value.error)


async def test_an_error_of_the_provider_reaches_the_client(agent: Agent) -> None:
    async with agent.start("error:401") as client:
        session = await client.new(agent.work)
        if agent.name == "pi":  # it says nothing at all: the error is in its session's file
            assert await client.prompt(session, "fail") == {"stopReason": "end_turn"}
            assert client.text == ""
            (file,) = (agent.home / ".pi" / "agent" / "sessions").rglob("*.jsonl")
            assert "Incorrect API key provided" in file.read_text()
            return
        with pytest.raises(RequestFailed) as raised:
            await client.prompt(session, "fail")
    reported = json.dumps(raised.value.error) + client.text
    assert "Incorrect API key provided" in reported
    assert raised.value.error["code"] == {"claude": -32000, "gemini": 401}.get(agent.name, -32603)


async def test_a_cancelled_command_ends_the_turn(agent: Agent) -> None:
    async with agent.start("slow-steps:1:600") as client:
        session = await client.new(agent.work)
        turn = asyncio.create_task(client.prompt(session, "work"))
        await client.begun.wait()
        await client.cancel(session)
        assert (await turn)["stopReason"] == "cancelled"


async def test_the_key_of_the_provider_is_in_no_file_of_the_home(agent: Agent) -> None:
    async with agent.start("tool-bash") as client:
        await client.prompt(await client.new(agent.work), "greet")
    files = [path for path in agent.home.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("name", "suggested"), [(name, model) for name, profile in load().items() for model in profile.models]
)
async def test_a_suggested_model_is_what_the_provider_is_asked_for(agent: Agent, suggested: str) -> None:
    model = suggested.partition("/")[2]
    async with agent.start(model, prefix="") as client:
        session = await client.new(agent.work)
        with pytest.raises(RequestFailed):  # the scripted provider has no such model
            await client.prompt(session, "hello")
    asked = [str(each["model"]) for each in agent.model.requests]
    assert any(model in each for each in asked) or (model == "auto" and len(asked) > 0), asked
