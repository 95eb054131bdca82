"""Agents speak to Paperclip through the proxy in their pod, and a run that is joined speaks for the later one."""

import asyncio
import shlex
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import Client

from client.attach import Ticket
from contracts.outcome import Outcome
from tests.cluster.paperclip import FakePaperclip, serving
from tests.runs.ground import Ground, attempt_key
from tests.runs.test_whole_runs import recorded

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
async def proxied(temporal: Client, system: Ground) -> AsyncIterator[Ground]:
    """The system with a worker that gives agents a proxy."""
    settings = system.settings.model_copy(
        update={"api_proxy_image": "worker:test", "task_queue": f"proxied-{uuid.uuid4()}"}
    )
    made = replace(system, temporal=temporal, settings=settings)
    async with AsyncExitStack() as parts:
        await parts.enter_async_context(made.worker())
        yield made


@pytest.fixture
def paperclip() -> Iterator[FakePaperclip]:
    with serving() as made:
        yield made


class Story:
    """One agent that does what its Python lines say, between signs of the test."""

    def __init__(self, system: Ground, paperclip: FakePaperclip, code: str, *, before: str = "") -> None:
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
            "projects": {"url": "http://127.0.0.1:3190/api/mcp/project-tools", "headers": _bearer(TOKENS[0])},
            "elsewhere": {"url": "https://mcp.example/x", "headers": _bearer("canary-of-another-server")},
        }
        self.raw["runtimeTools"] = _tools(TOOLS[0])
        paperclip.owner = (TOKENS[0], self.raw["runId"])

    def later(self) -> dict[str, Any]:
        """The next wake of the same task, which from now on holds the issue."""
        raw = {**self.raw, "runId": str(uuid.uuid4()), "authToken": TOKENS[1], "runtimeTools": _tools(TOOLS[1])}
        self.paperclip.owner = (TOKENS[1], raw["runId"])
        return raw

    async def reached(self, sign: str) -> None:
        while not (self.folder / sign).exists():  # noqa: ASYNC110 - a file of another process
            await asyncio.sleep(0.02)

    def let(self, sign: str) -> None:
        (self.folder / sign).touch()

    async def ended(self, ticket: Ticket) -> Outcome:
        return await ticket.handle(self.system.temporal).result()

    async def said(self) -> list[str]:
        return [line.decode() for line in await self.system.said(self.raw)]


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _tools(token: str) -> dict[str, Any]:
    base = "http://127.0.0.1:3190"
    rest = {"connectionsSearch": f"{base}/runtime-tools/connections/search"}
    return {"bearerToken": token, "mcpEndpoint": f"{base}/mcp/runtime-tools", "rest": rest, "tools": ["search"]}


def notes(outcome: Outcome) -> list[str]:
    """What people are told of it."""
    found: list[str] = (outcome.result_json or {}).get("notes") or []
    return [note for note in found if "joined" in note]


WAIT = """
def wait(sign):
    while not (here / sign).exists():
        time.sleep(0.02)
"""
JOINED = f"""{WAIT}
print(ask("/api/issues/1"), flush=True)
(here / "asked").touch()
wait("joined")
print(ask("/api/issues/1"), flush=True)
(here / "refused").touch()
wait("exchanged")
print(ask("/api/issues/1"), flush=True)
print(ask("", os.environ["PAPERCLIP_RUNTIME_TOOLS_MCP_URL"], os.environ["PAPERCLIP_RUNTIME_TOOLS_TOKEN"]), flush=True)
"""


async def exchanged(ticket: Ticket, system: Ground) -> None:
    """Returns once the exchange of the token has been told to the history."""
    steps = set()
    async for event in ticket.handle(system.temporal).fetch_history_events(wait_new_event=True):
        asked = event.activity_task_scheduled_event_attributes
        if asked.activity_type.name == "rotate_token":
            steps.add(event.event_id)
        if event.activity_task_completed_event_attributes.scheduled_event_id in steps:
            return


async def test_a_run_that_is_joined_speaks_with_the_token_of_the_later_one(
    proxied: Ground, paperclip: FakePaperclip
) -> None:
    story = Story(proxied, paperclip, JOINED)
    ticket = await proxied.start(story.raw)
    await story.reached("asked")
    later = story.later()
    story.let("joined")
    await story.reached("refused")
    joined = await proxied.start(later)
    assert (joined.kind, joined.workflow_run_id) == ("joined", ticket.workflow_run_id)
    await exchanged(ticket, proxied)
    story.let("exchanged")
    outcome = await story.ended(ticket)
    assert (await story.said())[:3] == ["200", "409", "200"]
    assert notes(outcome) == []
    assert [asked.headers["X-Paperclip-Run-Id"] for asked in paperclip.asked[:3]] == [
        story.raw["runId"],
        story.raw["runId"],
        later["runId"],
    ]
    tools = paperclip.asked[3]
    assert (tools.path, tools.headers["Authorization"]) == ("/mcp/runtime-tools", f"Bearer {TOOLS[1]}")
    whole = await recorded(ticket, proxied)
    assert [canary for canary in (*TOKENS, *TOOLS, "canary-of-another-server") if canary.encode() in whole] == []


LOOK = f"""{WAIT}
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
(here / "looked").touch()
wait("go on")
"""


async def test_no_token_is_in_the_agents_environment_configuration_or_specification(
    proxied: Ground, paperclip: FakePaperclip
) -> None:
    story = Story(proxied, paperclip, LOOK)
    ticket = await proxied.start(story.raw)
    await story.reached("looked")
    specified = b"".join([await _raw(proxied, "apis/batch/v1", "jobs"), await _raw(proxied, "api/v1", "pods")])
    assert b"paperclip-api" in specified
    assert [canary for canary in (*TOKENS, *TOOLS) if canary.encode() in specified] == []
    story.let("go on")
    await story.ended(ticket)
    knows, servers, another, found, files = await story.said()
    assert knows == f"paperclip-api-proxy-sets-the-key {story.raw['runId']}"
    assert "{env:PAPERCLIP_API_URL}/api/mcp/project-tools" in servers
    assert "https://mcp.example/x" in servers
    assert another == "True"
    assert (found, files) == ("[False, False, False, False]", "[]")


async def _raw(system: Ground, api: str, kind: str) -> bytes:
    found = await system.kubernetes._call("GET", "list", kind, f"/{api}/namespaces/default/{kind}")
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize(("code", "condition"), [(0, "Complete"), (3, "Failed")])
async def test_the_job_ends_as_its_agent_does(
    proxied: Ground, paperclip: FakePaperclip, code: int, condition: str
) -> None:
    story = Story(proxied, paperclip, f"print(ask('/api/issues/1'), flush=True)\nraise SystemExit({code})")
    story.raw["config"]["retainJobs"] = True
    await proxied.outcome(story.raw)
    assert await story.said() == ["200"]
    await _completed(story, condition)


async def test_the_job_completes_when_the_agents_container_is_killed(proxied: Ground, paperclip: FakePaperclip) -> None:
    story = Story(proxied, paperclip, f"{WAIT}\n(here / 'working').touch()\nwait('never')")
    story.raw["config"]["retainJobs"] = True
    ticket = await proxied.start(story.raw)
    await story.reached("working")
    await _kill_container(proxied, "opencode")
    outcome = await story.ended(ticket)
    assert outcome.error_code == "opencode_crashed"
    await _completed(story, "Failed")


async def _completed(story: Story, condition: str) -> None:
    """The Job has come to its end by itself, and its token is gone."""
    kubernetes, key = story.system.kubernetes, attempt_key(story.raw)
    while (job := await kubernetes.read_job("default", key.job_name)) is not None:
        if job.condition(condition):
            break
        await asyncio.sleep(0.05)
    assert job is not None
    assert await kubernetes.read_secret_metadata("default", key.token_secret_name) is None


CRASHED = f"""{WAIT}
print(ask("/api/issues/1"), flush=True)
(here / "asked").touch()
wait("crashed")
print(ask("/api/issues/1"), flush=True)
"""


async def test_a_proxy_that_dies_does_not_end_the_agent(proxied: Ground, paperclip: FakePaperclip) -> None:
    story = Story(proxied, paperclip, CRASHED)
    ticket = await proxied.start(story.raw)
    await story.reached("asked")
    await _kill_container(proxied, "paperclip-api")
    story.let("crashed")
    outcome = await story.ended(ticket)
    assert await story.said() == ["200", "URLError"]
    assert "OpenCode exited 0" in (outcome.error_message or "")
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"


async def _kill_container(system: Ground, name: str) -> None:
    """As the kernel does when the container has no memory left."""
    pods: list[Any] = list(system.embedded._kubelet._pods.values())
    for pod in pods:
        slot = pod.slots_by_name.get(name)
        if slot is not None and slot.running:
            slot.current.kill()
            await slot.current.finished.wait()


async def test_an_image_of_the_proxy_that_cannot_be_pulled_is_named(proxied: Ground, paperclip: FakePaperclip) -> None:
    story = Story(proxied, paperclip, "print('never')")
    system = proxied.embedded
    system.faults.refuse_image("worker:test", "manifest unknown: not found")
    try:
        outcome = await proxied.outcome(story.raw)
    finally:
        system.faults.clear()
    assert outcome.error_code == "k8s_image_pull_failed"
    assert "paperclip-api" in (outcome.error_message or "")
    assert await story.said() == []


async def test_without_a_proxy_a_joined_run_says_that_it_keeps_the_old_token(
    system: Ground, paperclip: FakePaperclip
) -> None:
    story = Story(system, paperclip, f"{WAIT}\n(here / 'asked').touch()\nwait('go on')\nprint(ask('/api/x'))")
    ticket = await system.start(story.raw)
    await story.reached("asked")
    assert (await system.start(story.later())).kind == "joined"
    story.let("go on")
    outcome = await story.ended(ticket)
    assert await story.said() == ["409"]
    assert any("AGENT_RUNS_API_PROXY_IMAGE" in note for note in notes(outcome))
