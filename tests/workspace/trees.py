"""Trees for tests."""

import json
from collections.abc import Mapping

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
