"""Estimates what a run costs when OpenCode reports no cost.

OpenCode reports 0 for a model without prices in its configuration (a gateway's, for example), and a spend that nobody
sees is worse than an estimate. Prices are in USD per million tokens. Source: the existing adapters' tables.
"""

from decimal import Decimal
from typing import Final, Literal, NamedTuple

from agent_runs.contracts.outcome import Usage

BillingType = Literal["api", "metered_api", "unknown"]
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


def fallback_cost(model: str | None, usage: Usage) -> Decimal | None:
    """The price of `usage` by the table; None for an unknown model and for no usage."""
    price = PRICES.get(model or "")
    if price is None or not _tokens(usage):
        return None
    uncached = usage.input_tokens + usage.cache_write_tokens
    return (
        uncached * price.input + usage.cached_input_tokens * price.cached_input + usage.output_tokens * price.output
    ) / MILLION


def cost_of(model: str | None, usage: Usage, reported: Decimal | None) -> tuple[Decimal | None, BillingType]:
    """The run's cost and how it is billed: OpenCode's own sum, or the table's where that is absent or 0."""
    if reported:
        return reported, "unknown"
    estimate = fallback_cost(model, usage)
    return (reported, "unknown") if estimate is None else (estimate, "metered_api")


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens + usage.cached_input_tokens + usage.cache_write_tokens
