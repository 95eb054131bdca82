"""What comes from outside is text: it moves no cursor, changes no colour and turns no text around, in any command."""

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rich.text import Text

from agent_runs.cli.display import Display, JsonDisplay, ListedRun, OutputConsole, RunRef, TextDisplay
from agent_runs.client.explanation import StoredLines
from agent_runs.client.obstacles import Obstacle
from agent_runs.client.outcome import Cancelled
from agent_runs.client.timeline import PhaseChange, Step
from agent_runs.contracts.errors import Failure
from agent_runs.contracts.outcome import AttemptReport, Outcome, Stop, Usage
from agent_runs.contracts.start import Finding
from agent_runs.contracts.updates import Delivery
from agent_runs.transcript.store import Line
from tests.support.cases import case
from tests.web.parts import run_info

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
BAD = "a\x1b[2J\x1b]8;;http://evil\x07b\x9b31m\r\u202e\u2066c\u061c\x08"
FORBIDDEN = set("\x1b\x07\x9b\r\u202e\u2066\u061c\x08")
FAILURE = Failure(code=BAD, message=BAD, next_step=BAD, budget="agent")
OUTCOME = Outcome(
    error_code=BAD,
    error_message=BAD,
    session_id=BAD,
    model=BAD,
    summary=BAD,
    failure=FAILURE,
    result_json={"notes": [BAD], "warnings": [BAD]},
    attempts=(AttemptReport(attempt=1, job_name=BAD, failure_code=BAD), AttemptReport(attempt=2, job_name=BAD)),
)


def show_all(display: Display) -> None:
    """Every method, with hostile texts wherever one comes from outside."""
    run = run_info().run
    ref = RunRef(BAD, BAD, BAD, BAD, web_ui=BAD, page=BAD, paperclip=BAD, paperclip_task=BAD)
    display.note(BAD)
    display.run(ref, BAD)
    display.phase_change(PhaseChange(BAD, timedelta(), NOON, BAD))
    display.line(1, Line(1, "stdout", BAD.encode(), at=NOON))
    display.runs([ListedRun(replace(run, phase=BAD, model=BAD, task_key=BAD, failure_code=BAD), ref)])
    display.steps([Step(BAD, NOON)])
    display.obstacles([Obstacle("step_waits", BAD, BAD, NOON)])
    display.outcome(BAD, OUTCOME, StoredLines({1: 1}, [Line(1, "stderr", BAD.encode(), at=NOON)]))
    display.delivered(Delivery(run_id=BAD, attempt=1, at=NOON))
    display.cancelled(BAD, Cancelled(outcome="ended before", stop=Stop(), session_id=BAD, failure_code=BAD))
    display.values({BAD: BAD})
    display.findings([Finding(code=BAD, level="error", message=BAD, hint=BAD)])


def test_nothing_that_comes_from_outside_acts_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display = TextDisplay()
    show_all(display)
    display.console.print(Text(BAD), BAD)
    shown = capsys.readouterr().out
    assert "b31mc" in shown
    assert not FORBIDDEN & set(shown)


def test_in_a_terminal_the_codes_are_those_of_our_own_styles() -> None:
    output = io.StringIO()
    console = OutputConsole(file=output, force_terminal=True, color_system="standard", _environ={})
    console.print(Text(BAD, style="bold"))
    assert output.getvalue() == "\x1b[1ma8;;http://evilb31mc\x1b[0m\n"


def test_what_no_terminal_reads_is_neither_wrapped_nor_padded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    display, long = TextDisplay(), "a sentence of the agent " * 20
    text = json.dumps({"type": "text", "part": {"text": f"# {long}\n- point"}})
    display.line(1, Line(1, "stdout", text.encode(), at=NOON))
    display.outcome("run", Outcome(summary=long), StoredLines({}, []))
    display.phase_change(PhaseChange("running", timedelta(), NOON, long.strip()))
    lines = capsys.readouterr().out.split("\n")
    assert sum(long.strip() in line for line in lines) == 3
    assert lines[:2] == [f"# {long.strip()}", "- point"]
    assert [line for line in lines if line != line.rstrip()] == []


def test_programs_get_names_without_spaces() -> None:
    output = io.StringIO()
    JsonDisplay(output).outcome("run", Outcome(), StoredLines({}, []))
    JsonDisplay(output).values({"Web UI": "http://ui", "TEMPORAL_ADDRESS": "x:1"})
    outcome, values = map(json.loads, output.getvalue().splitlines())
    assert list(outcome["explanation"]) == ["whatHappened", "evidence", "output", "session", "nextStep"]
    assert list(values) == ["type", "webUi", "TEMPORAL_ADDRESS"]


def test_tokens_that_were_written_to_the_cache_are_input(capsys: pytest.CaptureFixture[str]) -> None:
    usage = Usage(input_tokens=1000, cache_write_tokens=200, cached_input_tokens=30, output_tokens=4)
    TextDisplay().outcome("succeeded", Outcome(usage=usage), StoredLines({}, []))
    assert "1,200 in, 30 cached, 4 out" in capsys.readouterr().out


def test_a_cancel_shows_whether_the_agent_has_stopped_and_its_session_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = Stop(agent_started=True)
    shown = {
        Stop(agent_stopped=True): ("never started", "not kept"),
        started: ("not confirmed to have stopped", "not kept"),
        started.model_copy(update={"agent_stopped": True}): ("stopped", "not kept"),
        started.model_copy(update={"agent_stopped": True, "session_preserved": True}): (
            *("stopped", "kept, the next wake can resume it"),
        ),
    }
    for stop, (agent, session) in shown.items():
        with case(stop):
            TextDisplay().cancelled("run-1", Cancelled(outcome="cancelled", stop=stop, session_id="ses_1"))
            rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.strip())
            assert (rows["agent"].strip(), rows["session"].strip()) == (agent, f"ses_1: {session}")


def test_a_finding_says_what_to_do_unless_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    for level in ("error", "warn", "info"):
        TextDisplay().findings([Finding(code="c", level=level, message="It is so", hint="Do this")])
        said = "It is so" if level == "info" else "It is so. Do this"
        assert capsys.readouterr().out.strip() == f"{level:<5}  c  {said}"


def test_a_phase_is_named_and_what_failed_in_it_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    for failed in (False, True):
        TextDisplay().phase_change(PhaseChange("running", timedelta(seconds=1.5), NOON, "for a reason", failed=failed))
    shown = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert shown == [["1.5", "s", "running     for a reason"], ["1.5", "s", "failed      for a reason"]]


def test_programs_get_how_long_a_step_took_once_it_has_ended() -> None:
    output = io.StringIO()
    JsonDisplay(output).steps([Step("create_job", NOON, NOON + timedelta(seconds=2.5)), Step("finish", NOON)])
    assert [json.loads(line)["seconds"] for line in output.getvalue().splitlines()] == [2.5, None]
