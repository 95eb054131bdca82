"""docs/failures.md: what `agent-runs show` says of each recorded run that failed.

`python -m tests.histories.explained` rewrites the committed page; a test keeps it fresh.
"""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from agent_runs.client.explanation import StoredLines, explain, meaning_of
from agent_runs.contracts import updates
from agent_runs.contracts.errors import FAILURES
from agent_runs.contracts.outcome import Outcome
from dev_stack.markdown import table

FOLDER: Final = Path(__file__).parent
PAGE_FILE: Final = Path(__file__).parents[2] / "docs" / "failures.md"
_ID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME: Final = re.compile(r"agent-opencode-[0-9a-f-]+[a-z-]*")

_INTRODUCTION: Final = """# Failures

Every failure of a run has a code, a meaning and a next step. `agent-runs show RUN` says for one run what happened,
the evidence, what of its output was lost, what became of its session, and what to do.
`python -m tests.histories.explained` writes this page: what the command says of each recorded run that failed
(tests/histories), then all codes. A code that begins with `opencode_` is any agent's: it is older than the other
agents.

## Recorded runs
"""


def page_text() -> str:
    recorded = [f"### {name}\n{_list(rows)}" for name, rows in _explained()]
    codes = ([f"`{code}`", meaning_of(kind.__doc__), kind.next_step] for code, kind in sorted(FAILURES.items()))
    table_of_codes = table(["Code", "Meaning", "Next step"], codes)
    return "\n".join([_INTRODUCTION, "\n\n".join(recorded), "", "## Codes", table_of_codes])


def _explained() -> Iterator[tuple[str, dict[str, str]]]:
    """Each recorded run that failed, by what makes it different, with its explanation."""
    for file in sorted(FOLDER.glob("*.json")):
        outcome = outcome_of(json.loads(file.read_text()))
        if outcome is not None and outcome.failure is not None:
            rows = explain(outcome, StoredLines())
            yield file.stem.replace("-", " "), {name: _without_ids(text) for name, text in rows.items()}


def outcome_of(history: dict[str, Any]) -> Outcome | None:
    """The outcome with which a recorded run closed, whatever its status; None if it closed without one."""
    payloads: list[dict[str, str]] = []
    for event in history["events"]:
        if completed := event.get("workflowExecutionCompletedEventAttributes"):
            payloads = completed["result"]["payloads"]
        elif failed := event.get("workflowExecutionFailedEventAttributes"):
            payloads = failed["failure"]["applicationFailureInfo"].get("details", {}).get("payloads", [])
        elif memo := event.get("workflowPropertiesModifiedEventAttributes"):
            payloads = [memo["upsertedMemo"]["fields"][updates.OUTCOME]]
    return Outcome.model_validate_json(base64.b64decode(payloads[0]["data"])) if payloads else None


def _without_ids(text: str) -> str:
    """The text without what is new in each recording."""
    return _ID.sub("ID", _NAME.sub("agent-opencode-…", text))


def _list(rows: dict[str, str]) -> str:
    return "\n".join(f"- **{name}**: {'; '.join(text.splitlines())}" for name, text in rows.items())


if __name__ == "__main__":
    PAGE_FILE.write_text(page_text())
