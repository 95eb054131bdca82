"""`agent-runs workspace`: writes what an agent left in a carried workspace into a folder."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from agent_runs.cli.display import Display
from agent_runs.cli.program import Refused
from agent_runs.client.connection import connect
from agent_runs.client.links import load_tokens
from agent_runs.client.runs import find_run
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import AttemptKey
from agent_runs.pod.sidecar.workspace import restore, store


async def write(run: str, into: Path, display: Display) -> int:
    """Write the last tree of a run into a new folder."""
    settings = ClientSettings.read()
    if settings.transcripts_public_url is None:
        raise Refused("no workspace service is known: set AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL to the worker's service")
    if not _is_free(into):
        raise Refused(f"--into {into}: is not empty; name a new folder, then take over what is missing")
    key = (await find_run(await connect(settings), run)).key
    token = load_tokens(settings).mint_workspace(AttemptKey(run=key, attempt=0), timedelta(hours=1))
    config = {"url": settings.transcripts_public_url, "token": token, "restore": 0}
    try:
        applied = await asyncio.to_thread(_write, config, into)
    except store.Refused as refused:
        raise Refused(f"run {key.run_id}: {refused.message} ({refused.code})") from None
    except OSError as error:
        raise Refused(f"--into {into}: cannot be written: {error.strerror}") from None
    display.values({"run": key.run_id, "into": str(into), "files": applied.files, "bytes": applied.bytes})
    return 0


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def _write(config: dict[str, Any], into: Path) -> restore.Applied:
    service = store.Store(config, lambda _pause, _since: False)
    try:
        tree = json.loads(service.tree(0))
    finally:
        service.close()
    return restore.apply(tree, {"workspace": str(into.absolute())}, restore.fetching(config, 0))
