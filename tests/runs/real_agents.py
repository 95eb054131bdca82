"""Whole runs of the real agents that speak ACP, with the scripted model as their provider."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from temporalio.client import Client

from agent_runs.agents.profile import load
from dev_stack.agent_programs import PROGRAMS, ensure_program, node
from dev_stack.scripted_model.server import ScriptedModel, serve
from tests.runs.real_opencode import playing
from tests.runs.system import System, open_system
from tests.support.claims import data_claim

KEY = "canary-key-of-the-provider"
"""The key of every agent's provider, which must be in Secrets only."""


@dataclass
class AgentSystem:
    """A system whose agents are the real ones.

    Attributes:
        model: has what every agent asked and was answered.
    """

    system: System
    model: ScriptedModel
    folder: Path

    async def agent(self, name: str, scenario: str, **config: Any) -> dict[str, Any]:
        """The context of a new agent that is this program."""
        raw = self.system.agent("")
        variables = {
            "claude": {"ANTHROPIC_BASE_URL": self.model.origin, "ANTHROPIC_SMALL_FAST_MODEL": "aux/title"},
            "gemini": {"GOOGLE_GEMINI_BASE_URL": self.model.origin},
        }
        raw["config"] |= {
            "agent": name,
            "model": f"fake/scenario/{scenario}",
            "graceSec": 10,
            "transport": "auto",
            "env": {
                "PATH": await programs(name, self.folder),
                load()[name].keys[0]: KEY,
                **variables.get(name, {"OPENAI_BASE_URL": self.model.base_url}),
            },
            **config,
        }
        return raw

    async def plays(self, name: str, *steps: dict[str, Any], **config: Any) -> dict[str, Any]:
        """The same with these steps of the model."""
        return playing(await self.agent(name, "script", **config), *steps)


async def programs(name: str, folder: Path) -> str:
    """A PATH with the agent's program, as its image has it."""
    installed, own = await ensure_program(name), folder / name
    if not own.exists():
        own.mkdir()
        command = load()[name].command[0]
        words = " ".join(f"'{word}'" for word in PROGRAMS[name].command(installed))
        (own / command).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (own / command).chmod(0o755)
        if name == "pi":
            (own / "pi").symlink_to(installed / "node_modules" / ".bin" / "pi")
    return f"{own}:{node().parent}:{os.environ['PATH']}"


@asynccontextmanager
async def real_agents(temporal: Client, folder: Path) -> AsyncIterator[AgentSystem]:
    """A system with a worker, whose agents keep their homes on a data volume."""
    async with serve() as model, open_system(temporal, folder) as opened:
        await opened.kubernetes.ensure_claim(data_claim("homes"))
        update = {"data_claim": "homes", "agent_images": dict.fromkeys(PROGRAMS, "agent:test")}
        system = replace(opened, settings=opened.settings.model_copy(update=update))
        own = folder / "agents"
        own.mkdir()
        async with system.worker():
            yield AgentSystem(system, model, own)


async def events(system: System, raw: dict[str, Any], attempt: int = 1) -> list[dict[str, Any]]:
    """The lines of the agent's standard output."""
    return [json.loads(line) for line in await system.stdout(raw, attempt)]
