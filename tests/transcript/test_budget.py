"""A budget is judged by what OpenCode writes: a warning at 80 %, a stop at 100 % of an agent that would go on."""

import json
from typing import Any

import pytest

from agent_runs.contracts.messages import Budget, BudgetLimit
from agent_runs.transcript.budget import UNPRICED, BudgetFinding, judge
from agent_runs.transcript.fold import Fold, Progress
from tests.support.cases import case
from tests.support.lines import file_line
from tests.transcript.event_lines import line, step_finish, step_start, text, tool_use


def after(*lines: bytes) -> Progress:
    fold = Fold()
    for each in lines:
        fold.add(file_line(each))
    return fold.progress


def steps(count: int, **finish: Any) -> list[bytes]:
    return [each for number in range(count) for each in (step_start(), tool_use(n=number), step_finish(**finish))]


def finding(
    budget: Budget, *lines: bytes, earlier: Progress | None = None, warned: tuple[BudgetLimit, ...] = ()
) -> Any:
    attempts = [*([earlier] if earlier else []), after(*lines)]
    return judge(budget, attempts, warned)


@pytest.mark.parametrize(
    ("budget", "finish", "limit", "warning", "exceeded"),
    [
        (
            Budget(max_steps=10),
            {},
            "maxSteps",
            "maxSteps: 8 of 10 steps; at all of it the agent is stopped",
            "maxSteps: 10 of 10 steps; used by this run: 10 steps, 1,000 tokens, no known cost",
        ),
        (
            Budget(max_tokens=10_000),
            {"tokens": 100, "cached": 900},
            "maxTokens",
            "maxTokens: 8,000 of 10,000 tokens; at all of it the agent is stopped",
            "maxTokens: 10,000 of 10,000 tokens; used by this run: 10 steps, 10,000 tokens, no known cost",
        ),
        (
            Budget(max_cost_usd=0.5),
            {"cost": 0.05},
            "maxCostUsd",
            "maxCostUsd: $0.4000 of $0.5000; at all of it the agent is stopped",
            "maxCostUsd: $0.5000 of $0.5000; used by this run: 10 steps, 1,000 tokens, $0.5000",
        ),
    ],
)
def test_people_are_warned_at_80_percent_and_the_agent_is_stopped_at_100(
    budget: Budget, finish: dict[str, Any], limit: BudgetLimit, warning: str, exceeded: str
) -> None:
    assert finding(budget, *steps(7, **finish)) is None
    assert finding(budget, *steps(8, **finish)) == BudgetFinding(warnings=((limit, warning),))
    assert finding(budget, *steps(9, **finish), warned=(limit,)) is None
    assert finding(budget, *steps(10, **finish), warned=(limit,)) == BudgetFinding(exceeded=exceeded)


def test_an_agent_that_finishes_within_its_last_step_is_not_stopped() -> None:
    budget, answer = Budget(max_steps=3), [step_start(), text(), step_finish("stop")]
    assert finding(budget, *steps(2), *answer) is None
    assert finding(budget, *steps(3), *answer) is None
    assert finding(budget, *steps(2), *answer, step_start()).exceeded is not None  # compaction went on


def test_attempts_of_one_run_add_up() -> None:
    budget = Budget(max_steps=10, max_tokens=100_000, max_cost_usd=9)
    found = finding(budget, *steps(4, cost=0.25), earlier=after(*steps(6, cost=0.5)))
    assert found.exceeded == (
        "maxSteps: 10 of 10 steps; used by this run: 10 steps, 1,000 tokens, $4.0000 in 2 attempts"
    )


def test_a_cost_that_nobody_knows_is_said_and_tokens_count_all_the_same() -> None:
    budget = Budget(model="gateway/fast", max_cost_usd=0.5, max_tokens=1000)
    for cost in (0, None):
        found = finding(budget, *steps(3, cost=cost))
        ((limit, warning),) = found.warnings
        assert limit == UNPRICED
        assert warning == (
            "maxCostUsd: not watched for 300 tokens: the agent reports no cost for gateway/fast, and its price is not"
            " known; maxTokens limits tokens"
        )
        assert finding(budget, *steps(3, cost=cost), warned=(UNPRICED,)) is None
        assert finding(budget, *steps(10, cost=cost), warned=(UNPRICED, "maxTokens")).exceeded.startswith("maxTokens: ")


def test_a_model_of_the_price_table_is_watched_without_a_reported_cost() -> None:
    budget = Budget(model="openai/gpt-5.4", max_cost_usd=0.01)
    assert finding(budget, *steps(1, tokens=2000)).exceeded.startswith("maxCostUsd: $0.0125 of $0.0100")


@pytest.mark.parametrize("status", ["completed", "error"])
def test_the_same_call_in_a_row_is_counted_whatever_its_result(status: str) -> None:
    budget, same = Budget(max_repeated_calls=5), {"command": "make", "description": "build"}
    turned = dict(reversed(same.items()))
    calls = [each for _ in range(3) for each in (step_start(), tool_use("bash", status, **same), step_finish())]
    assert finding(budget, *calls) is None
    found = finding(budget, *calls, tool_use("bash", status, **turned))
    assert found.warnings[0][1].startswith("maxRepeatedCalls: 4 of 5 calls of bash in a row with the same input")
    assert finding(
        budget, *calls, *[tool_use("bash", status, **same)] * 1, tool_use("bash", **same)
    ).exceeded.startswith(
        "maxRepeatedCalls: 5 of 5 calls of bash in a row with the same input; used by this run: 3 steps"
    )


@pytest.mark.parametrize(
    "between", [tool_use("bash", command="ls"), tool_use("read", command="make"), line("tool_use", tool="bash")]
)
def test_another_call_begins_a_new_row(between: bytes) -> None:
    same = [tool_use("bash", command="make") for _ in range(4)]
    assert finding(Budget(max_repeated_calls=5), *same, between) is None
    again = [tool_use("bash", command="make") for _ in range(3)]
    assert finding(Budget(max_repeated_calls=5), *same, between, *again) is None


def test_a_call_that_is_reported_twice_counts_once() -> None:
    once = tool_use("bash", command="make")
    assert finding(Budget(max_repeated_calls=3), once, once, once) is None


def test_input_of_any_shape_is_compared_and_a_tool_cannot_write_into_the_message() -> None:
    deep = "[" * 5000 + "]" * 5000
    odd = json.dumps({"type": "tool_use", "part": {"tool": "x\u001b[31m\n" + "y" * 500, "state": {"input": 0}}})
    lines = [odd.replace("0}", f"{deep}}}").encode() for _ in range(2)]
    found = finding(Budget(max_repeated_calls=2), *lines)
    assert found is None or "\x1b" not in found.exceeded
    found = finding(Budget(max_repeated_calls=2), odd.encode(), odd.encode())
    assert "\x1b" not in found.exceeded
    assert "\n" not in found.exceeded
    assert len(found.exceeded) < 300


def test_without_limits_nothing_is_found() -> None:
    assert finding(Budget(model="a/b"), *steps(50)) is None


def test_inputs_of_up_to_64_kib_are_the_same_in_any_order_of_their_keys() -> None:
    for size, same in ((64 * 1024, True), (64 * 1024 + 1, False)):
        given = {"command": "make", "content": ""}
        given["content"] = "x" * (size - len(json.dumps(given)))
        turned = dict(reversed(given.items()))
        found = finding(Budget(max_repeated_calls=2), tool_use("bash", **given), tool_use("bash", **turned))
        with case(size):
            assert (found is not None) == same
