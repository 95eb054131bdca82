"""Canaries in every place for a secret of a run, an agent that quotes all of them, and a search for them everywhere."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from temporalio.client import WorkflowHandle

from agent_runs.client import links
from agent_runs.contracts.outcome import Outcome
from agent_runs.transcript.tokens import authorization
from agent_runs.web.run_info import TemporalRunInfo
from agent_runs.web.serving import transcript_service
from dev_stack.cluster.kinds import KINDS, SECRETS, Kind
from dev_stack.cluster.store import Change
from tests.faults.checks import stored_bytes
from tests.runs.system import System, attempt_key
from workflows.agent_run import AgentRunWorkflow

BEACON: Final = "beacon-5f7a0c91"
"""Not secret: wherever the agent's words are, it is as well."""
TAIL: Final = '/+"&\\ü'
"""The end of canaries in variables: no two spellings of it are equal."""
SOURCES: Final = (
    "plain variable",
    "bound variable",
    "auth token",
    "tools token",
    "joined auth token",
    "joined tools token",
    "repository password",
    "inherited variable",
    "inherited password",
    "provider key",
    "provider header",
    "operator's MCP header",
    "MCP header in opencode",
    "plugin option in opencode",
    "password in an MCP URL",
    "query of an MCP URL",
    "path of an MCP URL",
    "MCP header",
    "MCP Basic password",
    "MCP argument",
    "termination message",
)
QUOTES: Final = """\
import base64, json, os, pathlib, sys, urllib.parse
def leaves(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for below in value.values() if isinstance(value, dict) else value:
            yield from leaves(below)
config = open(os.environ["OPENCODE_CONFIG"]).read()
values = [*os.environ.values(), *leaves(json.loads(config))]
texts = [text for text in values if "canary" in text or text.startswith("Basic ")]
with open({reached!r}, "a") as reached:
    reached.write("\\n".join(texts) + "\\n")
sys.stdout.reconfigure(errors="surrogateescape")
def event(kind, **part):
    print(json.dumps(dict(type=kind, timestamp=1, sessionID="ses_1", part=dict(part, id=kind, messageID="m"))))
print({beacon!r}, config)
print(dict(os.environ), file=sys.stderr)
for text in texts:
    raw = text.encode()
    print(text)
    for before in (b"", b"x", b"xy"):
        print(base64.b64encode(before + raw).decode(), base64.urlsafe_b64encode(before + raw).decode())
    print(urllib.parse.quote(text), urllib.parse.quote(text, safe=""), urllib.parse.quote_plus(text))
    print(json.dumps(text), json.dumps(text, ensure_ascii=False), json.dumps(json.dumps(text)))
    print("ERROR 2026-01-01T00:00:00 +1ms service=llm error=" + json.dumps(text), file=sys.stderr)
    event("tool_use", tool="bash", state=dict(status="error", error={beacon!r} + " " + text, input=dict(command=text)))
event("step_start")
event("text", text={beacon!r} + " " + " ".join(texts))
"""


def of_run(name: str) -> dict[str, str]:
    """The canaries of one run, by their places."""
    canaries = {source: f"canary{hashlib.sha256(f'{name} {source}'.encode()).hexdigest()[:24]}" for source in SOURCES}
    in_variables = ("plain variable", "bound variable", "inherited variable", "termination message")
    return canaries | {source: canaries[source] + TAIL for source in in_variables}


def spellings(canary: str) -> Iterator[bytes]:
    """The canary as it is, in base64 wherever that begins, in URLs and in JSON."""
    raw = canary.encode()
    yield raw
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw)[4:-4]
        yield from (encoded, encoded.replace(b"+", b"-").replace(b"/", b"_"))
    for safe in ("", "/"):
        yield quote(raw, safe=safe).encode()
    for ascii_only in (True, False):
        once = json.dumps(canary, ensure_ascii=ascii_only)[1:-1]
        yield from (once.encode(), json.dumps(once, ensure_ascii=ascii_only)[1:-1].encode())


def shown(places: Mapping[str, bytes], canaries: Mapping[str, str]) -> set[tuple[str, str]]:
    """Where which canary is, in any spelling."""
    return {
        (place, source)
        for source, canary in canaries.items()
        for spelling in set(spellings(canary))
        for place, content in places.items()
        if spelling in content
    }


def own_pod(canaries: Mapping[str, str]) -> dict[str, Any]:
    """The pod of a worker that agents inherit from."""
    variables = {
        "ANTHROPIC_API_KEY": canaries["inherited variable"],
        "HTTPS_PROXY": f"http://ada:{canaries['inherited password']}@proxy.invalid:3128",
    }
    env = [{"name": name, "value": value} for name, value in variables.items()]
    container = {"name": "worker", "image": "agent:test", "env": env}
    return {"metadata": {"name": "worker-0", "namespace": "default"}, "spec": {"containers": [container]}}


def provider(canaries: Mapping[str, str]) -> dict[str, Any]:
    """The operator's OpenCode configuration."""
    headers = {"X-Gateway": canaries["provider header"]}
    server = {"type": "remote", "url": "https://mcp.invalid", "headers": {"X-All": canaries["operator's MCP header"]}}
    options = {"apiKey": canaries["provider key"], "headers": headers}
    return {"provider": {"acme": {"options": options}}, "mcp": {"for-all": server}}


def plant(raw: dict[str, Any], canaries: Mapping[str, str]) -> None:
    basic = base64.b64encode(f"ada:{canaries['MCP Basic password']}".encode()).decode()
    raw["authToken"] = canaries["auth token"]
    raw["runtimeTools"] = tools(canaries["tools token"])
    raw["context"]["paperclipWorkspace"]["repoUrl"] = f"https://ada:{canaries['repository password']}@git.invalid/r.git"
    raw["agent"].setdefault("adapterConfig", {})["env"] = {"BOUND": {"type": "secret_ref", "secretId": "s"}}
    raw["config"]["env"] |= {
        "SERVICE_TOKEN": canaries["plain variable"],
        "BOUND": canaries["bound variable"],
        "MESSAGE_SECRET": canaries["termination message"],
    }
    headers = {"Authorization": f"Bearer {canaries['MCP header in opencode']}"}
    raw["config"]["opencode"] = {
        "mcp": {"own": {"type": "remote", "url": "https://mcp.invalid", "headers": headers}},
        "plugin": [["opencode-own", {"apiKey": canaries["plugin option in opencode"]}]],
    }
    raw["config"]["mcpServers"] = {
        "remote": {
            "type": "remote",
            "url": f"https://ada:{canaries['password in an MCP URL']}@mcp.invalid/s/"
            f"{canaries['path of an MCP URL']}/mcp?profile={canaries['query of an MCP URL']}",
            "headers": {"X-Tenant": canaries["MCP header"]},
        },
        "basic": {"type": "remote", "url": "https://mcp.invalid", "headers": {"Authorization": f"Basic {basic}"}},
        "local": {"type": "local", "command": ["server", "--api-key", canaries["MCP argument"]]},
    }


def tools(token: str) -> dict[str, Any]:
    """Paperclip's connection tools."""
    base = "http://127.0.0.1:3190"
    rest = {"connectionsSearch": f"{base}/runtime-tools/connections/search"}
    return {"bearerToken": token, "mcpEndpoint": f"{base}/mcp/runtime-tools", "rest": rest, "tools": ["search"]}


@dataclass
class Record:
    """Every state of every object of the cluster."""

    system: System
    changes: list[tuple[Kind, Change]] = field(default_factory=list)

    @asynccontextmanager
    async def recording(self) -> AsyncIterator["Record"]:
        tasks = [asyncio.create_task(self._record(kind)) for kind in KINDS]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()

    async def _record(self, kind: Kind) -> None:
        async for change in self.system.embedded.store.observe(kind):
            self.changes.append((kind, change))

    @property
    def secrets(self) -> bytes:
        bodies = [change.body for kind, change in self.changes if kind is SECRETS]
        return b"\n".join(base64.b64decode(text) for body in bodies for text in (body.get("data") or {}).values())

    def objects(self) -> dict[str, bytes]:
        """All other objects, and the metadata of Secrets, by kind."""
        texts = {
            kind.plural: [json.dumps(_without_quotations(c.body)) for k, c in self.changes if k is kind]
            for kind in KINDS
        }
        data = [{**c.body, "data": None} for k, c in self.changes if k is SECRETS]
        return {name: "\n".join(each).encode() for name, each in (texts | {"secrets": [json.dumps(data)]}).items()}


def _without_quotations(value: Any) -> Any:
    """The object without what a kubelet quotes: an agent's termination message, or a registry's refusal."""
    match value:
        case str():
            return "" if "quoted: " in value else value
        case dict():
            return {name: _without_quotations(below) for name, below in value.items()}
        case list():
            return [_without_quotations(below) for below in value]
        case _:
            return value


async def places(
    system: System, raw: dict[str, Any], handle: WorkflowHandle[AgentRunWorkflow, Outcome]
) -> dict[str, bytes]:
    """Everything about a run that people may read, beside the cluster's objects and the worker's log."""
    events = (await handle.fetch_history()).events
    description = (await handle.describe()).raw_description
    return {
        "history": b"".join(event.SerializeToString() for event in events),
        "decoded history": "".join(map(str, events)).encode(),
        "description": description.SerializeToString(),
        "current details": str(await handle.query("__temporal_workflow_metadata")).encode(),
        "store": stored_bytes(Path(system.settings.transcripts.partition(":///")[2])),
        **await pages(system, raw),
    }


async def pages(system: System, raw: dict[str, Any]) -> dict[str, bytes]:
    """Everything that the transcript service shows of a run."""
    addresses = {"transcripts_listen": "127.0.0.1:0", "web_ui": "http://127.0.0.1:8233"}
    settings = system.settings.model_copy(update=addresses)
    run = attempt_key(raw).run
    headers = authorization(links.load_tokens(settings).mint(run))
    attempts = await system.store.attempts(run) or [1]
    forms = [
        "",
        "/live",
        "/events",
        "/transcript",
        *(f"/log?format={form}&stored=true" for form in ("events", "text")),
    ]
    found: dict[str, bytes] = {}
    async with (
        transcript_service(settings, system.store, TemporalRunInfo(system.temporal, settings)) as base,
        aiohttp.ClientSession(base, headers=headers) as http,
    ):
        for number in attempts:
            for form in forms:
                address = f"/runs/{run.name}{form}{'&' if '?' in form else '?'}attempt={number}"
                if form == "/events" and not await system.store.attempts(run):
                    continue  # it waits for the first line
                async with http.get(address) as answer:
                    found[f"{form or 'page'} {number}"] = await answer.read()
    return found
