"""`agent-runs replay`: a run's history under the workflow code that is installed here. No payload is shown."""

from pathlib import Path
from typing import Final

from temporalio.client import WorkflowHistory

from agent_runs.cli.display import Display, JsonDisplay
from agent_runs.cli.program import Refused
from agent_runs.client import replay as histories
from agent_runs.client.connection import connect
from agent_runs.client.replay import Difference, InvalidHistory, Replay
from agent_runs.client.runs import find_run
from agent_runs.client.settings import ClientSettings
from agent_runs.service.build_id import build_id

MAX_HISTORY_BYTES: Final = 64 * 1024 * 1024
"""Temporal ends a workflow at 50 MB."""
NEXT_STEP: Final = (
    "Put the new order behind workflow.patched, or replay under a build that wrote this history; docs/replay.md"
)
RAISED: Final = "Correct the workflow's code; --debug shows the traceback"


async def replay(run: str | None, display: Display, *, file: Path | None, save: Path | None, debug: bool) -> int:
    """Replay a run or a saved history. Returns 1 when it does not replay."""
    name, history = await _history(run, file)
    if save is not None:
        _save(save, history)
    result = await histories.replay(history, debug=debug)
    if isinstance(display, JsonDisplay):
        display.values(_values(name, result))
    else:
        display.note(_line(name, result))
    return 0 if result.difference is None else 1


async def _history(run: str | None, file: Path | None) -> tuple[str, WorkflowHistory]:
    """The history to replay, and its name for people.

    Raises:
        Refused: no history or more than one is named, or the file holds none.
        UnknownRun: there is no such run.
    """
    if (run is None) == (file is None):
        raise Refused("name one history: a RUN, or --file HISTORY.json")
    if file is not None:
        return str(file), _read(file)
    settings = ClientSettings.read()
    client = await connect(settings)
    summary = await find_run(client, run or "")
    return f"run {summary.key.run_id}", await summary.handle(client).fetch_history()


def _read(file: Path) -> WorkflowHistory:
    try:
        if file.stat().st_size > MAX_HISTORY_BYTES:
            raise Refused(f"--file {file}: larger than {MAX_HISTORY_BYTES >> 20} MB; that is no history")
        return histories.read(file.read_text())
    except OSError as error:
        raise Refused(f"--file {file}: {error.strerror}; save one with `agent-runs replay RUN --save FILE`") from None
    except UnicodeDecodeError:
        raise Refused(f"--file {file}: not text; save one with `agent-runs replay RUN --save FILE`") from None
    except InvalidHistory as error:
        raise Refused(f"--file {file}: {error}; save one with `agent-runs replay RUN --save FILE`") from None


def _save(file: Path, history: WorkflowHistory) -> None:
    """Writes a history for its owner only: it holds the agent's last output, and the request with sealed secrets."""
    try:
        file.touch(mode=0o600)
        file.write_text(history.to_json() + "\n")
    except OSError as error:
        raise Refused(f"--save {file}: {error.strerror}; name a file that can be written") from None


def _line(name: str, result: Replay) -> str:
    written_by = ", ".join(result.builds) or "no worker"
    if (difference := result.difference) is not None:
        place = "" if difference.event is None else f" at event {difference.event}"
        return (
            f"{name} does not replay{place}: the history (written by {written_by}) has {difference.expected}, "
            f"build {build_id()} has {difference.found}. {_next_step(difference)}"
        )
    so_far = "" if result.closed else " so far"
    return f"{name} replays: {result.events} events{so_far}, written by {written_by}, under build {build_id()}"


def _next_step(difference: Difference) -> str:
    return RAISED if difference.raised else NEXT_STEP


def _values(name: str, result: Replay) -> dict[str, object]:
    values: dict[str, object] = {
        "history": name,
        "replays": result.difference is None,
        "events": result.events,
        "closed": result.closed,
        "writtenBy": result.builds,
        "build": build_id(),
    }
    if (difference := result.difference) is not None:
        values |= {"event": difference.event, "expected": difference.expected, "found": difference.found}
        values["nextStep"] = _next_step(difference)
    return values
