"""Puts transcripts and pages behind one address, as the settings say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

from starlette.applications import Starlette

from client.links import tokens
from client.settings import ClientSettings
from transcripts.access import Access
from transcripts.service import KEEP_ALIVE, POLL, app, serving
from transcripts.store import TranscriptStore
from web.facts import Runs
from web.pages import Guarded, Pages


@asynccontextmanager
async def transcript_service(settings: ClientSettings, store: TranscriptStore, runs: Runs) -> AsyncIterator[str | None]:
    """Serve at `transcripts_listen` and give the base URL; without that setting nothing is served.

    Raises:
        UnusableTokenKey: the key file holds no key that tokens can be signed with.
        CannotListen: the address is in use, or none of this machine.
    """
    if settings.transcripts_listen is None:
        yield None
        return
    host, _, port = settings.transcripts_listen.rpartition(":")
    async with serving(application(settings, store, runs), host.strip("[]"), int(port)) as base:
        yield base


def application(
    settings: ClientSettings,
    store: TranscriptStore,
    runs: Runs,
    *,
    poll: timedelta = POLL,
    keep_alive: timedelta = KEEP_ALIVE,
) -> Starlette:
    """The transcript service with the page for people."""
    public = urlsplit(settings.transcripts_public_url or "")
    access = Access(tokens(settings), root=public.path.rstrip("/"), secure=public.scheme == "https")
    pages = Pages(store, access, runs, poll=poll, keep_alive=keep_alive)
    service = app(store, access, poll=poll, keep_alive=keep_alive, routes=pages.routes, errors=pages.refused)
    service.add_middleware(Guarded)
    return service
