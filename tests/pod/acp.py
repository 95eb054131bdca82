"""Turns of agents that speak the Agent Client Protocol, done by the driver as it runs in a pod, with `acp.sh`."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_runs.agents.profile import load
from agent_runs.contracts.outcome import ContainerEnd, Report
from agent_runs.contracts.request import RunConfig
from agent_runs.job.acp_plan import driver_profile
from agent_runs.pod.archive import sidecar_archive
from tests.support.saved_output import fold_chunks

SCRIPT: Final = Path(__file__).parents[2] / "agent_runs" / "pod" / "acp.sh"
CAPTURES: Final = Path(__file__).parents[1] / "fixtures" / "agents"
PLAYER: Final = Path(__file__).with_name("recorded_agent.py")
START: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from agent_runs.pod.sidecar.drivers.acp.drive import drive; drive(sys.argv[2])"
)
_CHANGED: Final[dict[str, dict[str, Any]]] = {
    "gemini": {"authenticate": "gemini-api-key"},
    "qwen": {"authenticate": "openai"},
    "pi": {"cost": "pi_session"},
}
"""What the recordings have, and the profiles have not."""
PROFILES: Final = {
    name: driver_profile(profile, None, [], RunConfig(model="a/model", agent=name)) | _CHANGED.get(name, {})
    for name, profile in load().items()
}
"""What the worker hands over of each agent."""
TITLES: Final = {name: "a title" if profile.set_title else None for name, profile in load().items()}
"""What it hands over of a new session's title."""
HIDDEN: Final = ("agent_version", "acp_update", "text_growth", "session_status")


def acp_turn(directory: Path, profile: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """What the worker hands over of a turn."""
    known = {"driver": "acp", "directory": str(directory), "session": None, "title": None, "model": "a-model"}
    return {**known, "start_timeout": 30, "profile": profile, **more}


@dataclass(frozen=True)
class Played:
    """A turn that has ended: what the driver wrote of its end, and the lines."""

    end: dict[str, Any]
    output: bytes
    report: Report
    code: int | None = None

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.splitlines()]

    @property
    def kinds(self) -> list[str]:
        """Types of the lines but for what only keeps a message, or shows a text that grows."""
        return [each["type"] for each in self.events if each["type"] not in HIDDEN]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["type"] == kind]

    @property
    def text(self) -> str:
        return "".join(each["part"]["text"] for each in self.of("text"))


def read(turn: Path, code: int | None = None) -> Played:
    """What the driver wrote of a turn that has ended."""
    end, events = json.loads((turn / "end").read_text()), turn / "events"
    output = events.read_bytes() if events.exists() else b""
    resumed = json.loads((turn / "turn.json").read_text())["session"]
    return Played(end, output, report(output, end, resumed), code)


def report(output: bytes, end: Mapping[str, Any], resumed: str | None) -> Report:
    """What the worker makes of it."""
    ended = ContainerEnd(exit_code=end["code"], runner_error=end["reason"])
    return fold_chunks([output], resumed_session=resumed).report(ended, verified=True)


@dataclass
class Stage:
    """An agent under `acp.sh`, and its driver, without a runner and a sidecar."""

    folder: Path
    profile: dict[str, Any]
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    turn: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.out, self.own, self.work = (self.folder / name for name in ("out", "own", "work"))
        for folder in (self.out, self.own, self.work):
            folder.mkdir(parents=True)
        for name in ("input", "orders"):
            os.mkfifo(self.out / name)
        (self.out / "protocol").touch()
        (self.own / "prompt").write_text(self.turn.pop("text", "hello"))
        known = acp_turn(self.work, self.profile, output=str(self.out), address="none")
        (self.own / "turn.json").write_text(json.dumps(known | self.turn))

    @property
    def events(self) -> bytes:
        file = self.own / "events"
        return file.read_bytes() if file.exists() else b""

    @property
    def received(self) -> list[dict[str, Any]]:
        """What a recorded agent has got."""
        file = self.work / "received"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    async def agent(self) -> asyncio.subprocess.Process:
        """The agent as a process group."""
        return await asyncio.create_subprocess_exec(
            *("sh", str(SCRIPT), str(self.out), *self.command),
            cwd=self.work,
            env=os.environ | self.environment,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def driver(self) -> asyncio.subprocess.Process:
        """The driver as a process."""
        archive = self.folder / "sidecar.pyz"
        if not archive.exists():
            archive.write_bytes(sidecar_archive())
        return await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", START, archive, self.own)

    def order(self, text: str) -> None:
        """As the sidecar does when the turn is over."""
        file = os.open(self.out / "orders", os.O_WRONLY | os.O_NONBLOCK)
        os.write(file, text.encode() + b"\n")
        os.close(file)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """The agent while it runs; nothing of it is left afterwards."""
        agent = await self.agent()
        try:
            yield agent
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            await agent.wait()

    async def play(self) -> Played:
        """A whole turn, to the end of the agent."""
        async with self.running() as agent:
            driver = await self.driver()
            assert await driver.wait() == 0
            ended = read(self.own)
            self.order(f"end {ended.end['code']}")
            return read(self.own, await agent.wait())

    async def until(self, part: bytes) -> None:
        """Wait until the driver has written this."""
        async with asyncio.timeout(60):
            while part not in self.events:  # noqa: ASYNC110 - a file of another process has no event
                await asyncio.sleep(0.02)


def recorded(folder: Path, name: str, case: str, script: dict[str, Any] | None = None, **turn: Any) -> Stage:
    """A stage with the recording of a real agent."""
    capture = CAPTURES / name / f"{case}.jsonl"
    command = [sys.executable, "-I", "-S", str(PLAYER), str(capture), json.dumps(script or {})]
    profile = PROFILES[name] | turn.pop("profile", {})
    if not any('"authenticate"' in line for line in capture.read_text().splitlines()):
        profile = profile | {"authenticate": None}
    return Stage(folder, profile, command, turn={"title": TITLES[name], **turn})
