"""`agent-runs replay` as people start it: on runs of a server, on saved histories, under code that has been edited."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

import workflows
from agent_runs.cli.display import JsonDisplay
from agent_runs.cli.program import Refused
from agent_runs.cli.replay import replay
from agent_runs.client.attach import attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.replay import read
from agent_runs.client.settings import ClientSettings
from agent_runs.service.build_id import build_id
from tests.histories.record import HERE
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import FakeActivities, FakeAgent
from tests.workflows.fake_worker import reached, running_worker

PROGRAM = str(Path(sys.executable).with_name("agent-runs"))
NORMAL = HERE / "normal.json"


@pytest.fixture
def environment(temporal: Client, queue: str, tmp_path: Path) -> dict[str, str]:
    """Variables of a command on the test's server."""
    return {
        "TEMPORAL_ADDRESS": temporal.service_client.config.target_host,
        "AGENT_RUNS_TASK_QUEUE": queue,
        "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json"),
    }


def edited(folder: Path, file: str, *changes: str) -> None:
    """Put an edited copy of the workflow's modules where Python finds it before the installed ones."""
    copy = shutil.copytree(Path(workflows.__file__).parent, folder / "workflows")
    text = (copy / file).read_text()
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    (copy / file).write_text(text)


async def run(*command: str, keys: str = "", **environment: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate(keys.encode())
    return process.returncode, out.decode(), error.decode()


async def test_an_open_and_a_closed_run_replay_and_can_be_saved(
    temporal: Client, queue: str, environment: dict[str, str], request_of_a_run: FakeRequest, tmp_path: Path
) -> None:
    agent, saved, name = FakeAgent(), tmp_path / "saved.json", request_of_a_run.run_id
    async with running_worker(temporal, queue, FakeActivities(agent.answers)) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started)
        code, out, error = await run(PROGRAM, "replay", request_of_a_run.agent.id, **environment)
        assert (code, error) == (0, "")
        assert out.startswith(f"run {name} replays: ")
        assert " events so far, " in out
        assert out.endswith(f"under build {build_id()}\n")
        await agent.end()
        await outcome_at_close(handle)
        code, out, error = await run(PROGRAM, "replay", name, "--save", str(saved), **environment)
        assert (code, error) == (0, "")
        assert " events, " in out
    assert saved.stat().st_mode & 0o077 == 0
    assert read(saved.read_text()).run_id == handle.result_run_id


async def test_a_run_that_no_worker_has_taken_replays(
    temporal: Client, environment: dict[str, str], request_of_a_run: FakeRequest
) -> None:
    await attach(temporal, ClientSettings.read(environment), request_of_a_run.wake)
    code, out, _ = await run(PROGRAM, "replay", request_of_a_run.agent.id, **environment)
    assert code == 0
    assert "2 events so far, written by no worker" in out


async def test_an_edit_is_found_and_the_output_names_both_sides_and_the_remedy(tmp_path: Path) -> None:
    edited(tmp_path, "preparation.py", "activities.introspect_pod", "activities.create_job")
    code, out, error = await run(PROGRAM, "replay", "--file", str(NORMAL), PYTHONPATH=str(tmp_path))
    assert (code, error) == (1, "")
    assert len(out.splitlines()) == 1
    assert " does not replay: the history (written by " in out
    assert " has activity introspect_pod, build " in out
    assert " has activity create_job. " in out
    assert "workflow.patched" in out


async def test_a_task_that_a_busy_machine_makes_slow_is_no_difference(tmp_path: Path) -> None:
    before = "        run_metrics.begun()\n"
    slow = "        with workflow.unsafe.sandbox_unrestricted():\n            __import__('time').sleep(3)\n"
    edited(tmp_path, "agent_run.py", before, before + slow)
    code, out, error = await run(PROGRAM, "replay", "--file", str(NORMAL), PYTHONPATH=str(tmp_path))
    assert (code, error) == (0, ""), out


async def test_nothing_of_a_payload_is_shown_when_the_code_fails(tmp_path: Path) -> None:
    edited(
        tmp_path,
        "attempts.py",
        "    job = await preparation.create_job(run, tokens, attempt, profile, prompt)\n",
        "    raise ValueError(run.start.sealed)\n",
    )
    code, out, error = await run(PROGRAM, "replay", "--file", str(NORMAL), PYTHONPATH=str(tmp_path))
    assert (code, error) == (1, "")
    assert " has ValueError at attempts.py:" in out
    assert "sealed" not in out
    assert out.endswith("Correct the workflow's code; --debug shows the traceback\n")


async def test_a_breakpoint_in_the_workflow_stops_there(tmp_path: Path) -> None:
    edited(
        tmp_path,
        "attempts.py",
        "    attempt.started_at = workflow.now()\n",
        "    breakpoint()\n    attempt.started_at = workflow.now()\n",
    )
    debugged = (PROGRAM, "replay", "--file", str(NORMAL), "--debug")
    code, out, error = await run(
        *debugged, keys="p job.namespace, run.details.phase.value\nq\n", PYTHONPATH=str(tmp_path)
    )
    assert (code, error) == (0, "")
    assert "('default', 'scheduling')" in out
    assert " replays: " in out.splitlines()[-1]


async def test_pdb_from_outside_stops_in_the_workflow_without_an_edit() -> None:
    file = Path(workflows.__file__).with_name("attempts.py")
    line = 1 + file.read_text().splitlines().index("    attempt.started_at = workflow.now()")
    keys = f"b {file}:{line}\nc\np job.namespace\ncl 1\nc\nq\n"
    debugger = (sys.executable, "-m", "pdb", "-m", "agent_runs.cli.main", "replay", "--file", str(NORMAL), "--debug")
    _, out, _ = await run(*debugger, keys=keys)
    assert "(Pdb) 'default'" in out
    assert " replays: " in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name one history"),
        ({"run": "some-run", "file": NORMAL}, "name one history"),
        ({"file": Path("missing.json")}, r"missing\.json: No such file"),
        ({"file": Path(__file__)}, "not a history"),
        ({"file": NORMAL, "save": Path("/nowhere/history.json")}, r"/nowhere/history\.json: No such file"),
    ],
)
async def test_what_cannot_be_replayed_is_refused_with_the_remedy(options: dict[str, Any], message: str) -> None:
    defaults = {"run": None, "file": None, "save": None, "debug": False}
    with pytest.raises(Refused, match=message):
        await replay(display=JsonDisplay(), **{**defaults, **options})


async def test_a_history_of_another_workflow_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(NORMAL.read_text().replace("AgentRunWorkflow", "SomethingElse"))
    with pytest.raises(Refused, match="does not start AgentRunWorkflow"):
        await replay(None, JsonDisplay(), file=other, save=None, debug=False)


async def test_programs_get_the_answer_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert await replay(None, JsonDisplay(), file=NORMAL, save=None, debug=False) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["replays"], answer["closed"], answer["build"]) == (True, True, build_id())
    assert (type(answer["events"]), type(answer["writtenBy"])) == (int, list)
