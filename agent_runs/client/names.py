"""What people call a run: its agent's name and its task's, in the memo and the summary of its workflow.

Others have typed them, so each is one line of visible characters. `adapter/src/names.ts` writes the same;
`tests/fixtures/run-names.json` has cases for both.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from temporalio.api.common.v1 import Memo

from agent_runs.contracts.start import RunStart
from agent_runs.transcript.events import as_object, shortened
from workflows.attributes import cut

AGENT_NAME: Final = "agentName"
"""Memo key."""
TASK_NAME: Final = "taskName"
"""Memo key."""
MAX_NAME: Final = 100
SUMMARY_BYTES: Final = 180
"""In UTF-8. Temporal refuses a summary of more than 400 bytes of JSON, where a quotation mark has two."""

_INVISIBLE: Final = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ud800-\udfff"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_BLANK: Final = re.compile("[\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


@dataclass(frozen=True)
class RunNames:
    """The names of a run; empty texts where it has none.

    Attributes:
        task: Paperclip's identifier of the task, and its title.
    """

    agent: str = ""
    task: str = ""

    @classmethod
    def of_wake(cls, raw: Mapping[str, Any]) -> Self:
        """The names in Paperclip's execution context."""
        context = as_object(raw.get("context"))
        issues = map(as_object, (context.get("paperclipIssue"), as_object(context.get("paperclipWake")).get("issue")))
        tasks = (" ".join(_line(issue.get(key)) for key in ("identifier", "title")) for issue in issues)
        return cls(_line(as_object(raw.get("agent")).get("name")), next(filter(None, map(_line, tasks)), ""))

    @classmethod
    def of_memo(cls, memo: Memo) -> Self:
        """The names that a workflow was started with."""

        def value(key: str) -> object:
            try:
                return json.loads(memo.fields[key].data) if key in memo.fields else None
            except ValueError:
                return None

        return cls(_line(value(AGENT_NAME)), _line(value(TASK_NAME)))

    @property
    def memo(self) -> dict[str, str]:
        return {key: name for key, name in ((AGENT_NAME, self.agent), (TASK_NAME, self.task)) if name}

    @property
    def title(self) -> str:
        """Both names; empty without any."""
        return " · ".join(filter(None, (self.agent, self.task)))

    def summary(self, start: RunStart) -> str:
        """Markdown for Temporal's Web UI, which shows it as it is; with ids for names that the run does not have."""
        shown = RunNames(self.agent or start.agent_id, self.task or _line(start.task))
        return f"`{cut(shown.title, SUMMARY_BYTES)}`"


def _line(text: object) -> str:
    """A text of people in one line, without what nobody sees; a backquote would end Markdown's code."""
    if not isinstance(text, str):
        return ""
    return shortened(_BLANK.sub(" ", _INVISIBLE.sub("", text)).strip(" ").replace("`", "'"), MAX_NAME)
