"""A whole run with the real OpenCode in a real container. Needs KUBECONFIG and TEST_AGENT_IMAGE."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.real_cluster.requirements import cluster_and_image

pytestmark = pytest.mark.real_cluster


async def test_the_demonstration_succeeds_on_a_real_cluster(tmp_path: Path) -> None:
    kubeconfig, image = cluster_and_image()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dev_stack", "demo", "--json"),
        *("--kubeconfig", kubeconfig, "--image", image, "--state", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    entries = [json.loads(line) for line in output.splitlines()]
    outcome = next(entry for entry in reversed(entries) if entry["type"] == "outcome")["outcome"]
    assert process.returncode == 0
    assert outcome["errorCode"] is None
    assert outcome["sessionId"]
    assert outcome["receipt"]["state"] == "verified"
