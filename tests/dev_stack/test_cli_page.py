"""docs/cli.md has the help of every command."""

from typer.main import get_group

from agent_runs.cli.main import app
from dev_stack.cli_page import PAGE_FILE, page_text


def test_the_committed_page_is_fresh() -> None:
    assert PAGE_FILE.read_text() == page_text(), "run: python -m dev_stack.cli_page"


def test_every_command_is_on_it_with_an_example() -> None:
    sections = page_text().split("\n## ")[1:]
    assert [each.partition("\n")[0] for each in sections] == list(get_group(app).commands)
    assert all(f"Usage: agent-runs {each.partition(chr(10))[0]}" in each and "Example:" in each for each in sections)
