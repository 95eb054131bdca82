"""Turns of the real OpenCode as a server, done by the driver as it runs in a pod: from the sidecar's archive."""

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from agent_runs.agents.opencode.merge import Merged, merge
from agent_runs.contracts.outcome import ContainerEnd, Report
from agent_runs.pod.archive import sidecar_archive
from agent_runs.transcript.events import SERVER_EVENTS
from dev_stack.opencode_binary import VERSION, ensure_opencode
from dev_stack.scripted_model.server import ScriptedModel, provider_block, serve
from tests.opencode.real import MODEL, SMALL_MODEL, opencode, prepared
from tests.support.saved_output import fold_chunks
from tests.transcript.captures import Capture

PASSWORD = "a-password"
START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from agent_runs.pod.sidecar.drivers.opencode_server import drive, served; "
    "served.ABORT_SECONDS = float(sys.argv[3]); drive.drive(sys.argv[2])"
)


def script(*steps: dict[str, Any]) -> str:
    """A prompt that the scripted model answers with these steps; they may hold prompts themselves."""
    inner = json.dumps({"steps": steps}).replace("fake-llm", "\\u0066ake-llm")
    return f"<<<fake-llm {inner} fake-llm>>>"


def bash(command: str) -> dict[str, Any]:
    """A step that runs a command."""
    return {"tools": [{"name": "bash", "args": {"command": command, "description": "a command"}}]}


def task(*steps: dict[str, Any], **more: str) -> dict[str, Any]:
    """A step that gives a sub-agent a prompt, which makes these steps."""
    args = {"description": "a part of the work", "prompt": script(*steps), "subagent_type": "general", **more}
    return {"tools": [{"name": "task", "args": args}]}


@dataclass(frozen=True)
class Played:
    """A turn that has ended.

    Attributes:
        end: what the driver wrote of its end; of `opencode run` its code only.
    """

    end: dict[str, Any]
    output: bytes
    report: Report

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.splitlines()]

    @property
    def of_run(self) -> list[dict[str, Any]]:
        """Those that `opencode run` writes, too."""
        return [event for event in self.events if event["type"] not in SERVER_EVENTS]

    @property
    def counts(self) -> Counter[str]:
        return Counter(event["type"] for event in self.of_run)

    @property
    def steps_of_subagents(self) -> list[tuple[str, str]]:
        """Sub-agents' steps that have finished: session and part of each, in order."""
        return [(event["child"], event["part"]["id"]) for event in self.events if event["type"] == "subagent_step"]

    @property
    def parts(self) -> list[str]:
        """The parts of the lines, in order."""
        return [event["part"]["id"] for event in self.of_run if "part" in event]


def played(end: dict[str, Any], output: bytes, *, errors: bytes = b"", resumed: str | None = None) -> Played:
    report = fold_chunks([output], [errors], resumed).report(ContainerEnd(exit_code=end["code"]))
    return Played(end, output, report)


@dataclass
class Served:
    """An OpenCode that serves."""

    folder: Path
    model: ScriptedModel
    merged: Merged
    process: asyncio.subprocess.Process
    version: str
    turns: int = 0

    @property
    def is_opencode_1(self) -> bool:
        return self.version.startswith("1.")

    @property
    def output(self) -> Path:
        return self.folder / "serve.out"

    @property
    def port(self) -> int:
        return int(self.output.read_text().strip().rpartition(":")[2])

    def turn(self, prompt: str = "hello", **changes: Any) -> Path:
        """The folder of a turn that the driver can begin."""
        self.turns += 1
        folder = self.folder / f"turn-{self.turns}"
        folder.mkdir()
        (folder / "prompt").write_text(prompt)
        turn: dict[str, Any] = {"prompt": str(folder / "prompt"), "server": str(self.output), "password": PASSWORD}
        turn |= {"directory": str(self.folder / "workspace"), "title": "test", "model": MODEL, "start_timeout": 60}
        turn["config"] = str(self.folder / "opencode.json")
        (folder / "turn.json").write_text(
            json.dumps({**turn, "variant": None, "agent": None, "session": None, **changes})
        )
        return folder

    async def start(self, turn: Path, abort_seconds: float = 60) -> asyncio.subprocess.Process:
        """The driver as a process. An abort has time enough for what a busy machine still says."""
        archive = self.folder / "sidecar.pyz"
        if not archive.exists():
            archive.write_bytes(sidecar_archive())
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", START, archive, turn, str(abort_seconds)
        )

    async def play(self, prompt: str = "hello", **changes: Any) -> Played:
        """A whole turn."""
        turn = self.turn(prompt, **changes)
        driver = await self.start(turn)
        assert await driver.wait() == 0
        return result(turn)

    async def run(self, prompt: str = "hello", *, model: str = MODEL, session: str | None = None) -> Played:
        """The same by `opencode run`."""
        resume = ("--session", session) if session else ()
        options = ("--format", "json", "--thinking", "--title", "test", "--print-logs", "--log-level", "INFO")
        arguments = ("run", *options, *resume, "-m", model)
        code, output, errors = await opencode(self.folder, self.merged, *arguments, stdin=prompt)
        return played({"code": code}, output.encode(), errors=errors.encode(), resumed=session)

    async def call(self, method: str, path: str, content: object = None, *, raw: bool = False) -> Any:
        """A call of the server's API; its answer's JSON, or its bytes."""
        url, query = f"http://127.0.0.1:{self.port}{path}", {"directory": str(self.folder / "workspace")}
        login = {"Authorization": aiohttp.encode_basic_auth("opencode", PASSWORD)}
        async with (
            aiohttp.ClientSession(headers=login, raise_for_status=True) as client,
            client.request(method, url, params=query, json=content) as answer,
        ):
            return await answer.read() if raw else await answer.json()

    async def journaled_steps_of_subagents(self, session: str) -> list[tuple[str, str]]:
        """Steps that the journal says this session's sub-agents have finished: session and part of each, sorted."""
        journal = await self.call("POST", "/sync/history", {})
        created = [event["data"]["info"] for event in journal if event["type"] == "session.created.1"]
        ours = {info["id"] for info in created if info.get("parentID") == session}
        parts = [(event["aggregate_id"], event["data"].get("part", {})) for event in journal]
        return sorted(
            (owner, part["id"]) for owner, part in parts if owner in ours and part.get("type") == "step-finish"
        )

    async def parts_of(self, session: str) -> list[str]:
        """The parts that the session has begun, ended or called, as the server has stored them, in order."""
        return await (self._journaled_parts(session) if self.is_opencode_1 else self._stored_parts(session))

    async def _stored_parts(self, session: str) -> list[str]:
        found = []
        for message in await self.messages_of(session):
            if message["type"] == "assistant":
                found.append(f"{message['id']}.start")
                found += [
                    f"{message['id']}.{each['id'] if each['type'] == 'tool' else each['type'] + '.0'}"
                    for each in message["content"]
                ]
                found.append(f"{message['id']}.finish")
        return found

    async def messages_of(self, session: str) -> list[dict[str, Any]]:
        """Of OpenCode 2, oldest first."""
        pages, cursor = list[dict[str, Any]](), ""
        while True:
            page = await self.call("GET", f"/api/session/{session}/message?limit=100{cursor or '&order=asc'}")
            pages += page["data"]
            if len(page["data"]) < 100:
                return pages
            cursor = f"&cursor={page['cursor']['next']}"

    async def _journaled_parts(self, session: str) -> list[str]:
        events = await self.call("POST", "/sync/history", {})
        parts = [
            event["data"]["part"]
            for event in sorted(events, key=lambda event: int(event["seq"]))
            if event["aggregate_id"] == session and event["type"] == "message.part.updated.1"
        ]
        return [part["id"] for part in parts if _is_line(part)]


def _is_line(part: dict[str, Any]) -> bool:
    if part["type"] == "tool":
        return part["state"]["status"] in ("completed", "error")
    return part["type"] in ("step-start", "step-finish") or bool(part.get("time", {}).get("end"))


def result(turn: Path) -> Played:
    """What the driver wrote of a turn that has ended."""
    end, events = json.loads((turn / "end").read_text()), turn / "events"
    resumed = json.loads((turn / "turn.json").read_text())["session"]
    return played(end, events.read_bytes() if events.exists() else b"", resumed=resumed)


@asynccontextmanager
async def serving(folder: Path, version: str = VERSION, **permission: str) -> AsyncIterator[Served]:
    """An OpenCode that serves with the scripted model."""
    async with serve() as model:
        operator = {"provider": provider_block(model.base_url), "small_model": SMALL_MODEL}
        merged = merge(model=MODEL, agent={}, operator=operator)
        merged.config["permission"] |= permission
        variables = prepared(folder, merged) | {"OPENCODE_SERVER_PASSWORD": PASSWORD}
        program = await ensure_opencode(version=version)
        with (folder / "serve.out").open("wb") as out, (folder / "serve.err").open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                *(program, "serve", "--hostname", "127.0.0.1", "--port", "0", "--print-logs"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder / "workspace",
                env=variables,
            )
        try:
            while not (folder / "serve.out").read_bytes().endswith(b"\n"):  # noqa: ASYNC110 - another process's file
                await asyncio.sleep(0.05)
            yield Served(folder, model, merged, process, version)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def result_of(report: Report) -> dict[str, Any]:
    """What a run has come to, whatever its lines are."""
    names = ("usage", "cost_usd", "steps", "tool_calls", "finish_reason", "exit_code", "unknown_session")
    return {
        "failure": report.failure and report.failure.code,
        "tool_errors": len(report.tool_errors),
        **{name: getattr(report, name) for name in names},
    }


def steps_of(captured: Capture) -> list[dict[str, Any]]:
    """What the model answered in a captured run."""
    steps: list[dict[str, Any]] = []
    for line in map(json.loads, captured.stdout.splitlines()):
        part = line.get("part", {})
        if line["type"] == "step_start":
            steps.append({"text": "", "tools": []})
        elif line["type"] == "text":
            steps[-1]["text"] += part["text"]
        elif line["type"] == "tool_use":
            steps[-1]["tools"].append({"name": part["tool"], "args": part["state"]["input"]})
        elif line["type"] == "step_finish":
            tokens, cache = part["tokens"], part["tokens"]["cache"]
            steps[-1]["usage"] = {
                "prompt": tokens["input"] + cache["read"],
                "completion": tokens["output"] + tokens["reasoning"],
                "cached": cache["read"],
                "reasoning": tokens["reasoning"],
            }
        elif line["type"] == "error" and "statusCode" in line["error"].get("data", {}):
            steps.append({"status": line["error"]["data"]["statusCode"]})
    return steps
