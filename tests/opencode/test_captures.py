"""Captured turns of OpenCode 2 come to the tokens that their model sent, and to the verdict that a person gave them."""

import json
from typing import Any, Final

import pytest

from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.pod.sidecar.drivers.opencode_server.v2.messages import Messages
from dev_stack.opencode_binary import VERSION_2
from tests.opencode.capture import CASES, FIXTURES
from tests.support.saved_output import fold_chunks

FAILURES: Final = {
    "error-400": "provider_rejected",
    "error-401": "provider_credentials",
    "error-403": "provider_credentials",
    "error-404": "provider_rejected",
    "error-after-a-tool": "provider_credentials",
}
TOOL_ERRORS: Final = {"tool-read-missing", "tool-unknown", "tool-wrong-input", "question"}
OF_MESSAGES: Final = {"step_start", "text", "reasoning", "tool_running", "tool_use", "step_finish"}
"""Types of the lines that are made of the session's messages."""


@pytest.fixture(params=CASES)
def capture(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{request.param}.json").read_text())
    return found


def test_there_is_a_capture_of_each_case_and_of_the_newest_version() -> None:
    files = {file.stem: json.loads(file.read_text())["version"] for file in FIXTURES.glob("*.json")}
    assert files == dict.fromkeys(CASES, VERSION_2)


def test_a_captured_turn_has_the_tokens_that_its_model_sent_and_its_verdict(capture: dict[str, Any]) -> None:
    lines = "".join(f"{json.dumps(line)}\n" for line in capture["lines"])
    report = fold_chunks([lines.encode()], [], None).report(ContainerEnd(exit_code=capture["exit"]))
    assert (report.failure.code if report.failure else None) == FAILURES.get(capture["case"])
    assert bool(report.tool_errors) == (capture["case"] in TOOL_ERRORS)
    sent, used = capture["sent"]["usage"], report.usage
    assert used.input_tokens + used.cached_input_tokens == sent["prompt"]
    counted = (used.cached_input_tokens, used.output_tokens, used.reasoning_tokens)
    assert counted == (sent["cached"], sent["completion"], sent["reasoning"])
    assert report.steps == sum(status == 200 for status in capture["sent"]["answers"])


def test_the_messages_of_a_captured_turn_make_its_lines(capture: dict[str, Any]) -> None:
    """In another order where tools ran at the same time."""
    messages = Messages(capture["session"], capture["prompt"])
    made = [(line.type, line.content["part"]) for message in capture["messages"] for line in messages.add(message)]
    captured = [(line["type"], line["part"]) for line in capture["lines"] if line["type"] in OF_MESSAGES]
    assert sorted((kind, part["id"]) for kind, part in made) == sorted((kind, part["id"]) for kind, part in captured)
    whole = [part for kind, part in made if kind != "tool_running"]  # what has ended says more of its input
    assert all(part in whole for kind, part in captured if kind != "tool_running")
