"""A caller in a process of its own: attaches, writes down its ticket, waits for the outcome.

`CALLER_WAKE` names the file of its wake, `CALLER_FOLDER` the folder for its files: `ticket` once it has
one, `outcome` once it knows that. With `CALLER_COLLECTS` empty it reads the outcome without collecting it.
"""

import asyncio
import os
from pathlib import Path

from pydantic import TypeAdapter

from agent_runs.client.attach import attach
from agent_runs.client.connection import connect, run_to_end
from agent_runs.client.outcome import fetch_outcome
from agent_runs.client.settings import ClientSettings
from agent_runs.client.wake import Wake


async def call(wake: Wake, folder: Path) -> None:
    """Attach and wait."""
    settings = ClientSettings.read()
    client = await connect(settings)
    ticket = await attach(client, settings, wake)
    (folder / "ticket").write_text(f"{ticket.kind} {ticket.workflow_run_id}")
    collects = bool(os.environ["CALLER_COLLECTS"])
    outcome = await fetch_outcome(ticket.handle(client), collect=collects)
    (folder / "outcome").write_text(outcome.model_dump_json())
    if not collects:
        await asyncio.Event().wait()


def main() -> None:
    """Run until it has the outcome, or is killed."""
    wake = TypeAdapter(Wake).validate_json(Path(os.environ["CALLER_WAKE"]).read_text())
    run_to_end(lambda: call(wake, Path(os.environ["CALLER_FOLDER"])))
