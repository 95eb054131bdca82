"""Links to Paperclip's own pages: of a run, and of the task it works on.

The addresses have no company in them: Paperclip's browser application adds that of the agent or task, and asks for a
sign-in where there is none. Measured: routes `agents/:agentId/runs/:runId` and `issues/:issueId` of `ui-dist` in
`@paperclipai/server` 2026.916.1.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from agent_runs.client.settings import ClientSettings

_PAPERCLIP_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


@dataclass(frozen=True)
class PaperclipPages:
    """Creates the links; `base` is Paperclip's address for browsers, None: there are no links."""

    base: str | None = None

    @classmethod
    def of(cls, settings: ClientSettings) -> Self:
        """As AGENT_RUNS_PAPERCLIP_PAGES_URL says."""
        return cls(settings.paperclip_pages_url)

    def run(self, agent_id: str, run_id: str) -> str | None:
        """The page of an agent's run; None for ids that are none of Paperclip's, which are UUIDs."""
        return self._page("agents", agent_id, "runs", run_id)

    def task(self, task_key: str | None) -> str | None:
        """The page of a task; None for a key that is no task's id, such as that of heartbeats."""
        return self._page("issues", task_key or "")

    def _page(self, *parts: str) -> str | None:
        if self.base is None or not all(_PAPERCLIP_ID.fullmatch(part) for part in parts[1::2]):
            return None
        return "/".join((self.base.rstrip("/"), *parts))
