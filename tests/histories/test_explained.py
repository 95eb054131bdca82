"""docs/failures.md is what `agent-runs show` says of the recorded runs."""

import json

from agent_runs.client.explanation import StoredLines, explain
from agent_runs.contracts.outcome import AttemptReport, Outcome, OutputReceipt
from tests.histories.explained import FOLDER, PAGE_FILE, outcome_of, page_text


def test_the_committed_page_is_fresh() -> None:
    assert PAGE_FILE.read_text() == page_text(), "run: python -m tests.histories.explained"


def test_each_recorded_failure_says_what_happened_what_was_lost_and_what_to_do() -> None:
    failed = 0
    for file in FOLDER.glob("*.json"):
        outcome = outcome_of(json.loads(file.read_text()))
        if outcome is None or outcome.failure is None:
            continue
        failed += 1
        rows = explain(outcome)
        assert rows["what happened"].startswith(f"{outcome.failure.code}: "), file.name
        assert outcome.failure.message in rows["what happened"], file.name
        assert outcome.failure.next_step in rows["next step"], file.name
        assert all(rows.values()), file.name
    assert failed > 15


def test_what_was_lost_is_said_of_each_attempt() -> None:
    counted = OutputReceipt(state="verified", lines=7, checksum="x")
    attempts = (
        AttemptReport(attempt=1, job_name="first", failure_code="pod_lost"),
        AttemptReport(attempt=2, job_name="second", receipt=counted),
    )
    stored = StoredLines({1: 120, 2: 7})
    rows = explain(Outcome(exit_code=1, attempts=attempts, receipt=counted), stored)
    assert rows["output"] == (
        "attempt 1: lines up to number 120 are stored; whether the agent wrote more is not known: its pod did not "
        "report its count\nattempt 2: 7 lines on stdout are stored; nothing was lost: the pod counted the same"
    )
    assert "of the last attempt: exit code 1" in rows["evidence"]
    unfinished = explain(Outcome(attempts=attempts[:1]), StoredLines({1: 120}))["output"]
    assert unfinished.startswith("lines up to number 120 are stored; ")
    assert explain(Outcome(attempts=attempts[:1]), StoredLines())["output"] == "none was written"


def test_output_of_a_store_that_was_not_read_does_not_count_as_unwritten() -> None:
    not_read = "not known: its pod did not report its count, and what is stored was not counted"
    lost = AttemptReport(attempt=1, job_name="first", failure_code="pod_lost")
    assert explain(Outcome(attempts=(lost,)))["output"] == not_read
    assert explain(Outcome(attempts=(lost,), receipt=OutputReceipt()))["output"] == not_read
    assert explain(Outcome())["output"] == "none was written"
