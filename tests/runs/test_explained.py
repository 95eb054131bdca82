"""What a person learns of a run that failed, or that does not go on: `show`, the page, `logs`."""

import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.cli import run_list, runs
from agent_runs.cli.display import JsonDisplay
from agent_runs.client.connection import TemporalUnreachable
from agent_runs.client.obstacles import obstacles_of_runs, read_obstacles
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.runs import list_runs
from agent_runs.web.run_info import TemporalRunInfo
from tests.runs.system import System, attempt_key, open_system, replay_script
from tests.support.cases import case


@pytest.fixture
def shown(system: System, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[list[dict[str, Any]]]]:
    """Runs a command with the system's settings; returns what it shows."""
    for name, value in system.environment.items():
        monkeypatch.setenv(name, value)

    async def run(command: Callable[..., Awaitable[int]], *arguments: Any, **options: Any) -> list[dict[str, Any]]:
        output = io.StringIO()
        await command(*arguments, JsonDisplay(output), **options)
        return [json.loads(line) for line in output.getvalue().splitlines()]

    return run


async def test_a_failure_is_explained_with_its_evidence_what_was_lost_and_what_to_do(
    system: System, shown: Callable[..., Awaitable[list[dict[str, Any]]]]
) -> None:
    raw = system.agent("cat > /dev/null; echo 'Config file at /x is not valid JSON' >&2; exit 1")
    await system.outcome(raw)
    *_, last = await shown(runs.show, raw["runId"])
    rows = last["explanation"]
    assert list(rows) == ["whatHappened", "evidence", "output", "session", "nextStep"]
    assert rows["whatHappened"].startswith("opencode_start_failed: ")
    assert "exit code 1" in rows["evidence"]
    assert "the agent's log: Config file at /x is not valid JSON" in rows["evidence"]
    assert rows["output"] == "0 lines on stdout are stored; nothing was lost: the pod counted the same"
    assert rows["session"] == "none: the next wake begins a new one"
    assert len(rows["nextStep"]) > 20


async def test_a_success_is_explained_too(
    system: System, shown: Callable[..., Awaitable[list[dict[str, Any]]]]
) -> None:
    raw = system.agent(replay_script("tool-bash"))
    outcome = await system.outcome(raw)
    *_, last = await shown(runs.show, raw["runId"])
    rows = last["explanation"]
    assert rows["whatHappened"] == "The run succeeded."
    assert rows["session"] == f"{outcome.session_id}, which the next wake resumes"


async def test_a_step_that_keeps_failing_is_named_in_our_words_with_the_next_step(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        system.embedded.faults.http(method="POST", path="/jobs", status=503, message="etcd is away", times=None)
        ticket = await system.start(system.agent("cat"))
        handle = ticket.handle(temporal)
        [obstacle] = await system.until_obstacle(ticket)
        assert (obstacle.kind, obstacle.subject) == ("step_fails", "creating the Job")
        assert "k8s_api_unavailable" in obstacle.text
        assert "Check the API server; the run continues by itself once it answers." in obstacle.text
        [summary] = [run async for run in list_runs(temporal, f"PaperclipRunId = '{ticket.run_id}'")]
        assert "creating the Job failed" in (await obstacles_of_runs(temporal, [summary]))[summary.key.name]
        info = await TemporalRunInfo(temporal, system.settings).run_info(summary.key)
        assert info is not None
        assert [each.kind for each in info.obstacles] == ["step_fails"]
        assert " in " in info.obstacles[0].text.partition(":")[0]
        for name, value in system.environment.items():
            monkeypatch.setenv(name, value)
        output = io.StringIO()
        await runs.show(ticket.run_id, JsonDisplay(output))
        *_, shown_obstacle, note = map(json.loads, output.getvalue().splitlines())
        assert "creating the Job failed" in shown_obstacle["text"]
        assert note["text"].startswith("the run goes on since ")
        assert ": creating the Job; remove what keeps it, and it continues by itself. Follow it: " in note["text"]
        system.embedded.faults.clear()
        await outcome_at_close(handle)
        assert await read_obstacles(temporal, handle) == ()


async def test_stored_output_is_shown_while_temporal_is_away(
    system: System,
    shown: Callable[..., Awaitable[list[dict[str, Any]]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = system.agent("cat > /dev/null; echo one; echo two")
    await system.outcome(raw)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    note, *lines = await shown(runs.logs, raw["runId"], follow=False, after=0)
    assert note["text"] == "Temporal does not answer at 127.0.0.1:1: this is what is stored so far"
    assert [line["text"] for line in lines if line["stream"] == "stdout"] == ["one", "two"]
    with pytest.raises(TemporalUnreachable):
        await shown(runs.logs, "no-such-run", follow=False, after=0)


async def test_an_open_run_without_a_worker_says_since_when_it_waits(temporal: Client, tmp_path: Path) -> None:
    async with open_system(temporal, tmp_path) as system:
        ticket = await system.start(system.agent("cat"))
        assert [each.kind for each in await system.until_obstacle(ticket)] == ["no_worker"]
        await ticket.handle(temporal).terminate()


async def test_why_a_run_waits_is_on_every_surface(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_system(temporal, tmp_path) as system, system.worker():
        system.embedded.faults.fill_node("1 Insufficient memory.")
        raw = system.agent("cat")
        ticket = await system.start(raw)
        why = "Pod unschedulable: 0/1 nodes are available: 1 Insufficient memory."
        assert [each.kind for each in await system.until_obstacle(ticket, why)] == ["step_waits"]
        for name, value in system.environment.items():
            monkeypatch.setenv(name, value)
        shown, listed = io.StringIO(), io.StringIO()
        await runs.show(ticket.run_id, JsonDisplay(shown))
        await run_list.listing(JsonDisplay(listed), {}, limit=5)
        info = await TemporalRunInfo(temporal, system.settings).run_info(attempt_key(raw).run)
        assert info is not None
        page = " ".join(each.text for each in info.obstacles)
        for where, text in {"show": shown, "list": listed}.items():
            with case(where):
                assert why in text.getvalue()
        assert why in page
        system.embedded.faults.clear()
        await outcome_at_close(ticket.handle(temporal))
