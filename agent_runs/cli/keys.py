"""`agent-runs sealing-key` and `agent-runs keys`: the public sealing key, and the keys of a worker as manifests."""

import base64
import json
from pathlib import Path
from typing import Any, Final

import typer
import yaml

from agent_runs.cli.program import Refused
from agent_runs.client.settings import ClientSettings
from agent_runs.files import jwks
from agent_runs.paperclip.sealing import SealingKey, parse_keys, public_key
from agent_runs.plain_yaml import load_yaml
from agent_runs.transcript.tokens import new_key

SECRET: Final = "agent-runs-keys"  # noqa: S105 - the name of one
PUBLIC: Final = "agent-runs-public-key"
SEALING, SIGNING, WORKSPACES = "sealing-key.json", "transcripts-key.json", "workspace-key.json"
"""Keys of the Secret: files at which the worker's settings point (`deploy/base/worker.yaml`)."""


def print_public_key() -> int:
    """Print the current public JWK on one line; it is no secret."""
    typer.echo(public_key(ClientSettings.read().sealing_key_file).to_jwk())
    return 0


def print_manifests(namespace: str, previous: Path | None) -> int:
    """Print the Secret with new keys, and a ConfigMap with the public half of the sealing key.

    Args:
        previous: the Secret that is replaced, as `kubectl get secret agent-runs-keys -o yaml` prints it. Its keys stay
            in the new one, behind the new keys, so that what was sealed or signed with them still opens; that of
            workspaces stays the only one, since what is stored has only one.

    Raises:
        Refused: `previous` is no such Secret.
    """
    sealing, signing, workspaces = ([], [], []) if previous is None else _keys_of(previous)
    key = SealingKey.generate()
    data = {
        SEALING: json.dumps({"keys": [json.loads(key.to_jwk()), *sealing]}),
        SIGNING: json.dumps({"keys": [new_key(), *signing]}),
        WORKSPACES: json.dumps({"keys": workspaces or [new_key()]}),
    }
    manifests = [
        _manifest("Secret", SECRET, namespace) | {"type": "Opaque", "stringData": data},
        _manifest("ConfigMap", PUBLIC, namespace) | {"data": {SEALING: key.public.to_jwk()}},
    ]
    typer.echo(yaml.safe_dump_all(manifests, sort_keys=False), nl=False)
    return 0


def _manifest(kind: str, name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}


def _keys_of(file: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """The JWKs of a Secret's entries; that of workspaces may be missing."""
    try:
        data = load_yaml(file.read_text())["data"]
        sealing, signing = (base64.b64decode(data[name]).decode() for name in (SEALING, SIGNING))
        workspaces = jwks(base64.b64decode(data[WORKSPACES]).decode()) if WORKSPACES in data else []
        parse_keys(sealing)
        return jwks(sealing), jwks(signing), workspaces
    except (OSError, KeyError, TypeError, ValueError):
        raise Refused(
            f"--previous {file}: must be the Secret {SECRET}, as `kubectl get secret {SECRET} -o yaml` prints it"
        ) from None
