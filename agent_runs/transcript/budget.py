"""What a run has used of its budget: steps, tokens, cost, and repetitions of one tool call. Pure.

Steps of sub-agents count where OpenCode is driven through its server: `opencode run` writes nothing of them.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from agent_runs.contracts.messages import Budget, BudgetLimit
from agent_runs.transcript.events import printable
from agent_runs.transcript.fold import TOOL_NAME_LIMIT, Progress, RepeatedCall
from agent_runs.transcript.pricing import cost_of

WARNING_SHARE: Final = Decimal("0.8")
"""Of a limit: people are warned from there on."""
UNPRICED: Final = "maxCostUsd without a price"


@dataclass(frozen=True)
class Spend:
    """What a run has used, all attempts together.

    Attributes:
        cost: in USD; None: no step has a cost or a known price.
        unpriced: tokens whose cost is not known.
    """

    steps: int
    tokens: int
    cost: Decimal | None
    unpriced: int
    attempts: int

    @classmethod
    def of(cls, model: str, attempts: Sequence[Progress]) -> "Spend":
        tokens = [attempt.usage.total for attempt in attempts]
        costs = [cost_of(model, attempt.usage, attempt.cost_usd).usd for attempt in attempts]
        known = [cost for cost in costs if cost]
        return cls(
            steps=sum(attempt.steps for attempt in attempts),
            tokens=sum(tokens),
            cost=sum(known, Decimal(0)) if known else None,
            unpriced=sum(count for count, cost in zip(tokens, costs, strict=True) if not cost),
            attempts=len(attempts),
        )

    def __str__(self) -> str:
        cost = f"${self.cost:.4f}" if self.cost is not None else "no known cost"
        attempts = f" in {self.attempts} attempts" if self.attempts > 1 else ""
        steps = f"{self.steps:,} step{'s' * (self.steps != 1)}"
        return f"{steps}, {self.tokens:,} tokens, {cost}{attempts}"


@dataclass(frozen=True)
class Share:
    """How much of one limit is used. `text` has both, such as `8 of 10 steps`."""

    limit: BudgetLimit
    used: Decimal
    allowed: Decimal
    text: str


@dataclass(frozen=True)
class BudgetFinding:
    """What is to be done about a budget.

    Attributes:
        exceeded: why the agent is to be stopped; None: it may go on.
        warnings: by the limit that they are about.
    """

    exceeded: str | None = None
    warnings: tuple[tuple[BudgetLimit, str], ...] = ()


def judge(budget: Budget, attempts: Sequence[Progress], warned: Collection[BudgetLimit] = ()) -> BudgetFinding | None:
    """What is to be done about a run that has used so much; None: nothing.

    A run that has finished by itself is left alone, also at its limit: a step is over when all of it was paid for.

    Args:
        attempts: of the run, the newest one last.
        warned: the limits of which people have been warned.
    """
    now = attempts[-1]
    if not now.continues:
        return None
    spend = Spend.of(budget.model, attempts)
    shares = list(_shares(budget, spend, now.repeated))
    if exceeded := [share for share in shares if share.used >= share.allowed]:
        limits = "; ".join(f"{share.limit}: {share.text}" for share in exceeded)
        return BudgetFinding(exceeded=f"{limits}; used by this run: {spend}")
    near: dict[BudgetLimit, str] = {
        share.limit: f"{share.limit}: {share.text}; at all of it the agent is stopped"
        for share in shares
        if share.used >= share.allowed * WARNING_SHARE
    }
    if budget.max_cost_usd and spend.unpriced:
        near[UNPRICED] = (
            f"maxCostUsd: not watched for {spend.unpriced:,} tokens: the agent reports no cost for {budget.model},"
            " and its price is not known; maxTokens limits tokens"
        )
    warnings = tuple(each for each in near.items() if each[0] not in warned)
    return BudgetFinding(warnings=warnings) if warnings else None


def _shares(budget: Budget, spend: Spend, repeated: RepeatedCall) -> Iterator[Share]:
    if budget.max_cost_usd and spend.cost is not None:
        maximum = Decimal(repr(budget.max_cost_usd))
        yield Share("maxCostUsd", spend.cost, maximum, f"${spend.cost:.4f} of ${maximum:.4f}")
    counted: tuple[tuple[BudgetLimit, int, int, str], ...] = (
        ("maxTokens", spend.tokens, budget.max_tokens, "tokens"),
        ("maxSteps", spend.steps, budget.max_steps, "steps"),
        (
            "maxRepeatedCalls",
            repeated.times,
            budget.max_repeated_calls,
            f"calls of {' '.join(printable(repeated.tool, TOOL_NAME_LIMIT).split())} in a row with the same input",
        ),
    )
    for limit, used, allowed, unit in counted:
        if allowed:
            yield Share(limit, Decimal(used), Decimal(allowed), f"{used:,} of {allowed:,} {unit}")
