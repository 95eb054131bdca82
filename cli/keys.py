"""`agent-runs sealing-key`: the half of the sealing key that callers need, such as Paperclip's server."""

import typer

from client.settings import ClientSettings
from paperclip.sealing import load_or_create


def public() -> int:
    """Prints the current public JWK on one line; it is no secret."""
    settings = ClientSettings.read()
    current, *_ = load_or_create(settings.sealing_key_file, make=not settings.production)
    typer.echo(current.public.to_jwk())
    return 0
