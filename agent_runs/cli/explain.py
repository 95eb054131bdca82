"""The command explain: what happened to a run, the evidence, what was lost, what it left, what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from temporalio.client import Client

from agent_runs.cli.follow import RunOutput, read_timeline, result
from agent_runs.cli.refusals import Refused
from agent_runs.cli.runs import open_transcripts
from agent_runs.client.amounts import duration_text
from agent_runs.client.connection import connect
from agent_runs.client.explanation import explain as explained
from agent_runs.client.obstacles import read_obstacles
from agent_runs.client.runs import RunSummary, find_run
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey

if TYPE_CHECKING:
    from agent_runs.cli.display import Display
    from agent_runs.cli.follow import Transcripts
    from agent_runs.transcript.lines import Line

TAIL: Final = 200
"""Lines of the newest attempt that are looked through for OpenCode's log."""


async def explain(run: str, display: Display) -> int:
    """Explain how a run ended, or what an open one waits for."""
    settings = ClientSettings.read()
    client = await connect(settings)
    summary = await find_run(client, run)
    handle = summary.handle(client)
    if not summary.decided:
        display.explanation(summary.key.run_id, await _open_run(client, summary, handle))
        return 0
    outcome = await result(handle, summary.key.run_id)
    log: Sequence[Line] = ()
    stored: Mapping[int, int] = {}
    try:
        async with open_transcripts(settings) as store:
            stored = await stored_lines(store, summary.key)
            log = await tail(store, summary.key, stored)
    except (TranscriptsUnavailable, Refused) as error:
        reason = error.message if isinstance(error, TranscriptsUnavailable) else error
        display.note(f"{reason}; what the store has is missing here")
    display.explanation(summary.key.run_id, explained(outcome, log, stored))
    return 0


async def _open_run(client: Client, summary: RunSummary, handle: Any) -> Mapping[str, str]:
    timeline = await read_timeline(handle)
    obstacles = await read_obstacles(client, handle, timeline.steps)
    since = duration_text(datetime.now(UTC) - summary.started_at)
    steps = [step.words for step in timeline.steps if step.ended is None]
    return {
        "what happened": f"The run goes on since {since}: {', '.join(steps) or summary.phase}.",
        "evidence": "\n".join([*(each.text for each in obstacles), *timeline.warnings])
        or "nothing keeps it from going on",
        "next step": "None." if not obstacles else "Remove what keeps it; the run continues by itself.",
    }


async def stored_lines(store: Transcripts, run: RunKey) -> Mapping[int, int]:
    """The number of the last stored line of each attempt.

    Raises:
        TranscriptsUnavailable: the store does not answer.
    """
    attempts = await store.attempts(run)
    return {number: await store.last(AttemptKey(run=run, attempt=number)) or 0 for number in attempts}


async def tail(store: Transcripts, run: RunKey, stored: Mapping[int, int]) -> Sequence[Line]:
    """The last lines of the newest attempt.

    Raises:
        TranscriptsUnavailable: the store does not answer.
    """
    if not stored:
        return []
    number = max(stored)
    newest = RunOutput(store, run, ended=lambda: True).attempt(number, max(stored[number] - TAIL, 0))
    async with aclosing(newest) as found:
        return [line async for line in found]
