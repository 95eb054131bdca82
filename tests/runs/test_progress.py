"""The real OpenCode without progress: what it waits for is named; what works is not stopped."""

from pathlib import Path

import pytest
from temporalio.client import Client

from tests.pod.driving import bash
from tests.runs.real_opencode import opencode_agent, playing, real_system

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GREET = bash("echo hi; mkfifo pipe")


async def test_a_provider_that_does_not_answer_is_named(temporal: Client, tmp_path: Path) -> None:
    async with real_system(temporal, tmp_path) as system:
        raw = playing(await opencode_agent(system, "script", silenceTimeoutSec=8), GREET, {"delay": 600})
        outcome = await system.outcome(raw)
    assert outcome.error_code == "provider_hung"
    assert (outcome.error_message or "").startswith("the provider has not answered for 8s; last output: bash: echo hi")
    assert outcome.session_params is not None


async def test_a_tool_that_does_not_end_is_named(temporal: Client, tmp_path: Path) -> None:
    async with real_system(temporal, tmp_path) as system:
        hang = {"tools": [{"name": "read", "args": {"filePath": "pipe"}}]}
        raw = playing(await opencode_agent(system, "script", silenceTimeoutSec=8), GREET, hang)
        outcome = await system.outcome(raw)
    assert outcome.error_code == "tool_hung"
    assert (outcome.error_message or "").startswith("read has not ended for 8s")


async def test_a_command_that_runs_longer_than_the_limit_is_not_stopped(temporal: Client, tmp_path: Path) -> None:
    async with real_system(temporal, tmp_path) as system:
        agent = await opencode_agent(system, "script", silenceTimeoutSec=8)
        raw = playing(agent, GREET, bash("sleep 25"), {"text": "done"})
        outcome = await system.outcome(raw)
    assert outcome.failure is None
