"""The list of runs leads to the page of each."""

import io
import json

from rich.console import Console

from agent_runs.cli.display import JsonDisplay, RunRef, TextDisplay
from tests.web.parts import run_info

PAGE = "http://127.0.0.1:8090/runs/run-1?token=abc"
RUN = run_info().run


def named(page: str | None = PAGE) -> RunRef:
    return RunRef(RUN.key.run_id, RUN.key.agent_id, RUN.workflow_id, RUN.workflow_run_id, "http://ui", page)


def for_people(page: str | None, *, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=110, legacy_windows=False, _environ={})
    TextDisplay(console=console).runs([(RUN, named(page))])
    return str(console.file.getvalue())  # type: ignore[attr-defined]  # it is the StringIO from above


def test_a_program_gets_the_pages_of_every_run_in_the_list() -> None:
    stream = io.StringIO()
    JsonDisplay(stream).runs([(RUN, named()), (RUN, named(None))])
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["runId"], first["page"], first["webUi"]) == ("run-1", PAGE, "http://ui")
    assert second["page"] is None


def test_a_person_clicks_the_run_in_a_terminal_and_gets_the_command_for_its_page() -> None:
    assert f"{PAGE}\x1b\\run-1" in for_people(PAGE, terminal=True)
    text = for_people(PAGE, terminal=False)
    assert "a run's page: agent-runs show RUN" in text
    assert "token" not in text
    assert "\x1b" not in text
    assert "agent-runs show" not in for_people(None, terminal=False)
