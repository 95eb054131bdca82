"""What an agent prints of its own secrets: nobody who reads a run sees it, and the receipt still holds."""

from pathlib import Path

from temporalio.client import Client

from tests.runs.ground import ground
from tests.runs.test_restarts import written

CANARY = 'canary-8c1f2e "quoted" \\ back'
IN_JSON = CANARY.replace("\\", "\\\\").replace('"', '\\"')
TELLTALE = """\
cat > /dev/null
env >&2
printf '%s\\n' "$SECRET_OF_A_USER"
until [ -e {gate} ]; do sleep 0.05; done
event() {{ printf '{{"type":"%s","timestamp":1,"sessionID":"ses_1","part":{{"messageID":"msg_1",%s}}}}\\n' "$1" "$2"; }}
event step_start '"type":"step-start"'
event text '"type":"text","text":"I was given {in_json} and keep it"'
event step_finish '"type":"step-finish","reason":"stop","cost":0,"tokens":{{"input":1,"output":1}}'
"""


async def test_a_secret_that_the_agent_prints_is_nowhere_and_the_receipt_counts_what_it_wrote(
    temporal: Client, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    async with ground(temporal, tmp_path) as system:
        raw = system.agent(TELLTALE.format(gate=gate, in_json=IN_JSON))
        raw["config"]["env"]["SECRET_OF_A_USER"] = CANARY
        ticket = await system.start(raw)
        async with system.worker():
            await written(system, raw, 5)
        gate.touch()
        async with system.worker():  # counts what is stored anew: the digest is over what the agent wrote
            outcome = await ticket.handle(temporal).result()
        lines = await system.lines(raw)
        events = (await ticket.handle(temporal).fetch_history()).events
    assert outcome.failure is None, outcome.failure
    assert outcome.receipt is not None
    assert outcome.receipt.state == "verified"
    assert outcome.summary == "I was given [[secret:SECRET_OF_A_USER:1]] and keep it"
    shown = b"\n".join(line.data for line in lines)
    assert shown.count(b"[[secret:SECRET_OF_A_USER") == 3
    whole = shown + b"".join(event.SerializeToString() for event in events)
    assert CANARY.encode() not in whole
    assert IN_JSON.encode() not in whole
