"""Trees for tests."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from agent_runs.client.links import load_tokens
from agent_runs.client.settings import ClientSettings
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.pod.sidecar.workspace.store import Store
from agent_runs.workspace.store import WorkspaceStore
from agent_runs.workspace.tree import BLOCK, digest


def blocks_of(content: bytes) -> list[bytes]:
    return [content[start : start + BLOCK] for start in range(0, len(content), BLOCK)]


def tree(files: Mapping[str, bytes]) -> bytes:
    """A tree of files below `workspace`, with their folders."""
    entries: dict[str, dict[str, object]] = {"workspace": {"kind": "dir", "path": "workspace", "mode": 0o755}}
    for name, content in files.items():
        *folders, _ = name.split("/")
        for depth in range(1, len(folders) + 1):
            path = "/".join(("workspace", *folders[:depth]))
            entries[path] = {"kind": "dir", "path": path, "mode": 0o755}
        path = f"workspace/{name}"
        blocks = [digest(block) for block in blocks_of(content)]
        about = {"mode": 0o644, "modified": 1, "size": len(content), "blocks": blocks}
        entries[path] = {"kind": "file", "path": path, **about}
    ordered = sorted(entries.values(), key=lambda entry: str(entry["path"]).replace("/", "\0").encode())
    return json.dumps({"entries": ordered}).encode()


async def stored(store: WorkspaceStore, company: str, files: Mapping[str, bytes]) -> str:
    """The name of a stored tree of these files."""
    await store.add_blocks(company, [block for content in files.values() for block in blocks_of(content)])
    return await store.add_tree(company, tree(files))


def send(settings: ClientSettings, raw: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """The folder of a run goes out, to the service that the settings name, as the plugin sends it before the run."""
    agent = raw["agent"]
    run = RunKey(agent_id=agent["id"], company_id=agent["companyId"], run_id=raw["runId"])
    token = load_tokens(settings).mint_workspace(AttemptKey(run=run, attempt=0), timedelta(minutes=5))
    store = Store({"url": settings.transcripts_public_url, "token": token}, lambda _pause, _since: False)
    store.send(block for content in files.values() for block in blocks_of(content))
    store.add_tree(tree(files), "out", 0, "")
    store.close()
