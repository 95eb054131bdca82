"""Agents call Paperclip through the proxy in their pod; a run that is joined uses the token of the later one."""

import asyncio
import shlex
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agent_runs.client.attach import Ticket
from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.outcome import Outcome
from agent_runs.transcript.tokens import authorization
from dev_stack.cluster.kinds import PODS
from tests.pod.paperclip import FakePaperclip, serving
from tests.runs.system import System, attempt_key
from tests.security.canaries import tools

TOKENS = ("canary-token-of-the-first-run", "canary-token-of-the-later-run")
TOOLS = ("canary-tools-of-the-first-run", "canary-tools-of-the-later-run")
PYTHON = shlex.quote(sys.executable)
ASK = """
import json, os, sys, urllib.request, urllib.error
def ask(path, url=os.environ["PAPERCLIP_API_URL"], key=os.environ["PAPERCLIP_API_KEY"], body=b"{}"):
    request = urllib.request.Request(url + path, body, method="PATCH")
    request.add_header("Authorization", "Bearer " + key)
    request.add_header("X-Paperclip-Run-Id", os.environ["PAPERCLIP_RUN_ID"])
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as refusal:
        return refusal.code
    except OSError as error:
        return type(error).__name__
"""


@pytest.fixture(scope="module")
async def proxied(system: System) -> AsyncIterator[System]:
    """The system with a worker that names an image for sidecars."""
    with_image = system.changed(sidecar_image="worker:test")
    async with with_image.worker():
        yield with_image


@pytest.fixture
def paperclip() -> Iterator[FakePaperclip]:
    with serving() as server:
        yield server


class ProxyRun:
    """One agent that runs Python code and exchanges signals with the test: empty files in one folder."""

    def __init__(self, system: System, paperclip: FakePaperclip, code: str, *, before: str = "") -> None:
        self.system = system
        self.paperclip = paperclip
        self.folder = system.programs / str(uuid.uuid4())
        self.folder.mkdir()
        script = self.folder / "agent.py"
        script.write_text(f"{ASK}\nimport pathlib, time, signal\nhere = pathlib.Path({str(self.folder)!r})\n{code}\n")
        self.raw = system.agent(f"cat > /dev/null\n{before}\n{PYTHON} {script}")
        self.raw["authToken"] = TOKENS[0]
        self.raw["config"]["paperclipApiUrl"] = paperclip.url
        self.raw["config"]["mcpServers"] = {
            "projects": {"url": "http://127.0.0.1:3190/api/mcp/project-tools", "headers": authorization(TOKENS[0])},
            "elsewhere": {"url": "https://mcp.example/x", "headers": authorization("canary-of-another-server")},
        }
        self.raw["runtimeTools"] = tools(TOOLS[0])
        paperclip.owner = (TOKENS[0], self.raw["runId"])

    def later(self) -> dict[str, Any]:
        """The next wake of the same task, which from now on holds the issue."""
        raw = {**self.raw, "runId": str(uuid.uuid4()), "authToken": TOKENS[1], "runtimeTools": tools(TOOLS[1])}
        self.paperclip.owner = (TOKENS[1], raw["runId"])
        return raw

    async def until_signal(self, signal: str) -> None:
        while not (self.folder / signal).exists():  # noqa: ASYNC110 - a file of another process
            await asyncio.sleep(0.02)

    def send_signal(self, signal: str) -> None:
        (self.folder / signal).touch()

    async def outcome(self, ticket: Ticket) -> Outcome:
        return await outcome_at_close(ticket.handle(self.system.temporal))

    async def stdout(self) -> list[str]:
        return [line.decode() for line in await self.system.stdout(self.raw)]


def notes(outcome: Outcome) -> list[str]:
    """The outcome's notes about joined runs."""
    every: list[str] = (outcome.result_json or {}).get("notes") or []
    return [note for note in every if "joined" in note]


WAIT = """
def wait(signal):
    while not (here / signal).exists():
        time.sleep(0.02)
"""
JOINED = f"""{WAIT}
print(ask("/api/issues/1"), flush=True)
(here / "called").touch()
wait("joined")
print(ask("/api/issues/1"), flush=True)
(here / "refused").touch()
wait("exchanged")
print(ask("/api/issues/1"), flush=True)
print(ask("", os.environ["PAPERCLIP_RUNTIME_TOOLS_MCP_URL"], os.environ["PAPERCLIP_RUNTIME_TOOLS_TOKEN"]), flush=True)
"""


async def until_token_rotated(ticket: Ticket, system: System) -> None:
    rotations = set()
    async for event in ticket.handle(system.temporal).fetch_history_events(wait_new_event=True):
        scheduled = event.activity_task_scheduled_event_attributes
        if scheduled.activity_type.name == "rotate_token":
            rotations.add(event.event_id)
        if event.activity_task_completed_event_attributes.scheduled_event_id in rotations:
            return


async def test_a_run_that_is_joined_uses_the_token_of_the_later_one(proxied: System, paperclip: FakePaperclip) -> None:
    run = ProxyRun(proxied, paperclip, JOINED)
    ticket = await proxied.start(run.raw)
    await run.until_signal("called")
    later = run.later()
    run.send_signal("joined")
    await run.until_signal("refused")
    joined = await proxied.start(later)
    assert (joined.kind, joined.workflow_run_id) == ("joined", ticket.workflow_run_id)
    await until_token_rotated(ticket, proxied)
    run.send_signal("exchanged")
    outcome = await run.outcome(ticket)
    assert (await run.stdout())[:3] == ["200", "409", "200"]
    assert notes(outcome) == []
    assert [request.headers["X-Paperclip-Run-Id"] for request in paperclip.requests[:3]] == [
        run.raw["runId"],
        run.raw["runId"],
        later["runId"],
    ]
    tools = paperclip.requests[3]
    assert (tools.path, tools.headers["Authorization"]) == ("/mcp/runtime-tools", f"Bearer {TOOLS[1]}")
    history = await proxied.history_bytes(ticket)
    assert [canary for canary in (*TOKENS, *TOOLS, "canary-of-another-server") if canary.encode() in history] == []


INSPECT = f"""{WAIT}
environment = b""
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        environment += (process / "environ").read_bytes()
    except OSError:
        pass
config = pathlib.Path(os.environ["OPENCODE_CONFIG"]).read_text()
print(os.environ["PAPERCLIP_API_KEY"], os.environ["PAPERCLIP_RUN_ID"], flush=True)
print({{name: server["url"] for name, server in json.loads(config)["mcp"].items()}}, flush=True)
print("canary-of-another-server" in config, flush=True)
print([token in environment.decode("latin-1") + config for token in {(*TOKENS, *TOOLS)!r}], flush=True)
print(sorted(str(path) for path in pathlib.Path("/agent-run").rglob("*") if "token" in path.name), flush=True)
(here / "inspected").touch()
wait("continue")
"""


async def test_no_token_is_in_the_agents_environment_configuration_or_specification(
    proxied: System, paperclip: FakePaperclip
) -> None:
    run = ProxyRun(proxied, paperclip, INSPECT)
    ticket = await proxied.start(run.raw)
    await run.until_signal("inspected")
    specified = b"".join([await _raw(proxied, "apis/batch/v1", "jobs"), await _raw(proxied, "api/v1", "pods")])
    assert b"sidecar.pyz" in specified
    assert [canary for canary in (*TOKENS, *TOOLS) if canary.encode() in specified] == []
    run.send_signal("continue")
    await run.outcome(ticket)
    key, servers, other_server_has_header, tokens_in_text, token_files = await run.stdout()
    assert key == f"paperclip-api-proxy-sets-the-key {run.raw['runId']}"
    assert "{env:PAPERCLIP_API_URL}/api/mcp/project-tools" in servers
    assert "https://mcp.example/x" in servers
    assert other_server_has_header == "True"
    assert (tokens_in_text, token_files) == ("[False, False, False, False]", "[]")


async def _raw(system: System, api: str, kind: str) -> bytes:
    answer = await system.kubernetes._call("GET", "list", kind, f"/{api}/namespaces/default/{kind}")
    assert isinstance(answer, bytes)
    return answer


@pytest.mark.parametrize(("code", "condition"), [(0, "Complete"), (3, "Failed")])
async def test_the_job_ends_as_its_agent_does(
    proxied: System, paperclip: FakePaperclip, code: int, condition: str
) -> None:
    run = ProxyRun(proxied, paperclip, f"print(ask('/api/issues/1'), flush=True)\nraise SystemExit({code})")
    run.raw["config"]["retainJobs"] = True
    await proxied.outcome(run.raw)
    assert await run.stdout() == ["200"]
    await _assert_job_ended(run, condition)


async def test_the_job_completes_when_the_agents_container_is_killed(proxied: System, paperclip: FakePaperclip) -> None:
    run = ProxyRun(proxied, paperclip, f"{WAIT}\n(here / 'working').touch()\nwait('never')")
    run.raw["config"]["retainJobs"] = True
    ticket = await proxied.start(run.raw)
    await run.until_signal("working")
    await _kill_container(proxied, "opencode")
    outcome = await run.outcome(ticket)
    assert outcome.error_code == "opencode_crashed"
    await _assert_job_ended(run, "Failed")


async def _assert_job_ended(run: ProxyRun, condition: str) -> None:
    """The Job has ended by itself, and its token is deleted."""
    kubernetes, key = run.system.kubernetes, attempt_key(run.raw)
    while (job := await kubernetes.read_job("default", key.job_name)) is not None:
        if job.condition(condition):
            break
        await asyncio.sleep(0.05)
    assert job is not None
    assert await kubernetes.read_secret_metadata("default", key.run_secret_name) is None


async def test_an_agent_whose_sidecar_dies_is_ended_and_named(proxied: System, paperclip: FakePaperclip) -> None:
    run = ProxyRun(proxied, paperclip, f"{WAIT}\nprint('begun', flush=True)\n(here / 'working').touch()\nwait('never')")
    run.raw["config"]["infrastructureRetries"] = 0
    ticket = await proxied.start(run.raw)
    await run.until_signal("working")
    await proxied.until_stored(run.raw)
    await _kill_container(proxied, "sidecar")
    outcome = await run.outcome(ticket)
    assert outcome.error_code == "k8s_pod_lost"
    assert "sidecar" in (outcome.error_message or "")
    assert await run.stdout() == ["begun"]


async def _kill_container(system: System, name: str) -> None:
    """As the kernel does when the container has no memory left."""
    for pod in system.embedded.store.every(PODS):
        if pod["status"]["phase"] == "Running":
            await system.embedded.faults.kill_container(pod["metadata"]["name"], name)


async def test_a_sidecar_image_that_cannot_be_pulled_is_a_named_failure(
    proxied: System, paperclip: FakePaperclip
) -> None:
    run = ProxyRun(proxied, paperclip, "print('never')")
    system = proxied.embedded
    system.faults.refuse_image("worker:test", "manifest unknown: not found")
    try:
        outcome = await proxied.outcome(run.raw)
    finally:
        system.faults.clear()
    assert outcome.error_code == "k8s_image_pull_failed"
    assert "sidecar" in (outcome.error_message or "")
    assert await run.stdout() == []
