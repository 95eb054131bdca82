"""Before the first Job of an image and provider, OpenCode of that image is asked for the provider's models."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from tests.runs.system import System, open_system

LISTS = """\
[ "$1" = models ] || exec cat
echo "$*" >> {asked}
while [ -e {slow} ]; do sleep 0.1; done
env > {seen}
case $2 in
  anthropic) echo anthropic/claude-haiku-4-5; echo anthropic/claude-opus-4-5 ;;
  broken) exit 1 ;;
  *) echo "Error: Provider not found: $2" >&2; exit 1 ;;
esac
"""
"""An OpenCode that lists models, and as an agent ends without an answer."""


@pytest.fixture
async def idle(temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[System]:
    """The system whose workers check models, and whose agents' image has an OpenCode that lists some."""
    program = tmp_path / "image" / "opencode"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n" + LISTS.format(asked=tmp_path / "asked", seen=tmp_path / "seen", slow=tmp_path / "slow")
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    async with open_system(temporal, tmp_path) as opened:
        yield replace(opened, settings=opened.settings.model_copy(update={"check_models": True}))


@pytest.fixture
async def system(idle: System) -> AsyncIterator[System]:
    """The same with a worker."""
    async with idle.worker():
        yield idle


def asked(folder: Path) -> list[str]:
    file = folder / "asked"
    return file.read_text().splitlines() if file.exists() else []


async def run(system: System, model: str, **config: Any) -> Outcome:
    raw = system.agent("cat > /dev/null")
    raw["config"] |= {"model": model, **config}
    return await system.outcome(raw)


def jobs(system: System) -> list[str]:
    """The POST requests that created Jobs."""
    return [path for path in system.changes if path.split("?")[0].endswith("/jobs")]


async def test_a_model_that_the_image_does_not_list_is_refused_before_a_job_is_made(
    system: System, tmp_path: Path
) -> None:
    refused = await run(system, "anthropic/claude-opus-4")
    assert refused.error_code == "model_unknown"
    assert refused.error_message == (
        "model: OpenCode in image agent:test does not list anthropic/claude-opus-4; the nearest are "
        "anthropic/claude-opus-4-5, anthropic/claude-haiku-4-5"
    )
    assert refused.stop is not None
    assert refused.stop.agent_started is False
    assert len(jobs(system)) == 1  # which asked, and is gone
    assert (await run(system, "anthropic/claude-haiku-5")).error_code == "model_unknown"
    assert (await run(system, "anthropic/claude-haiku-4-5")).error_code != "model_unknown"
    assert asked(tmp_path) == ["models anthropic"]


async def test_an_unknown_provider_is_refused_and_no_answer_refuses_nothing(system: System, tmp_path: Path) -> None:
    assert (await run(system, "antropic/claude-haiku-4-5")).error_message == (
        "model: OpenCode in image agent:test has no provider antropic"
    )
    for _ in range(2):
        assert (await run(system, "broken/model")).error_code != "model_unknown"
    assert asked(tmp_path) == ["models antropic", "models broken"]


async def test_runs_that_start_together_ask_once(system: System, tmp_path: Path) -> None:
    outcomes = await asyncio.gather(*(run(system, f"anthropic/unknown-{number}") for number in range(4)))
    assert {outcome.error_code for outcome in outcomes} == {"model_unknown"}
    assert asked(tmp_path) == ["models anthropic"]


@pytest.mark.parametrize(
    "declared",
    [
        {"opencode": {"provider": {"mine": {"npm": "@ai-sdk/openai-compatible", "models": {"m": {}}}}}},
        {"opencode": {"plugin": ["a-plugin"]}},
        {"opencodeFeatures": ["projectConfig"]},
    ],
    ids=["provider", "plugin", "repository"],
)
async def test_what_may_declare_models_itself_is_not_asked_about(
    system: System, tmp_path: Path, declared: dict[str, Any]
) -> None:
    assert (await run(system, "mine/m", **declared)).error_code != "model_unknown"
    assert asked(tmp_path) == []


async def test_the_pod_that_is_asked_has_nothing_of_the_runs_secrets(system: System, tmp_path: Path) -> None:
    await run(system, "anthropic/unknown", env={"ANTHROPIC_API_KEY": "CANARY-key"})
    seen = (tmp_path / "seen").read_text()
    assert "CANARY" not in seen
    assert "PAPERCLIP" not in seen


@pytest.mark.slow  # Temporal waits half a minute for the killed worker's heartbeat
async def test_a_run_whose_worker_was_killed_while_it_asked_goes_on(idle: System, tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    raw = idle.agent("cat > /dev/null; echo worked")
    raw["config"]["model"] = "anthropic/claude-haiku-4-5"
    async with idle.worker_process() as worker:
        ticket = await idle.start(raw)
        while not asked(tmp_path):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.1)
        worker.kill()
        await worker.wait()
    (tmp_path / "slow").unlink()
    async with idle.worker():
        outcome = await outcome_at_close(ticket.handle(idle.temporal))
    assert outcome.error_code != "model_unknown"
    assert outcome.stop is not None
    assert outcome.stop.agent_started
    assert b"worked" in await idle.stdout(raw)
