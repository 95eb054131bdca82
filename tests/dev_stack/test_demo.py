"""The whole system as a person starts it: the stack, the real OpenCode, other commands, Ctrl-C."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_runs.client.settings import ClientSettings
from dev_stack.demo import context
from tests.dev_stack.test_subprocesses import until_ended
from tests.real_cluster.observed_runs import step
from tests.runs.real_opencode import playing
from tests.workspace.trees import send

PROGRAM = Path(sys.executable).with_name("agent-runs")
STACK = [sys.executable, "-m", "dev_stack"]
CANARY = "canary-7d1f0a93"
TIMEOUT = 600  # seconds: the first time, OpenCode is downloaded


@dataclass
class Command:
    """A command with `--json`, and its output so far."""

    process: asyncio.subprocess.Process
    output: list[dict[str, Any]] = field(default_factory=list)

    async def next_of(self, kind: str) -> dict[str, Any]:
        """The next object of this type."""
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            while line := await self.process.stdout.readline():
                self.output.append(json.loads(line))
                if self.output[-1]["type"] == kind:
                    return self.output[-1]
        raise AssertionError(f"ended without a {kind}: {self.output[-3:]}")

    async def interrupted(self) -> int:
        """The exit code after Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return await self.ended()

    async def ended(self) -> int:
        """Its exit code once it has ended; the rest of its output is read."""
        assert self.process.stdout is not None
        async with asyncio.timeout(TIMEOUT):
            while line := await self.process.stdout.readline():
                self.output.append(json.loads(line))
            return await self.process.wait()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.output if one["type"] == kind]


@asynccontextmanager
async def command(*arguments: str, **environment: str) -> AsyncIterator[Command]:
    inherited = {
        name: value for name, value in os.environ.items() if name == "AGENT_RUNS_OPENCODE" or "AGENT_RUNS" not in name
    }
    process = await asyncio.create_subprocess_exec(
        *(STACK if arguments[0] in {"demo", "dev", "cluster"} else [PROGRAM]),
        *arguments,
        "--json",
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        env={**inherited, **environment},
    )
    try:
        yield Command(process)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def result_of(*arguments: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    async with command(*arguments, **environment) as one:
        return await one.ended(), one.output


@pytest.mark.slow
async def test_one_run_end_to_end_and_the_commands_that_show_it(tmp_path: Path) -> None:
    async with command("demo", "--keep", "--state", str(tmp_path / "state")) as demo:
        outcome = (await demo.next_of("outcome"))["outcome"]
        environment = {name: text for name, text in (await demo.next_of("values")).items() if name.isupper()}
        assert_run_succeeded(demo, outcome)
        run_id = demo.of("run")[0]["runId"]
        await assert_commands_show_it(run_id, demo.of("line"), environment)
        await assert_ctrl_c_detaches(tmp_path, environment)
        await assert_a_folder_is_carried(tmp_path, environment)
        children = children_of(demo.process.pid)
        assert len(children) == 4
        assert await demo.interrupted() == 0
    for pid in children:
        await until_ended(pid)


@pytest.mark.slow
async def test_a_second_wake_resumes_the_session_and_both_times_are_shown(tmp_path: Path) -> None:
    code, output = await result_of("demo", "--twice", "--scenario", "text", "--state", str(tmp_path / "state"))
    assert code == 0
    first, second = [one["outcome"] for one in output if one["type"] == "outcome"]
    assert first["failure"] is second["failure"] is None
    assert first["sessionId"] == second["sessionId"]
    assert first["attempts"][0]["jobName"] == second["attempts"][0]["jobName"]  # its pod has rested
    notes = [one["text"] for one in output if one["type"] == "note"]
    for wake in ("first", "second"):
        assert any(re.fullmatch(rf"{wake} wake: \d+\.\d s from its start to its first line", note) for note in notes)


def assert_run_succeeded(demo: Command, outcome: dict[str, Any]) -> None:
    assert outcome["failure"] is None
    assert outcome["exitCode"] == 0
    assert outcome["sessionId"].startswith("ses_")
    assert outcome["usage"]["outputTokens"] > 0
    assert float(outcome["costUsd"]) > 0
    assert outcome["summary"].startswith("Done.")
    assert outcome["receipt"]["state"] == "verified"
    phases = [one["phase"] for one in demo.of("phase")]
    assert phases == ["queued", "preparing", "creating", "scheduling", "running", "finishing", "ended"]
    events = [one["event"]["type"] for one in demo.of("line") if one["stream"] == "stdout"]
    assert {"reasoning", "text", "tool_use", "step_finish"} <= set(events)
    assert outcome["receipt"]["lines"] == len(events)


async def assert_commands_show_it(run_id: str, lines: Sequence[dict[str, Any]], environment: dict[str, str]) -> None:
    code, output = await result_of("logs", run_id, "--follow", "--after", str(lines[-1]["sequence"] - 2), **environment)
    assert (code, output) == (0, list(lines[-2:]))
    code, output = await result_of("show", run_id, **environment)
    assert code == 0
    assert output[0]["type"] == "run"
    assert output[-1]["type"] == "outcome"
    code, output = await result_of("show", "no-such-run", **environment)
    assert (code, [one["type"] for one in output]) == (2, ["error"])


async def assert_a_folder_is_carried(tmp_path: Path, environment: dict[str, str]) -> None:
    """Without any setting."""
    file, into = tmp_path / "carried.json", tmp_path / "into"
    raw = playing(context("script", agent_id="carried-agent"), step(1, "cat given given > made"), {"text": "Done."})
    raw["config"] |= {"workspace": "carried", "env": {"SERVICE_TOKEN": CANARY}}
    raw["authToken"] = f"{CANARY}-of-paperclip"
    raw["context"]["paperclipWorkspace"] = {"cwd": "/projects/carried"}
    file.write_text(json.dumps(raw))
    settings = ClientSettings.read({name: value for name, value in environment.items() if name != "KUBECONFIG"})
    await asyncio.to_thread(send, settings, raw, {"given": b"."})
    code, output = await result_of("start", "--context", str(file), "--follow", **environment)
    assert (code, output[-1]["outcome"]["failure"]) == (0, None)
    assert (await result_of("workspace", raw["runId"], "--into", str(into), **environment))[0] == 0
    assert {each.name: each.read_text() for each in into.iterdir()} == {"given": ".", "made": ".."}
    stored = [each.read_bytes() for each in (tmp_path / "state" / "workspaces").rglob("*") if each.is_file()]
    assert any(b"step-1" in each for each in stored)  # in the agent's session
    assert not any(CANARY.encode() in each for each in stored)


async def assert_ctrl_c_detaches(tmp_path: Path, environment: dict[str, str]) -> None:
    file = tmp_path / "context.json"
    raw = context("hang:600", agent_id="another-agent")
    file.write_text(json.dumps(raw))
    async with command("start", "--context", str(file), "--follow", **environment) as start:
        assert (await start.next_of("run"))["ticket"] == "started"
        while (await start.next_of("phase"))["phase"] != "running":
            pass
        assert await start.interrupted() == 130
        assert f"agent-runs logs {raw['runId']} --follow" in start.of("note")[-1]["text"]
    code, output = await result_of("list", "--open", **environment)
    assert (code, [one["runId"] for one in output if one["type"] == "run"]) == (0, [raw["runId"]])


def children_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
