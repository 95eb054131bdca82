"""Secrets that an agent writes in odd ways are in no history and no transcript, and cost other runs nothing."""

import threading

import pytest

from agent_runs.client.outcome import outcome_at_close
from agent_runs.paperclip.redaction import Redaction
from tests.runs.system import System

MIB = 1024 * 1024
SHORT = "s3cret-8"
LONG_NAME = f"{'N' * 240}_TOKEN"
PRINTS_SHORT = f'cat > /dev/null; yes "${LONG_NAME}" | tr -d "\\n" | head -c {MIB}; echo'
CANARY = "canary-sealed/with+signs?&"


async def test_a_short_secret_with_a_long_name_does_not_multiply_a_long_line(system: System) -> None:
    raw = system.agent(PRINTS_SHORT)
    raw["config"]["env"][LONG_NAME] = SHORT
    async with system.worker():
        outcome = await system.outcome(raw)
    stored = b"\n".join(line.data for line in await system.lines(raw))
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


async def test_a_secret_that_only_reading_json_reveals_is_in_no_history(system: System) -> None:
    disguised = "".join(f"\\u{ord(character):04x}" for character in CANARY)
    part = f'"part":{{"id":"p","messageID":"msg_1","type":"text","text":"it is {disguised}"}}'
    raw = system.agent(f"""cat > /dev/null
cat <<'END'
{{"type":"text","timestamp":1,"sessionID":"ses_1",{part}}}
END""")
    raw["config"]["env"]["SEALED_TOKEN"] = CANARY
    ticket = await system.start(raw)
    async with system.worker():
        outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert outcome.summary == "it is [[secret:SEALED_TOKEN]]"
    assert CANARY.encode() not in await system.history_bytes(ticket)
