"""Runs of the real OpenCode against the scripted model, with the configuration and the variables that a pod has."""

import asyncio
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_runs.agents.opencode.config import environment
from agent_runs.agents.opencode.merge import Merged, merge
from agent_runs.contracts.request import OpenCodeFeature
from dev_stack.opencode_binary import ensure_opencode
from dev_stack.scripted_model.server import provider_block, serve

MODEL = "fake/scenario/script"
OPTIONS = ("--format", "json", "--title", "test", "--print-logs", "--log-level", "INFO")
SMALL_MODEL = "fake/aux/title"


@dataclass(frozen=True)
class Play:
    """A run that has ended.

    Attributes:
        requests: what the model was asked.
    """

    exit_code: int | None
    events: list[dict[str, Any]]
    errors: str
    requests: list[dict[str, Any]] = field(repr=False)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The state of each tool call."""
        return [event["part"]["state"] for event in self.events if event["type"] == "tool_use"]

    @property
    def asked(self) -> str:
        """The last request of the main model, as JSON."""
        return json.dumps([each for each in self.requests if each.get("tools")][-1])


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """A step of the model that calls a tool."""
    return {"tools": [{"name": tool, "args": arguments}]}


async def play(
    folder: Path, *steps: dict[str, Any], features: Collection[OpenCodeFeature] = (), **merging: Any
) -> Play:
    """Runs the merged configuration; `merging` is as for `merge`. The home is `folder/home`."""
    async with serve() as model:
        operator = {"provider": provider_block(model.base_url), "small_model": SMALL_MODEL}
        operator |= merging.pop("operator", {})
        model_name = merging.pop("model", MODEL)
        merged = merge(
            model=model_name, agent=merging.pop("agent", {}), operator=operator, features=features, **merging
        )
        script = f"<<<fake-llm {json.dumps({'steps': steps})} fake-llm>>>\n"
        command = ("run", *OPTIONS, "-m", model_name)
        code, output, errors = await opencode(folder, merged, *command, stdin=script, features=features)
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return Play(code, events, errors, list(model.requests))


async def opencode(
    folder: Path, merged: Merged, *arguments: str, stdin: str = "", features: Collection[OpenCodeFeature] = ()
) -> tuple[int | None, str, str]:
    """Exit code, output and errors of one command of OpenCode with this configuration."""
    binary = await ensure_opencode()
    variables = prepared(folder, merged, features)
    files = {name: folder / name for name in ("stdin", "stdout", "stderr")}
    files["stdin"].write_text(stdin)
    with files["stdin"].open("rb") as given, files["stdout"].open("wb") as out, files["stderr"].open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            binary, *arguments, stdin=given, stdout=out, stderr=err, cwd=folder / "workspace", env=variables
        )
        code = await process.wait()
    return code, files["stdout"].read_text(), files["stderr"].read_text()


def prepared(folder: Path, merged: Merged, features: Collection[OpenCodeFeature] = ()) -> dict[str, str]:
    """The variables of an OpenCode whose home, configuration, workspace and further programs are in this folder."""
    for name in ("home", "workspace", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    config = folder / "opencode.json"
    config.write_text(json.dumps(merged.config))
    return {
        "PATH": f"{folder / 'programs'}:{os.environ['PATH']}:{with_ripgrep(folder / 'bin')}",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        **{f"XDG_{kind}_HOME": str(folder / "xdg" / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA", "STATE")},
        **environment(
            config_file=str(config),
            directory=str(folder / "workspace"),
            plugins=merged.has_plugins,
            features=features,
        ),
    }


def with_ripgrep(folder: Path) -> Path:
    """A folder with what OpenCode needs of ripgrep to list files, for a machine that lacks it: agents' image has it."""
    folder.mkdir(exist_ok=True)
    program = folder / "rg"
    program.write_text("#!/bin/sh\nexec find . -type f\n")
    program.chmod(0o755)
    return folder
