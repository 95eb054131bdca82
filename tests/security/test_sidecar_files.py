"""The sidecar has files that the agent must not see, and reads others that the agent can exchange."""

import ast
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_runs.pod.sidecar import shared
from agent_runs.pod.sidecar.workspace import folders, restore
from tests.pod.acp import PROFILES, SCRIPT, acp_turn
from tests.pod.harness import Runner
from tests.support.cases import case

SIDECAR = Path(__file__).parents[2] / "agent_runs" / "pod" / "sidecar"
CANARY = "canary of the sidecar"
AGENT = """
import json, os, pathlib, sys
out, prompt, secret, when = map(pathlib.Path, sys.argv[1:])
def exchange():
    for path in (prompt, *(out / name for name in ("ready", "usage", "environment", "turn", "protocol"))):
        new = path.with_name(path.name + ".planted")
        new.symlink_to(secret)
        new.rename(path)
for line in sys.stdin:
    with open("received", "a") as log:
        log.write(line)
    asked = json.loads(line)
    if asked.get("method") == str(when):
        exchange()
    result = {"sessionId": "s1"} if asked.get("method") == "session/new" else {"protocolVersion": 1}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""
"""Exchanges all that the sidecar may read by links, before it answers a request."""


@pytest.mark.parametrize("when", ["initialize", "session/new"])
def test_the_sidecar_sends_its_agent_nothing_of_what_a_planted_link_leads_to(when: str, tmp_path: Path) -> None:
    runner = Runner(["sh"], tmp_path, options=["--serve", str(SCRIPT)])
    secret, agent = tmp_path / "secret", tmp_path / "agent.py"
    secret.write_text(CANARY)
    agent.write_text(AGENT)
    server = {"name": "tools", "type": "http", "url": "{env:PAPERCLIP_API_URL}/mcp", "headers": []}
    profile = PROFILES["claude"] | {"authenticate": None, "mode": None, "mcp_servers": [server]}
    runner.sidecar.turn = tmp_path / "turn.json"
    runner.sidecar.turn.write_text(json.dumps(acp_turn(runner.work, profile, prompt=str(tmp_path / "prompt"))))
    command = (sys.executable, "-I", "-S", str(agent), str(runner.out), str(tmp_path / "prompt"), str(secret), when)
    try:
        runner.start(*command, stdin=b"the prompt").read_to_end()
    finally:
        runner.clean_up()
    received = (runner.work / "received").read_text()
    assert CANARY not in received
    asked = {each["method"]: each["params"] for each in map(json.loads, received.splitlines())}
    assert asked["session/new"]["mcpServers"][0]["url"] == "none/mcp"
    assert asked["session/prompt"]["prompt"] == [{"type": "text", "text": "the prompt"}]


def refuses(opens: Callable[[str, str, int], int], folder: Path, name: str, flags: int) -> bool:
    try:
        os.close(opens(str(folder), name, flags))
    except OSError:
        return True
    return False


def test_only_a_file_itself_is_opened_in_a_folder_that_the_agent_can_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(CANARY)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "not-made")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for name in ("link", "dangling", "folder", "fifo", "socket", "missing"):
        with case(name):
            assert shared.read(str(tmp_path), name, 100) == b""
            assert refuses(shared.open_file, tmp_path, name, os.O_RDONLY)
            assert refuses(shared.open_file, tmp_path, name, os.O_WRONLY)
    for name in ("link", "dangling", "folder", "file", "socket", "missing"):
        with case(name):
            assert refuses(shared.open_fifo, tmp_path, name, os.O_RDONLY)
    for name in ("link", "dangling", "fifo", "socket"):
        with case(name):
            shared.write(str(tmp_path), name, "new")
            assert (tmp_path / name).read_text() == "new"
            assert not (tmp_path / name).is_symlink()
    assert (tmp_path / "file").read_text() == CANARY
    assert not (tmp_path / "not-made").exists()


OWN = "the sidecar's own: no other container mounts it"
SECRET = "a Secret, mounted read-only in the sidecar alone"
SYSTEM = "the sidecar's image"
INHERITED = "what the operator's Deployment mounts, read-only"
SHARED = "both containers': the agent can change all of it, so `shared` alone opens it"
WORKSPACE = "the agent's workspace and session: one name after the other below a descriptor, and never through a link"
PLACES = {
    "api_proxy.trusted_authorities": INHERITED,
    "commands._send_request": OWN,
    "control.Control._take": OWN,
    "drivers.acp.drive._Drive._answer": OWN,
    "drivers.acp.drive._Drive._read_answered": OWN,
    "drivers.record.Record.__init__": OWN,
    "drivers.folder.read_json": OWN,
    "drivers.folder.read_prompt": OWN,
    "drivers.folder.write_json": OWN,
    "main.Sidecar._serve": SYSTEM,
    "driving.Driving.__init__": SECRET,
    "driving.Driving._drive": SYSTEM,
    "shared._open": SHARED,
    "shared.make_fifo": SHARED,
    "shared.write": SHARED,
    "tokens.Tokens.read": OWN,
    "tokens._text": SECRET,
    "tokens.write_tokens": OWN,
    "watching.Watch.__init__": SYSTEM,
    "workspace.database.copy": OWN,
    "workspace.folders.opened": WORKSPACE,
    "workspace.keeper.main": SECRET,
    "workspace.keeping.Keeping.__init__": SECRET,
    "workspace.restore._Root.write": WORKSPACE,
    "workspace.restore._has": WORKSPACE,
    "workspace.restore._made": WORKSPACE,
    "workspace.restore._unlock": WORKSPACE,
    "workspace.restore._write": WORKSPACE,
    "workspace.restore.main": SECRET,
    "workspace.scan.Scanner._root": WORKSPACE,
    "workspace.scan._open_file": WORKSPACE,
    "workspace.scan._open_folder": WORKSPACE,
    "workspace.store.Store.__init__": INHERITED,
}
"""Each function of the sidecar that opens paths: where these are, and who can change what is there. A file of `OWN` may
be opened by its path; a path in a folder that an agent can write to is opened by `shared`, and by nothing else."""
OPENING = {"open", "mkfifo", "mknod", "truncate", "execv", "CDLL", "create_default_context", "load_verify_locations"}
LIBRARIES = {"os", "ssl", "context", "ctypes", "shutil"}


def test_in_an_agents_workspace_nothing_is_opened_by_a_path_or_through_a_link() -> None:
    flags = (folders.FOLDER, folders.FILE, restore._NEW, restore._PATH)
    assert all(each & os.O_NOFOLLOW for each in flags)
    opened = 0
    for module in (SIDECAR / "workspace").glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and _opens(node.func) and isinstance(node.func, ast.Attribute):
                given, named = list(map(ast.unparse, node.args)), [each.arg for each in node.keywords]
                below = "dir_fd" in named and given[1] in {"FOLDER", "FILE", "_NEW", "_PATH"}
                start = given[:2] == ["'/'", "FOLDER"]
                own = module.stem == "database" and given[0] == "COPY"
                with case(f"{module.name}: {ast.unparse(node)}"):
                    assert (
                        below or start or own or node.func.attr in {"create_default_context", "load_verify_locations"}
                    )
                opened += 1
    assert opened > 8


def opening_functions(module: Path) -> set[str]:
    """Its functions that call what opens a path, by their names in `SIDECAR`."""
    found = set[str]()

    def visit(node: ast.AST, name: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}"
        if isinstance(node, ast.Call) and _opens(node.func):
            found.add(name)
        for child in ast.iter_child_nodes(node):
            visit(child, name)

    visit(ast.parse(module.read_text()), ".".join(module.relative_to(SIDECAR).with_suffix("").parts))
    return found


def _opens(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id == "open"
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return False
    return called.value.id in LIBRARIES and called.attr in OPENING


def test_each_path_that_the_sidecar_opens_is_in_a_folder_of_which_it_is_known_who_can_change_it() -> None:
    modules = sorted(SIDECAR.rglob("*.py"))
    assert len(modules) > 20
    found = set[str]().union(*map(opening_functions, modules))
    assert found == set(PLACES)
    imported = {
        name.partition(".")[0]
        for module in modules
        for node in ast.walk(ast.parse(module.read_text()))
        for name in ([each.name for each in node.names] if isinstance(node, ast.Import) else [])
    }
    assert imported.isdisjoint({"pathlib", "io", "tempfile", "subprocess", "fileinput", "linecache", "mmap"})
