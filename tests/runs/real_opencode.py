"""Whole runs of the real OpenCode with the scripted model."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client

from agent_runs.contracts.outcome import Outcome
from dev_stack.demo import later_context
from dev_stack.opencode_binary import NEWEST, ensure_opencode
from dev_stack.scripted_model.server import provider_block, serve
from tests.pod.driving import script
from tests.runs.system import System, open_system


@asynccontextmanager
async def real_system(temporal: Client, folder: Path) -> AsyncIterator[System]:
    """A system with a worker, whose agents are the real OpenCode."""
    async with open_real_system(temporal, folder) as system, system.worker():
        yield system


@asynccontextmanager
async def open_real_system(temporal: Client, folder: Path) -> AsyncIterator[System]:
    """The same without a worker: OpenCode has the scripted model, and its sessions are on a data volume."""
    async with serve() as model, open_system(temporal, folder) as opened:
        provider = folder / "provider.json"
        provider.write_text(json.dumps({"provider": provider_block(model.base_url)}))
        yield await opened.with_data_volume("sessions", opencode_config=provider)


async def opencode_agent(system: System, scenario: str, opencode: int = 1, **config: Any) -> dict[str, Any]:
    """An agent that is the real OpenCode of this version."""
    return agent_of(system, await ensure_opencode(version=NEWEST[opencode]), scenario, **config)


def agent_of(system: System, binary: Path, scenario: str, **config: Any) -> dict[str, Any]:
    """The same with this binary."""
    raw = system.agent("")
    folder = Path(raw["config"]["env"]["PATH"].partition(":")[0])
    (folder / "opencode").unlink()
    (folder / "opencode").symlink_to(binary)
    raw["config"] |= {
        "model": f"fake/scenario/{scenario}",
        "graceSec": 10,
        "transport": "auto",
        "keepWarmSec": 0,
        **config,
    }
    return raw


def playing(raw: dict[str, Any], *steps: dict[str, Any]) -> dict[str, Any]:
    """The same context with these steps of the model in its task, instead of those of the demonstration."""
    text = json.dumps(raw, ensure_ascii=False)
    begin, end = re.escape("<<<fake-llm"), re.escape("fake-llm>>>")
    changed: dict[str, Any] = json.loads(re.sub(f"{begin}.*?{end}", lambda _: json.dumps(script(*steps))[1:-1], text))
    assert changed != raw
    return changed


def later(raw: dict[str, Any], outcome: Outcome, *steps: dict[str, Any]) -> dict[str, Any]:
    """The next run of the agent for the same task, with these steps."""
    return playing(later_context(raw, outcome.session_params), *steps)
