"""Runs whose folder is carried: it goes out, what the agent did is kept, and the next attempt goes on from there."""

import asyncio
import hashlib
import shlex
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.cli import workspaces
from agent_runs.cli.display import display
from agent_runs.cli.program import Refused
from agent_runs.client.explanation import explain
from agent_runs.client.links import load_tokens
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.workspaces import open_workspaces
from agent_runs.contracts.errors import InvalidRequest, WorkspaceNotCarried, WorkspaceNotRestored
from agent_runs.web.server import serving
from agent_runs.web.workspaces import Workspaces
from agent_runs.workspace.store import Record, WorkspaceStore
from agent_runs.workspace.tree import File, Tree
from dev_stack.demo import later_context
from tests.runs.system import System, answer_script, attempt_key, open_system
from tests.support.ends import assert_verified
from tests.transcript.event_lines import line
from tests.workspace.trees import stored

FILES = {"kept": b"one", "gone": b"two", "folder/deep": b"three" * 100_000}


@asynccontextmanager
async def carrying(temporal: Client, folder: Path) -> AsyncIterator[tuple[System, WorkspaceStore]]:
    """A system with a workspace store in a folder, and its service for pods."""
    async with open_system(temporal, folder) as system:
        settings = system.settings.model_copy(update={"workspace_store": f"file://{folder}/workspaces"})
        store = open_workspaces(settings)
        assert store is not None
        async with serving(Workspaces(store, load_tokens(settings)).application) as base:
            carried = system.changed(workspace_store=settings.workspace_store, workspace_url=base)
            async with carried.worker():
                yield carried, store


@pytest.fixture
async def carried(temporal: Client, tmp_path: Path) -> AsyncIterator[tuple[System, WorkspaceStore]]:
    async with carrying(temporal, tmp_path) as opened:
        yield opened


def agent(system: System, script: str, **config: Any) -> dict[str, Any]:
    """The context of a run whose folder is carried, at a path that no volume has."""
    raw = system.agent(script)
    raw["config"] |= {"workspace": "carried", **config}
    raw["context"]["paperclipWorkspace"] = {"cwd": f"/projects/{uuid.uuid4()}"}
    return raw


async def sent(store: WorkspaceStore, raw: dict[str, Any], files: dict[str, bytes]) -> None:
    """The folder goes out, as the plugin sends it."""
    run = attempt_key(raw).run
    tree = await stored(store, run.company_id, files)
    await store.record(run, Record(0, "out", tree, datetime.now(UTC)))


async def last_tree(store: WorkspaceStore, raw: dict[str, Any]) -> tuple[Record, Tree]:
    ledger = await store.ledger(attempt_key(raw).run)
    record = ledger[max(ledger)]
    return record, await store.tree(attempt_key(raw).run.company_id, record.tree)


def digests(tree: Tree) -> dict[str, str]:
    """The first block of each file of the workspace."""
    files = [each for each in tree.entries if isinstance(each, File) and each.path.startswith("workspace/")]
    return {each.path.removeprefix("workspace/"): each.blocks[0] for each in files if each.blocks}


async def until_checkpoint(store: WorkspaceStore, raw: dict[str, Any], name: str) -> None:
    """Returns once a checkpoint has this file."""
    async with asyncio.timeout(60):
        while name not in digests((await last_tree(store, raw))[1]):  # noqa: ASYNC110 - a storage has no events
            await asyncio.sleep(0.1)


async def test_the_folder_is_there_and_what_the_agent_did_is_kept(carried: tuple[System, WorkspaceStore]) -> None:
    system, store = carried
    work = "cat > /dev/null; sha256sum folder/deep > sum; echo four > kept; rm gone; ln -s kept link"
    raw = agent(system, f"{work}; {answer_script('Done.')}")
    await sent(store, raw, FILES)
    outcome = await system.outcome(raw)
    assert (outcome.failure, outcome.summary) == (None, "Done.")
    assert_verified(outcome)
    record, tree = await last_tree(store, raw)
    assert (record.kind, record.attempt) == ("end", 1)
    found = digests(tree)
    assert set(found) == {"kept", "folder/deep", "sum"}
    assert found["kept"] == hashlib.sha256(b"four\n").hexdigest()
    seen = f"{hashlib.sha256(FILES['folder/deep']).hexdigest()}  folder/deep\n"
    assert found["sum"] == hashlib.sha256(seen.encode()).hexdigest()
    assert "workspace/link" in {each.path for each in tree.entries}


async def test_what_workspace_ignore_names_is_in_no_checkpoint(carried: tuple[System, WorkspaceStore]) -> None:
    system, store = carried
    work = "cat > /dev/null; mkdir -p x/node_modules/a; touch x/node_modules/a/b new.log new"
    raw = agent(system, f"{work}; {answer_script('Done.')}", workspaceIgnore="node_modules\n*.log")
    await sent(store, raw, {"kept": b"one"})
    assert (await system.outcome(raw)).failure is None
    _, tree = await last_tree(store, raw)
    paths = {each.path for each in tree.entries if each.path.startswith("workspace/")}
    assert paths == {"workspace/kept", "workspace/new", "workspace/x"}


async def test_what_an_agent_left_is_written_into_a_new_folder(
    carried: tuple[System, WorkspaceStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, store = carried
    raw = agent(system, f"cat > /dev/null; echo four > kept; rm gone; {answer_script('Done.')}")
    await sent(store, raw, FILES)
    assert (await system.outcome(raw)).failure is None
    for name, value in system.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", str(system.settings.workspace_url))
    into = tmp_path / "left"
    assert await workspaces.write(raw["runId"], into, display(as_json=True)) == 0
    found = {str(path.relative_to(into)): path.read_bytes() for path in into.rglob("*") if path.is_file()}
    assert found == {"kept": b"four\n", "folder/deep": FILES["folder/deep"]}
    with pytest.raises(Refused, match="is not empty"):
        await workspaces.write(raw["runId"], into, display(as_json=True))


async def test_after_the_loss_of_a_pod_the_next_attempt_goes_on_from_the_checkpoint(
    carried: tuple[System, WorkspaceStore],
) -> None:
    system, store = carried
    step = answer_script("One.").replace('"stop"', '"tool-calls"')
    tool = line("tool_running", tool="bash", callID="call_1", input='{"command": "make all"}').decode()
    first = f"echo work > done; {step}; echo {shlex.quote(tool)}; sleep 600"
    raw = agent(system, f"cat > prompt; if [ -e done ]; then {answer_script('Two.')}; else {first}; fi")
    await sent(store, raw, FILES)
    ticket = await system.start(raw)
    await until_checkpoint(store, raw, "done")
    await system.until_tools_began(raw)
    (pod,) = await system.pods(raw)
    await system.kubernetes.delete_pod(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid, grace=timedelta())
    outcome = await outcome_at_close(ticket.handle(system.temporal))
    assert (outcome.failure, outcome.summary, len(outcome.attempts)) == (None, "Two.", 2)
    (note,) = [each for each in outcome.warnings if "begins with" in each]
    assert "attempt 2 begins with the files of attempt 1 after 1 step, as they were at" in note
    assert note.endswith("s of work, with bash: make all at work")
    lost = outcome.attempts[0].lost
    assert lost is not None
    assert lost.steps == 0
    assert lost.seconds < 60
    assert outcome.attempts[1].lost is None
    assert note in explain(outcome)["evidence"]
    record, tree = await last_tree(store, raw)
    assert (record.kind, record.attempt) == ("end", 2)
    block = digests(tree)["prompt"]
    (prompt,) = await store.blocks(attempt_key(raw).run.company_id, [block])
    assert b'lost while this was at work: "bash: make all"' in prompt


async def test_the_next_run_has_the_session_of_the_run_before(carried: tuple[System, WorkspaceStore]) -> None:
    system, store = carried
    keeps = 'echo "$(cat /opencode-db/known 2>/dev/null)." > seen; echo remembered > /opencode-db/known'
    first = agent(system, f"cat > /dev/null; {keeps}; {answer_script('One.')}")
    await sent(store, first, {"a": b"one"})
    outcome = await system.outcome(first)
    assert outcome.session_params is not None
    assert outcome.session_params.workspace_run == first["runId"]
    second = later_context(first, outcome.session_params)
    await sent(store, second, {"a": b"two"})
    assert (await system.outcome(second)).failure is None
    found = digests((await last_tree(store, second))[1])
    assert found["seen"] == hashlib.sha256(b"remembered.\n").hexdigest()
    assert found["a"] == hashlib.sha256(b"two").hexdigest()


async def test_a_folder_that_did_not_arrive_is_named(carried: tuple[System, WorkspaceStore]) -> None:
    system, _ = carried
    raw = agent(system, answer_script("Never."))
    outcome = await system.outcome(raw)
    assert outcome.error_code == WorkspaceNotCarried.code
    assert await system.jobs(raw) == []


async def test_a_folder_that_is_damaged_in_the_store_is_named_and_no_agent_starts(
    carried: tuple[System, WorkspaceStore], tmp_path: Path
) -> None:
    system, store = carried
    raw = agent(system, answer_script("Never."))
    await sent(store, raw, FILES)
    for block in (tmp_path / "workspaces").glob("*/blocks/*/*"):
        block.unlink()
    outcome = await system.outcome(raw)
    assert (outcome.error_code, outcome.never_started) == (WorkspaceNotRestored.code, True)
    assert "workspace: damaged" in str(outcome.error_message)


@pytest.mark.parametrize("cwd", ["/etc/project", "/"])
async def test_a_folder_that_every_pod_has_is_refused(carried: tuple[System, WorkspaceStore], cwd: str) -> None:
    system, _ = carried
    raw = agent(system, answer_script("Never."))
    raw["context"]["paperclipWorkspace"] = {"cwd": cwd}
    outcome = await system.outcome(raw)
    assert outcome.error_code == InvalidRequest.code
    assert "paperclipWorkspace.cwd" in str(outcome.error_message)
