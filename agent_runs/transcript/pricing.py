"""Estimates what a run costs when OpenCode reports no cost.

OpenCode reports 0 for a model without prices in its configuration (a gateway's, for example), and a spend that nobody
sees is worse than an estimate. Prices are in USD per million tokens. Source: the existing adapters' tables.
"""

from decimal import Decimal
from typing import Final, NamedTuple

from agent_runs.contracts.outcome import Usage

MILLION: Final = Decimal(1_000_000)


class Price(NamedTuple):
    """USD per million tokens. A cache write is charged as input: the tables name no price of its own."""

    input: Decimal
    cached_input: Decimal
    output: Decimal


def _price(*usd: str) -> Price:
    return Price(*map(Decimal, usd))


PRICES: Final[dict[str, Price]] = {
    "anthropic/claude-opus-5": _price("5", "0.5", "25"),
    "openai/gpt-5.6-sol": _price("5", "0.5", "30"),
    "openai/gpt-5.6-terra": _price("2.5", "0.25", "15"),
    "openai/gpt-5.6-luna": _price("1", "0.1", "6"),
    "openai/gpt-5.5": _price("3", "0.3", "12"),
    "openai/gpt-5.4": _price("2.5", "0.25", "10"),
    "openai/gpt-5.4-mini": _price("0.5", "0.05", "2"),
    "openai/gpt-5.2-codex": _price("1.5", "0.15", "6"),
}


class Cost(NamedTuple):
    """In US dollars, None when it is not known; `estimated`: by the table."""

    usd: Decimal | None
    estimated: bool = False


def cost_of(model: str, usage: Usage, reported: Decimal | None) -> Cost:
    """The cost of `usage`: OpenCode's own sum, or the table's where that is absent or 0."""
    price = PRICES.get(model)
    if reported or price is None or not usage.total:
        return Cost(reported)
    sum_of_prices = (
        usage.uncached_tokens * price.input
        + usage.cached_input_tokens * price.cached_input
        + usage.output_tokens * price.output
    )
    return Cost(sum_of_prices / MILLION, estimated=True)
