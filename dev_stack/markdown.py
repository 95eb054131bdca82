"""Markdown of the pages that are generated."""

from collections.abc import Iterable


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, each line with its end."""
    columns = list(head)
    return "".join(map(_line, [columns, ["---"] * len(columns), *rows]))


def _line(cells: Iterable[str]) -> str:
    texts = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(texts)} |\n"
