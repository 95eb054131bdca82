"""An agent that an operator adds by a profile alone: OpenCode's own ACP server, which this program has no code for."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.contracts.request import SessionParams
from dev_stack.demo import later_context
from dev_stack.opencode_binary import ensure_opencode
from dev_stack.scripted_model.server import ScriptedModel, provider_block, serve
from tests.pod.driving import bash
from tests.runs.real_opencode import agent_of, later, playing
from tests.runs.system import System, open_system
from tests.support.ends import assert_whole

pytestmark = [pytest.mark.slow, pytest.mark.real_agents]

PROFILE = """\
name: sixth
title: Sixth
image: agent-sixth:1
command: [opencode, acp]
environment:
  OPENCODE_CONFIG: "{home}/.sixth/opencode.json"
  OPENCODE_DB: "{home}/.sixth/opencode.db"
keys: [SIXTH_TICKET]
files:
  .sixth/opencode.json: |
    {
      "model": "fake/{model}",
      "small_model": "fake/{model}",
      "enabled_providers": ["fake"],
      "permission": {"*": "allow"},
      "provider": PROVIDER
    }
sessions: [.sixth]
mcp_servers: [stdio, http]
unknown_session:
  - {code: -32603, matches: "OpenCode service failure"}
"""
TICKET = "canary-of-the-sixth"


@pytest.fixture(scope="module")
async def model() -> AsyncIterator[ScriptedModel]:
    async with serve() as served:
        yield served


@pytest.fixture(scope="module")
async def system(
    temporal: Client, tmp_path_factory: pytest.TempPathFactory, model: ScriptedModel
) -> AsyncIterator[System]:
    folder = tmp_path_factory.mktemp("sixth")
    agents = folder / "profiles"
    agents.mkdir()
    provider = json.dumps(provider_block(model.base_url))
    profile = PROFILE.replace("PROVIDER", provider)
    (agents / "sixth.yaml").write_text(profile)
    (agents / "resting.yaml").write_text(profile.replace("name: sixth", "name: resting") + "rests: true\n")
    async with open_system(temporal, folder) as opened:
        with_agents = await opened.with_data_volume("homes", agents=agents)
        async with with_agents.worker():
            yield with_agents


async def sixth(system: System, *steps: dict[str, Any], agent: str = "sixth", **config: Any) -> dict[str, Any]:
    binary = await ensure_opencode()
    raw = agent_of(system, binary, "script", agent=agent, **config)
    raw["config"]["env"] |= {"SIXTH_TICKET": TICKET}
    return playing(raw, *steps)


async def test_a_run_is_whole_its_session_goes_on_and_its_key_is_hidden(system: System, model: ScriptedModel) -> None:
    first = await sixth(system, bash("echo $SIXTH_TICKET"), {"text": "One."})
    one = await system.outcome(first)
    assert_whole(one, "One.")
    lines = b"\n".join(await system.stdout(first))
    assert b"[[secret:SIXTH_TICKET" in lines
    assert TICKET.encode() not in lines
    assert one.session_params is not None
    assert one.session_params.agent == "sixth"
    two = await system.outcome(later(first, one, {"text": "Two."}))
    assert_whole(two, "Two.")
    assert two.session_id == one.session_id
    assert len(two.attempts) == 1
    assert "One." in str(model.requests[-1])


@pytest.mark.parametrize("agent", ["sixth", "resting"])
async def test_its_pod_rests_only_if_its_profile_says_so(system: System, agent: str) -> None:
    first = await sixth(system, {"text": "One."}, agent=agent, keepWarmSec=120)
    one = await system.outcome(first)
    assert_whole(one, "One.")
    left = await system.jobs(first)
    assert len(left) == (agent == "resting")
    two = await system.outcome(later(first, one, {"text": "Two."}))
    assert_whole(two, "Two.")
    assert two.session_id == one.session_id
    assert (two.attempts[0].job_name == one.attempts[0].job_name) == (agent == "resting")


async def test_an_unknown_session_is_replaced_by_a_fresh_one(system: System) -> None:
    raw = later_context(await sixth(system, {"text": "Fresh."}), SessionParams(session_id="ses_unknown", agent="sixth"))
    outcome = await system.outcome(raw)
    assert_whole(outcome, "Fresh.")
    assert [attempt.failure_code for attempt in outcome.attempts] == ["session_unavailable", None]


async def test_an_agent_that_no_worker_has_a_profile_of_is_refused_before_anything_is_created(system: System) -> None:
    raw = await sixth(system, {"text": "Never."})
    raw["config"]["agent"] = "seventh"
    outcome = await system.outcome(raw)
    assert (outcome.error_code, outcome.never_started) == ("invalid_request", True)
    assert "config.agent: there is no agent seventh: choose one of opencode, claude" in str(outcome.error_message)
