"""The current details of a run: links of ours can be clicked, and nothing else can."""

import pytest

from agent_runs.contracts.outcome import Report, Usage
from agent_runs.contracts.start import RunStart
from workflows.current_details import CurrentDetails, Phase

START = RunStart(run_id="run-1", agent_id="ada", company_id="acme", sealed="x")
PAGE = "https://runs.example/here/runs/7d6733a4-a207-4bf9-87db-cf32e87a5407"


def test_the_address_of_the_runs_page_is_a_link() -> None:
    details = CurrentDetails.of(START).in_phase(Phase.SCHEDULING, transcript=PAGE)
    assert f"- **transcript**: [{PAGE}]({PAGE})" in details.markdown


@pytest.mark.parametrize(
    "text", ["javascript:alert(1)", f"{PAGE}) [x](https://evil.example", f"{PAGE}\n# title", "http://a b", "ftp://a"]
)
def test_what_is_no_plain_address_is_quoted(text: str) -> None:
    details = CurrentDetails.of(START).in_phase(Phase.SCHEDULING, transcript=text)
    [line] = [line for line in details.markdown.splitlines() if "transcript" in line]
    assert line.startswith("- **transcript**: `")
    assert line.endswith("`")


def test_an_address_in_another_value_is_quoted() -> None:
    details = CurrentDetails.of(START).in_phase(Phase.RUNNING, failure=PAGE)
    assert f"- **failure**: `{PAGE}`" in details.markdown


def test_the_next_attempt_has_nothing_of_the_pod_of_the_last_one() -> None:
    details = CurrentDetails.of(START).in_phase(Phase.SCHEDULING, job="agents/first", transcript=PAGE)
    assert "- **why it waits**: `the last heartbeat of await_schedule" in details.markdown
    running = details.in_phase(Phase.RUNNING, pod="first-1", node="worker-1", stopping="PodLost")
    assert "- **pod**: `first-1`" in running.markdown
    assert "why it waits" not in running.markdown
    second = running.in_phase(Phase.PREPARING, attempt="2, because of pod_lost")
    assert second.values == {"attempt": "2, because of pod_lost", "transcript": PAGE}


def test_tokens_that_were_written_to_the_cache_are_input() -> None:
    usage = Usage(input_tokens=10, cache_write_tokens=4, cached_input_tokens=3, output_tokens=2)
    details = CurrentDetails.of(START).with_report(Report(usage=usage))
    assert details.values["tokens"] == "14 in, 3 cached, 2 out"
