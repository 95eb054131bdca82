"""The environment of one row of the table: a system, its processes, and a record of all states of its objects."""

import asyncio
import base64
import json
import shlex
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from pydantic import TypeAdapter
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from agent_runs.client.attach import Ticket, attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.wake import Wake
from agent_runs.contracts.outcome import AttemptReport, Outcome
from dev_stack.cluster.kinds import JOBS, PODS, SECRETS, Kind, Object
from dev_stack.cluster.store import Change
from tests.conftest import FIXTURES
from tests.runs.system import System, open_system
from tests.support.ports import free_port
from tests.support.process_pool import ChildProcess, ProcessPool
from tests.support.temporal import start_temporal

LINES: Final = 60
AGENT_VARIABLE: Final = "FAULTS_AGENT"
"""Environment variable of every process of an agent, by which leftover ones are found."""
POLL_SECONDS: Final = 0.2
"""Between two polls of a file or a Temporal server, which send no notification."""

AGENT: Final = """
while [ $# -gt 1 ]; do [ "$1" = --title ] && title=$2; shift; done
attempt=${{title##*/}}
exec 9>{folder}/alive
flock -n 9 || echo twice >> {folder}/starts
echo "$attempt" >> {folder}/starts
cat > /dev/null
write_lines() {{
    i=$1
    while [ "$i" -lt "$2" ]; do
        echo "line $i$3" || return 1
        echo "line $i" >> {folder}/written-$attempt
        i=$((i+1))
    done
}}
await_release() {{ until [ -e {folder}/released ]; do sleep 0.2; done; }}
finish() {{ cat {answer}; }}
"""
"""Notes each of its starts, whether two of it run at a time, and each line it wrote; `finish` is a real answer."""
WRITES_ALL_LINES: Final = "write_lines 0 {half}; await_release; write_lines {half} {lines}; finish"
EXITS_ON_SIGTERM: Final = (
    "trap 'exit 143' TERM; write_lines 0 {half}; await_release; write_lines {half} {lines}; finish"
)


@dataclass
class Environment:
    """One system with one agent.

    Attributes:
        half: how many lines the agent writes before it waits for its release; the row's name is the seed.
        earlier_jobs: the names of Jobs of earlier runs of the agent.
        changes: every change of Jobs, pods and Secrets in the cluster.
    """

    name: str
    system: System
    process_pool: ProcessPool
    folder: Path
    half: int
    server: "Server | None" = None
    raw: dict[str, Any] = field(default_factory=dict)
    tickets: list[Ticket] = field(default_factory=list)
    workers: list[ChildProcess] = field(default_factory=list)
    earlier_jobs: set[str] = field(default_factory=set)
    changes: list[tuple[Kind, Change]] = field(default_factory=list)
    recorders: list[asyncio.Task[None]] = field(default_factory=list)

    # ---------------------------------------------------------------- the agent

    def agent(
        self, body: str = WRITES_ALL_LINES, *, lines: int = LINES, waits_for_release: bool = True, **config: Any
    ) -> dict[str, Any]:
        """The context of the agent's next wake, with a canary in each place for a secret."""
        answer = shlex.quote(str(FIXTURES / "opencode" / "text-stdin" / "events.jsonl"))
        script = AGENT.format(folder=shlex.quote(str(self.folder)), answer=answer)
        raw = self.system.agent(script + body.format(half=self.half, lines=lines, folder=self.folder))
        raw["config"] |= config
        raw["context"]["paperclipTaskMarkdown"] = f"Keep {self.canaries['prompt']} to yourself."
        self.plant(raw)
        if not waits_for_release:
            self.release_agent()
        self.raw = raw
        return raw

    def plant(self, raw: dict[str, Any]) -> None:
        """Put the canaries, but for that of the prompt, and the mark of the agent's processes into its context."""
        raw["config"]["env"] |= {AGENT_VARIABLE: raw["agent"]["id"], "CANARY_TOKEN": self.canaries["config.env"]}
        raw["authToken"] = self.canaries["authToken"]
        header = {"Authorization": f"Bearer {self.canaries['MCP header']}"}
        raw["config"]["mcpServers"] = {"tracker": {"type": "remote", "url": "http://127.0.0.1:9/", "headers": header}}

    @property
    def canaries(self) -> dict[str, str]:
        """The planted secrets, by their place."""
        kinds = ("authToken", "config.env", "MCP header", "prompt")
        return {kind: f"canary-{self.name}-{number}-7c1f" for number, kind in enumerate(kinds)}

    @property
    def not_taken(self) -> frozenset[str]:
        """The places of canaries that are for no pod of the agent."""
        return frozenset()

    @property
    def agent_id(self) -> str:
        return str(self.raw["agent"]["id"])

    def release_agent(self) -> None:
        """Let the agent write its second half."""
        (self.folder / "released").touch()

    async def until_stored(self, count: int | None = None) -> None:
        """Returns once so many lines of the agent are stored; the first half unless a number is given."""
        await self.system.until_stored(self.raw, self.half if count is None else count)

    async def stored(self, attempt: int) -> list[str]:
        """The numbered lines in the stored output of an attempt."""
        stdout = [line.decode() for line in await self.system.stdout(self.raw, attempt)]
        return [" ".join(line.split()[:2]) for line in stdout if line.startswith("line ")]

    def written(self, attempt: AttemptReport) -> list[str]:
        """The lines of which the agent noted in an attempt that it has written them."""
        return self.note(f"written-{attempt.attempt}")

    async def end_rest(self) -> None:
        """End what is to be left after a run: nothing, if no pod rests."""

    # ---------------------------------------------------------------- callers and workers

    async def start(self, *, retain_outcome: bool = False) -> Ticket:
        """Attach; the run ends without a caller that collects its outcome, unless `retain_outcome`."""
        return await self.attach(self.wake(retain_outcome=retain_outcome))

    async def attach(self, wake: Wake) -> Ticket:
        ticket = await attach(self.system.temporal, self.system.settings, wake)
        self.tickets.append(ticket)
        return ticket

    def wake(self, *, retain_outcome: bool = True, **changes: str) -> Wake:
        """The agent's wake, with other fields of the context if some are given."""
        return self.system.wake(self.raw | changes, outcome_retention_sec=24 * 3600 if retain_outcome else 0)

    async def worker(self, step: str = "", moment: str = "", **settings: str) -> ChildProcess:
        """A worker in a process of its own, which kills itself at that moment of that step if one is given."""
        variables = {**self.system.environment, **self.system.worker_environment}
        variables |= {"FAULT_STEP": step, "FAULT_MOMENT": moment, "FAULT_FULL": str(self.folder / "full"), **settings}
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        self.workers.append(await self.process_pool.start("tests.faults.worker_process", variables, log))
        return self.workers[-1]

    async def caller(self, *, collects: bool = True) -> ChildProcess:
        """A caller in a process of its own, once it has its ticket."""
        wake, log = self.folder / "wake.json", self.folder / "caller.log"
        wake.write_bytes(TypeAdapter(Wake).dump_json(self.wake()))
        variables = {
            "CALLER_WAKE": str(wake),
            "CALLER_FOLDER": str(self.folder),
            "CALLER_COLLECTS": "yes" if collects else "",
        }
        child = await self.process_pool.start("tests.faults.caller_process", self.system.environment | variables, log)
        await self.until_file("ticket")
        return child

    async def until_file(self, name: str) -> None:
        while not (self.folder / name).exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(POLL_SECONDS)

    async def outcome(self, ticket: Ticket) -> Outcome:
        return await outcome_at_close(ticket.handle(self.system.temporal))

    async def until_step(self, ticket: Ticket, name: str, attempt: int = 1) -> PendingActivityInfo:
        """Returns once this step is executed, in this activity attempt or a later one."""
        handle = ticket.handle(self.system.temporal)
        while True:
            for pending in (await handle.describe()).raw_description.pending_activities:
                if (
                    pending.activity_type.name == name
                    and pending.attempt >= attempt
                    and (attempt > 1 or began(pending))
                ):
                    return pending
            await asyncio.sleep(POLL_SECONDS)

    # ---------------------------------------------------------------- the cluster

    async def pod(self) -> Object:
        """The agent's pod, as soon as there is one."""
        async for change in self.system.embedded.store.observe(PODS):
            if change.type != "DELETED" and self.is_ours(change.body):
                return change.body
        raise AssertionError("a watch does not end")

    async def until_none_left(self, kind: Kind) -> None:
        """Returns once the agent has no object of this kind."""
        store = self.system.embedded.store
        if not self.left(kind):
            return
        async for _ in store.observe(kind):
            if not self.left(kind):
                return

    def left(self, kind: Kind) -> list[str]:
        return [body["metadata"]["name"] for body in self.present(kind)]

    def present(self, kind: Kind) -> list[Object]:
        return [body for body in self.system.embedded.store.every(kind) if self.is_ours(body)]

    def is_ours(self, body: Object) -> bool:
        return bool(self.raw) and (body["metadata"].get("labels") or {}).get("paperclip.io/agent-id") == self.agent_id

    # ---------------------------------------------------------------- the record

    def record(self) -> None:
        """Record every object in each of its states from now on."""
        self.recorders = [asyncio.create_task(self._record(kind)) for kind in (JOBS, PODS, SECRETS)]

    def stop_recording(self) -> None:
        for task in self.recorders:
            task.cancel()

    async def _record(self, kind: Kind) -> None:
        async for change in self.system.embedded.store.observe(kind):
            self.changes.append((kind, change))

    def states(self, kind: Kind) -> list[Object]:
        """All recorded states of the agent's objects of a kind."""
        return [change.body for changed, change in self.changes if changed is kind and self.is_ours(change.body)]

    def note(self, name: str) -> list[str]:
        """The lines of one of the files in which the agent notes what it does."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


def began(pending: PendingActivityInfo) -> bool:
    return pending.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED


@dataclass
class Server:
    """A Temporal server that may be stopped; its state is in a file."""

    database: Path
    port: int
    running: WorkflowEnvironment

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator["Server"]:
        port, database = free_port(), folder / "temporal.db"
        server = cls(database, port, await start_server(database, port))
        try:
            yield server
        finally:
            await server.running.shutdown()

    async def stop(self, seconds: float, meanwhile: Callable[[], None]) -> None:
        await self.running.shutdown()
        meanwhile()
        await asyncio.sleep(seconds)
        self.running = await start_server(self.database, self.port)


async def start_server(database: Path, port: int) -> WorkflowEnvironment:
    return await start_temporal(dev_server_database_filename=str(database), port=port)


@asynccontextmanager
async def open_environment(
    name: str,
    temporal: Client,
    process_pool: ProcessPool,
    folder: Path,
    *,
    own_server: bool = False,
    transcripts_url: str | None = None,
) -> AsyncIterator[Environment]:
    """The environment of one row, without a worker yet. Everything that was started is ended."""
    random = Random(name)
    async with AsyncExitStack() as parts:
        server = await parts.enter_async_context(Server.open(folder)) if own_server else None
        client = server.running.client if server else temporal
        system = await parts.enter_async_context(open_system(client, folder, transcripts_url))
        env = Environment(name, system, process_pool, folder, random.randrange(10, LINES - 10), server)
        yield await parts.enter_async_context(recorded(env))


@asynccontextmanager
async def recorded(env: Environment) -> AsyncIterator[Environment]:
    """Record what happens in it, and end its workers."""
    env.record()
    try:
        yield env
    finally:
        env.stop_recording()
        for child in env.workers:
            if not child.ended.done():
                child.send(signal.SIGTERM)
        for child in env.workers:
            await child.end()


def environment_of(process: Path) -> dict[str, str]:
    """A process's environment; empty where we may not read it."""
    try:
        text = (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)


def processes_of(agent_id: str) -> list[str]:
    """The command lines of an agent's running processes."""
    command_lines = []
    for process in Path("/proc").glob("[0-9]*"):
        if environment_of(process).get(AGENT_VARIABLE) == agent_id:
            try:
                command_lines.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return command_lines


def decoded(body: Object) -> str:
    """A Secret's content in plain text."""
    return json.dumps({key: base64.b64decode(value).decode(errors="replace") for key, value in body["data"].items()})
