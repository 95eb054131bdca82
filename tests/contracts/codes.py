"""The table of failures in docs/paperclip.md. `python -m tests.contracts.codes` writes it anew."""

import inspect
from pathlib import Path
from typing import Final

from agent_runs.contracts import errors
from agent_runs.contracts.errors import RunError

PAGE: Final = Path(__file__).parents[2] / "docs" / "paperclip.md"
BEGIN: Final = "| `errorCode` | what happened | what to do |\n|---|---|---|\n"


def failures() -> list[type[RunError]]:
    """Every failure that a run can end with, in the order of the contracts."""
    found = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, RunError)]
    return [each for each in found if each is not RunError]


def table() -> str:
    """One row per failure: its code, the first line of its docstring, its next step."""
    return BEGIN + "".join(
        f"| `{each.code}` | {inspect.cleandoc(each.__doc__ or '').splitlines()[0]} | {each.next_step} |\n"
        for each in failures()
    )


def rewritten(page: str) -> str:
    """The page with today's table in place of the one it has."""
    before, _, rest = page.partition(BEGIN)
    lines = rest.splitlines(keepends=True)
    after = next((index for index, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return before + table() + "".join(lines[after:])


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
