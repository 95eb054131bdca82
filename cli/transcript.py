"""What a person reads of OpenCode's output, for a terminal: entries as something rich can print.

Agent output is hostile: entries hold no control characters (`opencode.entries`), rich's own markup is not interpreted,
and links are shown as text.
"""

from collections.abc import Iterable
from typing import Final

from markdown_it import MarkdownIt
from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from opencode.entries import Entry


def rendered(entry: Entry) -> RenderableType:
    """The entry for a terminal."""
    match entry.kind:
        case "text":
            return Group(*_with_note(_Words(entry.body), entry))
        case "thinking":
            return Padding(Group(*_with_note(Text(entry.body, style="dim italic"), entry)), (0, 0, 0, 2))
        case "tool":
            return _rendered_tool(entry)
        case "error":
            return Group(Text(f"✗ {entry.title}", style="bold red"), *_indented(entry, style="red"))
        case "step":
            return Text(f"── {entry.title}", style="dim")
        case "log":
            return Text(entry.title, style="dim")
        case "gap":
            return Text(f"✗ {entry.title}", style="bold yellow")


def as_json(entry: Entry) -> dict[str, object]:
    """The entry as plain data: the same text that a terminal shows."""
    return {
        "kind": entry.kind,
        "title": entry.title,
        "body": entry.body,
        "leftOut": entry.left_out,
        "failed": entry.failed,
        "seconds": entry.took.total_seconds() if entry.took is not None else None,
    }


class _Words(Markdown):
    """Markdown in which HTML is text: rich would leave it out, and links are shown, not hidden behind words."""

    _parser: Final = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])

    def __init__(self, markup: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = markup
        self.parsed = self._parser.parse(markup)


def _rendered_tool(entry: Entry) -> RenderableType:
    head = Text("✗ " if entry.failed else "▸ ", style="red" if entry.failed else "cyan")
    head.append(entry.title, style="bold")
    if entry.took is not None:
        head.append(f"  {entry.took.total_seconds():.1f} s", style="dim")
    return Group(head, *_indented(entry, style="red" if entry.failed else "dim"))


def _indented(entry: Entry, style: str) -> Iterable[RenderableType]:
    if entry.body:
        yield Padding(Group(*_with_note(Text(entry.body, style=style), entry)), (0, 0, 0, 4))


def _with_note(shown: RenderableType, entry: Entry) -> Iterable[RenderableType]:
    yield shown
    if entry.left_out:
        yield Text(f"… {entry.left_out:,} more characters", style="dim")
