"""Durations, counts and costs as people see them, in a terminal and on a page."""

from datetime import timedelta
from decimal import Decimal
from typing import Final

_SIZES: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


def short_count(number: int) -> str:
    """A number in three digits, never more than it is: 999, 12.3k, 4.56M."""
    for size, letter in _SIZES:
        if number >= size:
            digits = 2 if number < 10 * size else 1 if number < 100 * size else 0
            return f"{number * 10**digits // size / 10**digits:,.{digits}f}{letter}"
    return str(number)


def money(cost: Decimal) -> str:
    """US dollars, enough digits for a short run."""
    return f"${cost:,.2f}" if cost >= 100 else f"${cost:.4f}"


def cost_text(cost: Decimal | None, unpriced: int = 0) -> str:
    """US dollars, with `+?` where a part has no known price; empty: nothing is known."""
    if cost is None:
        return "unpriced" if unpriced else ""
    return money(cost) + ("+?" if unpriced else "")


def duration_text(duration: timedelta) -> str:
    """`4.2 s`, `3 min 20 s`, `2 h 05 min`."""
    seconds = duration.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
