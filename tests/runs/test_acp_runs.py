"""Whole runs of the real Claude Code, Codex, Gemini CLI, Qwen Code and pi on the embedded cluster."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from dev_stack.agent_programs import PROGRAMS
from tests.runs.real_agents import AgentSystem, events, real_agents

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
async def agents(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AgentSystem]:
    async with real_agents(temporal, tmp_path_factory.mktemp("agents")) as opened:
        yield opened


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_whole_run(agents: AgentSystem, name: str) -> None:
    raw = await agents.agent(name, "text")
    outcome = await agents.system.outcome(raw)
    seen = await events(agents.system, raw)
    print(outcome.model_dump_json(indent=1)[:3000], [each["type"] for each in seen])
    assert outcome.error_message is None, seen
