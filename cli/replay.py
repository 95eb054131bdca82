"""`agent-runs replay`: a run's history under the workflow code that is here. Nothing of its payloads is shown."""

from pathlib import Path
from typing import Final

from temporalio.client import WorkflowHistory

from cli.display import Display, Machines
from cli.refusals import Refused
from client import history as histories
from client.connection import connect
from client.history import NoHistory, Replay
from client.runs import find
from client.settings import ClientSettings

LIMIT: Final = 64 * 1024 * 1024
"""Bytes of a history file; Temporal ends a workflow at 50 MB."""
NEXT: Final = (
    "Put the new order behind workflow.patched, or replay under a build that wrote this history; docs/replay.md"
)


async def replay(run: str | None, display: Display, *, file: Path | None, save: Path | None, debug: bool) -> int:
    """Replays a run or a saved history; 1 when it differs."""
    name, history = await _history(run, file)
    if save is not None:
        _save(save, history)
    found = await histories.replay(history, debug=debug)
    if isinstance(display, Machines):
        display.facts(_facts(name, found))
    else:
        display.note(_line(name, found))
    return 0 if found.difference is None else 1


async def _history(run: str | None, file: Path | None) -> tuple[str, WorkflowHistory]:
    """What to replay, and what to call it.

    Raises:
        Refused: no or too many histories are named, or the file holds none.
        UnknownRun: nobody knows this run.
    """
    if (run is None) == (file is None):
        raise Refused("name one history: a RUN, or --file HISTORY.json")
    if file is not None:
        return str(file), _read(file)
    settings = ClientSettings.read()
    client = await connect(settings)
    summary = await find(client, run or "")
    return f"run {summary.key.run_id}", await summary.handle(client).fetch_history()


def _read(file: Path) -> WorkflowHistory:
    try:
        if file.stat().st_size > LIMIT:
            raise Refused(f"--file {file}: larger than {LIMIT >> 20} MB; that is no history")
        return histories.read(file.read_text())
    except OSError as error:
        raise Refused(f"--file {file}: {error.strerror}; save one with `agent-runs replay RUN --save FILE`") from None
    except (UnicodeDecodeError, NoHistory) as error:
        raise Refused(f"--file {file}: {error}; save one with `agent-runs replay RUN --save FILE`") from None


def _save(file: Path, history: WorkflowHistory) -> None:
    """Writes a history for its owner only: it holds what the agent said, and the request with its secrets sealed."""
    try:
        file.touch(mode=0o600)
        file.write_text(history.to_json() + "\n")
    except OSError as error:
        raise Refused(f"--save {file}: {error.strerror}; name a file that can be written") from None


def _line(name: str, found: Replay) -> str:
    """The answer in one line."""
    here, written = histories.build_id(), ", ".join(found.builds) or "no worker"
    difference = found.difference
    if difference is not None:
        return (
            f"{name} differs at event {difference.event}: the history has {difference.expected}, "
            f"build {here} makes {difference.found} (written by {written}). {NEXT}"
        )
    so_far = "" if found.ended else " so far"
    return f"{name} replays: {found.events} events{so_far}, written by {written}, under build {here}"


def _facts(name: str, found: Replay) -> dict[str, str]:
    facts = {
        "history": name,
        "replays": "no" if found.difference else "yes",
        "events": str(found.events),
        "ended": "yes" if found.ended else "no",
        "written by": ", ".join(found.builds),
        "build": histories.build_id(),
    }
    if found.difference:
        facts |= {
            "event": str(found.difference.event),
            "expected": found.difference.expected,
            "found": found.difference.found,
            "next": NEXT,
        }
    return facts
