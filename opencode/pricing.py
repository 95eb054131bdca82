"""What a run costs when OpenCode cannot say, who the provider is, and how large a model's window is.

The prices are a fallback: OpenCode reports 0 for a model without prices in its configuration (a gateway's, for
example), and a spend that nobody sees is worse than an estimate. Prices in USD per million tokens.
Source: the existing adapters' tables.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final, Literal, NamedTuple

from contracts.outcome import Usage

BillingType = Literal["api", "metered_api", "unknown"]
MILLION: Final = Decimal(1_000_000)


class Price(NamedTuple):
    """USD per million tokens. A cache write is charged as input: the tables name no price of its own."""

    fresh: Decimal
    cached: Decimal
    written: Decimal


def _price(fresh: str, cached: str, written: str) -> Price:
    return Price(Decimal(fresh), Decimal(cached), Decimal(written))


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

_PROVIDERS: Final = (
    (re.compile(r"(?:gpt[-.]|chatgpt-|o\d+(?:-|$))|.*codex"), "openai"),
    (re.compile(r"claude[-.]|sonnet|haiku|opus"), "anthropic"),
    (re.compile(r"gemini-"), "google"),
)
_WINDOWS: Final = (
    (re.compile(r"gpt-5\.[56](?:-|$)|gemini-2(?:[-.]|$)"), 1_048_576),
    (re.compile(r"claude-[34](?:[-.]|$)"), 200_000),
    (re.compile(r"gpt-[45](?:[-.]|$)|o[134](?:-|$)"), 128_000),
)
COMPACTION_SHARE: Final = Decimal("0.5")
DEFAULT_THRESHOLD: Final = 90_000


def fallback_cost(model: str | None, usage: Usage) -> Decimal | None:
    """The price of `usage` by the table; None for an unknown model and for no usage."""
    price = PRICES.get(model or "")
    if price is None or not _tokens(usage):
        return None
    fresh = usage.input_tokens + usage.cache_write_tokens
    return (
        fresh * price.fresh + usage.cached_input_tokens * price.cached + usage.output_tokens * price.written
    ) / MILLION


def cost_of(model: str | None, usage: Usage, reported: Decimal | None) -> tuple[Decimal | None, BillingType]:
    """The run's cost and how it is billed: OpenCode's own sum, or the table's where that is absent or 0."""
    if reported:
        return reported, "unknown"
    estimate = fallback_cost(model, usage)
    return (reported, "unknown") if estimate is None else (estimate, "metered_api")


def provider_of(model: str | None) -> str | None:
    """`<provider>/…`, else the provider whose names look like this one; None when nothing does."""
    if model is None:
        return None
    provider, slash, _ = model.partition("/")
    if slash:
        return provider.strip() or None
    name = model.strip().lower()
    return next((provider for pattern, provider in _PROVIDERS if pattern.match(name)), None)


def biller_of(provider: str | None, environment: Mapping[str, str]) -> str | None:
    """Who sends the bill: OpenRouter when the environment points there, else the provider."""
    bases = (environment.get("OPENAI_BASE_URL"), environment.get("OPENAI_API_BASE"))
    if environment.get("OPENROUTER_API_KEY") or any("openrouter.ai" in (base or "") for base in bases):
        return "openrouter"
    return provider


def context_window(model: str | None) -> int | None:
    """Tokens that fit into the model's context window, by its name without the provider; None when unknown."""
    name = (model or "").rpartition("/")[2].lower()
    return next((size for pattern, size in _WINDOWS if pattern.match(name)), None)


def compaction_threshold(model: str | None, configured: float | None = None) -> int:
    """Input tokens above which the next run should start smaller: configured, half the window, or 90,000."""
    if configured is not None and int(configured) > 0:
        return int(configured)
    window = context_window(model)
    return DEFAULT_THRESHOLD if window is None else int(window * COMPACTION_SHARE)


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens + usage.cached_input_tokens + usage.cache_write_tokens
