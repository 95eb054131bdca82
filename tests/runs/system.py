"""A whole system for one test: real Temporal, embedded cluster, transcript store, worker; only OpenCode is a script."""

import asyncio
import json
import os
import shlex
import sys
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

import worker
from agent_runs.client.attach import Ticket, attach
from agent_runs.client.obstacles import Obstacle, read_obstacles
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.client.wake import Wake, build_wake
from agent_runs.client.workspaces import open_workspaces
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.start import HostTexts
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Job, Pod
from agent_runs.paperclip.sealing import Sealer, load_or_create
from agent_runs.service.settings import WorkerSettings
from agent_runs.transcript.store import Line, TranscriptStore
from dev_stack.cluster import EmbeddedCluster
from dev_stack.demo import context
from tests.conftest import FIXTURES
from tests.support.claims import data_claim
from tests.support.policies import anything_allowed
from tests.support.sqlite import sqlite_url
from tests.transcript.event_lines import step_finish, step_start, text

OTHER_PROCESS_POLL = timedelta(milliseconds=200)
"""Between two reads of a store that another process may write to: its notifier reaches only its own process."""


NOTHING_READ = HostTexts()


@dataclass
class System:
    """The parts of the system, and what a test does with them."""

    temporal: Client
    embedded: EmbeddedCluster
    kubernetes: Cluster
    store: TranscriptStore
    settings: WorkerSettings
    programs: Path

    def changed(self, **settings: Any) -> "System":
        """The same system for a worker and callers with other settings, and with a task queue of their own."""
        update = {"task_queue": f"runs-{uuid.uuid4()}", **settings}
        return replace(self, settings=self.settings.model_copy(update=update))

    async def with_data_volume(self, claim: str, **settings: Any) -> "System":
        """The same whose agents have a data volume: this claim."""
        await self.kubernetes.ensure_claim(data_claim(claim))
        return self.changed(data_claim=claim, **settings)

    def volume(self, claim: str) -> Path:
        """Where this machine has the files of a claim."""
        return self.embedded.state_dir / "claims" / self.embedded.namespace / claim

    @property
    def changes(self) -> list[str]:
        """The paths of what was created, changed or deleted in the cluster so far."""
        questions = ("/apis/authorization.k8s.io/", "dryRun=All")
        return [
            path
            for method, path in self.embedded.requests
            if method != "GET" and not any(each in path for each in questions)
        ]

    def agent(self, script: str) -> dict[str, Any]:
        """The execution context of a new agent whose `opencode` is this shell script."""
        folder = self.programs / str(uuid.uuid4())
        folder.mkdir()
        program = folder / "opencode"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        raw = context(agent_id=str(uuid.uuid4()))
        raw["config"]["env"] = {**raw["config"].get("env", {}), "PATH": f"{folder}:{os.environ['PATH']}"}
        raw["config"] |= {"graceSec": 2, "transport": "run"}  # a script is no server
        return raw

    async def start(self, raw: dict[str, Any], host: HostTexts = NOTHING_READ) -> Ticket:
        """Attach, as every caller does; but nobody has to collect the outcome."""
        return await attach(self.temporal, self.settings, self.wake(raw, host))

    def wake(self, raw: dict[str, Any], host: HostTexts = NOTHING_READ, *, outcome_retention_sec: int = 0) -> Wake:
        """A wake with this context, and with what Paperclip's host has read for it."""
        return build_wake(raw, self.sealer, host, outcome_retention_sec=outcome_retention_sec)

    @property
    def sealer(self) -> Sealer:
        """Seals for the workers of this system."""
        return Sealer(load_or_create(self.settings.sealing_key_file)[0].public)

    async def outcome(self, raw: dict[str, Any], host: HostTexts = NOTHING_READ) -> Outcome:
        """Start and wait."""
        return await outcome_at_close((await self.start(raw, host)).handle(self.temporal))

    async def lines(self, raw: dict[str, Any], attempt: int = 1) -> list[Line]:
        """The whole stored transcript of a run."""
        lines: list[Line] = []
        while page := await self.store.read(attempt_key(raw, attempt), lines[-1].sequence if lines else 0):
            lines += page
        return lines

    async def stdout(self, raw: dict[str, Any], attempt: int = 1) -> list[bytes]:
        """The stored lines of the agent's standard output."""
        return [line.data for line in await self.lines(raw, attempt) if line.stream == "stdout"]

    async def events(self, raw: dict[str, Any], attempt: int = 1) -> list[dict[str, Any]]:
        """The same of an agent that writes events."""
        return [json.loads(line) for line in await self.stdout(raw, attempt)]

    async def jobs(self, raw: dict[str, Any]) -> list[Job]:
        """The agent's Jobs, of whichever run."""
        return await self.kubernetes.jobs_of_agent(self.kubernetes.namespace, raw["agent"]["id"])

    async def pods(self, raw: dict[str, Any]) -> list[Pod]:
        """The agent's pods, of whichever run."""
        return await self.kubernetes.pods_of_agent(self.kubernetes.namespace, raw["agent"]["id"])

    async def until_stored(self, raw: dict[str, Any], count: int = 1, attempt: int = 1) -> None:
        """Returns once so many lines of an attempt are stored, by whichever process."""
        notifier = self.store.notifier(attempt_key(raw, attempt))
        while True:
            seen = notifier.changes
            if len(await self.lines(raw, attempt)) >= count:
                return
            await notifier.wait_for_change(seen, OTHER_PROCESS_POLL)

    async def until_tools_began(self, raw: dict[str, Any], count: int = 1) -> None:
        """Returns once so many tools have begun, according to the transcript."""
        notifier = self.store.notifier(attempt_key(raw))
        async with asyncio.timeout(90):
            while True:
                seen = notifier.changes
                if [event["type"] for event in await self.events(raw)].count("tool_running") >= count:
                    return
                await notifier.wait_for_change(seen, OTHER_PROCESS_POLL)

    async def until_obstacle(self, ticket: Ticket, words: str = "") -> list[Obstacle]:
        """What keeps the run from going on, once something has these words."""
        handle = ticket.handle(self.temporal)
        while True:
            if found := [each for each in await read_obstacles(self.temporal, handle) if words in each.text]:
                return found
            await asyncio.sleep(OTHER_PROCESS_POLL.total_seconds())

    async def history_bytes(self, ticket: Ticket) -> bytes:
        """A run's history as it is stored: in its JSON the payloads are base64, where no text is found."""
        events = (await ticket.handle(self.temporal).fetch_history()).events
        history = b"".join(event.SerializeToString() for event in events)
        assert ticket.run_id.encode() in history
        return history

    def worker(self) -> Worker:
        """A worker like the one in production; several may run at a time."""
        workspaces = open_workspaces(self.settings)
        steps = worker.activities(self.settings, self.temporal, self.kubernetes, self.store, workspaces=workspaces)
        return worker.temporal_worker(self.settings, self.temporal, steps)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that is a caller."""
        settings = self.settings
        return {
            "TEMPORAL_ADDRESS": self.temporal.service_client.config.target_host,
            "AGENT_RUNS_TASK_QUEUE": settings.task_queue,
            "AGENT_RUNS_SEALING_KEY_FILE": str(settings.sealing_key_file),
            "AGENT_RUNS_TRANSCRIPTS_URL": settings.transcripts,
        }

    @property
    def worker_environment(self) -> dict[str, str]:
        """What a worker process needs in addition."""
        optional = {
            "AGENT_RUNS_OPENCODE_CONFIG": self.settings.opencode_config,
            "AGENT_RUNS_DATA_CLAIM": self.settings.data_claim,
            "AGENT_RUNS_WORKSPACE_STORE": self.settings.workspace_store,
            "AGENT_RUNS_WORKSPACE_LISTEN": self.settings.workspace_listen,
            "AGENT_RUNS_WORKSPACE_URL": self.settings.workspace_url,
        }
        images = ",".join(f"{name}={image}" for name, image in self.settings.agent_images.items())
        return {
            **{name: str(value) for name, value in optional.items() if value is not None},
            **({"AGENT_RUNS_AGENT_IMAGES": images} if images else {}),
            "AGENT_RUNS_IMAGE": self.settings.image or "",
            "AGENT_RUNS_POLICY": str(self.settings.policy),
            "AGENT_RUNS_KUBECONFIG": str(self.embedded.kubeconfig_path),
            "AGENT_RUNS_PAPERCLIP_API_URL": self.settings.paperclip_api_url or "",
        }

    @asynccontextmanager
    async def worker_process(self) -> AsyncIterator[Process]:
        """A worker in a process of its own, as `python -m worker` starts it; killed at the end if it still lives."""
        async with self._process("worker", own=self.worker_environment) as process:
            yield process

    @asynccontextmanager
    async def service_process(self) -> AsyncIterator[ClientSettings]:
        """The transcript service alone, as `agent-runs transcripts` starts it; settings that know where it is."""
        command = ("agent_runs.cli.main", "transcripts", "--listen", "127.0.0.1:0")
        async with self._process(*command, stdout=asyncio.subprocess.PIPE) as process:
            assert process.stdout is not None
            while b"transcripts  " not in (printed := await process.stdout.readline()):
                assert printed, "the service ended before it listened"
            yield self.settings.model_copy(update={"transcripts_public_url": printed.decode().split()[-1]})

    @asynccontextmanager
    async def _process(
        self, *module: str, own: Mapping[str, str] | None = None, stdout: int | None = None
    ) -> AsyncIterator[Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *module, env={**os.environ, **self.environment, **(own or {})}, stdout=stdout
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def replay_script(capture: str) -> str:
    """A script that writes what the real OpenCode wrote in this capture."""
    events = FIXTURES / "opencode" / capture / "events.jsonl"
    return f"cat > /dev/null\ncat {shlex.quote(str(events))}"


def answer_script(words: str) -> str:
    """A command that writes what OpenCode writes of one step with this answer."""
    lines = (step_start(), text(words), step_finish("stop"))
    return "; ".join(f"echo {shlex.quote(line.decode())}" for line in lines)


def attempt_key(raw: dict[str, Any], attempt: int = 1) -> AttemptKey:
    """The key of one attempt of the run that this context asks for."""
    agent = raw["agent"]
    run = RunKey(agent_id=agent["id"], company_id=agent["companyId"], run_id=raw["runId"])
    return AttemptKey(run=run, attempt=attempt)


@asynccontextmanager
async def open_system(
    temporal: Client, folder: Path, transcripts_url: str | None = None, *, policy: Path | None = None
) -> AsyncIterator[System]:
    """The system, without a worker yet; its store is a SQLite file unless there is a URL.

    Args:
        policy: the operator's; None: agents may choose anything.
    """
    settings = WorkerSettings(
        task_queue=f"runs-{uuid.uuid4()}",
        sealing_key_file=folder / "key.json",
        transcripts_url=transcripts_url or sqlite_url(folder),
        image="agent:test",
        paperclip_api_url="http://127.0.0.1:3100",
        policy=policy or anything_allowed(folder),
    )
    programs = folder / "programs"
    programs.mkdir()
    async with AsyncExitStack() as parts:
        embedded = await parts.enter_async_context(EmbeddedCluster(folder / "cluster"))
        connecting = await Cluster.connect(str(embedded.kubeconfig_path))
        kubernetes = await parts.enter_async_context(connecting)
        store = await TranscriptStore.open(settings.transcripts)
        parts.push_async_callback(store.close)
        yield System(temporal, embedded, kubernetes, store, settings, programs)
