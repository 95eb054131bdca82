"""Every failure has a name, a next step and a budget."""

import re
from pathlib import Path

from temporalio.exceptions import ApplicationError

from agent_runs.contracts.errors import FAILURES, ClusterUnavailable, RunError, failure_of
from tests.support.cases import case


def test_every_failure_tells_an_operator_what_to_do() -> None:
    for failure in FAILURES.values():
        with case(failure):
            error = failure("why")
            assert error.type == failure.code
            assert error.non_retryable is not failure.retryable
            assert failure.next_step.endswith(".")
            assert failure.as_failure("why").next_step == failure.next_step


def test_codes_are_unique() -> None:
    def classes(root: type[RunError]) -> list[type[RunError]]:
        return [root, *(found for child in root.__subclasses__() for found in classes(child))]

    assert len({found.code for found in classes(RunError)}) == len(classes(RunError))


def test_a_failure_survives_a_process_boundary_by_its_type() -> None:
    assert failure_of(ApplicationError("away", type="k8s_api_unavailable")) == ClusterUnavailable.as_failure("away")


def test_an_unknown_failure_keeps_its_name_and_is_no_success() -> None:
    failure = failure_of(ApplicationError("boom", type="ValueError"))
    assert failure.code == "agent_run_failed"
    assert "ValueError" in failure.message


def test_messages_are_bounded() -> None:
    assert len(RunError.as_failure("x" * 100_000).message) == 2000


def test_each_code_of_the_plugin_is_explained() -> None:
    root = Path(__file__).parents[2]
    sources = (file.read_text() for file in (root / "adapter" / "src").glob("*.ts"))
    codes = {code for source in sources for code in re.findall(r'\{ code: "(\w+)"', source)}
    page = (root / "docs" / "paperclip.md").read_text()
    assert "temporal_refused" in codes
    assert [code for code in codes if code not in FAILURES and f"| `{code}` |" not in page] == []
