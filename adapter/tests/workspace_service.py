"""Serves the requests for workspaces from a folder until its standard input ends, and prints its address.

python workspace_service.py FOLDER [BYTES [ENTRIES]]
"""

import asyncio
import math
import sys
from pathlib import Path

from agent_runs.pod.archive import sidecar_archive
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.server import serving
from agent_runs.web.workspaces import Workspaces
from agent_runs.workspace.store import WorkspaceStore
from agent_runs.workspace.tree import Limits


async def main(folder: Path, *limits: str) -> None:
    """The key file is made in the folder, and so is the program of a pod's sidecar."""
    (folder / "sidecar.pyz").write_bytes(sidecar_archive())
    tokens = Tokens.load(folder / "key.json")
    store = WorkspaceStore.open(f"file://{folder}/store", limits=Limits(*map(float, (*limits, math.inf, math.inf)[:2])))
    async with serving(Workspaces(store, tokens).application) as address:
        print(address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
