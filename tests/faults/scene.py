"""A system for one row of the table: what a story can do in it, and everything that is seen of it meanwhile."""

import asyncio
import base64
import json
import shlex
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from client.attach import Ticket, attach
from contracts.outcome import Outcome
from contracts.request import RunRequest
from local.cluster.kinds import JOBS, PODS, SECRETS, Kind, Object
from local.cluster.store import Change
from tests.conftest import FIXTURES
from tests.faults.nursery import Child, Nursery
from tests.runs.ground import Ground, attempt_key, ground
from workflows.attributes import ALL

LINES: Final = 60
MARK: Final = "FAULTS_AGENT"
"""Variable of every process of an agent, so that those it leaves can be found."""
LOOK: Final = 0.2
"""Seconds between looks at what another process does and nobody tells us."""

AGENT: Final = """
while [ $# -gt 1 ]; do [ "$1" = --title ] && title=$2; shift; done
attempt=${{title##*/}}
exec 9>{folder}/alive
flock -n 9 || echo twice >> {folder}/starts
echo "$attempt" >> {folder}/starts
cat > /dev/null
say() {{
    i=$1
    while [ "$i" -lt "$2" ]; do
        echo "line $i$3" || return 1
        echo "line $i" >> {folder}/said-$attempt
        i=$((i+1))
    done
}}
gate() {{ until [ -e {folder}/gate ]; do sleep 0.2; done; }}
finish() {{ cat {answer}; }}
"""
"""Notes each of its starts, that it was never two at a time, and each line it wrote; `finish` is a real answer."""
WHOLE: Final = "say 0 {half}; gate; say {half} {lines}; finish"
POLITE: Final = "trap 'exit 143' TERM; say 0 {half}; gate; say {half} {lines}; finish"


@dataclass
class Scene:
    """One system with one agent.

    Attributes:
        half: how many lines the agent says before it waits for its gate; the seed of the row decides.
        seen: every object of the cluster that was the agent's, in each of its states.
    """

    name: str
    system: Ground
    nursery: Nursery
    folder: Path
    half: int
    server: "Server | None" = None
    raw: dict[str, Any] = field(default_factory=dict)
    tickets: list[Ticket] = field(default_factory=list)
    workers: list[Child] = field(default_factory=list)
    seen: list[tuple[Kind, Change]] = field(default_factory=list)
    reads: list[asyncio.Task[None]] = field(default_factory=list)

    # ---------------------------------------------------------------- the agent

    def agent(self, body: str = WHOLE, *, lines: int = LINES, waits: bool = True, **config: Any) -> dict[str, Any]:
        """The context of the agent's next wake; it plants what must never be seen anywhere."""
        answer = shlex.quote(str(FIXTURES / "opencode" / "text-stdin" / "events.jsonl"))
        script = AGENT.format(folder=shlex.quote(str(self.folder)), answer=answer)
        raw = self.system.agent(script + body.format(half=self.half, lines=lines, folder=self.folder))
        raw["config"] |= config
        raw["config"]["env"] |= {MARK: raw["agent"]["id"], "CANARY_TOKEN": self.canaries["config.env"]}
        raw["authToken"] = self.canaries["authToken"]
        header = {"Authorization": f"Bearer {self.canaries['MCP header']}"}
        raw["config"]["mcpServers"] = {"tracker": {"type": "remote", "url": "http://127.0.0.1:9/", "headers": header}}
        raw["context"]["paperclipTaskMarkdown"] = f"Keep {self.canaries['prompt']} to yourself."
        if not waits:
            self.open_gate()
        self.raw = raw
        return raw

    @property
    def canaries(self) -> dict[str, str]:
        """What is secret, by where it is planted."""
        kinds = ("authToken", "config.env", "MCP header", "prompt")
        return {kind: f"canary-{self.name}-{number}-7c1f" for number, kind in enumerate(kinds)}

    @property
    def agent_id(self) -> str:
        return str(self.raw["agent"]["id"])

    def open_gate(self) -> None:
        """Lets the agent go on."""
        (self.folder / "gate").touch()

    async def written(self, count: int | None = None) -> None:
        """Returns once so many lines of the agent are stored; the first half unless a number is given."""
        news = self.system.store.news(attempt_key(self.raw))
        while len(await self.system.said(self.raw)) < (self.half if count is None else count):
            try:
                async with asyncio.timeout(LOOK):
                    await news.beyond(news.count, timedelta(hours=1))
            except TimeoutError:
                continue

    # ---------------------------------------------------------------- who takes part

    async def start(self, *, linger: bool = False) -> Ticket:
        """Attach; nobody has to collect the outcome unless `linger`."""
        return await self.attach(self.request() if linger else self.request().model_copy(update={"linger_sec": 0}))

    async def attach(self, request: RunRequest) -> Ticket:
        ticket = await attach(self.system.temporal, self.system.settings, request)
        self.tickets.append(ticket)
        return ticket

    def request(self) -> RunRequest:
        return self.system.request(self.raw)

    async def worker(self, step: str = "", moment: str = "") -> Child:
        """A worker in a process of its own, which goes at that moment of that step if one is given."""
        told = {**self.system.environment, **self.system.worker_environment}
        told |= {"FAULT_STEP": step, "FAULT_MOMENT": moment, "FAULT_FULL": str(self.folder / "full")}
        log = self.folder / f"worker-{len(self.workers) + 1}.log"
        self.workers.append(await self.nursery.start("tests.faults.mortal", told, log))
        return self.workers[-1]

    async def caller(self, *, collects: bool = True) -> Child:
        """A caller in a process of its own, once it has its ticket."""
        order, log = self.folder / "request.json", self.folder / "caller.log"
        order.write_text(self.request().model_dump_json())
        told = {"CALL_REQUEST": str(order), "CALL_TOLD": str(self.folder), "CALL_COLLECTS": "yes" if collects else ""}
        child = await self.nursery.start("tests.faults.caller", self.system.environment | told, log)
        await self.there("ticket")
        return child

    async def there(self, name: str) -> None:
        """Returns once another process has made this file."""
        while not (self.folder / name).exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(LOOK)

    async def outcome(self, ticket: Ticket) -> Outcome:
        return await ticket.handle(self.system.temporal).result()

    async def step(self, ticket: Ticket, name: str, tries: int = 1) -> PendingActivityInfo:
        """Returns once this step is being done, at least for the that many time."""
        handle = ticket.handle(self.system.temporal)
        while True:
            told = (await handle.describe()).raw_description.pending_activities
            for found in told:
                if found.activity_type.name == name and found.attempt >= tries and (tries > 1 or began(found)):
                    return found
            await asyncio.sleep(LOOK)

    # ---------------------------------------------------------------- the cluster

    async def pod(self, ready: Callable[[Object], bool] = lambda _: True) -> Object:
        """The agent's pod, as soon as it is there and ready in this sense."""
        async for change in self.system.embedded.store.observe(PODS):
            if change.type != "DELETED" and self.ours(change.body) and ready(change.body):
                return change.body
        raise AssertionError("a watch does not end")

    async def vanished(self, kind: Kind) -> None:
        """Returns once no object of this kind is left of the agent's."""
        store = self.system.embedded.store
        if not self.left(kind):
            return
        async for _ in store.observe(kind):
            if not self.left(kind):
                return

    def left(self, kind: Kind) -> list[str]:
        """The names of the agent's objects of this kind."""
        return [body["metadata"]["name"] for body in self.system.embedded.store.every(kind) if self.ours(body)]

    def ours(self, body: Object) -> bool:
        return bool(self.raw) and (body["metadata"].get("labels") or {}).get("paperclip.io/agent-id") == self.agent_id

    async def server_away(self, seconds: float) -> None:
        """The API server and the kubelet are gone for so long; containers go on."""
        self.look_away()
        await self.system.embedded.abandon()
        await asyncio.sleep(seconds)
        await self.system.embedded.start()
        self.watch()

    def oom_kill(self, pod: Object) -> None:
        """Kills the agent's container for its memory, as the kernel would; the embedded cluster limits none."""
        running = self.system.embedded._kubelet._pods[pod["metadata"]["uid"]].slots_by_name["opencode"].current
        assert running is not None
        conclude = running._conclude

        def concluded() -> None:
            conclude()
            assert running.end is not None
            running.end = replace(running.end, reason="OOMKilled")

        running._conclude = concluded  # type: ignore[method-assign]  # the only place that knows why a container ended
        running.kill()

    def shorten_ttl(self) -> None:
        """Somebody lets Kubernetes remove the Job as soon as it is over."""
        for name in self.left(JOBS):
            self.system.embedded.store.change(
                JOBS, "default", name, lambda body: body["spec"].update(ttlSecondsAfterFinished=0)
            )

    # ---------------------------------------------------------------- what is seen

    def watch(self) -> None:
        """Sees every object in each of its states from now on."""
        self.reads = [asyncio.create_task(self._see(kind)) for kind in (JOBS, PODS, SECRETS)]

    def look_away(self) -> None:
        for task in self.reads:
            task.cancel()

    async def _see(self, kind: Kind) -> None:
        async for change in self.system.embedded.store.observe(kind):
            self.seen.append((kind, change))

    def states(self, kind: Kind) -> list[Object]:
        """All states of all the agent's objects of a kind."""
        return [change.body for about, change in self.seen if about is kind and self.ours(change.body)]

    def note(self, name: str) -> list[str]:
        """What the agent noted in a file of its own."""
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


def began(found: PendingActivityInfo) -> bool:
    return found.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED


@dataclass
class Server:
    """A Temporal server that may be stopped; what it knows is in a file."""

    database: Path
    port: int
    running: WorkflowEnvironment

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> AsyncIterator["Server"]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        database = folder / "temporal.db"
        server = cls(database, port, await started(database, port))
        try:
            yield server
        finally:
            await server.running.shutdown()

    async def away(self, seconds: float, meanwhile: Callable[[], None]) -> None:
        await self.running.shutdown()
        meanwhile()
        await asyncio.sleep(seconds)
        self.running = await started(self.database, self.port)


async def started(database: Path, port: int) -> WorkflowEnvironment:
    """The real dev server."""
    return await WorkflowEnvironment.start_local(
        dev_server_existing_path=str(Path(sys.executable).with_name("temporal")),
        dev_server_database_filename=str(database),
        data_converter=pydantic_data_converter,
        search_attributes=list(ALL),
        dev_server_log_level="error",
        dev_server_startup_timeout=timedelta(minutes=1),
        port=port,
    )


@asynccontextmanager
async def scene(
    name: str, temporal: Client, nursery: Nursery, folder: Path, *, own_server: bool = False
) -> AsyncIterator[Scene]:
    """The system of one row, without a worker yet. Everything that was started is ended."""
    random = Random(name)
    async with AsyncExitStack() as parts:
        server = await parts.enter_async_context(Server.open(folder)) if own_server else None
        client = server.running.client if server else temporal
        system = await parts.enter_async_context(ground(client, folder))
        made = Scene(name, system, nursery, folder, random.randrange(10, LINES - 10), server)
        made.watch()
        try:
            yield made
        finally:
            made.look_away()
            for child in made.workers:
                if not child.ended.done():
                    child.send(signal.SIGTERM)
            for child in made.workers:
                await child.end()


def environment_of(process: Path) -> dict[str, str]:
    """A process's environment; empty if it is not ours to see."""
    try:
        text = (process / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(pair.partition("=")[::2] for pair in text.split("\0") if "=" in pair)


def processes_of(agent_id: str) -> list[str]:
    """What still runs of an agent, by its command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if environment_of(process).get(MARK) == agent_id:
            try:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return found


def decoded(body: Object) -> str:
    """A Secret's content, to see that what must be secret was there at all."""
    return json.dumps({key: base64.b64decode(value).decode(errors="replace") for key, value in body["data"].items()})
