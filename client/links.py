"""Links to a run's own page. Whoever has one reads that transcript until it expires: show links, never log them."""

from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from client.settings import ClientSettings
from transcripts.tokens import Tokens


def page(settings: ClientSettings, run_id: str) -> str | None:
    """The page of a run with a token in it; None when we do not know where pages are served.

    Raises:
        UnusableTokenKey: the key file holds no key.
    """
    if settings.transcripts_public_url is None:
        return None
    return f"{run_url(settings.transcripts_public_url, run_id)}?token={tokens(settings).mint(run_id)}"


def addresses(settings: ClientSettings) -> Callable[[str], str] | None:
    """The page of a run by its id, without a token: for cards and histories. None when nobody serves pages."""
    base = settings.transcripts_public_url
    return None if base is None else partial(run_url, base)


def tokens(settings: ClientSettings) -> Tokens:
    """What makes and checks tokens; makes its key if it is missing, unless in production."""
    return Tokens.from_file(settings.transcripts_key, make=not settings.production)


def run_url(base: str, run_id: str) -> str:
    """A run's address at the service, for programs, which send the token in a header."""
    return f"{base.rstrip('/')}/runs/{quote(run_id, safe='')}"
