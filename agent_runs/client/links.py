"""Links to a run's page.

A link with a token opens that transcript until it expires or is revoked: show it, never log it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import RunKey

if TYPE_CHECKING:
    from agent_runs.transcript.tokens import Tokens


def page_url(settings: ClientSettings, run: RunKey) -> str | None:
    """The URL of a run's page with a token in it; None without AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL.

    Raises:
        UnusableKey: the key file holds no key.
    """
    if settings.transcripts_public_url is None:
        return None
    return f"{run_url(settings.transcripts_public_url, run)}?token={load_tokens(settings).mint(run)}"


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
