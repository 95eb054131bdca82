"""A Temporal namespace in which no worker has ever started."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.testing import WorkflowEnvironment

from agent_runs.paperclip.sealing import load_or_create
from dev_stack import demo
from workflows.attributes import ALL

PROGRAMS = Path(sys.executable).parent
DOCUMENT = Path(__file__).parents[2] / "docs" / "temporal.md"


@pytest.fixture
async def new_temporal() -> AsyncIterator[Client]:
    async with await WorkflowEnvironment.start_local(dev_server_existing_path=str(PROGRAMS / "temporal")) as server:
        yield server.client


async def test_a_start_before_any_worker_names_the_remedy(new_temporal: Client, tmp_path: Path) -> None:
    (tmp_path / "context.json").write_text(json.dumps(demo.context("text")))
    load_or_create(tmp_path / "sealing-key.json")
    environment = {
        "PATH": os.environ["PATH"],
        "TEMPORAL_ADDRESS": new_temporal.service_client.config.target_host,
        "AGENT_RUNS_SEALING_KEY_FILE": str(tmp_path / "sealing-key.json"),
    }
    command = [str(PROGRAMS / "agent-runs"), "start", "--context", str(tmp_path / "context.json")]
    done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "lacks the search attributes of runs: start a worker, which registers them" in line


async def test_the_documented_commands_register_every_search_attribute(new_temporal: Client) -> None:
    [block] = re.findall(r"```sh\n(.*?search-attribute.*?)```", DOCUMENT.read_text(), re.DOTALL)
    address = new_temporal.service_client.config.target_host
    environment = {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "TEMPORAL_ADDRESS": address}
    await asyncio.to_thread(subprocess.run, ["sh", "-ec", block], env=environment, check=True, capture_output=True)
    request = ListSearchAttributesRequest(namespace=new_temporal.namespace)
    listed = (await new_temporal.operator_service.list_search_attributes(request)).custom_attributes
    assert {name: kind for name, kind in listed.items() if name in {key.name for key in ALL}} == {
        key.name: int(key.indexed_value_type) for key in ALL
    }
