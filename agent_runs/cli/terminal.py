"""Renders the entries of OpenCode's output for a terminal.

Agent output is hostile: entries hold no control characters (`agent_runs.transcript.entries`), rich's own markup is
not interpreted, and links are shown as text.
"""

from collections.abc import Iterable
from typing import Final

from markdown_it import MarkdownIt
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from agent_runs.transcript.entries import Entry


def render(entry: Entry, *, markdown: bool = True) -> RenderableType:
    """An entry as it is shown; without `markdown` the text of the agent is as it wrote it."""
    match entry.kind:
        case "text":
            return Group(*_with_note(_SafeMarkdown(entry.body) if markdown else Text(entry.body), entry))
        case "thinking":
            return _shifted(2, _with_note(Text(entry.body, style="dim italic"), entry))
        case "tool":
            return _render_tool(entry)
        case "error":
            return Group(Text(f"✗ {entry.title}", style="bold red"), *_indented(entry, style="red"))
        case "step":
            return Text(f"── {entry.title}", style="dim")
        case "log":
            return Text(entry.title, style="dim")
        case "gap":
            return Text(f"✗ {entry.title}", style="bold yellow")


class _SafeMarkdown(Markdown):
    """Markdown in which HTML is text (rich would drop it) and link targets are visible."""

    _parser: Final = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])

    def __init__(self, markup: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = markup
        self.parsed = self._parser.parse(markup)


def _render_tool(entry: Entry) -> RenderableType:
    head = Text("✗ " if entry.failed else "▸ ", style="red" if entry.failed else "cyan")
    head.append(entry.title, style="bold")
    if entry.duration is not None:
        head.append(f"  {entry.duration.total_seconds():.1f} s", style="dim")
    return Group(head, *_indented(entry, style="red" if entry.failed else "dim"))


def _indented(entry: Entry, style: str) -> Iterable[RenderableType]:
    if entry.body:
        yield _shifted(4, _with_note(Text(entry.body, style=style), entry))


def _shifted(columns: int, shown: Iterable[RenderableType]) -> RenderableType:
    return Padding(Group(*shown), (0, 0, 0, columns), expand=False)


def _with_note(shown: RenderableType, entry: Entry) -> Iterable[RenderableType]:
    yield shown
    if entry.left_out:
        yield Text(f"… {entry.left_out:,} more characters", style="dim")
