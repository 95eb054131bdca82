"""Secrets that an agent prints reach no reader of its run, and the receipt still verifies."""

from pathlib import Path

from temporalio.client import Client

from agent_runs.client.outcome import outcome_at_close
from tests.runs.system import open_system
from tests.support.ends import assert_verified

CANARY = 'canary-8c1f2e "quoted" \\ back'
IN_JSON = CANARY.replace("\\", "\\\\").replace('"', '\\"')
PRINTS_SECRETS = """\
cat > /dev/null
env >&2
printf '%s\\n' "$SECRET_OF_A_USER"
until [ -e {signal} ]; do sleep 0.05; done
event() {{ printf '{{"type":"%s","timestamp":1,"sessionID":"ses_1","part":{{"messageID":"msg_1",%s}}}}\\n' "$1" "$2"; }}
event step_start '"type":"step-start"'
event text '"type":"text","text":"I was given {in_json} and keep it"'
event step_finish '"type":"step-finish","reason":"stop","cost":0,"tokens":{{"input":1,"output":1}}'
"""


async def test_a_secret_that_the_agent_prints_is_nowhere_and_the_receipt_counts_what_it_wrote(
    temporal: Client, tmp_path: Path
) -> None:
    signal = tmp_path / "continue"
    async with open_system(temporal, tmp_path) as system:
        raw = system.agent(PRINTS_SECRETS.format(signal=signal, in_json=IN_JSON))
        raw["config"]["env"]["SECRET_OF_A_USER"] = CANARY
        ticket = await system.start(raw)
        async with system.worker():
            await system.until_stored(raw, 5)
        signal.touch()
        async with system.worker():  # counts what is stored anew: the digest is over what the agent wrote
            outcome = await outcome_at_close(ticket.handle(temporal))
        lines = await system.lines(raw)
        events = (await ticket.handle(temporal).fetch_history()).events
    assert outcome.failure is None, outcome.failure
    assert_verified(outcome)
    assert outcome.summary == "I was given [[secret:SECRET_OF_A_USER]] and keep it"
    stored = b"\n".join(line.data for line in lines)
    assert stored.count(b"[[secret:SECRET_OF_A_USER") == 3
    everything = stored + b"".join(event.SerializeToString() for event in events)
    assert CANARY.encode() not in everything
    assert IN_JSON.encode() not in everything
