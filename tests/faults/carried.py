"""An agent whose folder is carried: the real OpenCode, each of whose numbered steps changes the folder at random.

Its model goes on after the last step that its session knows, as one does that reads what it did.
"""

import json
import shlex
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
from temporalio.client import Client

from agent_runs.client.workspaces import open_workspaces
from agent_runs.workspace.store import Record, WorkspaceStore
from agent_runs.workspace.tree import Entry, File, Tree
from dev_stack.opencode_binary import ensure_opencode
from dev_stack.scripted_model.scenarios import SCENARIOS, Chat, Step
from dev_stack.scripted_model.server import provider_block, serve
from dev_stack.scripted_model.tools import Tool
from tests.runs.real_opencode import agent_of
from tests.runs.system import System, attempt_key, open_system
from tests.support.ports import free_port
from tests.support.process_pool import ChildProcess, ProcessPool
from tests.workspace.trees import stored

SCENARIO: Final = "numbered"
STEPS: Final = 6
FILES: Final = {"kept": b"one", "folder/deep": b"three" * 100_000, "folder/other": b"x", "log": b""}
LOOK: Final = """
import hashlib, json, os, sys
root, found = sys.argv[1], []
for folder, folders, files in os.walk(root):
    for name in [*folders, *files]:
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode & 0o777
        entry = {"path": "workspace/" + os.path.relpath(path, root)}
        if os.path.islink(path):
            entry |= {"kind": "link", "target": os.readlink(path)}
        elif os.path.isdir(path):
            entry |= {"kind": "dir", "mode": mode}
        else:
            content = open(path, "rb").read()
            blocks = [hashlib.sha256(content[at : at + 1048576]).hexdigest() for at in range(0, len(content), 1048576)]
            entry |= {"kind": "file", "mode": mode, "size": len(content), "blocks": blocks}
        found.append(entry)
print(json.dumps(found))
"""
"""Prints what is in a folder."""
PROGRAM: Final = """#!/bin/sh
if [ "$1" = run ] || [ "$1" = serve ] && ! [ -e {folder}/pod-$HOSTNAME ]; then
    touch {folder}/pod-$HOSTNAME
    python3 -I {folder}/look.py {cwd} > "{folder}/begin-$(ls {folder}/pod-* | wc -l)"
fi
exec {binary} "$@"
"""
"""OpenCode, and a note of what is in its folder when it begins."""


@dataclass
class Carried:
    """One run of such an agent, in a system that others may use at the same time.

    Attributes:
        folder: where the agent notes what it does.
    """

    system: System
    workspaces: WorkspaceStore
    folder: Path
    raw: dict[str, Any] = field(default_factory=dict)

    async def send(self, files: Mapping[str, bytes] = FILES) -> None:
        """The folder goes out, as the plugin sends it."""
        run = attempt_key(self.raw).run
        tree = await stored(self.workspaces, run.company_id, files)
        await self.workspaces.record(run, Record(0, "out", tree, datetime.now(UTC)))

    async def records(self) -> list[Record]:
        """The run's entries in the store, the last one at the end."""
        return list((await self.workspaces.ledger(attempt_key(self.raw).run)).values())

    async def tree(self, record: Record) -> dict[str, Entry]:
        """The folder, as an entry of the store has it."""
        tree = await self.workspaces.tree(attempt_key(self.raw).run.company_id, record.tree)
        return by_path(tree)

    def noted(self, name: str) -> dict[str, Entry]:
        """The folder, as the agent found it."""
        entries = json.loads((self.folder / name).read_text())
        for entry in entries:
            if entry["kind"] == "file":
                entry["modified"] = 0
        return by_path(msgspec.convert({"entries": entries}, Tree))

    async def session(self, attempt: int) -> str | None:
        """The session that an attempt had, or did not find."""
        events = await self.system.events(self.raw, attempt)
        return next((event["sessionID"] for event in events if event.get("sessionID")), None)

    def steps(self, kind: str) -> list[int]:
        """The steps that have begun, or ended, in whichever attempt; or those of the folder's own log at the end."""
        file = self.folder / kind
        return [int(line) for line in file.read_text().split()] if file.exists() else []


def by_path(tree: Tree) -> dict[str, Entry]:
    """Its entries without times, and without the folder itself."""
    entries = [each for each in tree.entries if each.path.startswith("workspace/")]
    return {
        each.path: msgspec.structs.replace(each, modified=0) if isinstance(each, File) else each for each in entries
    }


def changes(random: Random, step: int, folder: Path, count: int = STEPS) -> str:
    """A command that changes the folder in a way that only it does."""
    new = f"new-{step}"
    kinds = (
        f"mkdir -p {new}/inner && echo {step} > {new}/inner/untracked",
        f"rm -f folder/other && head -c {random.randrange(3_000_000)} /dev/urandom > {new}",
        f"ln -s nowhere-{step} {new}",
        f"echo {step} >> folder/deep && chmod 7{random.randrange(8)}{random.randrange(8)} folder/deep",
        f"echo {step} > {new} && chmod {random.choice(['400', '640', '755'])} {new}",
        f"mv kept kept.tmp && echo {step} > kept && rm kept.tmp && rm -rf new-{random.randrange(1, count)}",
    )
    pauses = [f"sleep {random.uniform(0, 0.7):.2f}" for _ in range(2)]
    command = f"{pauses[0]}; {random.choice(kinds)}; echo {step} >> log; {pauses[1]}"
    if step == count:
        command += f"; python3 -I {folder}/look.py . > {folder}/at-end; cp log {folder}/log"
    return f"echo {step} >> {folder}/began; {command}; echo {step} >> {folder}/ended"


@asynccontextmanager
async def open_carrying(temporal: Client, folder: Path, store: str) -> AsyncIterator[tuple[System, WorkspaceStore]]:
    """A system without a worker, whose pods reach a workspace store through its worker.

    Args:
        store: its URL.
    """
    async with AsyncExitStack() as parts:
        model = await parts.enter_async_context(serve())
        system = await parts.enter_async_context(open_system(temporal, folder))
        provider = folder / "provider.json"
        provider.write_text(json.dumps({"provider": provider_block(model.base_url)}))
        address = f"127.0.0.1:{free_port()}"
        own = {"workspace_store": store, "workspace_listen": address, "workspace_url": f"http://{address}"}
        system = system.changed(opencode_config=provider, **own)
        workspaces = open_workspaces(system.settings)
        assert workspaces is not None
        yield system, workspaces


async def start_worker(pool: ProcessPool, system: System, log: Path) -> ChildProcess:
    """A worker in a process of its own, whose pods take checkpoints as often as they can."""
    variables = {**system.environment, **system.worker_environment, "FAULT_CHECKPOINTS": "0"}
    return await pool.start("tests.faults.worker_process", variables, log)


async def new_run(system: System, workspaces: WorkspaceStore, folder: Path, random: Random, **config: Any) -> Carried:
    """A run of a new agent; its folder has gone out."""
    run = new_agent(system, workspaces, folder, random, await ensure_opencode(), **config)
    await run.send()
    return run


def new_agent(
    system: System, workspaces: WorkspaceStore, folder: Path, random: Random, binary: Path, **config: Any
) -> Carried:
    """An agent that notes in this folder what it does."""
    folder.mkdir()
    (folder / "look.py").write_text(LOOK)
    name = str(uuid.uuid4())
    commands = [changes(random, step, folder) for step in range(1, STEPS + 1)]
    NUMBERED[name] = commands
    raw = agent_of(system, binary, SCENARIO, workspace="carried", **config)
    cwd = f"/projects/{uuid.uuid4()}"
    raw["context"] |= {"paperclipWorkspace": {"cwd": cwd}, "paperclipTaskMarkdown": f"Do what {name} says."}
    program = Path(raw["config"]["env"]["PATH"].partition(":")[0]) / "opencode"
    program.unlink()
    program.write_text(PROGRAM.format(folder=shlex.quote(str(folder)), cwd=cwd, binary=shlex.quote(str(binary))))
    program.chmod(0o755)
    return Carried(system, workspaces, folder, raw)


NUMBERED: Final[dict[str, list[str]]] = {}
"""The commands of each run, by a name in its task."""


def numbered(chat: Chat) -> Step:
    """The command after the last one whose result the session has."""
    asked = "\n".join(chat.conversation.user_texts)
    commands = next(commands for name, commands in NUMBERED.items() if name in asked)
    done = [message.role for message in chat.conversation.messages].count("tool")
    if done >= len(commands):
        return Step(text="Done.")
    return Step(tools=(Tool("bash", {"command": commands[done], "description": f"step {done + 1}"}),))


SCENARIOS[SCENARIO] = numbered
