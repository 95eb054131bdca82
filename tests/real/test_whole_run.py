"""A whole run with the real OpenCode in a real container. Needs KUBECONFIG and TEST_AGENT_IMAGE."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_cluster


async def test_the_demonstration_succeeds_on_a_real_cluster(tmp_path: Path) -> None:
    kubeconfig, image = os.environ.get("KUBECONFIG"), os.environ.get("TEST_AGENT_IMAGE")
    if not (kubeconfig and image):
        pytest.skip("KUBECONFIG and TEST_AGENT_IMAGE are not both set")
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("agent-runs")), "demo", "--json"),
        *("--kubeconfig", kubeconfig, "--image", image, "--state", str(tmp_path)),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    said = [json.loads(line) for line in output.splitlines()]
    outcome = next(entry for entry in reversed(said) if entry["type"] == "outcome")["outcome"]
    assert process.returncode == 0
    assert outcome["errorCode"] is None
    assert outcome["sessionId"]
    assert outcome["receipt"]["state"] == "verified"
