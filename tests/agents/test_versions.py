"""Whole runs of each agent's oldest and newest supported version, on the embedded cluster."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.agents.opencode import VERSIONS
from agent_runs.agents.profile import OPENCODE_TITLE, load
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.request import SessionParams
from dev_stack.agent_programs import PROGRAMS
from dev_stack.demo import later_context
from dev_stack.opencode_binary import ensure_opencode
from tests.conftest import UNKNOWN_SESSION
from tests.pod.driving import bash
from tests.runs.real_agents import COUNTED, SPENT, AgentSystem, real_agents, spent
from tests.runs.real_opencode import agent_of, later, playing, real_system
from tests.runs.system import System
from tests.support.ends import assert_whole
from tests.support.ran import note_ran

pytestmark = [pytest.mark.slow, pytest.mark.real_agents]

OF_OPENCODE = sorted({version for window in VERSIONS for version in window})
ENDS = [
    pytest.param(name, end, id=f"the {end} {name}")  # so that no sample leaves one out
    for name in PROGRAMS
    for end in ("oldest", "newest")
]


async def ended(system: System, raw: dict[str, Any], version: str) -> Outcome:
    outcome = await system.outcome(raw)
    assert (outcome.result_json["agentVersion"], outcome.result_json.get("notes")) == (version, None)
    return outcome


@pytest.fixture(scope="module")
async def agents(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentSystem]:
    async with real_agents(temporal, tmp_path_factory.mktemp("agents")) as opened:
        yield opened


@pytest.fixture(scope="module")
async def opencode(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    async with real_system(temporal, tmp_path_factory.mktemp("opencode")) as opened:
        yield opened


async def prove(system: System, first: dict[str, Any], failing: dict[str, Any], version: str) -> Outcome:
    """A run with a tool, one that continues its session, one whose session is unknown, and one that a provider refuses;
    returns what came of the first."""
    one = await ended(system, first, version)
    assert_whole(one, "Done.")
    (tool,) = [each["part"] for each in await system.events(first) if each["type"] == "tool_use"]
    assert tool["state"]["status"] == "completed"
    two = await ended(system, later(first, one, {"text": "I went on."}), version)
    assert_whole(two, "I went on.")
    assert two.session_id == one.session_id
    lost = playing(later_context(first, SessionParams(session_id=UNKNOWN_SESSION)), {"text": "Fresh."})
    three = await system.outcome(lost)
    assert_whole(three, "Fresh.")
    assert three.session_id not in (None, UNKNOWN_SESSION, one.session_id)
    four = await ended(system, failing, version)
    assert four.failure is not None
    assert four.failure.code == "provider_credentials"
    return one


@pytest.mark.parametrize("version", OF_OPENCODE)
async def test_opencode_of_each_end_of_its_windows_is_driven_by_its_server(opencode: System, version: str) -> None:
    binary = await ensure_opencode(version=version)
    steps = {**bash("echo heron"), **COUNTED}, {"text": "Done.", **COUNTED}
    first = playing(agent_of(opencode, binary, "script"), *steps)
    one = await prove(opencode, first, agent_of(opencode, binary, "error:401"), version)
    assert spent(one) == (1200, 100, 800, 20)
    note_ran(OPENCODE_TITLE, version)


@pytest.mark.parametrize(("name", "end"), ENDS)
async def test_each_end_of_the_window_of_an_agent_is_driven(agents: AgentSystem, name: str, end: str) -> None:
    versions = [oldest if end == "oldest" else newest for oldest, newest in load()[name].packages.values()]
    late = "sleep 1; " if name == "codex" else ""  # it loses what a command prints at once
    steps = {**bash(f"{late}echo heron"), **COUNTED}, {"text": "Done.", **COUNTED}
    first = await agents.plays(name, *steps, oldest=end == "oldest")
    failing = await agents.agent(name, "error:401", oldest=end == "oldest")
    one = await prove(agents.system, first, failing, versions[0])
    assert spent(one) == SPENT[name]
    note_ran(load()[name].title, versions[-1])
