"""The script of docs/python.md."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

from temporalio.client import Client

from dev_stack.plan import ROOT
from tests.runs.system import open_system, replay_script


async def test_the_script_of_the_docs_starts_follows_and_lists_a_run(temporal: Client, tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)
    async with open_system(temporal, tmp_path) as system, system.worker():
        raw, file = system.agent(replay_script("text-stdin")), tmp_path / "context.json"
        file.write_text(json.dumps(raw))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, str(file)),
            env={**os.environ, **system.environment},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    lines = out.decode().splitlines()
    assert process.returncode == 0
    assert lines[0] == f"started {raw['runId']}"
    phases = [line.split(" s ")[1] for line in lines if " s " in line]
    assert (phases[0], phases[-1]) == ("queued", "ended")
    assert "succeeded Hello from the fake model." in lines
    assert any(line.startswith(raw["runId"]) for line in lines)
