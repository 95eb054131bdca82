"""Tests that check one rule for many inputs in a loop."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Whatever fails for these values, the report of the failure names them."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(f'{value!r:.500}' for value in values)}")
        raise
