"""Whole runs of the real agents that speak ACP, with the scripted model as their provider."""

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client

from agent_runs.agents.profile import load
from agent_runs.contracts.outcome import Outcome
from dev_stack.agent_programs import PROGRAMS, ensure_program, link_programs, provider_variables
from dev_stack.scripted_model.server import ScriptedModel, serve
from tests.runs.real_opencode import playing
from tests.runs.system import System, open_system

KEY = "canary-key-of-the-provider"
"""The key of every agent's provider, which must be in Secrets only."""


COUNTED = {"usage": {"prompt": 1000, "completion": 50, "cached": 400, "reasoning": 10}}
"""What an answer of the model costs."""
SPENT = {
    "claude": (1200, 100, 800, 0),
    "codex": (1200, 100, 800, 20),
    "gemini": (2000, 80, 0, 0),
    "qwen": (1200, 100, 800, 20),
    "pi": (1200, 100, 800, 20),
}
"""Input without the cache, output, cache and reasoning of two such answers, as far as each agent tells them."""


def spent(outcome: Outcome) -> tuple[int, int, int, int]:
    """What the outcome says of the same."""
    used = outcome.usage
    assert used is not None
    return used.input_tokens, used.output_tokens, used.cached_input_tokens, used.reasoning_tokens


def key_of(name: str) -> str:
    """The variable with the key of the agent's provider."""
    return load()[name].keys[0]


@dataclass
class AgentSystem:
    """A system whose agents are the real ones.

    Attributes:
        model: has what every agent asked and was answered.
    """

    system: System
    model: ScriptedModel
    folder: Path

    async def agent(self, name: str, scenario: str, *, oldest: bool = False, **config: Any) -> dict[str, Any]:
        """The context of a new agent that is this program, or the oldest version of it that is supported."""
        raw = self.system.agent("")
        raw["config"] |= {
            "agent": name,
            "model": f"fake/scenario/{scenario}",
            "graceSec": 10,
            "transport": "auto",
            "keepWarmSec": 0,
            "env": {
                **provider_variables(name, self.model.base_url),
                "PATH": await programs(name, self.folder, oldest=oldest),
                key_of(name): KEY,
            },
            **config,
        }
        return raw

    async def left_of(self, raw: dict[str, Any]) -> list[str]:
        """What is left of a run: Jobs and pods of its agent, and processes with its variables."""
        jobs = [job.metadata.name for job in await self.system.jobs(raw)]
        pods = [pod.metadata.name for pod in await self.system.pods(raw)]
        return [*jobs, *pods, *map(str, processes_of(raw))]

    def programs_of(self, raw: dict[str, Any]) -> list[int]:
        """The processes that speak the protocol for this run."""
        program = PROGRAMS[raw["config"]["agent"]].entry
        found = [pid for pid in processes_of(raw) if program in command_line(pid)]
        assert found, "the agent does not run"
        return found

    async def plays(self, name: str, *steps: dict[str, Any], oldest: bool = False, **config: Any) -> dict[str, Any]:
        """The same with these steps of the model."""
        return playing(await self.agent(name, "script", oldest=oldest, **config), *steps)


def processes_of(raw: dict[str, Any]) -> list[int]:
    """The living processes of this machine that have the run's id in their environment."""
    wanted = f"PAPERCLIP_RUN_ID={raw['runId']}\0".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def command_line(pid: int) -> str:
    """The words of a process, empty once it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


async def programs(name: str, folder: Path, *, oldest: bool = False) -> str:
    """A PATH with the agent's program, as its image has it."""
    installed = await ensure_program(name, oldest=oldest)
    folders = link_programs(name, installed, folder / f"{name}{'-oldest' * oldest}")
    return os.pathsep.join([*folders, os.environ["PATH"]])


@asynccontextmanager
async def real_agents(temporal: Client, folder: Path) -> AsyncIterator[AgentSystem]:
    """A system with a worker, whose agents keep their homes on a data volume."""
    async with open_real_agents(temporal, folder) as agents, agents.system.worker():
        yield agents


@asynccontextmanager
async def open_real_agents(temporal: Client, folder: Path) -> AsyncIterator[AgentSystem]:
    """The same without a worker."""
    async with serve() as model, open_system(temporal, folder) as opened:
        images = dict.fromkeys(PROGRAMS, "agent:test")
        system = await opened.with_data_volume("homes", agent_images=images)
        own = folder / "agents"
        own.mkdir()
        yield AgentSystem(system, model, own)
