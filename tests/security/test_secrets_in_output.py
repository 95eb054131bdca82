"""Secrets that an agent got from any source are in no history, transcript or page, and cost other runs nothing."""

import base64
import json
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import dev_stack.cluster.pod_status as embedded_status
from agent_runs.client import links
from agent_runs.client.outcome import outcome_at_close
from agent_runs.paperclip.redaction import Redaction
from agent_runs.transcript.tokens import authorization
from agent_runs.web.run_info import TemporalRunInfo
from agent_runs.web.serving import transcript_service
from tests.runs.system import System, attempt_key
from tests.support.ends import assert_verified

MIB = 1024 * 1024
SHORT = "s3cret-8"
LONG_NAME = f"{'N' * 240}_TOKEN"
PRINTS_SHORT = f'cat > /dev/null; yes "${LONG_NAME}" | tr -d "\\n" | head -c {MIB}; echo'

CANARIES = {
    "inherited variable": "canary-inherited-4f1e8c2a",
    "inherited password": "canary-forward-proxy-77aa",
    "provider key": "canary-provider-key-90be",
    "provider header": "canary-provider-header-1c",
    "password in an MCP URL": "canary-url-password-5d0e",
    "query of an MCP URL": "canary-url-query-881f4d",
    "path of an MCP URL": "canary0path0of0url0c3d4e5f",
    "MCP header": "canary-mcp-header-6b2a91",
    "MCP Basic password": "canary-basic-password-e7",
    "MCP argument": "canary-argument-3c9d21f0",
    "sealed variable": "canary-sealed/with+signs?&",
}
MCP_SERVERS: dict[str, Any] = {
    "remote": {
        "type": "remote",
        "url": f"https://ada:{CANARIES['password in an MCP URL']}@mcp.invalid/s/{CANARIES['path of an MCP URL']}/mcp"
        f"?profile={CANARIES['query of an MCP URL']}",
        "headers": {"X-Tenant": CANARIES["MCP header"]},
    },
    "basic": {
        "type": "remote",
        "url": "https://mcp.invalid/basic",
        "headers": {
            "Authorization": "Basic " + base64.b64encode(f"ada:{CANARIES['MCP Basic password']}".encode()).decode()
        },
    },
    "local": {"type": "local", "command": ["mcp-server", "--api-key", CANARIES["MCP argument"]]},
}
PROVIDER = {
    "provider": {
        "acme": {
            "options": {
                "apiKey": CANARIES["provider key"],
                "headers": {"X-Gateway": CANARIES["provider header"]},
            }
        }
    }
}
WORKER_VARIABLES = [
    {"name": "ANTHROPIC_API_KEY", "value": CANARIES["inherited variable"]},
    {"name": "HTTPS_PROXY", "value": f"http://ada:{CANARIES['inherited password']}@proxy.invalid:3128"},
]
PRINTS_EVERYTHING = """\
cat > /dev/null
env
cat "$OPENCODE_CONFIG"; echo
python3 - <<'END'
import base64, json, os, urllib.parse
texts = [os.environ["SEALED_TOKEN"], os.environ["ANTHROPIC_API_KEY"], open(os.environ["OPENCODE_CONFIG"]).read()]
for text in texts:
    for before in ("", "x", "xy"):
        print(base64.b64encode((before + text).encode()).decode())
        print(base64.urlsafe_b64encode((before + text).encode()).decode())
    print(urllib.parse.quote(text, safe=""))
    print(json.dumps(json.dumps(text)))
END
exit 3
"""


def spellings(value: str) -> list[str]:
    """The value as it is, and the middle of it in base64, wherever that begins."""
    encoded = [base64.b64encode(b"\0" * before + value.encode()).decode()[4:-4] for before in range(3)]
    return [value, *encoded, *(text.replace("+", "-").replace("/", "_") for text in encoded)]


async def pages(system: System, raw: dict[str, Any]) -> str:
    """Everything that the transcript service shows of a run."""
    addresses = {"transcripts_listen": "127.0.0.1:0", "web_ui": "http://127.0.0.1:8233"}
    settings = system.settings.model_copy(update=addresses)
    headers = authorization(links.load_tokens(settings).mint(attempt_key(raw).run))
    async with (
        transcript_service(settings, system.store, TemporalRunInfo(system.temporal, settings)) as base,
        aiohttp.ClientSession(base, headers=headers) as http,
        http.get(f"/runs/{attempt_key(raw).run.name}") as page,
        http.get(f"/runs/{attempt_key(raw).run.name}/transcript") as lines,
    ):
        assert page.status == lines.status == 200
        return await page.text() + await lines.text()


async def transcript(system: System, raw: dict[str, Any]) -> bytes:
    return b"\n".join(line.data for line in await system.lines(raw))


# row 8


async def test_a_short_secret_with_a_long_name_does_not_multiply_a_long_line(system: System) -> None:
    raw = system.agent(PRINTS_SHORT)
    raw["config"]["env"][LONG_NAME] = SHORT
    async with system.worker():
        outcome = await system.outcome(raw)
    stored = await transcript(system, raw)
    assert SHORT.encode() not in stored
    assert len(stored) <= 4 * MIB
    assert outcome.receipt is not None
    assert (outcome.receipt.state, outcome.receipt.bytes) == ("verified", MIB + 1)


async def test_a_long_line_is_redacted_in_a_thread(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[bool] = set()
    redact = Redaction.redact

    def noted(self: Redaction, data: bytes, *, is_cut: bool = False) -> bytes:
        if len(data) >= MIB:
            used.add(threading.current_thread() is threading.main_thread())
        return redact(self, data, is_cut=is_cut)

    monkeypatch.setattr(Redaction, "redact", noted)
    raw = system.agent(PRINTS_SHORT)
    raw["config"]["env"][LONG_NAME] = SHORT
    async with system.worker():
        await system.outcome(raw)
    assert used == {False}


async def test_thousands_of_secrets_are_refused_by_name_before_an_agent_starts(system: System) -> None:
    raw = system.agent("cat > /dev/null; echo started")
    headers = {f"X-Header-{number}": f"header-value-{number:06}" for number in range(2000)}
    raw["config"]["mcpServers"] = {"many": {"type": "remote", "url": "https://mcp.invalid", "headers": headers}}
    async with system.worker():
        outcome = await system.outcome(raw)
    assert outcome.error_code == "invalid_request"
    assert "2001 secret values" in str(outcome.error_message)
    assert await system.lines(raw) == []


# row 11


async def test_a_secret_in_the_termination_message_is_hidden(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    state = embedded_status._state

    def with_message(container: Any) -> Any:
        """As a kubelet that has read the container's /dev/termination-log."""
        described = state(container)
        if "terminated" in described:
            described["terminated"]["message"] = f"the agent gave up: {CANARIES['sealed variable']}"
        return described

    monkeypatch.setattr(embedded_status, "_state", with_message)
    raw = system.agent("cat > /dev/null; exit 126")
    raw["config"]["env"]["SEALED_TOKEN"] = CANARIES["sealed variable"]
    ticket = await system.start(raw)
    async with system.worker():
        outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert "the agent gave up: [[secret:SEALED_TOKEN]]" in str(outcome.error_message)
    history = await system.history_bytes(ticket)
    assert b"the agent gave up: [[secret:SEALED_TOKEN]]" in history
    assert CANARIES["sealed variable"].encode() not in history
    assert CANARIES["sealed variable"] not in await pages(system, raw)


# row 12


async def test_secrets_from_every_source_in_every_spelling_are_nowhere(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = tmp_path / "provider.json"
    provider.write_text(json.dumps(PROVIDER))
    container = {"name": "worker", "image": "agent:test", "env": WORKER_VARIABLES}
    own_pod = {"metadata": {"name": "worker-0", "namespace": "default"}, "spec": {"containers": [container]}}

    async def read_own_pod() -> dict[str, Any]:
        return own_pod

    monkeypatch.setattr(system.kubernetes, "own_pod", read_own_pod)
    system.settings = system.settings.model_copy(update={"opencode_config": provider})
    raw = system.agent(PRINTS_EVERYTHING)
    raw["config"]["mcpServers"] = MCP_SERVERS
    raw["config"]["env"]["SEALED_TOKEN"] = CANARIES["sealed variable"]
    ticket = await system.start(raw)
    async with system.worker():
        outcome = await outcome_at_close(ticket.handle(system.temporal))
    stored = await transcript(system, raw)
    places = {
        "transcript": stored.decode(errors="replace"),
        "history": (await system.history_bytes(ticket)).decode(errors="replace"),
        "pages": await pages(system, raw),
    }
    shown = {
        (place, source)
        for place, text in places.items()
        for source, canary in CANARIES.items()
        for spelling in spellings(canary)
        if spelling in text
    }
    assert shown == set()
    assert b"ANTHROPIC_API_KEY=[[secret:ANTHROPIC_API_KEY]]" in stored
    assert_verified(outcome)


async def test_a_secret_that_only_reading_json_reveals_is_in_no_history(system: System) -> None:
    disguised = "".join(f"\\u{ord(character):04x}" for character in CANARIES["sealed variable"])
    part = f'"part":{{"id":"p","messageID":"msg_1","type":"text","text":"it is {disguised}"}}'
    raw = system.agent(f"""cat > /dev/null
cat <<'END'
{{"type":"text","timestamp":1,"sessionID":"ses_1",{part}}}
END""")
    raw["config"]["env"]["SEALED_TOKEN"] = CANARIES["sealed variable"]
    ticket = await system.start(raw)
    async with system.worker():
        outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert outcome.summary == "it is [[secret:SEALED_TOKEN]]"
    assert CANARIES["sealed variable"].encode() not in await system.history_bytes(ticket)
