"""What was captured of the real agents: complete, of the versions that are installed, with the usage that was sent."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from dev_stack.agent_programs import PROGRAMS
from dev_stack.scripted_model import Usage
from tests.agents.launch import KEY
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
def test_the_usage_on_the_wire_is_the_one_that_was_sent(name: str) -> None:
    messages = [line["message"] for line in lines(FIXTURES / name / "text.jsonl") if line["to"] == "client"]
    results = [each["result"] for each in messages if "stopReason" in each.get("result", {})]
    updates = [each["params"]["update"] for each in messages if each.get("method") == "session/update"]
    sent = [Usage(**each["usage"]) for each in meta(name)["cases"]["text"]["sent"] if each["model"] == "scenario/usage"]
    read = spent(name, results, updates)
    assert read.prompt == sum(usage.prompt for usage in sent)
    assert read.cached in (sum(usage.cached for usage in sent), 0)
    assert read.completion in (sum(usage.completion for usage in sent), sum(u.completion - u.reasoning for u in sent))


def spent(name: str, results: Iterable[dict[str, Any]], updates: Iterable[dict[str, Any]]) -> Usage:
    """What the turns with these results and updates used, all together.

    What an agent does not tell is 0: Claude has no count of reasoning, Gemini none of the cache either, and its output
    is without reasoning.
    """
    return _total(_READERS[name](list(results), list(updates)))


def _claude(results: list[dict[str, Any]], _updates: list[dict[str, Any]]) -> Iterator[Usage]:
    for result in results:
        used = result["usage"]
        prompt = used["inputTokens"] + used["cachedReadTokens"] + used["cachedWriteTokens"]
        yield Usage(prompt, used["outputTokens"], used["cachedReadTokens"])


def _gemini(results: list[dict[str, Any]], _updates: list[dict[str, Any]]) -> Iterator[Usage]:
    for result in results:
        used = result["_meta"]["quota"]["token_count"]
        yield Usage(used["input_tokens"], used["output_tokens"])


def _qwen(_results: list[dict[str, Any]], updates: list[dict[str, Any]]) -> Iterator[Usage]:
    for update in updates:
        if used := (update.get("_meta") or {}).get("usage"):
            yield Usage(used["inputTokens"], used["outputTokens"], used["cachedReadTokens"], used["thoughtTokens"])


def _total(parts: Iterable[Usage]) -> Usage:
    total = Usage(0, 0)
    for each in parts:
        total = total.plus(each)
    return total


_READERS: Final[dict[str, Callable[[list[dict[str, Any]], list[dict[str, Any]]], Iterator[Usage]]]] = {
    "claude": _claude,
    "gemini": _gemini,
    "qwen": _qwen,
}
