"""Canaries in every input that holds a secret: none is in the workspace store, unless the agent wrote it there."""

import json
import shlex
import sys
import uuid
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from temporalio.client import Client

from agent_runs.client.links import load_tokens
from agent_runs.client.workspaces import open_workspaces
from agent_runs.transcript.tokens import new_key
from agent_runs.web.server import serving
from agent_runs.web.workspaces import Workspaces
from agent_runs.workspace.store import WorkspaceStore
from tests.runs.system import System, answer_script, attempt_key, open_system
from tests.runs.test_carried_runs import sent
from tests.security import canaries as planted
from tests.security.canaries import BEACON, QUOTES, Record

CANARIES = planted.of_run("workspaces")
JOINED = {"joined auth token", "joined tools token"}
"""Which only a later wake has."""


@pytest.fixture
async def carried(
    temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[System, WorkspaceStore]]:
    """A worker with secrets of its own that agents get, and an encrypted store."""
    provider, key = tmp_path / "provider.json", tmp_path / "workspace-key.json"
    provider.write_text(json.dumps(planted.provider(CANARIES)))
    key.write_text(json.dumps(new_key()))

    async def own_pod() -> dict[str, Any]:
        return planted.own_pod(CANARIES)

    async with open_system(temporal, tmp_path) as opened:
        store = {"workspace_store": f"file://{tmp_path}/workspaces", "workspace_key_file": key}
        system = opened.changed(opencode_config=provider, paperclip_api_url=None, **store)
        workspaces = open_workspaces(system.settings)
        assert workspaces is not None
        monkeypatch.setattr(system.kubernetes, "own_pod", own_pod)
        async with serving(Workspaces(workspaces, load_tokens(system.settings)).application) as base:
            system.settings = system.settings.model_copy(update={"workspace_url": base})
            async with system.worker():
                yield system, workspaces


async def contents(store: WorkspaceStore, company: str) -> dict[str, bytes]:
    """All objects by their paths, decrypted and unpacked."""
    found = {each["path"] async for page in obstore.list(store.objects) for each in page}
    plain = {path: store._get(company, path) for path in found}
    return {path: zlib.decompress(each) if "/trees/" in path else each for path, each in plain.items()}


async def test_no_secret_is_in_the_workspace_store_unless_the_agent_wrote_it_into_its_files(
    carried: tuple[System, WorkspaceStore], tmp_path: Path
) -> None:
    system, store = carried
    script, reached = tmp_path / "quotes.py", tmp_path / "reached"
    script.write_text(QUOTES.format(reached=str(reached), beacon=BEACON))
    leaks = 'if [ -e leaks ]; then echo "$SERVICE_TOKEN" > leaked; fi'
    keeps = f"echo {BEACON} > written; echo {BEACON} > /opencode-db/kept"
    work = f"cat > /dev/null; {shlex.quote(sys.executable)} {script}; {keeps}; {leaks}; {answer_script('Done.')}"
    async with Record(system).recording() as record:
        first = await finished(system, store, work, {"given": b"one"})
        found = await contents(store, attempt_key(first).run.company_id)
        assert {source for _, source in planted.shown({"": reached.read_bytes()}, CANARIES)} == {*CANARIES} - JOINED
        assert sum(BEACON.encode() in content for content in found.values()) >= 1
        assert planted.shown(found, CANARIES) == set()
        tokens = [line for line in record.secrets.split(b'"') if line.startswith(b"eyJ")]
        assert tokens  # of the pod, for workspaces; and the sealed text, which begins so, too
        assert [path for path, content in found.items() if any(each in content for each in (*tokens, b"eyJ"))] == []
        await finished(system, store, work, {"given": b"one", "leaks": b"yes"})
    found = await contents(store, attempt_key(first).run.company_id)
    assert {source for _, source in planted.shown(found, CANARIES)} == {"plain variable"}


async def finished(system: System, store: WorkspaceStore, work: str, files: dict[str, bytes]) -> dict[str, Any]:
    raw = system.agent(work)
    planted.plant(raw, CANARIES)
    raw["config"]["workspace"] = "carried"
    raw["context"]["paperclipWorkspace"]["cwd"] = f"/projects/{uuid.uuid4()}"
    await sent(store, raw, files)
    assert (await system.outcome(raw)).failure is None
    return raw
