"""What runs switch off in OpenCode is off in the real one, and an agent's configuration switches it on again."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

from agent_runs.agents.opencode.config import environment
from agent_runs.agents.opencode.merge import merge
from agent_runs.agents.opencode.switches import CONFIGURATION_SWITCHES, VARIABLE_SWITCHES
from agent_runs.contracts.request import OpenCodeFeature
from dev_stack.opencode_binary import ensure_opencode
from dev_stack.scripted_model import provider_block, serve

FEATURES: tuple[OpenCodeFeature, ...] = get_args(OpenCodeFeature)
MODEL = "fake/scenario/script"
RULE = "Answer in rhymes."
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


@dataclass(frozen=True)
class Played:
    """What one run of OpenCode did.

    Attributes:
        tools: status of each tool call.
    """

    events: Sequence[Mapping[str, Any]]
    requests: str

    @property
    def tools(self) -> list[str]:
        return [each["part"]["state"]["status"] for each in self.events if each["type"] == "tool_use"]


async def played(
    home: Path, *calls: Mapping[str, Any], features: Collection[OpenCodeFeature] = (), skip_permissions: bool = True
) -> Played:
    """The real OpenCode in a repository, with a model that makes these tool calls one by one."""
    opencode = await ensure_opencode()
    workspace, config, prompt, output = home / "workspace", home / "config.json", home / "prompt", home / "output"
    steps = [*({"tools": [call]} for call in calls), {"text": "done"}]
    prompt.write_text(f"<<<fake-llm\n{json.dumps({'steps': steps})}\nfake-llm>>>")
    async with serve() as model:
        block = provider_block(model.base_url)
        operator = {"provider": block}
        merged = merge(model=MODEL, agent={}, operator=operator, skip_permissions=skip_permissions, features=features)
        config.write_text(json.dumps(merged.config))
        fixed = environment(config_file=str(config), directory=str(workspace), features=features)
        with prompt.open("rb") as stdin, output.open("wb") as stdout:
            process = await asyncio.create_subprocess_exec(
                *(opencode, "run", "--format", "json", "-m", MODEL, "--title", "test", "--dir", str(workspace)),
                stdin=stdin,
                stdout=stdout,
                stderr=asyncio.subprocess.PIPE,
                cwd=workspace,
                env={**fixed, "HOME": str(home), "TMPDIR": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"},
            )
            _, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode(errors="replace")
        return Played([json.loads(line) for line in output.read_bytes().splitlines()], json.dumps(list(model.requests)))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A repository with a Go module and rules of its own, and programs for Go that leave a file when they start."""
    workspace, programs = tmp_path / "workspace", tmp_path / "bin"
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
    source = {"filePath": str(home / "workspace" / "main.go"), "content": "package main\n"}
    run = await played(home, {"name": "write", "args": source}, features=features)
    seen = {
        "lsp": (home / "gopls-started").exists(),
        "formatter": (home / "gofmt-started").exists(),
        "snapshot": any("snapshot" in each["part"] for each in run.events if each["type"] == "step_start"),
        "projectConfig": RULE in run.requests,
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
        {"name": "read", "args": {"filePath": str(outside)}},
        {"name": "bash", "args": {"command": f"cat {outside}", "description": "read it"}},
        {"name": "bash", "args": {"command": program, "description": "read it in a program"}},
    ]
    assert (await played(home, *calls, skip_permissions=skip_permissions)).tools == statuses


@pytest.mark.slow
async def test_a_plugin_of_the_repository_runs_whatever_is_switched_off_as_the_page_says(home: Path) -> None:
    """Should this fail with a later OpenCode, then docs/configuration.md is to say less."""
    plugin = home / "workspace" / ".opencode" / "plugin" / "own.js"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(
        f"import fs from 'fs'; fs.writeFileSync('{home}/plugin-started', ''); export const Own = async () => ({{}})\n"
    )
    await played(home)
    assert (home / "plugin-started").exists()


def test_each_feature_switches_one_thing_on() -> None:
    switches = [each.feature for each in (*CONFIGURATION_SWITCHES, *VARIABLE_SWITCHES) if each.feature]
    assert sorted(switches) == sorted(FEATURES)
