"""An agent's own OpenCode configuration on its way through a whole run."""

import json

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.start import HostTexts
from tests.runs.system import System

CANARY = "canary-8f4e2ab1c9d07e63"
CONFIG = {
    "share": "auto",
    "compaction": {"auto": False},
    "permission": {"webfetch": "ask"},
    "mcp": {"docs": {"type": "remote", "url": "https://docs", "headers": {"Authorization": f"Bearer {CANARY}"}}},
    "instructions": ["{env:STYLE_GUIDE}"],
}


async def test_it_reaches_opencode_with_notes_about_it_and_its_secrets_reach_nobody_else(system: System) -> None:
    raw = system.agent(
        'cat > /dev/null; cat "$OPENCODE_CONFIG"; grep -c CANARY "$OPENCODE_CONFIG"'.replace("CANARY", CANARY)
    )
    raw["config"]["opencode"] = CONFIG
    ticket = await system.start(raw)
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    written = b"\n".join(await system.stdout(raw))
    assert b'"compaction": {"auto": false}' in written
    assert b'"webfetch": "deny"' in written
    assert written.endswith(b"1")  # the agent has the secret
    assert CANARY.encode() not in written
    assert CANARY.encode() not in await system.history_bytes(ticket)
    notes = [warning.partition(" is ")[0].partition(": ")[0] for warning in outcome.warnings if "opencode." in warning]
    assert notes == ["config.opencode.permission.webfetch", "config.opencode.share", "config.opencode.instructions[0]"]


async def test_providers_of_paperclips_environment_reach_opencode_and_their_keys_nobody_else(system: System) -> None:
    raw = system.agent(f'cat > /dev/null; cat "$OPENCODE_CONFIG"; grep -c {CANARY} "$OPENCODE_CONFIG"')
    gateway = {
        "options": {"baseURL": "https://gateway.example/v1", "apiKey": CANARY, "headers": {"x-vk": f"{CANARY}2"}}
    }
    ticket = await system.start(raw, HostTexts(opencode_providers=json.dumps({"gateway": gateway})))
    await outcome_at_close(ticket.handle(system.temporal))
    written = b"\n".join(await system.stdout(raw))
    assert b'"gateway": {"options": {' in written
    assert b'"baseURL": "https://gateway.example/v1"' in written
    assert written.endswith(b"1")  # the agent has the secrets
    assert CANARY.encode() not in written
    assert CANARY.encode() not in await system.history_bytes(ticket)
