"""docs/cli.md: the commands of `agent-runs`, from their own help.

`python -m dev_stack.cli_page` rewrites the committed page; a test keeps it fresh.
"""

from pathlib import Path
from typing import Final

from typer.main import get_group
from typer.testing import CliRunner

from agent_runs.cli.main import app

PAGE_FILE: Final = Path(__file__).parents[1] / "docs" / "cli.md"
WIDTH: Final = 100
"""Columns of the help texts."""

_INTRODUCTION: Final = """# The command line

`python -m dev_stack.cli_page` writes this page from the commands' own help. Commands read the settings of the
[README](../README.md); `agent-runs completion SHELL` prints the script that completes them.

- Exit codes: 0: done; 1: the run failed, or a check found an error; 2: wrong usage, or what was requested cannot be
  done, with the remedy; 70: an error of `agent-runs` itself, whose traceback `AGENT_RUNS_TRACEBACK=1` shows; 130: the
  command was interrupted, and a run that it has started goes on; 141: the reader of the output has gone.
- With `--json` every line on stdout is one JSON object with a `type`; an error is `{"type": "error", "message": …,
  "exitCode": …}`. Nothing else is ever printed there: the log of Temporal's SDK goes to stderr.
- Colours are used in terminals only, and not if `NO_COLOR` is set. Where the output is no terminal, no line is wrapped.
"""


def page_text() -> str:
    names = list(get_group(app).commands)
    parts = [_INTRODUCTION, *(f"## {name}\n```\n{_help(name)}\n```\n" for name in names)]
    return "\n".join(parts)


def _help(command: str) -> str:
    """A command's help text, without blanks at the ends of its lines."""
    answer = CliRunner().invoke(
        app, [command, "--help"], prog_name="agent-runs", env={"COLUMNS": str(WIDTH)}, terminal_width=WIDTH
    )
    return "\n".join(line.rstrip() for line in answer.stdout.strip().splitlines())


if __name__ == "__main__":
    PAGE_FILE.write_text(page_text())
