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
from cli.display import Machines
from cli.refusals import Refused
from cli.replay import replay
from client.attach import attach
from client.history import build_id, read
from client.settings import ClientSettings
from contracts.request import RunRequest
from tests.histories.record import GENERATION, HERE
from tests.workflows.steps import Agent, Steps
from tests.workflows.working import reached, working

PROGRAM = str(Path(sys.executable).with_name("agent-runs"))
NORMAL = HERE / GENERATION / "normal.json"


@pytest.fixture
def told(temporal: Client, queue: str, tmp_path: Path) -> dict[str, str]:
    """What the environment says."""
    return {
        "AGENT_RUNS_TEMPORAL_ADDRESS": temporal.service_client.config.target_host,
        "AGENT_RUNS_TASK_QUEUE": queue,
        "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "key.json"),
    }


def edited(folder: Path, *changes: str) -> None:
    """A copy of the workflow's modules that Python finds before the installed ones."""
    copy = shutil.copytree(Path(workflows.__file__).parent, folder / "workflows")
    text = (copy / "agent_run.py").read_text()
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    (copy / "agent_run.py").write_text(text)


async def run(*command: str, says: str = "", **environment: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate(says.encode())
    return process.returncode, out.decode(), error.decode()


async def test_an_open_and_an_ended_run_replay_and_can_be_kept(
    temporal: Client, queue: str, told: dict[str, str], request_of_a_run: RunRequest, tmp_path: Path
) -> None:
    agent, kept, name = Agent(), tmp_path / "kept.json", request_of_a_run.run_id
    async with working(temporal, queue, Steps(agent.answers)) as start:
        handle = await start(request_of_a_run)
        await reached(agent.working)
        code, out, error = await run(PROGRAM, "replay", request_of_a_run.agent.id, **told)
        assert (code, error) == (0, "")
        assert out.startswith(f"run {name} replays: ")
        assert " events so far, " in out
        assert out.endswith(f"under build {build_id()}\n")
        await agent.end()
        await handle.result()
        code, out, error = await run(PROGRAM, "replay", name, "--save", str(kept), **told)
        assert (code, error) == (0, "")
        assert " events, " in out
    assert kept.stat().st_mode & 0o077 == 0
    assert read(kept.read_text()).run_id == handle.result_run_id


async def test_a_run_that_no_worker_has_taken_replays(
    temporal: Client, told: dict[str, str], request_of_a_run: RunRequest
) -> None:
    await attach(temporal, ClientSettings.read(told), request_of_a_run)
    code, out, _ = await run(PROGRAM, "replay", request_of_a_run.agent.id, **told)
    assert code == 0
    assert "2 events so far, written by no worker" in out


async def test_an_edit_is_found_and_the_answer_says_where_and_what_to_do(tmp_path: Path) -> None:
    edited(tmp_path, "INTROSPECT_POD.start(", "CREATE_JOB.start(")
    code, out, error = await run(PROGRAM, "replay", "--file", str(NORMAL), PYTHONPATH=str(tmp_path))
    assert (code, error) == (1, "")
    assert len(out.splitlines()) == 1
    assert "differs at event 7: the history has activity introspect_pod, " in out
    assert "makes activity create_job " in out
    assert "workflow.patched" in out


async def test_nothing_of_a_payload_is_shown_when_the_code_fails(tmp_path: Path) -> None:
    edited(
        tmp_path, "        job = await self._job(attempt)\n", "        raise ValueError(self._request.sealed_prompt)\n"
    )
    code, out, error = await run(PROGRAM, "replay", "--file", str(NORMAL), PYTHONPATH=str(tmp_path))
    assert (code, error) == (1, "")
    assert "an error 'ValueError at agent_run.py:" in out
    assert "sealed" not in out


async def test_a_breakpoint_in_the_workflow_stops_there(tmp_path: Path) -> None:
    edited(
        tmp_path,
        "        attempt.began = workflow.now()\n",
        "        breakpoint()\n        attempt.began = workflow.now()\n",
    )
    debugged = (PROGRAM, "replay", "--file", str(NORMAL), "--debug")
    code, out, error = await run(
        *debugged, says="p job.namespace, self._card.phase.value\nq\n", PYTHONPATH=str(tmp_path)
    )
    assert (code, error) == (0, "")
    assert "('default', 'scheduling')" in out
    assert " replays: " in out.splitlines()[-1]


async def test_pdb_from_outside_stops_in_the_workflow_without_an_edit() -> None:
    source = (Path(workflows.__file__).parent / "agent_run.py").read_text().splitlines()
    line = 1 + source.index("        attempt.began = workflow.now()")
    says = f"b {Path(workflows.__file__).parent / 'agent_run.py'}:{line}\nc\np job.namespace\ncl 1\nc\nq\n"
    debugger = (sys.executable, "-m", "pdb", "-m", "cli.main", "replay", "--file", str(NORMAL), "--debug")
    _, out, _ = await run(*debugger, says=says)
    assert "(Pdb) 'default'" in out
    assert " replays: " in out


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({}, "name one history"),
        ({"run": "some-run", "file": NORMAL}, "name one history"),
        ({"file": Path("missing.json")}, r"missing\.json: No such file"),
        ({"file": Path(__file__)}, "not a history"),
        ({"file": NORMAL, "save": Path("/nowhere/history.json")}, r"/nowhere/history\.json: No such file"),
    ],
)
async def test_what_cannot_be_replayed_is_refused_with_the_remedy(named: dict[str, Any], says: str) -> None:
    options = {"run": None, "file": None, "save": None, "debug": False, **named}
    with pytest.raises(Refused, match=says):
        await replay(display=Machines(), **options)


async def test_a_history_of_another_workflow_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(NORMAL.read_text().replace("AgentRunWorkflow", "SomethingElse"))
    with pytest.raises(Refused, match="does not start AgentRunWorkflow"):
        await replay(None, Machines(), file=other, save=None, debug=False)


async def test_programs_get_the_answer_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert await replay(None, Machines(), file=NORMAL, save=None, debug=False) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["replays"], answer["ended"], answer["build"]) == ("yes", "yes", build_id())
