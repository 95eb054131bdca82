"""What a run of another agent says: nothing that sends its reader to OpenCode."""

import itertools
import json

from agent_runs.contracts.errors import FAILURES
from agent_runs.contracts.outcome import ContainerEnd
from tests.conftest import FIXTURES
from tests.support.saved_output import fold_chunks

CAPTURES = sorted(file.parent for file in (FIXTURES / "opencode").glob("*/events.jsonl"))
ENDS = (
    *(ContainerEnd(exit_code=code) for code in (0, 1, 3, 126, 137, 143, None)),
    ContainerEnd(exit_code=1, reason="Error"),
    ContainerEnd(exit_code=137, reason="OOMKilled"),
    ContainerEnd(exit_code=0, reason="OOMKilled"),
    *(ContainerEnd(exit_code=1, runner_error=error) for error in ("disk_full", "sidecar", "agent_lost")),
)


def test_messages_name_the_agent_that_ran() -> None:
    assert CAPTURES
    for capture in CAPTURES:
        events = (capture / "events.jsonl").read_bytes()
        for output, resumed in itertools.product((events, events[:-20], b""), (None, "old session")):
            fold = fold_chunks([output], resumed_session=resumed)
            for end in ENDS:
                for missing in ("nothing", "end"):
                    report = fold.report(end, missing=missing, verified=True, agent="Claude Code")
                    said = [*report.warnings, report.failure.message if report.failure else ""]
                    assert "OpenCode" not in json.dumps(said), [capture.name, end, said]


def test_a_next_step_is_right_for_every_agent() -> None:
    assert [code for code, failure in FAILURES.items() if "OpenCode" in failure.next_step] == []
