"""A caller in a process of its own: attaches, writes down its ticket, waits for the outcome.

`CALLER_REQUEST` names the file of its sealed request, `CALLER_FOLDER` the folder for its files: `ticket` once it has
one, `outcome` once it knows that. With `CALLER_COLLECTS` empty it reads the outcome without collecting it.
"""

import asyncio
import os
from pathlib import Path

from agent_runs.client.attach import attach
from agent_runs.client.connection import connect, run_to_end
from agent_runs.client.outcome import fetch_outcome
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.request import RunRequest


async def call(request: RunRequest, folder: Path) -> None:
    """Attach and wait."""
    settings = ClientSettings.read()
    client = await connect(settings)
    ticket = await attach(client, settings, request)
    (folder / "ticket").write_text(f"{ticket.kind} {ticket.workflow_run_id}")
    collects = bool(os.environ["CALLER_COLLECTS"])
    outcome = await fetch_outcome(ticket.handle(client), collect=collects)
    (folder / "outcome").write_text(outcome.model_dump_json())
    if not collects:
        await asyncio.Event().wait()


def main() -> None:
    """Run until it has the outcome, or is killed."""
    request = RunRequest.model_validate_json(Path(os.environ["CALLER_REQUEST"]).read_text())
    run_to_end(lambda: call(request, Path(os.environ["CALLER_FOLDER"])))
