"""The names of a run's agent and task, for people: they stand in the memo and the summary of its workflow.

They are texts of others, and Temporal's Web UI renders a summary as Markdown. `adapter/src/names.ts` has the same
rules.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self
from unicodedata import category

from temporalio.client import WorkflowExecution

AGENT_NAME: Final = "agent_name"
TASK_NAME: Final = "task_name"
"""Memo keys."""
NAME_LIMIT: Final = 100
"""Characters of a name."""
_MARKDOWN: Final = frozenset("\\`*_[]<>~#|&")
"""Markdown's own characters: a name has none of them, nor any that a terminal acts on or that nobody sees."""
_LIST_MARKS: Final = "-+ "
"""They begin a list."""


@dataclass(frozen=True)
class Names:
    """The names of a run; empty where there are none, or where the caller leaves them out.

    Attributes:
        task: identifier and title, such as `ACM-7 A long task`.
    """

    agent: str = ""
    task: str = ""

    @classmethod
    def in_context(cls, raw: Mapping[str, Any]) -> Self:
        """The names in Paperclip's execution context."""
        context = _object(raw.get("context"))
        issue = _object(context.get("paperclipIssue")) or _object(_object(context.get("paperclipWake")).get("issue"))
        task = " ".join(text for key in ("identifier", "title") if isinstance(text := issue.get(key), str))
        return cls(plain(_object(raw.get("agent")).get("name")), plain(task))

    @classmethod
    async def in_memo(cls, execution: WorkflowExecution) -> Self:
        """The names in a run's memo. Any caller can write the memo, so a value that is not text is ignored."""
        names = {AGENT_NAME: "", TASK_NAME: ""}
        for key in names:
            with suppress(KeyError, RuntimeError, ValueError):
                names[key] = plain(await execution.memo_value(key, default=""))
        return cls(*names.values())

    @property
    def memo(self) -> Mapping[str, str]:
        return {key: name for key, name in ((AGENT_NAME, self.agent), (TASK_NAME, self.task)) if name}

    def title(self, agent_id: str, task: str | None) -> str:
        """Agent and task, by their ids where they have no names."""
        return " · ".join(filter(None, (self.agent or plain(agent_id), self.task or plain(task))))


def plain(text: object) -> str:
    """One line of at most `NAME_LIMIT` characters, which is the same as plain text and as Markdown."""
    if not isinstance(text, str):
        return ""
    kept = (" " if each in _MARKDOWN or category(each)[0] in "CZ" else each for each in text[: 4 * NAME_LIMIT])
    return " ".join("".join(kept).split()).lstrip(_LIST_MARKS)[:NAME_LIMIT].rstrip()


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
