"""Each rule is checked with two agents, and each agent by several rules."""

from collections import Counter

import pytest

from dev_stack.agent_programs import PROGRAMS
from tests.support.agent_samples import left_out

RULES = [f"tests/test_a.py::test_{number}" for number in range(50)]


def test_two_agents_check_each_rule_and_each_agent_is_checked_by_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_ALL_AGENTS", raising=False)
    tests = {f"{rule}[{agent}-killed]": agent for rule in RULES for agent in PROGRAMS}
    kept = set(tests) - left_out(tests)
    assert set(Counter(test.partition("[")[0] for test in kept).values()) == {2}
    assert min(Counter(tests[test] for test in kept).values()) > len(RULES) / len(PROGRAMS)


def test_of_the_models_of_an_agent_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_ALL_AGENTS", raising=False)
    tests = {f"{RULES[0]}[{agent}-provider/{model}]": agent for agent in PROGRAMS for model in "abc"}
    kept = set(tests) - left_out(tests)
    assert len({tests[test] for test in kept}) == len(kept) == 2


def test_a_rule_of_one_agent_is_checked_with_it() -> None:
    assert left_out({f"{RULES[0]}[pi]": "pi"}) == set()


def test_all_agents_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_ALL_AGENTS", "1")
    assert left_out({f"{RULES[0]}[{agent}]": agent for agent in PROGRAMS}) == set()
