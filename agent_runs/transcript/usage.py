"""What a list of runs shows of each attempt's output: tokens, steps, cost, model, last output.

It is in the attempt's own row, so that retention deletes it with the attempt, and a write of it costs no transaction
where lines are written anyway. Nothing here loads SQLAlchemy, which callers of the transcript service do without.
"""

from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, Final

from agent_runs.contracts.identity import RunKey

MICROS: Final = 1_000_000
"""Micro-dollars in a US dollar: the cost is a whole number of them, so that sums are exact in every database."""
MAX_TOKENS: Final = 10**12
"""Of one attempt; the store adds up a million attempts in 64 bits, whatever an agent claims."""
MAX_COST: Final = Decimal(1_000_000)
"""US dollars of one attempt; see `MAX_TOKENS`."""
MAX_TEXT: Final = 1000
"""Characters of the model and of the last output."""

COLUMNS: Final = ("input_tokens", "cached_tokens", "output_tokens", "steps", "cost_micros", "model", "last_output")


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """The usage of one attempt, as far as its output was read.

    Attributes:
        input_tokens: uncached, with those that were written to the cache.
        cost_usd: None when the model has no known price.
        last_output: for people, one line; redacted by whoever writes it.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    cost_usd: Decimal | None = None
    model: str = ""
    last_output: str = ""

    def row(self) -> dict[str, Any]:
        """The values of `COLUMNS`; None keeps what is stored."""
        return {
            "input_tokens": min(self.input_tokens, MAX_TOKENS),
            "cached_tokens": min(self.cached_tokens, MAX_TOKENS),
            "output_tokens": min(self.output_tokens, MAX_TOKENS),
            "steps": min(self.steps, MAX_TOKENS),
            "cost_micros": None if self.cost_usd is None else to_micros(self.cost_usd),
            "model": self.model[:MAX_TEXT] or None,
            "last_output": self.last_output[:MAX_TEXT] or None,
        }


@dataclass(frozen=True, slots=True)
class RunUsage:
    """The usage of one run: the sums over its attempts, model and last output of the newest one that has them.

    Attributes:
        attempts: that the store knows.
        cost_usd: the priced part; None when no attempt has a price.
        unpriced: attempts that used tokens of a model without a known price.
        opened_at: when the first attempt was opened.
        newest_at: when the newest attempt was.
        last_at: of the newest line; None without output.
        sealed: the newest attempt has its receipt.
    """

    run_id: str
    agent_id: str
    company_id: str
    attempts: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    steps: int
    cost_usd: Decimal | None
    unpriced: int
    model: str
    last_output: str
    opened_at: datetime
    newest_at: datetime
    last_at: datetime | None
    sealed: bool

    @property
    def key(self) -> RunKey:
        return RunKey(agent_id=self.agent_id, company_id=self.company_id, run_id=self.run_id)

    @property
    def tokens(self) -> int:
        """All tokens: uncached input, cached input and output."""
        return self.input_tokens + self.cached_tokens + self.output_tokens

    def for_programs(self) -> dict[str, Any]:
        """The usage as JSON data; the cost is a text, because it is exact."""
        return {
            "attempts": self.attempts,
            "inputTokens": self.input_tokens,
            "cachedInputTokens": self.cached_tokens,
            "outputTokens": self.output_tokens,
            "steps": self.steps,
            "costUsd": None if self.cost_usd is None else str(self.cost_usd),
            "unpricedAttempts": self.unpriced,
            "model": self.model,
            "lastOutput": self.last_output,
        }


@dataclass(frozen=True, slots=True)
class Total:
    """The totals of one agent, company or day (`2026-01-31`, UTC). `unpriced`: attempts without a known price."""

    name: str
    runs: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_usd: Decimal | None
    unpriced: int

    @property
    def tokens(self) -> int:
        """All tokens: uncached input, cached input and output."""
        return self.input_tokens + self.cached_tokens + self.output_tokens


def to_micros(cost: Decimal) -> int:
    """US dollars as micro-dollars, rounded to the nearest."""
    return int((min(max(cost, Decimal(0)), MAX_COST) * MICROS).to_integral_value(ROUND_HALF_EVEN))


def from_micros(micros: int | None) -> Decimal | None:
    """Micro-dollars as US dollars, exactly."""
    return None if micros is None else Decimal(micros) / MICROS
