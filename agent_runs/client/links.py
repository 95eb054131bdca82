"""Links to pages of a run: the transcript service's, Temporal's, and Paperclip's own.

A link with a token opens that transcript until it expires or is revoked: show it, never log it. Paperclip's addresses
have no company in them: its browser application adds that of the agent or task, and asks for a sign-in where there is
none. Measured: routes `agents/:agentId/runs/:runId` and `issues/:issueId` of `ui-dist` in `@paperclipai/server`
2026.916.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote

from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import RunKey

if TYPE_CHECKING:
    from agent_runs.transcript.tokens import Tokens

_PAPERCLIP_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def page_url(settings: ClientSettings, run: RunKey) -> str | None:
    """The URL of a run's page with a token in it; None without AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL.

    The token's dots are tildes, because Paperclip redacts one with dots, or after `token=`, in a run's log.

    Raises:
        UnusableKey: the key file holds no key.
    """
    if settings.transcripts_public_url is None:
        return None
    return f"{run_url(settings.transcripts_public_url, run)}?open={load_tokens(settings).mint(run).replace('.', '~')}"


def page_url_without_token(settings: ClientSettings) -> Callable[[RunKey], str] | None:
    """A function from run to URL, for current details. None without AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL."""
    base = settings.transcripts_public_url
    return None if base is None else partial(run_url, base)


def load_tokens(settings: ClientSettings) -> Tokens:
    """Load the keys of tokens, which live no longer than transcripts; a missing key file is created.

    In production none is created.
    """
    from agent_runs.transcript.tokens import Tokens  # noqa: PLC0415 - joserfc: what commands without links do without

    longest = settings.transcript_retention
    return Tokens.load(settings.transcripts_key, create=not settings.production, longest=longest)


def run_url(base: str, run: RunKey) -> str:
    """The URL of a run at the transcript service, for programs, which send the token in a header."""
    return f"{base.rstrip('/')}/runs/{quote(run.name, safe='')}"


def usage_url(base: str) -> str:
    """The URL of the usage of runs at the transcript service, for programs that have the key."""
    return f"{base.rstrip('/')}/usage"


def web_ui_url(settings: ClientSettings, workflow_id: str, workflow_run_id: str) -> str | None:
    """The run's page in Temporal's Web UI; None without AGENT_RUNS_WEB_UI."""
    if not settings.web_ui:
        return None
    parts = (settings.temporal.namespace, "workflows", workflow_id, workflow_run_id)
    return "/".join([settings.web_ui.rstrip("/"), "namespaces", *(quote(part, safe="") for part in parts)])


@dataclass(frozen=True)
class PaperclipPages:
    """Creates the links; `base` is Paperclip's address for browsers, None: there are no links."""

    base: str | None = None

    @classmethod
    def of(cls, settings: ClientSettings) -> Self:
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
