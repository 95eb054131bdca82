"""Canaries in every input that holds a secret: whatever becomes of the run, they are in Secrets and nowhere else."""

import asyncio
import json
import logging
import shlex
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from temporalio import activity
from temporalio.client import Client

import dev_stack.cluster.pod_status as embedded_status
from agent_runs.client.attach import Ticket
from agent_runs.client.outcome import cancel, outcome_at_close
from agent_runs.contracts.outcome import Outcome
from agent_runs.kube.ownership import job_ref
from tests.runs.system import System, attempt_key, open_system
from tests.security import canaries as planted
from tests.security.canaries import BEACON, QUOTES, Record
from tests.support.cases import case


@dataclass
class CanaryRun:
    """One run with canaries of its own.

    Attributes:
        reached: the file in which its agents note what they were given.
        go: a file that makes the agent go on.
    """

    system: System
    name: str
    folder: Path
    heartbeats: list[Any] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, bytes] = field(default_factory=dict)

    @property
    def canaries(self) -> dict[str, str]:
        return planted.of_run("all")

    @property
    def reached(self) -> Path:
        return self.folder / "reached"

    @property
    def go(self) -> Path:
        return self.folder / "go"

    def agent(self, end: str, *, quotes: bool = True, **config: Any) -> dict[str, Any]:
        """An agent that quotes every secret it can find, unless it shall not, and then does this."""
        script = self.folder / "quotes.py"
        script.write_text(QUOTES.format(reached=str(self.reached), beacon=BEACON))
        words = f"{shlex.quote(sys.executable)} {script}\n" if quotes else ""
        self.raw = self.system.agent(f"cat > /dev/null\n{words}{end}")
        planted.plant(self.raw, self.canaries)
        self.raw["config"] |= config
        return self.raw

    def waits(self) -> str:
        return f"until [ -e {self.go} ]; do sleep 0.05; done"

    def finishes_when_started_again(self) -> str:
        """The first attempt never ends by itself."""
        waits = f"touch {self.go}; echo {WAITS}; while :; do sleep 0.1; done"
        return f"if [ -e {self.go} ]; then {FINISH}; else {waits}; fi"

    async def until_waiting(self) -> None:
        """Until the first attempt has left what the second one looks for."""
        lines = await self.system.lines(self.raw)
        while not any(WAITS.encode() in line.data for line in lines):
            await self.system.until_stored(self.raw, len(lines) + 1)
            lines = await self.system.lines(self.raw)

    async def start(self) -> Ticket:
        return await self.system.start(self.raw)

    async def until_reported(self, ticket: Ticket) -> None:
        """Until Temporal has a heartbeat that quotes the agent: one is sent every two seconds."""
        run, quoted = ticket.handle(self.system.temporal), BEACON.encode()
        while quoted not in (await run.describe()).raw_description.SerializeToString():  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)

    async def keep(self, ticket: Ticket) -> None:
        """Keep what Temporal shows of the run while it is open."""
        handle = ticket.handle(self.system.temporal)
        self.kept["open run"] = (await handle.describe()).raw_description.SerializeToString()
        self.kept["details of the open run"] = str(await handle.query("__temporal_workflow_metadata")).encode()

    async def lose_pod(self) -> None:
        kubernetes = self.system.kubernetes
        job = await kubernetes.read_job("default", attempt_key(self.raw).job_name)
        assert job is not None
        (pod,) = await kubernetes.pods_of(job_ref(job))
        await kubernetes.delete_pod("default", pod.metadata.name, pod.metadata.uid, timedelta(seconds=1))


Shape = Callable[[CanaryRun], Awaitable[Ticket]]
FINISHED = '{"type":"step_finish","timestamp":1,"sessionID":"ses_1","part":{"id":"f","messageID":"m","reason":"stop"}}'
WAITS = "waits"
FINISH = f"echo '{FINISHED}'"


async def succeeds(run: CanaryRun) -> Ticket:
    run.agent(FINISH)
    return await run.start()


async def fails(run: CanaryRun) -> Ticket:
    error = '{"type":"error","timestamp":1,"sessionID":"ses_1","error":{"name":"E","data":{"message":"%s %s"}}}\\n'
    run.agent(f"printf '{error}' {BEACON} \"$PLAIN_IN_JSON\"; exit 3")
    run.raw["config"]["env"]["PLAIN_IN_JSON"] = json.dumps(run.canaries["plain variable"])[1:-1]
    run.raw["agent"]["adapterConfig"]["env"]["PLAIN_IN_JSON"] = {"type": "secret_ref", "secretId": "s"}
    return await run.start()


async def cannot_be_started(run: CanaryRun) -> Ticket:
    run.agent("exit 126", quotes=False)
    return await run.start()


async def is_refused(run: CanaryRun) -> Ticket:
    run.agent("")
    headers = {f"X-Header-{number}": f"header-value-{number:06}" for number in range(600)}
    run.raw["config"]["mcpServers"]["many"] = {"type": "remote", "url": "https://mcp.invalid", "headers": headers}
    return await run.start()


async def is_cancelled(run: CanaryRun) -> Ticket:
    run.agent(run.waits())
    ticket = await run.start()
    await run.system.until_stored(run.raw, 20)
    await run.until_reported(ticket)
    await run.keep(ticket)
    await cancel(ticket.handle(run.system.temporal), "wrong branch")
    return ticket


async def is_out_of_time(run: CanaryRun) -> Ticket:
    run.agent(run.waits(), timeoutSec=1)
    return await run.start()


async def is_silent(run: CanaryRun) -> Ticket:
    run.agent(run.waits(), silenceTimeoutSec=1)
    return await run.start()


async def resumes_a_session(run: CanaryRun) -> Ticket:
    run.agent(FINISH)
    run.raw["runtime"] |= {
        "sessionParams": {"sessionId": "ses_1", "cwd": run.raw["context"]["paperclipWorkspace"]["cwd"]}
    }
    return await run.start()


async def has_an_api_proxy(run: CanaryRun) -> Ticket:
    run.agent(FINISH, paperclipApiUrl="http://127.0.0.1:9")
    return await run.start()


async def has_an_image_whose_registry_quotes_a_secret(run: CanaryRun) -> Ticket:
    run.agent(FINISH)
    run.system.embedded.faults.refuse_image("agent:test", f"manifest unknown: quoted: {run.canaries['plain variable']}")
    return await run.start()


async def loses_its_pod(run: CanaryRun) -> Ticket:
    run.agent(run.finishes_when_started_again())
    ticket = await run.start()
    await run.until_waiting()
    await run.keep(ticket)
    await run.lose_pod()
    return ticket


async def is_joined_and_loses_its_pod(run: CanaryRun) -> Ticket:
    run.agent(run.finishes_when_started_again())
    ticket = await run.start()
    await run.until_waiting()
    later = {**run.raw, "runId": str(uuid.uuid4()), "authToken": run.canaries["joined auth token"]}
    later["runtimeTools"] = planted.tools(run.canaries["joined tools token"])
    joined = await run.system.start(later)
    assert (joined.kind, joined.workflow_run_id) == ("joined", ticket.workflow_run_id)
    await run.lose_pod()
    return ticket


SHAPES: dict[Shape, str | None] = {
    succeeds: None,
    fails: "opencode_error",
    cannot_be_started: "opencode_start_failed",
    is_refused: "invalid_request",
    is_cancelled: "cancelled",
    is_out_of_time: "timeout",
    is_silent: "agent_silent",
    resumes_a_session: None,
    has_an_api_proxy: None,
    has_an_image_whose_registry_quotes_a_secret: "k8s_image_pull_failed",
    loses_its_pod: None,
    is_joined_and_loses_its_pod: None,
}
"""What becomes of a run, and its error code."""
SLOW = {is_cancelled, is_out_of_time, is_silent, resumes_a_session, has_an_api_proxy, loses_its_pod}
"""The gate has 25 s for all tests of hostile input; these run with the slow suites."""


@pytest.fixture(scope="module")
async def secretive(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system whose worker has secrets of its own that agents get; its agents have no API proxy."""
    folder = tmp_path_factory.mktemp("secretive")
    provider = folder / "provider.json"
    values = planted.of_run("all")
    provider.write_text(json.dumps(planted.provider(values)))

    async def own_pod() -> dict[str, Any]:
        return planted.own_pod(values)

    async with open_system(temporal, folder) as opened:
        system = opened.changed(opencode_config=provider, paperclip_api_url=None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(system.kubernetes, "own_pod", own_pod)
            patch.setattr("workflows.retries.FIRST_RETRY_PAUSE", timedelta(milliseconds=1))
            async with system.worker():
                yield system


@pytest.fixture
def run(secretive: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CanaryRun:
    """A run whose termination message quotes a secret, and whose heartbeats are kept."""
    prepared = CanaryRun(secretive, "", tmp_path)
    state, heartbeat = embedded_status._state, activity.heartbeat

    def with_message(container: Any) -> Any:
        described = state(container)
        if "terminated" in described:
            described["terminated"]["message"] = f"quoted: {prepared.canaries['termination message']}"
        return described

    def noted(*details: Any) -> None:
        prepared.heartbeats.extend(details)
        heartbeat(*details)

    monkeypatch.setattr(embedded_status, "_state", with_message)
    monkeypatch.setattr(activity, "heartbeat", noted)
    return prepared


@pytest.mark.parametrize(
    "shape",
    [pytest.param(shape, id=shape.__name__, marks=[pytest.mark.slow] * (shape in SLOW)) for shape in SHAPES],
)
async def test_canaries_are_in_secrets_and_nowhere_else(
    run: CanaryRun, shape: Shape, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    system = run.system
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as logged:
        async with Record(system).recording() as record:
            ticket = await shape(run)
            handle = ticket.handle(system.temporal)
            outcome = await outcome_at_close(handle)
            system.embedded.faults.clear()
            found = run.kept | await planted.places(system, run.raw, handle)
    found |= record.objects()
    found["outcome"] = outcome.model_dump_json().encode() + repr(outcome).encode()
    found["heartbeats"] = repr(run.heartbeats).encode()
    found["log"] = json.dumps(logged, default=repr).encode() + caplog.text.encode()
    found["printed"] = "".join(capfd.readouterr()).encode()
    assert outcome.error_code == SHAPES[shape], outcome.error_message
    assert planted.shown(found, run.canaries) == set()
    _check_that_it_could_fail(run, shape, outcome, record, found)


def _check_that_it_could_fail(
    run: CanaryRun, shape: Shape, outcome: Outcome, record: Record, found: dict[str, bytes]
) -> None:
    """The canaries were planted, the agent had them, and what it wrote is where they were searched for."""
    if shape is is_refused:
        assert b"header-value" not in record.secrets
        assert "secret values" in str(outcome.error_message)
        assert not run.reached.exists()
        return
    sources = (
        run.canaries.keys() if shape is is_joined_and_loses_its_pod else {s for s in run.canaries if "joined" not in s}
    )
    in_secrets = {source for _, source in planted.shown({"": record.secrets}, run.canaries)}
    assert in_secrets == set(sources)
    if shape is has_an_image_whose_registry_quotes_a_secret:
        assert "manifest unknown: quoted: [[secret:" in str(outcome.error_message)
        return
    if shape is cannot_be_started:
        assert "quoted: [[secret:MESSAGE_SECRET]]" in str(outcome.error_message)
        return
    given = {source for _, source in planted.shown({"": run.reached.read_bytes()}, run.canaries)}
    kept_in_the_sidecar = {"auth token", "tools token"} if shape is has_an_api_proxy else set()
    assert given == set(sources) - kept_in_the_sidecar
    with_words = {place for place, content in found.items() if BEACON.encode() in content}
    assert {"store", "page 1", "/transcript 1", "/events 1", "/live 1", "/log?format=text&stored=true 1"} <= with_words
    if outcome.error_code in (None, "opencode_error"):
        assert {"history", "decoded history", "outcome"} <= with_words
    if shape is is_cancelled:
        assert {"heartbeats", "open run"} <= with_words


def test_the_search_finds_a_canary_in_each_spelling() -> None:
    for source in planted.SOURCES:
        with case(source):
            canary = planted.of_run("searched")[source]
            for spelling in planted.spellings(canary):
                assert planted.shown({"a page": b"<p>" + spelling + b"</p>"}, {source: canary}) == {("a page", source)}
            other = planted.of_run("another")[source]
            assert planted.shown({"a page": b" ".join(planted.spellings(other))}, {source: canary}) == set()
