"""The environment of the scenarios: Temporal, cluster, worker, scripted model, and Paperclips with the plugin."""

import asyncio
import json
import os
import shutil
import signal
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from temporalio.client import WorkflowHandle

from agent_runs.contracts.identity import AttemptKey, RunKey, workflow_id
from agent_runs.paperclip.sealing import Sealer, load_or_create
from agent_runs.transcript.store import Line, TranscriptStore
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.paperclip_log import calls
from dev_stack.cluster_access import Access
from dev_stack.plan import CLAIM, Plan
from dev_stack.preload import GO
from dev_stack.stack import Stack, has_pollers
from dev_stack.subprocesses import Child
from tests.paperclip_server import installation
from tests.paperclip_server.api import ADAPTER, Api, Entry, Object
from tests.paperclip_server.observer import Observer
from tests.paperclip_server.scripted_agents import AgentProgram
from tests.paperclip_server.scripted_agents import Plan as AgentPlan
from tests.paperclip_server.server import KEYS, NODE, PLUGIN, PROGRAM, Server, run_server
from tests.support.ran import note_ran

SEALING, SIGNING = "sealing-key.json", "transcripts-key.json"
REPORT: Final = '"$REPORT"'
"""Sends its argument as a change of the agent's issue. A file, because Paperclip redacts what looks like a bearer."""
REPORT_FILE: Final = "report.sh"
REPORT_SCRIPT: Final = """
curl -sS -X PATCH "$PAPERCLIP_API_URL/api/issues/$PAPERCLIP_TASK_ID" -o answer.txt -w '%{http_code}' -d "$1" \\
  -H "Authorization: Bearer $PAPERCLIP_API_KEY" -H "X-Paperclip-Run-Id: $PAPERCLIP_RUN_ID" \\
  -H 'Content-Type: application/json'
"""
STABLE, DISRUPTED, READABLE, OVERRIDDEN, APART = "stable", "disrupted", "readable", "overridden", "apart"
"""The Paperclip that stays up, the one that scenarios kill, the one whose runs' logs people can read, that one again,
with agents of the type of Paperclip's own OpenCode adapter, and one whose folders no pod sees."""
OVERRIDE: Final = "opencode_local"
FOLDERS: Final = {ADAPTER: PLUGIN, OVERRIDE: f"{PLUGIN}/dist/{OVERRIDE}"}
"""What is installed for each type of the plugin."""
HOST_PREFIX: Final = "[paperclip] "
OWN_PREFIX: Final = "[agent-runs] "
"""Paperclip's own notes in a run's log begin so."""


@dataclass
class Instance:
    """One Paperclip, the API of its board, and a company in it."""

    server: Server
    api: Api
    volume: Path
    company: str = ""

    async def set_up(self) -> None:
        """Installs both types of the plugin and creates a company."""
        for adapter, folder in FOLDERS.items():
            assert (await self.api.install(folder))["type"] == adapter
        self.company = await self.api.company("Acme")

    @property
    def _workspace(self) -> Object:
        """Of an agent's configuration: a folder that pods see is not carried to them."""
        return {} if self.server.name == APART else {"workspace": "shared"}

    async def create_scripted_agent(self, name: str, plan: AgentPlan | None = None, **config: Any) -> "ScriptedAgent":
        """Creates an agent whose `opencode` is a scripted program."""
        program = AgentProgram.create(self.server.folder / "programs", plan or AgentPlan())
        agent = await self.api.agent(self.company, name, program.adapter_config(**self._workspace, **config))
        return ScriptedAgent(self, agent, program)

    async def create_opencode_agent(self, name: str, scenario: str, **config: Any) -> str:
        """Creates an agent with the real OpenCode and a scenario of the scripted model; returns its id."""
        report = {"REPORT": {"type": "plain", "value": str(self.server.folder / REPORT_FILE)}}
        settings = {"model": f"fake/scenario/{scenario}", "graceSec": 2, "keepWarmSec": 0, "env": report}
        settings |= self._workspace | config
        return await self.api.agent(self.company, name, settings)

    async def issue(self, agent: str, title: str, description: str = "Please do it.") -> str:
        return await self.api.issue(self.company, agent, title, description)

    async def project(self, name: str) -> tuple[str, Path]:
        """Creates a project with an empty folder of the server; returns its id and the folder on this machine."""
        inside = f"{self.server.at}/repositories/{uuid.uuid4().hex[:12]}"
        folder = self.server.local_path(inside)
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        return await self.api.project(self.company, name, inside), folder

    async def comment_texts(self, issue: str) -> list[str]:
        return [comment["body"] for comment in await self.api.comments(issue)]

    async def stored_session(self, agent: str, issue: str, session: str) -> Object:
        """The session of an agent's task, once it is this one: Paperclip stores it a moment after the run has ended."""

        async def expected() -> Object | None:
            found = [one for one in await self.api.task_sessions(agent) if one["taskKey"] == issue]
            right = found and found[0]["sessionDisplayId"] == found[0]["sessionParamsJson"]["sessionId"] == session
            return found[0] if right else None

        stored: Object = await self.api.wait_until(expected, f"session {session} of {agent}", timedelta(seconds=20))
        return stored

    async def run(self, issue: str, after: int = 0, agent: str | None = None) -> str:
        """The id of the issue's run number `after` + 1, once it exists; of one agent's runs only, if named."""
        return await self.api.next_run(self.company, issue, after, agent)


@dataclass(frozen=True)
class ScriptedAgent:
    instance: Instance
    agent: str
    program: AgentProgram

    async def fail_and_retry(self) -> str:
        """A run that fails and is retried as by the board's button; the id of the retry, which succeeds."""
        self.program.set_plan(AgentPlan(lines=2, reports={}, error=404))
        api, issue = self.instance.api, await self.instance.issue(self.agent, "Fail, then retry")
        run = await api.wait_ended(await self.instance.run(issue, agent=self.agent))
        self.program.set_plan(AgentPlan())
        retried = str(await api.wait_until(lambda: api.retry(self.agent, run["id"]), "Paperclip accepts a retry"))
        again = await api.wait_ended(retried)
        assert again["status"] == "succeeded", again["error"]
        return retried


@dataclass
class Environment:
    """Everything that the scenarios use."""

    stack: Stack
    store: TranscriptStore
    folder: Path
    mounts: dict[str, str]
    plugin_settings: dict[str, str]
    resources: AsyncExitStack
    observer: "Observer"
    instances: dict[str, asyncio.Task[Instance]] = field(default_factory=dict)
    measurements: dict[str, str] = field(default_factory=dict)
    """Measurements, printed at the end of the session."""

    @property
    def volume(self) -> Path:
        return self.stack.plan.data_root

    async def instance(self, name: str) -> Instance:
        """The Paperclip of this name, started by the first call."""
        if name not in self.instances:
            self.instances[name] = asyncio.create_task(self._start_instance(name))
        return await asyncio.shield(self.instances[name])

    async def _start_instance(self, name: str) -> Instance:
        if name == OVERRIDDEN:
            readable = await self.instance(READABLE)
            api = await self.resources.enter_async_context(Api.open(readable.server.url, OVERRIDE))
            return replace(readable, api=api, company=await api.company("Local"))
        server = Server(name, self.volume, self.folder, self.mounts)
        if name == APART:
            server = replace(server, volume=self.folder / "home", at="/home/ada")
            _make_folder(server.volume, installation.unprivileged())
        server.environment = {**self.plugin_settings, "AGENT_RUNS_PAPERCLIP_API_URL": server.url}
        if name == DISRUPTED:  # at first only comments wake agents
            server.environment["AGENT_RUNS_RECONCILE"] = "false"
        if name == READABLE:
            server.environment["AGENT_RUNS_RUN_LOG_FORMAT"] = "auto"
        await self.resources.enter_async_context(run_server(server))
        api = await self.resources.enter_async_context(Api.open(server.url))
        instance = Instance(server, api, self.volume)
        await instance.set_up()
        return instance

    # what is stored outside Paperclip

    def run_of(self, instance: Instance, agent: str, run: str) -> tuple[WorkflowHandle[Any, Any], RunKey, Sealer]:
        """What a caller other than Paperclip needs to send the agent of a run something."""
        key = RunKey(agent_id=agent, company_id=instance.company, run_id=run)
        sealer = Sealer(load_or_create(self.stack.plan.state / SEALING)[0].public)
        return self.stack.client.get_workflow_handle(workflow_id(agent)), key, sealer

    async def transcript(self, run: str, agent: str, company: str, attempt: int = 1) -> list[Line]:
        key = AttemptKey(run=RunKey(agent_id=agent, company_id=company, run_id=run), attempt=attempt)
        found: list[Line] = []
        while page := await self.store.read(key, found[-1].sequence if found else 0):
            found += page
        return found

    # faults

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
        """Starts a worker and waits for its own report: Temporal still lists the killed one as polling."""
        await self._restart(self.worker)
        self.worker.go(GO)
        log = self.worker.program.log

        async def ready() -> bool:
            return "worker.started" in log.read_text()

        await self.worker.ready(ready)

    async def restart_temporal(self, pause: float) -> None:
        """Kills Temporal and restarts it on its database after `pause` seconds."""
        old = self.temporal
        os.kill(old._process.pid, signal.SIGKILL)
        await old.ended
        await asyncio.sleep(pause)
        await self._restart(old)
        queue = self.stack.settings.task_queue
        await self.temporal.ready(lambda: has_pollers(self.stack.client, queue))

    async def _restart(self, old: Child) -> None:
        children = self.stack._children
        assert isinstance(children, list)
        children[children.index(old)] = await Child.start(old.program)


@asynccontextmanager
async def start_environment(folder: Path) -> AsyncIterator[Environment]:
    """Starts everything except the Paperclips, which `Environment.instance` starts.

    Raises:
        Unavailable: no Paperclip can run here.
    """
    user = installation.unprivileged()
    program, plugin = await asyncio.gather(
        installation.ensure_paperclip(), installation.ensure_plugin(folder / "plugin")
    )
    note_ran("Paperclip", installation.VERSION)
    plan = Plan(folder / "stack")
    _make_keys(plan.state, folder / "keys", user)
    _make_volume(plan.data_root, user)
    (folder / REPORT_FILE).write_text(REPORT_SCRIPT)
    async with AsyncExitStack() as outer:
        stack = await outer.enter_async_context(Stack.up(plan))
        store = await TranscriptStore.open(stack.settings.transcripts)
        outer.push_async_callback(store.close)
        mounts = {
            NODE: str(installation.node_home()),
            PROGRAM: str(program),
            PLUGIN: str(plugin),
            KEYS: str(folder / "keys"),
        }
        settings = {
            "TEMPORAL_ADDRESS": stack.addresses.temporal,
            "AGENT_RUNS_WEB_UI": stack.addresses.web_ui,
            "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL": stack.addresses.pages,
            "AGENT_RUNS_TRANSCRIPTS_KEY_FILE": f"{KEYS}/{SIGNING}",
            "AGENT_RUNS_SEALING_KEY_FILE": f"{KEYS}/{SEALING}",
            "AGENT_RUNS_RUN_LOG_FORMAT": "events",  # which tests can read
        }
        access = Access.read(stack.addresses.kubeconfig)
        assert access is not None
        observer = await outer.enter_async_context(Observer.open(access))
        resources = await outer.enter_async_context(AsyncExitStack())
        yield Environment(stack, store, folder, mounts, settings, resources, observer)


def _make_keys(state: Path, shared: Path, user: tuple[int, int] | None) -> None:
    """Creates the worker's keys; Paperclip gets the public half of the sealing key and the whole signing key."""
    state.mkdir(parents=True)
    shared.mkdir()
    load_or_create(state / SEALING)
    Tokens.load(state / SIGNING)
    private = json.loads((state / SEALING).read_text())
    (shared / SEALING).write_text(json.dumps({name: value for name, value in private.items() if name != "d"}))
    shutil.copy(state / SIGNING, shared / SIGNING)
    for path in (shared, *shared.iterdir()):
        path.chmod(0o700 if path.is_dir() else 0o600)
        if user is not None:
            os.chown(path, *user)


def _make_volume(volume: Path, user: tuple[int, int] | None) -> None:
    assert volume.name == CLAIM
    _make_folder(volume, user)


def _make_folder(folder: Path, user: tuple[int, int] | None) -> None:
    folder.mkdir(parents=True)
    if user is not None:
        os.chown(folder, *user)


# reading logs


def statuses(log: list[Entry]) -> list[str]:
    """The plugin's own status lines, without their mark."""
    return [entry.chunk.removeprefix(OWN_PREFIX).rstrip() for entry in log if entry.chunk.startswith(OWN_PREFIX)]


def output(log: list[Entry], stream: str = "stdout") -> list[str]:
    """What was logged for the agent's lines, without the plugin's status lines and without line ends."""
    chunks = [entry.chunk.removesuffix("\n") for entry in log if entry.stream == stream]
    return [chunk for chunk in chunks if not chunk.startswith((HOST_PREFIX, OWN_PREFIX))]


def logged(stored: list[Line], stream: str = "stdout") -> list[str]:
    """What the log has for these lines of the transcript."""
    found = (call for line in stored for call in calls(line, "events"))
    return [call.text for call in found if call.stream == stream]


def texts(log: list[Entry]) -> list[str]:
    found = (_object(entry.chunk) for entry in log if entry.stream == "stdout")
    return [event["part"]["text"] for event in found if event is not None and event.get("type") == "text"]


def events(stored: list[Line], kind: str) -> list[dict[str, Any]]:
    """The parts of OpenCode's events of one type."""
    found = (_object(line.data.decode()) for line in stored if line.stream == "stdout")
    return [event["part"] for event in found if event is not None and event.get("type") == kind]


async def parse_in_ui(env: Environment, parser: str, lines: list[str]) -> list[list[dict[str, Any]]]:
    """The entries of these lines in Paperclip's own UI: its shipped worker, with this parser, one message per line."""
    assets = _modules(env) / "server" / "ui-dist" / "assets"
    return await _parse(env, {"source": parser, "lines": lines}, Path(__file__).with_name("ui_worker.mjs"), assets)


async def parse_as_opencode(env: Environment, lines: list[str]) -> list[list[dict[str, Any]]]:
    """The entries of these lines by Paperclip's own parser for `opencode_local`."""
    parser = _modules(env) / "adapter-opencode-local" / "dist" / "ui" / "parse-stdout.js"
    return await _parse(env, {"lines": lines}, Path(__file__).with_name("opencode_parser.mjs"), parser)


def _modules(env: Environment) -> Path:
    return Path(env.mounts[PROGRAM]) / "node_modules" / "@paperclipai"


async def _parse(env: Environment, given: dict[str, Any], *arguments: Path) -> list[list[dict[str, Any]]]:
    process = await asyncio.create_subprocess_exec(
        *(f"{env.mounts[NODE]}/bin/node", *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate(json.dumps(given).encode())
    assert process.returncode == 0, stderr.decode()
    shown: list[list[dict[str, Any]]] = json.loads(stdout)
    return shown


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
