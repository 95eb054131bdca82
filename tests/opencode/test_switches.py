"""What runs switch off in OpenCode is off in the real one, and an agent's configuration switches it on again."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from agent_runs.agents.opencode.switches import CONFIGURATION_SWITCHES, VARIABLE_SWITCHES
from agent_runs.contracts.request import OpenCodeFeature
from tests.opencode.real import call, play

FEATURES: tuple[OpenCodeFeature, ...] = get_args(OpenCodeFeature)
RULE = "Answer in rhymes."
DONE = {"text": "done"}
LANGUAGE_SERVER = """
import json, sys
open(STARTED, "w").close()
while header := sys.stdin.buffer.readline():
    length = int(header.split(b":")[1])
    while sys.stdin.buffer.readline().strip():
        pass
    request = json.loads(sys.stdin.buffer.read(length))
    if "id" in request:
        answer = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"capabilities": {}}}).encode()
        sys.stdout.buffer.write(b"Content-Length: %d\\r\\n\\r\\n" % len(answer) + answer)
        sys.stdout.buffer.flush()
"""
"""Agrees to everything; without an answer OpenCode waits 45 s."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A repository with a Go module and rules of its own, and programs for Go that leave a file when they start."""
    workspace, programs = tmp_path / "workspace", tmp_path / "programs"
    programs.mkdir()
    subprocess.run(["git", "init", "--quiet", str(workspace)], check=True)
    (workspace / "AGENTS.md").write_text(RULE)
    (workspace / "go.mod").write_text("module example\n")
    (programs / "gofmt").write_text(f"#!/bin/sh\ntouch {tmp_path}/gofmt-started\n")
    (programs / "gopls").write_text(f"#!{sys.executable}\nSTARTED = '{tmp_path}/gopls-started'\n{LANGUAGE_SERVER}")
    for program in programs.iterdir():
        program.chmod(0o755)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("features", [(), *((feature,) for feature in FEATURES)], ids=str)
async def test_exactly_what_the_configuration_switches_on_is_on(
    home: Path, features: tuple[OpenCodeFeature, ...]
) -> None:
    write = call("write", filePath=str(home / "workspace" / "main.go"), content="package main\n")
    run = await play(home, write, DONE, features=features)
    assert run.exit_code == 0, run.errors
    seen = {
        "lsp": (home / "gopls-started").exists(),
        "formatter": (home / "gofmt-started").exists(),
        "snapshot": any("snapshot" in each["part"] for each in run.events if each["type"] == "step_start"),
        "projectConfig": RULE in json.dumps(run.requests),
    }
    assert {feature for feature, on in seen.items() if on} == set(features)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skip_permissions", "statuses"),
    [(True, ["completed", "completed", "completed"]), (False, ["error", "error", "completed"])],
)
async def test_leaving_the_workspace_is_what_the_form_says_of_skipped_permissions(
    home: Path, skip_permissions: bool, statuses: list[str]
) -> None:
    outside = home / "outside"
    outside.write_text("text\n")
    program = f"python3 -c \"print(open('{outside}').read())\""
    calls = [
        call("read", filePath=str(outside)),
        call("bash", command=f"cat {outside}", description="read it"),
        call("bash", command=program, description="read it in a program"),
    ]
    run = await play(home, *calls, DONE, skip_permissions=skip_permissions)
    assert (run.exit_code, [state["status"] for state in run.tools]) == (0, statuses), run.errors


@pytest.mark.slow
async def test_a_plugin_of_the_repository_runs_whatever_is_switched_off_as_the_page_says(home: Path) -> None:
    """Should this fail with a later OpenCode, then docs/configuration.md is to say less."""
    plugin = home / "workspace" / ".opencode" / "plugin" / "own.js"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(
        f"import fs from 'fs'; fs.writeFileSync('{home}/plugin-started', ''); export const Own = async () => ({{}})\n"
    )
    run = await play(home, DONE)
    assert run.exit_code == 0, run.errors
    assert (home / "plugin-started").exists()


def test_each_feature_switches_one_thing_on() -> None:
    switches = [each.feature for each in (*CONFIGURATION_SWITCHES, *VARIABLE_SWITCHES) if each.feature]
    assert sorted(switches) == sorted(FEATURES)
