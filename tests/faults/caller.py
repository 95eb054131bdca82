"""A caller in a process of its own: attaches, says which ticket it got, waits for the outcome.

`CALL_REQUEST` names the file of its sealed request, `CALL_TOLD` the folder where it says how far it is: a file `ticket`
once it has one, a file `outcome` once it knows that. `CALL_COLLECTS` empty: it looks at the outcome and takes nothing.
"""

import asyncio
import os
from pathlib import Path

from client.attach import attach
from client.connection import connect, run_to_end
from client.outcome import outcome_of
from client.settings import ClientSettings
from contracts.request import RunRequest


async def call(request: RunRequest, told: Path) -> None:
    """One call."""
    settings = ClientSettings.read()
    client = await connect(settings)
    ticket = await attach(client, settings, request)
    (told / "ticket").write_text(f"{ticket.kind} {ticket.workflow_run_id}")
    collects = bool(os.environ["CALL_COLLECTS"])
    outcome = await outcome_of(ticket.handle(client), collect=collects)
    (told / "outcome").write_text(outcome.model_dump_json())
    if not collects:
        await asyncio.Event().wait()


def main() -> None:
    """Until it has the outcome, or is killed."""
    request = RunRequest.model_validate_json(Path(os.environ["CALL_REQUEST"]).read_text())
    run_to_end(lambda: call(request, Path(os.environ["CALL_TOLD"])))
