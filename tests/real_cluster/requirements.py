"""What the tests need of their surroundings: the variables that name a cluster, an image and the cluster's own tool."""

import asyncio
import os
from dataclasses import dataclass, field

import pytest

TOOL = "TEST_CLUSTER_TOOL"


def cluster_and_image() -> tuple[str, str]:
    """The kubeconfig and the image of the agent; without them the test is skipped."""
    skip_without("KUBECONFIG", "TEST_AGENT_IMAGE")
    return os.environ["KUBECONFIG"], os.environ["TEST_AGENT_IMAGE"]


def skip_without(*names: str) -> None:
    """Skip the test unless all of these environment variables are set."""
    if missing := [name for name in names if not os.environ.get(name)]:
        pytest.skip(f"{' and '.join(missing)} not set")


async def cluster_tool(*words: str) -> None:
    """Run the test cluster's own tool with these arguments."""
    process = await asyncio.create_subprocess_exec(
        os.environ[TOOL], *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output


@dataclass
class Node:
    """The processes of the cluster, which all runs share: one is down at a time."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def restart(self, part: str) -> None:
        """Kill the process, and start it a second later."""
        async with self.turn:
            await cluster_tool("kill", part)
            try:
                await asyncio.sleep(1)
            finally:
                await cluster_tool("start", part)
