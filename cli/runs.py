"""The commands that talk to runs: start, logs, show, list, cancel. Each returns its exit code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from temporalio.client import Client, WorkflowFailureError

from cli.display import Display, RunRef
from cli.follow import DETACHED, Followed, Interrupted, Interrupts, Output, ended_without_outcome, known
from cli.lazy import lazy
from cli.refusals import Refused
from client import links
from client import outcome as outcomes
from client.attach import Ticket, attach, attach_when_free
from client.connection import connect
from client.runs import RunSummary, UnknownRun, find, listed, web_ui
from client.settings import ClientSettings
from contracts.identity import RunKey
from contracts.outcome import Outcome
from contracts.request import RunRequest
from opencode.events import printable
from paperclip.preparation import prepared
from paperclip.sealing import Sealer, load_or_create

if TYPE_CHECKING:
    from cli.follow import Transcripts
    from client import transcripts as remote
    from transcripts import store as storage
else:  # SQLAlchemy: a second that `list` and `start` do without
    storage, remote = lazy("transcripts.store"), lazy("client.transcripts")

CONTEXT_LIMIT: Final = 32 * 1024 * 1024
"""Bytes of a context file; a real one has some 30 KB."""


async def start(context: Path, display: Display, *, follow: bool, wait: bool) -> int:
    """Start the run of an execution context, or join the one that its task has already."""
    settings = ClientSettings.read()
    request = requested(read_context(context), settings, display)
    client = await connect(settings)
    with Interrupts.caught() as interrupts:
        try:
            ticket = await interrupts.during(_ticket(client, settings, request, display, wait=wait))
        except Interrupted:
            display.note("gave up waiting; nothing was started")
            return DETACHED
        key = request.key.model_copy(update={"run_id": ticket.run_id})
        display.run(reference(settings, key, ticket.workflow_id, ticket.workflow_run_id), ticket.kind)
        if not follow:
            display.note(f"watch it: agent-runs logs {key.run_id} --follow")
            return 0
        async with transcripts(settings) as store:
            followed = Followed(ticket.handle(client), key, store, display, collect=True)
            try:
                return shown(display, key.run_id, await interrupts.during(followed.to_the_end()))
            except Interrupted:
                return detached(display, key.run_id)


async def _ticket(
    client: Client, settings: ClientSettings, request: RunRequest, display: Display, *, wait: bool
) -> Ticket:
    """The run's ticket.

    Raises:
        Refused: another task has the agent, and nobody wants to wait.
    """
    if wait:
        return await attach_when_free(client, settings, request, lambda held: display.note(f"{busy(held)}; waiting"))
    ticket = await attach(client, settings, request)
    if ticket.kind == "busy":
        raise Refused(f"{busy(ticket)}; wait for it with --wait, or `agent-runs cancel {ticket.run_id}`", code=1)
    return ticket


def busy(ticket: Ticket) -> str:
    """Who holds the agent, since when."""
    holder = ticket.holder
    if holder is None:
        return f"the agent is held by run {ticket.run_id}"
    about = f" on {printable(holder.task, 100)}" if holder.task else ""
    note = f" ({holder.note})" if holder.note else ""
    return (
        f"the agent is held by run {holder.run_id}{about}, {holder.phase}, "
        f"since {holder.since.astimezone().isoformat(timespec='seconds')}{note}"
    )


async def cancel(run: str, reason: str, display: Display) -> int:
    """Stop a run's agent, and say whether it really stopped and whether its session is kept."""
    client = await connect(ClientSettings.read())
    summary = await find(client, run)
    with Interrupts.caught() as interrupts:
        try:
            answer = await interrupts.during(outcomes.cancel(summary.handle(client), reason))
        except Interrupted:
            display.note("the cancel is under way and goes on without this command")
            return DETACHED
        except WorkflowFailureError as error:
            raise ended_without_outcome(summary.key.run_id, error) from None
    display.cancelled(summary.key.run_id, answer)
    return 0 if answer.stop.agent_stopped or not answer.stop.agent_started else 1


async def logs(run: str, display: Display, *, follow: bool, after: int) -> int:
    """Show what a run's agent wrote; with `follow` on to the run's end."""
    settings = ClientSettings.read()
    client = await connect(settings)
    async with transcripts(settings) as store:
        summary = await _found_or_stored(client, store, run)
        if not isinstance(summary, RunSummary) or not follow or summary.decided:
            key = summary.key if isinstance(summary, RunSummary) else summary
            count = 0
            async for attempt, line in Output(store, key, over=lambda: True).lines(after):
                display.line(attempt, line)
                count += 1
            if not count and not after:
                display.note("no output is stored for this run; is AGENT_RUNS_TRANSCRIPTS_URL the worker's?")
            return 0
        with Interrupts.caught() as interrupts:
            try:
                followed = Followed(summary.handle(client), summary.key, store, display, after)
                await interrupts.during(followed.output())
            except Interrupted:
                return detached(display, summary.key.run_id)
    return 0


async def show(run: str, display: Display) -> int:
    """One run: its steps, and its outcome once it has one."""
    settings = ClientSettings.read()
    client = await connect(settings)
    summary = await find(client, run)
    handle = summary.handle(client)
    display.run(reference(settings, summary.key, summary.workflow_id, summary.workflow_run_id), summary.phase)
    display.steps((await known(handle)).steps)
    if not summary.decided:
        display.note(f"it goes on: agent-runs logs {summary.key.run_id} --follow")
        return 0
    async with transcripts(settings) as store:
        outcome = await Followed(handle, summary.key, store, display).result()
    display.outcome(summary.key.run_id, outcome)
    return 0


async def listing(display: Display, *, limit: int, only_open: bool) -> int:
    """Runs, newest first."""
    settings = ClientSettings.read()
    client = await connect(settings)
    condition = "ExecutionStatus = 'Running'" if only_open else ""
    found = [run async for run in listed(client, condition, limit)]
    display.runs((run, reference(settings, run.key, run.workflow_id, run.workflow_run_id)) for run in found)
    return 0


# what these and the demonstration share


def read_context(file: Path) -> dict[str, Any]:
    """The execution context in a file.

    Raises:
        Refused: no such file, too large, or no JSON object.
    """
    try:
        if file.stat().st_size > CONTEXT_LIMIT:
            raise Refused(f"--context {file}: larger than {CONTEXT_LIMIT >> 20} MB; that is no execution context")
        raw = json.loads(file.read_bytes())
    except OSError as error:
        raise Refused(
            f"--context {file}: {error.strerror}; give Paperclip's execution context as a JSON file"
        ) from None
    except ValueError as error:
        raise Refused(f"--context {file}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise Refused(f"--context {file}: must be one JSON object, Paperclip's execution context")
    return raw


def requested(raw: dict[str, Any], settings: ClientSettings, display: Display) -> RunRequest:
    """The run request of a context, sealed with the configured key.

    Raises:
        InvalidRequest: names every wrong field and the remedy.
        UnusableKey: the key file holds none, or is missing in production.
    """
    keys = load_or_create(settings.sealing_key_file, make=not settings.production)
    found = prepared(raw, Sealer(keys[0].public))
    for note in found.notes:
        display.note(note)
    return found.request


def reference(settings: ClientSettings, key: RunKey, workflow_id: str, workflow_run_id: str) -> RunRef:
    """A run's names, and its pages if we know where they are."""
    return RunRef(
        key.run_id,
        key.agent_id,
        workflow_id,
        workflow_run_id,
        web_ui=web_ui(settings, workflow_id, workflow_run_id),
        page=links.page(settings, key.run_id),
    )


def shown(display: Display, run_id: str, outcome: Outcome) -> int:
    """Show an outcome; 0 for success, 1 for a failed run."""
    display.outcome(run_id, outcome)
    return 0 if outcome.failure is None and outcome.error_code is None else 1


def detached(display: Display, run_id: str) -> int:
    """Say how to come back."""
    display.note(f"detached; the run goes on. Come back: agent-runs logs {run_id} --follow")
    return DETACHED


@asynccontextmanager
async def transcripts(settings: ClientSettings) -> AsyncIterator[Transcripts]:
    """The transcript service if we know where it is, else the configured store.

    Raises:
        Refused: the store's URL is unusable.
        UnusableTokenKey: there is no key to make tokens for the service with.
        TranscriptsUnavailable: it does not answer.
    """
    if settings.transcripts_public_url is not None:
        async with remote.ServiceTranscripts.at(settings.transcripts_public_url, settings) as service:
            yield service
        return
    try:
        store = await storage.SqlTranscripts.open(settings.transcripts)
    except ValueError as error:
        raise Refused(f"AGENT_RUNS_TRANSCRIPTS_URL: {error}") from None
    try:
        yield store
    finally:
        await store.close()


async def _found_or_stored(client: Client, store: Transcripts, run: str) -> RunSummary | RunKey:
    """Temporal forgets closed runs after its retention; their transcripts may still be there."""
    try:
        return await find(client, run)
    except UnknownRun:
        if not await store.attempts(run):
            raise
        return RunKey(agent_id="", company_id="", run_id=run)
