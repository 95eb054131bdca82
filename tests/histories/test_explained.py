"""docs/failures.md is what `explain` says of the recorded runs."""

import json

from agent_runs.client.explanation import explain
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
