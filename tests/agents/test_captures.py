"""What was captured of the real agents: complete, of the versions that are installed, with the usage that was sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from dev_stack.agent_programs import PROGRAMS
from dev_stack.scripted_model import Usage
from tests.agents.launch import KEY
from tests.agents.usage import spent
from tests.support.cases import case

FIXTURES = Path(__file__).parents[1] / "fixtures" / "agents"
CAPTURES = sorted(FIXTURES.glob("*/*.jsonl"))


def lines(capture: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capture.read_text().splitlines()]


def meta(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / name / "meta.json").read_text())
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_captures_are_of_the_versions_that_are_installed(name: str) -> None:
    wanted = json.loads((PROGRAMS[name].manifest / "package.json").read_text())["dependencies"]
    assert meta(name)["versions"] == wanted
    assert set(meta(name)["cases"]) == {capture.stem for capture in CAPTURES if capture.parent.name == name}


def test_a_capture_is_a_conversation_in_order_and_without_the_key() -> None:
    for capture in CAPTURES:
        with case(capture):
            assert KEY not in capture.read_text()
            conversation = lines(capture)
            assert [line["at"] for line in conversation] == sorted(line["at"] for line in conversation)
            assert {line["to"] for line in conversation} == {"agent", "client"}
            asked = {
                line["message"]["id"]
                for line in conversation
                if line["to"] == "agent" and "method" in line["message"] and "id" in line["message"]
            }
            answered = {
                line["message"]["id"]
                for line in conversation
                if line["to"] == "client" and "method" not in line["message"]
            }
            assert answered <= asked
            assert 1 in answered


@pytest.mark.parametrize("name", ["claude", "gemini", "qwen"])
def test_the_usage_on_the_wire_is_the_one_that_was_sent(name: str, tmp_path: Path) -> None:
    messages = [line["message"] for line in lines(FIXTURES / name / "text.jsonl") if line["to"] == "client"]
    results = [each["result"] for each in messages if "stopReason" in each.get("result", {})]
    updates = [each["params"]["update"] for each in messages if each.get("method") == "session/update"]
    sent = [Usage(**each["usage"]) for each in meta(name)["cases"]["text"]["sent"] if each["model"] == "scenario/usage"]
    read = spent(name, results, updates, tmp_path)
    assert read.prompt == sum(usage.prompt for usage in sent)
    assert read.cached in (sum(usage.cached for usage in sent), 0)
    assert read.completion in (sum(usage.completion for usage in sent), sum(u.completion - u.reasoning for u in sent))
