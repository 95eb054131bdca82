"""The whole system: Temporal, cluster, worker, scripted model, and Paperclips with the plugin in them."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from contracts.identity import AttemptKey, RunKey
from local.children import Child
from local.embedded import Access
from local.plan import CLAIM, Plan
from local.stack import Stack, _polls
from local.warm import GO
from paperclip.sealing import load_or_create
from tests.paperclip_server import installation
from tests.paperclip_server.agents import Plan as AgentPlan
from tests.paperclip_server.agents import Scripted
from tests.paperclip_server.api import ADAPTER, Api, Entry, Object
from tests.paperclip_server.server import KEYS, NODE, PLUGIN, PROGRAM, Server, running
from tests.paperclip_server.witness import Witness
from transcripts.store import Line, SqlTranscripts
from transcripts.tokens import Tokens

SEALING, SIGNING = "sealing-key.json", "transcripts-key.json"
REPORT: Final = "/paperclip/programs/report.sh"
"""Sends its argument as a change of the agent's issue. A file, because Paperclip rewrites what looks like a bearer."""
REPORTING: Final = """
curl -sS -X PATCH "$PAPERCLIP_API_URL/api/issues/$PAPERCLIP_TASK_ID" -o answer.txt -w '%{http_code}' -d "$1" \\
  -H "Authorization: Bearer $PAPERCLIP_API_KEY" -H "X-Paperclip-Run-Id: $PAPERCLIP_RUN_ID" \\
  -H 'Content-Type: application/json'
"""
STEADY, MORTAL = "steady", "mortal"
"""The Paperclip that stays up, and the one that stories kill."""
HOST: Final = "[paperclip] "
"""Paperclip's own notes in a run's log begin so."""


@dataclass
class Office:
    """One Paperclip, its board's API, and a company in it."""

    server: Server
    api: Api
    volume: Path
    company: str = ""

    async def open(self) -> None:
        """Install the plugin and found a company."""
        installed = await self.api.install(PLUGIN)
        assert installed["type"] == ADAPTER, installed
        self.company = await self.api.company("Acme")

    async def scripted(self, name: str, plan: AgentPlan | None = None, **config: Any) -> "Employee":
        """An agent with a program of ours as its OpenCode."""
        program = Scripted.make(self.volume, plan or AgentPlan())
        agent = await self.api.agent(self.company, name, program.config(**config))
        return Employee(self, agent, program)

    async def real(self, name: str, scenario: str, **config: Any) -> str:
        """An agent with the real OpenCode, whose model plays a scenario; its id."""
        settings = {"model": f"fake/scenario/{scenario}", "graceSec": 2, **config}
        return await self.api.agent(self.company, name, settings)

    async def issue(self, agent: str, title: str, description: str = "Please do it.") -> str:
        return await self.api.issue(self.company, agent, title, description)

    async def said(self, issue: str) -> list[str]:
        """The comments of an issue."""
        return [comment["body"] for comment in await self.api.comments(issue)]

    async def session(self, agent: str, issue: str, session: str) -> Object:
        """The session of an agent's task once it is this one: Paperclip stores it a moment after the run has ended."""

        async def there() -> Object | None:
            found = [one for one in await self.api.task_sessions(agent) if one["taskKey"] == issue]
            right = found and found[0]["sessionDisplayId"] == found[0]["sessionParamsJson"]["sessionId"] == session
            return found[0] if right else None

        stored: Object = await self.api.until(there, f"session {session} of {agent}", timedelta(seconds=20))
        return stored

    async def run(self, issue: str, after: int = 0, agent: str | None = None) -> str:
        """The id of the issue's run number `after` + 1, as soon as there is one; of one agent's runs only, if named."""
        return await self.api.next_run(self.company, issue, after, agent)


@dataclass(frozen=True)
class Employee:
    """A scripted agent in its office."""

    office: Office
    agent: str
    program: Scripted


@dataclass
class System:
    """What the stories play in."""

    stack: Stack
    store: SqlTranscripts
    folder: Path
    rooms: dict[str, str]
    plugin_settings: dict[str, str]
    parts: AsyncExitStack
    witness: "Witness"
    offices: dict[str, asyncio.Task[Office]] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)
    """What was measured on the way, for the end of the session."""

    @property
    def volume(self) -> Path:
        return self.stack.plan.data_root

    async def office(self, name: str) -> Office:
        """The Paperclip of this name, started with the first who asks."""
        if name not in self.offices:
            self.offices[name] = asyncio.create_task(self._opened(name))
        return await asyncio.shield(self.offices[name])

    async def _opened(self, name: str) -> Office:
        server = Server(name, self.volume, self.folder, self.rooms)
        server.environment = {**self.plugin_settings, "AGENT_RUNS_PAPERCLIP_API_URL": server.url}
        if name == MORTAL:  # at first only comments wake
            server.environment["AGENT_RUNS_RECONCILE"] = "false"
        await self.parts.enter_async_context(running(server))
        office = Office(server, await self.parts.enter_async_context(Api.open(server.url)), self.volume)
        await office.open()
        return office

    # what is stored beyond Paperclip

    async def transcript(self, run: str, agent: str, company: str, attempt: int = 1) -> list[Line]:
        """The stored transcript of one attempt."""
        key = AttemptKey(run=RunKey(agent_id=agent, company_id=company, run_id=run), attempt=attempt)
        found: list[Line] = []
        while page := await self.store.read(key, found[-1].sequence if found else 0):
            found += page
        return found

    # accidents

    @property
    def worker(self) -> Child:
        return self.stack._children[0]

    @property
    def temporal(self) -> Child:
        return next(child for child in self.stack._children if child.program.name == "Temporal")

    async def kill_worker(self) -> None:
        os.kill(self.worker._process.pid, signal.SIGKILL)
        await self.worker.ended

    async def start_worker(self) -> None:
        """Up when it says so itself: Temporal still lists the one that was killed as polling."""
        await self._again(self.worker)
        self.worker.go(GO)
        said = self.worker.program.log

        async def ready() -> bool:
            return "worker.ready" in said.read_text()

        await self.worker.ready(ready)

    async def restart_temporal(self, pause: float) -> None:
        """SIGKILL, away for `pause` seconds, and up again on its database."""
        old = self.temporal
        os.kill(old._process.pid, signal.SIGKILL)
        await old.ended
        await asyncio.sleep(pause)
        await self._again(old)
        queue = self.stack.settings.task_queue
        await self.temporal.ready(lambda: _polls(self.stack.client, queue))

    async def _again(self, old: Child) -> None:
        children = self.stack._children
        assert isinstance(children, list)
        children[children.index(old)] = await Child.start(old.program)


@asynccontextmanager
async def system(folder: Path) -> AsyncIterator[System]:
    """Everything but a Paperclip, which comes with the first `office`.

    Raises:
        Unavailable: no Paperclip can run here.
    """
    user = installation.unprivileged()
    program, plugin = await asyncio.gather(installation.paperclip(), installation.plugin(folder / "plugin"))
    plan = Plan(folder / "stack")
    _make_keys(plan.state, folder / "keys", user)
    _make_volume(plan.data_root, user)
    async with AsyncExitStack() as outer:
        stack = await outer.enter_async_context(Stack.up(plan))
        store = await SqlTranscripts.open(stack.settings.transcripts)
        outer.push_async_callback(store.close)
        rooms = {
            NODE: str(installation.node_home()),
            PROGRAM: str(program),
            PLUGIN: str(plugin),
            KEYS: str(folder / "keys"),
        }
        settings = {
            "AGENT_RUNS_TEMPORAL_ADDRESS": stack.addresses.temporal,
            "AGENT_RUNS_WEB_UI": stack.addresses.web_ui,
            "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL": stack.addresses.pages,
            "AGENT_RUNS_TRANSCRIPTS_KEY_FILE": f"{KEYS}/{SIGNING}",
            "AGENT_RUNS_SEALING_KEY_FILE": f"{KEYS}/{SEALING}",
        }
        access = Access.read(stack.addresses.kubeconfig)
        assert access is not None
        witness = await outer.enter_async_context(Witness.open(access))
        parts = await outer.enter_async_context(AsyncExitStack())
        yield System(stack, store, folder, rooms, settings, parts, witness)


def _make_keys(state: Path, shared: Path, user: tuple[int, int] | None) -> None:
    """The worker's keys, and what Paperclip's process gets of them: the public half of one, the whole other."""
    state.mkdir(parents=True)
    shared.mkdir()
    load_or_create(state / SEALING)
    Tokens.from_file(state / SIGNING)
    private = json.loads((state / SEALING).read_text())
    (shared / SEALING).write_text(json.dumps({name: value for name, value in private.items() if name != "d"}))
    shutil.copy(state / SIGNING, shared / SIGNING)
    for path in (shared, *shared.iterdir()):
        path.chmod(0o700 if path.is_dir() else 0o600)
        if user is not None:
            os.chown(path, *user)


def _make_volume(volume: Path, user: tuple[int, int] | None) -> None:
    assert volume.name == CLAIM
    volume.mkdir(parents=True)
    report = volume / REPORT.removeprefix("/paperclip/")
    report.parent.mkdir()
    report.write_text(REPORTING)
    if user is not None:
        os.chown(volume, *user)


# reading what Paperclip shows


def statuses(log: list[Entry]) -> list[dict[str, Any]]:
    """The plugin's own status lines."""
    found = [_object(entry.chunk) for entry in log if entry.stream == "stdout"]
    return [line for line in found if line is not None and line.get("type") == "agent_run"]


def output(log: list[Entry], stream: str = "stdout") -> list[str]:
    """What the agent wrote, without the plugin's status lines; line ends are taken off."""
    chunks = [entry.chunk.removesuffix("\n") for entry in log if entry.stream == stream]
    ours = (chunk for chunk in chunks if not chunk.startswith(HOST))
    return [chunk for chunk in ours if (_object(chunk) or {}).get("type") != "agent_run"]


def texts(lines: list[str]) -> list[str]:
    """The texts of OpenCode's text events."""
    events = [_object(line) for line in lines]
    return [event["part"]["text"] for event in events if event is not None and event.get("type") == "text"]


async def fed_to_ui(whole: System, parser: str, lines: list[str]) -> list[list[dict[str, Any]]]:
    """What Paperclip's own UI makes of these lines: its shipped worker, with this parser, one message each."""
    assets = Path(whole.rooms[PROGRAM]) / "node_modules" / "@paperclipai" / "server" / "ui-dist" / "assets"
    process = await asyncio.create_subprocess_exec(
        *(f"{whole.rooms[NODE]}/bin/node", str(Path(__file__).with_name("ui_worker.mjs")), str(assets)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaint = await process.communicate(json.dumps({"source": parser, "lines": lines}).encode())
    assert process.returncode == 0, complaint.decode()
    shown: list[list[dict[str, Any]]] = json.loads(said)
    return shown


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
