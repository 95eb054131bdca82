"""The same environment with a real agent that speaks the Agent Client Protocol."""

import asyncio
import contextlib
import re
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from temporalio.client import Client

from agent_runs.agents.profile import load
from tests.faults.environment import Environment, environment_of, recorded
from tests.faults.served import SERVED_LINES, ServedEnvironment
from tests.runs.real_agents import AgentSystem, command_line, key_of, open_real_agents
from tests.runs.test_resting_agents import own_programs
from tests.support.process_pool import ProcessPool

PROCESSES: Final = Path("/proc")
LINE: Final = re.compile(r"^line \d+$", re.MULTILINE)
HELD: Final = "[ ! -e {folder}/hold ] || touch {folder}/held; while [ -e {folder}/hold ]; do sleep 0.1; done"
"""What the agent's program does before it starts."""
CODEX_WAITS_MS: Final = 30_000
"""The longest that it takes."""
HELPERS: Final = 2
"""Driver and API proxy."""
HELPERS_LOOK_SECONDS: Final = 0.05
CALL: Final = re.compile(r"\becho (line \d+);")


@dataclass(kw_only=True)
class AcpEnvironment(ServedEnvironment):
    """An environment whose agent is a real one besides OpenCode; each of its lines is the output of a tool."""

    agents: AgentSystem

    @property
    def agent_name(self) -> str:
        return str(self.fresh["config"]["agent"])

    @property
    def canaries(self) -> dict[str, str]:
        return {**super().canaries, "provider's key": f"canary-{self.name}-key-7c1f"}

    @property
    def not_taken(self) -> frozenset[str]:
        """Such an agent has no MCP server in its pod, if its profile says that it ignores them."""
        return frozenset() if load()[self.agent_name].mcp_servers else frozenset({"MCP header"})

    def plant(self, raw: dict[str, Any]) -> None:
        super().plant(raw)
        raw["config"]["env"][key_of(self.agent_name)] = self.canaries["provider's key"]

    def step(self, number: int) -> dict[str, Any]:
        """Codex would go on without a command that takes more than 10 s, and loses what one prints at once."""
        step = super().step(number)
        if self.agent_name == "codex":
            arguments = step["tools"][0]["args"]
            arguments |= {"yield_time_ms": CODEX_WAITS_MS, "command": f"sleep 1; {arguments['command']}"}
        return step

    async def stored(self, attempt: int) -> list[str]:
        """The lines of the tools that have ended, in the order in which those began.

        Codex tells of a command's end beside what it does next, so that the next command's may come first. What
        Gemini's have printed is not stored, only that they ended.
        """
        parts = [event["part"] for event in await self.system.events(self.raw, attempt) if event["type"] == "tool_use"]
        states = [part["state"] for part in sorted(parts, key=number_of)]
        return [line for state in states for line in lines_of(state, prints=self.agent_name != "gemini")]

    async def until_stored(self, count: int | None = None) -> None:
        """Returns once so many lines are stored, and the next tool has begun."""
        await super().until_stored(count)
        await self.system.until_tools_began(self.raw, (self.half if count is None else count) + 1)

    async def helpers_of_sidecar(self) -> list[int]:
        """What the pod's sidecar has started, as soon as all of it is there: what was killed is replaced."""
        pod = (await self.pod())["metadata"]["name"]
        while len(helpers := children_of_sidecar(pod)) < HELPERS:  # noqa: ASYNC110 - nothing tells of a new process
            await asyncio.sleep(HELPERS_LOOK_SECONDS)
        return helpers


def children_of_sidecar(pod: str) -> list[int]:
    in_pod = [int(each.name) for each in PROCESSES.glob("[0-9]*") if environment_of(each).get("HOSTNAME") == pod]
    sidecar = [pid for pid in in_pod if "sidecar.pyz run" in command_line(pid)]
    return [pid for pid in sidecar if parent_of(pid) in sidecar]


def number_of(part: dict[str, Any]) -> int:
    """Parts are counted when they begin."""
    return int(str(part["id"]).removeprefix("prt_"))


def lines_of(state: dict[str, Any], *, prints: bool) -> list[str]:
    """The lines of one tool: what it has printed, or what it was called for if that is not stored."""
    printed = str(state.get("output") or state.get("error") or "")
    if prints:
        return LINE.findall(printed)
    return [] if state["status"] == "error" or "cancelled" in printed else CALL.findall(state["title"])


def parent_of(pid: int) -> int | None:
    """None once it is gone."""
    with contextlib.suppress(OSError):
        return int((PROCESSES / str(pid) / "stat").read_text().rpartition(") ")[2].split()[1])
    return None


@asynccontextmanager
async def open_acp(
    name: str, temporal: Client, process_pool: ProcessPool, folder: Path, *, agent: str, claimed: bool
) -> AsyncIterator[Environment]:
    """The environment of one row, without a worker yet. Everything that was started is ended.

    Args:
        agent: by the name of its profile.
    """
    async with open_real_agents(temporal, folder) as agents:
        fresh = await agents.agent(agent, "script")
        await own_programs(fresh, agent, agents.folder, HELD.format(folder=shlex.quote(str(folder))))
        half = SERVED_LINES // 2
        env = AcpEnvironment(
            name, agents.system, process_pool, folder, half, fresh=fresh, claimed=claimed, agents=agents
        )
        async with recorded(env):
            if claimed:
                await env.run_before()
            yield env
