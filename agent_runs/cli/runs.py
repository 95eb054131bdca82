"""The commands start, cancel, logs and show. Each returns its exit code."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.client import Client, WorkflowFailureError

from agent_runs.cli.display import Display, RunRef
from agent_runs.cli.follow import (
    DETACHED,
    Interrupted,
    Interrupts,
    RunFollower,
    no_outcome,
    result_of_decided,
    show_new_steps,
)
from agent_runs.cli.lazy import lazy
from agent_runs.cli.program import Refused
from agent_runs.cli.transcripts import RunOutput, check_store, open_transcripts, read_in_time, stored_output, stored_run
from agent_runs.client import links
from agent_runs.client import outcome as outcomes
from agent_runs.client.amounts import duration_text
from agent_runs.client.connection import TemporalUnreachable, connect
from agent_runs.client.obstacles import Obstacle, open_questions, read_obstacles
from agent_runs.client.runs import RunSummary, UnknownRun, find_run
from agent_runs.client.settings import ClientSettings
from agent_runs.client.timeline import Timeline, read_timeline
from agent_runs.contracts.errors import MessageNotDelivered
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.files import read_json_object
from agent_runs.transcript.events import printable

if TYPE_CHECKING:
    from agent_runs.cli.transcripts import Transcripts
    from agent_runs.client import attach as attaching
    from agent_runs.client import tell as telling
    from agent_runs.client import wake as wakes
    from agent_runs.client.attach import Ticket
    from agent_runs.client.wake import Wake
    from agent_runs.paperclip import sealing
else:  # what checks and seals requests: a second that most commands do without
    attaching, telling, wakes, sealing = map(
        lazy,
        (*(f"agent_runs.client.{name}" for name in ("attach", "tell", "wake")), "agent_runs.paperclip.sealing"),
    )


async def start(context: Path, display: Display, *, follow: bool, wait: bool) -> int:
    """Start the run of an execution context, or join the open run of its task."""
    settings = ClientSettings.read()
    if follow:
        check_store(settings)
    raw = read_json_object(context, "--context", "Paperclip's execution context")
    wake = sealed_wake(raw, settings, display)
    client = await connect(settings)
    with Interrupts.installed() as interrupts:
        try:
            ticket = await interrupts.during(_ticket(client, settings, wake, display, wait=wait))
        except Interrupted:
            display.note("gave up before the start was confirmed; the same command starts the run, or joins it")
            return DETACHED
        key = wake.start.key.model_copy(update={"run_id": ticket.run_id})
        display.run(run_ref(settings, key, ticket.workflow_id, ticket.workflow_run_id, wake.task_key), ticket.kind)
        if ticket.kind == "joined":
            display.note("that run is open for the same task, so this wake joined it; one run at a time has the agent")
        if not follow:
            display.note(f"watch it: agent-runs logs {key.run_id} --follow")
            return 0
        async with open_transcripts(settings) as store:
            followed = RunFollower(client, ticket.handle(client), key, store, display, collect=True)
            try:
                return show_outcome(display, key.run_id, await interrupts.during(followed.follow_to_end()))
            except Interrupted:
                return detached(display, key.run_id)


async def _ticket(client: Client, settings: ClientSettings, wake: Wake, display: Display, *, wait: bool) -> Ticket:
    """Attach to the run.

    Raises:
        Refused: another task has the agent, and `wait` is not set.
    """
    if wait:
        return await attaching.attach_when_free(
            client, settings, wake, lambda busy: display.note(f"{describe_holder(busy)}; waiting")
        )
    ticket = await attaching.attach(client, settings, wake)
    if ticket.kind == "busy":
        raise Refused(
            f"{describe_holder(ticket)}; wait for it with --wait, or `agent-runs cancel {ticket.run_id}`", code=1
        )
    return ticket


def describe_holder(ticket: Ticket) -> str:
    """State which run holds the agent, and since when."""
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
    """Stop a run's agent, and show what is waited for. Returns 1 if the agent is not confirmed to have stopped."""
    client = await connect(ClientSettings.read())
    summary = await find_run(client, run)
    handle = summary.handle(client)
    known = len((await read_timeline(handle)).steps)
    waits = asyncio.create_task(show_new_steps(handle, display, known))
    with Interrupts.installed() as interrupts:
        try:
            answer = await interrupts.during(outcomes.cancel(handle, reason))
        except Interrupted:
            display.note("the cancel was requested and continues without this command")
            return DETACHED
        except WorkflowFailureError as error:
            raise no_outcome(summary.key.run_id, error) from None
        finally:
            waits.cancel()
            await asyncio.wait([waits])
    display.cancelled(summary.key.run_id, answer)
    return 0 if answer.stop.agent_stopped or not answer.stop.agent_started else 1


async def tell(run: str, text: str, display: Display) -> int:
    """Tell a run's agent something."""
    settings = ClientSettings.read()
    sealer, client = _sealer(settings), await connect(settings)
    summary = await find_run(client, run)
    delivery = await telling.tell(summary.handle(client), summary.key, sealer, text, getpass.getuser())
    display.delivered(delivery)
    return 0


async def answer(run: str, words: Sequence[str], display: Display, *, question: str | None, reject: bool) -> int:
    """Answer a question of a run's agent; without an answer show its questions."""
    settings = ClientSettings.read()
    client = await connect(settings)
    summary = await find_run(client, run)
    handle = summary.handle(client)
    asked = [] if summary.decided else await open_questions(handle)
    asked = [each for each in asked if question in {None, each.id}]
    if not asked:
        raise MessageNotDelivered(f"the agent does not ask {question or 'anything'}")
    if not words and not reject:
        display.questions(asked)
        return 0
    answers, sealer = () if reject else telling.chosen(asked[0], words), _sealer(settings)
    display.delivered(await telling.answer(handle, summary.key, sealer, asked[0], answers, getpass.getuser()))
    return 0


def _sealer(settings: ClientSettings) -> sealing.Sealer:
    return sealing.Sealer(sealing.public_key(settings.sealing_key_file))


async def logs(run: str, display: Display, *, follow: bool, after: int) -> int:
    """Show the output of a run's agent; with `follow` until the run's end."""
    settings = ClientSettings.read()
    try:
        client = await connect(settings)
    except TemporalUnreachable as error:
        return await _logs_without_temporal(run, settings, display, after, error)
    async with open_transcripts(settings) as transcripts:
        summary = await _find_run_or_transcript(client, transcripts, run)
        if not isinstance(summary, RunSummary) or not follow or summary.decided:
            key = summary.key if isinstance(summary, RunSummary) else summary
            if not await _show_stored(transcripts, key, display, after) and not after:
                display.note("no output of this run is stored")
            return 0
        with Interrupts.installed() as interrupts:
            try:
                followed = RunFollower(client, summary.handle(client), summary.key, transcripts, display, after)
                await interrupts.during(followed.follow_output())
            except Interrupted:
                return detached(display, summary.key.run_id)
    return 0


async def _logs_without_temporal(
    run: str, settings: ClientSettings, display: Display, after: int, error: TemporalUnreachable
) -> int:
    """Show what is stored of a run: the store needs only the run's id.

    Raises:
        TemporalUnreachable: nothing is stored under this id, which may be an agent's.
    """
    async with open_transcripts(settings) as transcripts:
        if (key := await stored_run(transcripts, run)) is None:
            raise error
        display.note(f"Temporal does not answer at {settings.temporal.address}: this is what is stored so far")
        await _show_stored(transcripts, key, display, after)
    return 0


async def _find_run_or_transcript(client: Client, transcripts: Transcripts, run: str) -> RunSummary | RunKey:
    """Temporal deletes closed runs after its retention; their transcripts may still exist."""
    try:
        return await find_run(client, run)
    except UnknownRun:
        if (key := await stored_run(transcripts, run)) is None:
            raise
        return key


async def _show_stored(transcripts: Transcripts, run: RunKey, display: Display, after: int) -> int:
    """Show the stored lines of a run; returns their number."""
    count = 0
    async for attempt, line in RunOutput(transcripts, run, ended=lambda: True).lines(after):
        display.line(attempt, line)
        count += 1
    return count


async def show(run: str, display: Display) -> int:
    """Show a run: its activities, and how it ended or what keeps it from going on."""
    settings = ClientSettings.read()
    client = await connect(settings)
    summary = await find_run(client, run)
    handle = summary.handle(client)
    ref = run_ref(settings, summary.key, summary.workflow_id, summary.workflow_run_id, summary.task_key)
    display.run(ref, summary.phase)
    timeline = await read_timeline(handle)
    display.steps(timeline.steps)
    if not summary.decided:
        for warning in timeline.warnings:
            display.note(f"warning: {warning}")
        obstacles = await read_obstacles(client, handle, timeline.steps)
        display.obstacles(obstacles)
        display.note(_goes_on(summary, timeline, obstacles))
        return 0
    outcome = await result_of_decided(handle, summary.key.run_id)
    stored, note = await read_in_time(
        settings, lambda transcripts: stored_output(transcripts, summary.key), "what the store has is missing"
    )
    if note:
        display.note(note)
    display.outcome(summary.key.run_id, outcome, stored)
    return 0


def _goes_on(run: RunSummary, timeline: Timeline, obstacles: Sequence[Obstacle]) -> str:
    """Since when an open run goes on, what it does, and what to do."""
    since = duration_text(datetime.now(UTC) - run.started_at)
    steps = ", ".join(step.words for step in timeline.steps if step.ended is None) or run.phase
    hint = "remove what keeps it, and it continues by itself" if obstacles else "nothing keeps it from going on"
    return f"the run goes on since {since}: {steps}; {hint}. Follow it: agent-runs logs {run.key.run_id} --follow"


# shared with `agent_runs.cli.run_list` and dev_stack


def sealed_wake(raw: dict[str, Any], settings: ClientSettings, display: Display) -> Wake:
    """Seal a context with the configured key.

    Raises:
        InvalidRequest: names every wrong field and the remedy.
        UnusableKey: the key file is missing or holds no key.
    """
    wake = wakes.build_wake(raw, _sealer(settings))
    for note in wake.notes:
        display.note(f"warning: {note}")
    return wake


def run_ref(
    settings: ClientSettings, key: RunKey, workflow_id: str, workflow_run_id: str, task_key: str | None = None
) -> RunRef:
    """A run's ids, and its links where the settings name the services."""
    paperclip = links.PaperclipPages.of(settings)
    return RunRef(
        key.run_id,
        key.agent_id,
        workflow_id,
        workflow_run_id,
        web_ui=links.web_ui_url(settings, workflow_id, workflow_run_id),
        page=links.page_url(settings, key),
        paperclip=paperclip.run(key.agent_id, key.run_id),
        paperclip_task=paperclip.task(task_key),
    )


def show_outcome(display: Display, run_id: str, outcome: Outcome) -> int:
    """Show an outcome; 0 for success, 1 for a failed run."""
    display.outcome(run_id, outcome)
    return 0 if outcome.failure is None else 1


def detached(display: Display, run_id: str) -> int:
    """Note how to follow the run later."""
    display.note(f"detached; the run continues. Follow it: agent-runs logs {run_id} --follow")
    return DETACHED
