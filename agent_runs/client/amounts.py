"""Amounts as lists of runs show them, in a terminal and on a page."""

from typing import Final

_SIZES: Final = ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k"))


def short_count(number: int) -> str:
    """A number in three digits, never more than it is: 999, 12.3k, 4.56M."""
    for size, letter in _SIZES:
        if number >= size:
            digits = 2 if number < 10 * size else 1 if number < 100 * size else 0
            return f"{number * 10**digits // size / 10**digits:,.{digits}f}{letter}"
    return str(number)
