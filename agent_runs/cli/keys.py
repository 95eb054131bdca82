"""`agent-runs sealing-key`: the public sealing key, which callers such as Paperclip's server need."""

import typer

from agent_runs.client.settings import ClientSettings
from agent_runs.paperclip.sealing import load_or_create


def print_public_key() -> int:
    """Print the current public JWK on one line; it is no secret."""
    settings = ClientSettings.read()
    current, *_ = load_or_create(settings.sealing_key_file, create=not settings.production)
    typer.echo(current.public.to_jwk())
    return 0
