"""Serves transcripts and pages at one address."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

from starlette.applications import Starlette

from agent_runs.client.links import PaperclipPages, load_tokens
from agent_runs.client.settings import ClientSettings
from agent_runs.client.workspaces import open_workspaces
from agent_runs.transcript.store import TranscriptStore
from agent_runs.web.access import Access
from agent_runs.web.operators import Operators
from agent_runs.web.pages import Pages, SecurityHeaders
from agent_runs.web.run_info import RunInfoSource
from agent_runs.web.server import serving
from agent_runs.web.transcripts import POLL, app
from agent_runs.web.workspaces import Workspaces
from agent_runs.workspace.store import WorkspaceStore


@asynccontextmanager
async def transcript_service(
    settings: ClientSettings, store: TranscriptStore, source: RunInfoSource
) -> AsyncIterator[str | None]:
    """Serve at `transcripts_listen` and yield the base URL; without that setting yield None.

    Raises:
        UnusableKey: the key file holds no key that tokens can be signed with.
        SettingsError: the file of the operator token cannot be used.
        CannotListen: the address is in use, or not one of this machine.
    """
    if settings.transcripts_listen is None:
        yield None
        return
    host, _, port = settings.transcripts_listen.rpartition(":")
    async with serving(application(settings, store, source), host.strip("[]"), int(port)) as base:
        yield base


@asynccontextmanager
async def workspace_service(
    settings: ClientSettings, listen: str | None, workspaces: WorkspaceStore | None
) -> AsyncIterator[str | None]:
    """Serve workspaces to pods, and nothing else, at HOST:PORT; without a store yield None. Raises as above."""
    if listen is None or workspaces is None:
        yield None
        return
    host, _, port = listen.rpartition(":")
    service = Workspaces(workspaces, load_tokens(settings)).application
    async with serving(service, host.strip("[]"), int(port)) as base:
        yield base


def application(
    settings: ClientSettings,
    store: TranscriptStore,
    source: RunInfoSource,
    *,
    poll: timedelta = POLL,
) -> Starlette:
    """The ASGI application: the transcript service with the pages of runs."""
    public = urlsplit(settings.transcripts_public_url or "")
    tokens, root, secure = load_tokens(settings), public.path.rstrip("/"), public.scheme == "https"
    operators = Operators.load(settings, tokens, root=root, secure=secure)
    access = Access(tokens, root, secure, operators)
    pages = Pages(store, access, operators, source, PaperclipPages.of(settings), poll)
    workspaces = open_workspaces(settings)
    carried = Workspaces(workspaces, tokens).routes if workspaces else ()
    service = app(store, access, poll=poll, routes=[*pages.routes, *carried], errors=pages.error_response)
    service.add_middleware(SecurityHeaders)
    return service
