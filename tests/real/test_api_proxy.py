"""Agents on a real cluster speak to Paperclip through the proxy in their pod, however they end.

Needs KUBECONFIG and TEST_AGENT_IMAGE, and TEST_CLUSTER_TOOL or TEST_PROXY_IMAGE, an image with python3.
"""

import asyncio
import os
import re
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.attach import attach
from cluster.manifest import PROXY_CONTAINER
from cluster.objects import Pod
from tests.cluster.paperclip import FakePaperclip, serving
from tests.real.python_image import python_image
from tests.real.stack import Real, real
from tests.real.stories import Story, asked, story
from tests.real.test_losses import CROWD, ROOM
from tests.real.test_output import TOOL, needed
from tests.real.witness import CONTAINER

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(300)]

TOKENS = ("canary-token-of-the-first-run", "canary-token-of-the-later-run")
ASK = (
    'ask() { wget -S -O /dev/null --post-data "{}" --header "Authorization: Bearer $PAPERCLIP_API_KEY"'
    ' --header "X-Paperclip-Run-Id: $PAPERCLIP_RUN_ID" "$PAPERCLIP_API_URL/api/issues/1" 2>&1'
    " | sed -n 's|.*HTTP/1.[01] \\([0-9]*\\).*|\\1|p' | head -n 1; }"
)
LOOK = "for each in /proc/[0-9]*/environ; do tr '\\0' '\\n' < $each; done 2>/dev/null | grep -c"
"""How many variables of the container's processes match. OpenCode would ask for leave to `cat` them."""
FILES = "find /agent-run /home/agent -type f -exec grep -l canary-[t]oken {} + | wc -l"
JOINED = f"""{ASK}
echo first $(ask)
until [ -e /tmp/joined ]; do sleep 0.1; done
echo then $(ask)
until [ $(ask) = 200 ]; do sleep 0.2; done
echo at last 200
echo keys $({LOOK} ^PAPERCLIP_API_KEY=paperclip-api-proxy)
echo tokens $({LOOK} canary-[t]oken) $({FILES})"""
WORKING = f"{ASK}\necho first $(ask); sleep 600"


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Real]:
    needed("KUBECONFIG", "TEST_AGENT_IMAGE")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AGENT_RUNS_API_PROXY_IMAGE", await python_image(tmp_path_factory.mktemp("image")))
        async with real(tmp_path_factory.mktemp("stack")) as made:
            yield made


@pytest.fixture
def paperclip(system: Real) -> Iterator[FakePaperclip]:
    """Where pods reach it."""
    with serving(system.stack.addresses.model_host) as made:
        yield made


async def spoken(paperclip: FakePaperclip, times: int) -> None:
    while len(paperclip.asked) < times:  # noqa: ASYNC110 - another thread
        await asyncio.sleep(0.05)


async def ended(run: Story, condition: str) -> None:
    """The Job has come to its end by itself, the proxy has ended well, and the token is gone; then the Job goes."""
    (own,) = await run.cluster.jobs_of_agent(run.namespace, run.agent_id)
    async with asyncio.timeout(60):
        while (job := await run.cluster.read_job(run.namespace, own.metadata.name)) is not None:
            if job.condition(condition):
                break
            await asyncio.sleep(0.1)
    assert job is not None
    (pod,) = run.witness.pods.values()
    proxy = pod.container(PROXY_CONTAINER)
    assert proxy is not None
    assert proxy.state.terminated is not None
    assert proxy.state.terminated.exit_code == 0
    assert await run.cluster.read_secret_metadata(run.namespace, run.key().token_secret_name) is None
    await run.cluster.delete_job(run.namespace, job.metadata.name, job.metadata.uid)


async def test_a_run_that_is_joined_speaks_with_the_token_of_the_later_one(
    system: Real, paperclip: FakePaperclip
) -> None:
    agent_id = str(uuid.uuid4())
    config: dict[str, Any] = {"paperclipApiUrl": paperclip.url, "retainJobs": True}
    async with story(system, 1, agent_id=agent_id, crisis=JOINED, token=TOKENS[0], **config) as run:
        paperclip.owner = (TOKENS[0], run.request.run_id)
        pod = await run.witness.begun(1)
        await run.unless_over(spoken(paperclip, 1))
        later = system.request("script", agent_id, token=TOKENS[1], **config)
        paperclip.owner = (TOKENS[1], later.run_id)
        await run.unless_over(run.execute(pod, "touch", "/tmp/joined"))
        await run.unless_over(spoken(paperclip, 2))
        joined = await attach(system.stack.client, system.stack.settings, later)
        assert (joined.kind, joined.workflow_run_id) == ("joined", run.ticket.workflow_run_id)
        outcome = await run.outcome()
        (tool,) = await run.tools()
        *said, keys, tokens = tool["output"].splitlines()
        assert said == ["step-1", "first 200", "then 409", "at last 200"]
        assert int(keys.removeprefix("keys ")) > 0
        assert tokens == "tokens 0 0"
        assert [note for note in (outcome.result_json or {}).get("notes") or [] if "joined" in note] == []
        assert paperclip.asked[-1].headers["X-Paperclip-Run-Id"] == later.run_id
        await specified_without_tokens(run, pod)
        await ended(run, "Complete")
        await run.assert_kept(outcome, None)


async def specified_without_tokens(run: Story, pod: Pod) -> None:
    path = f"/api/v1/namespaces/{run.namespace}/pods/{pod.metadata.name}"
    specified = str(await asked(run.cluster, "GET", path))
    assert PROXY_CONTAINER in specified
    assert "canary-token" not in specified


async def test_the_job_ends_when_the_agents_container_is_killed(system: Real, paperclip: FakePaperclip) -> None:
    needed(TOOL)
    config: dict[str, Any] = {"paperclipApiUrl": paperclip.url, "retainJobs": True}
    async with story(system, 1, crisis=WORKING, token=TOKENS[0], **config) as run:
        paperclip.owner = (TOKENS[0], run.request.run_id)
        pod = await run.witness.begun(1)
        await run.unless_over(spoken(paperclip, 1))
        os.kill(first_process(pod), signal.SIGKILL)
        outcome = await run.outcome()
        await ended(run, "Failed")
        await run.assert_kept(outcome, "opencode_crashed")


def first_process(pod: Pod) -> int:
    """The process id on this machine, which is the node, of the agent container's pid 1."""
    status = pod.container(CONTAINER)
    assert status is not None
    container = status.container_id.rpartition("/")[2]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = container in (process / "cgroup").read_text()
            numbers = re.search(r"^NSpid:.*\s1$", (process / "status").read_text(), re.MULTILINE)
        except OSError:
            continue
        if container and ours and numbers:
            return int(process.name)
    raise AssertionError(f"no process of container {container} on this machine: is it the node?")


async def test_the_job_ends_when_the_agent_has_no_memory_left(system: Real, paperclip: FakePaperclip) -> None:
    config: dict[str, Any] = {"paperclipApiUrl": paperclip.url, "retainJobs": True, "resources": ROOM}
    async with story(system, 1, crisis=CROWD, token=TOKENS[0], **config) as run:
        outcome = await run.outcome()
        await ended(run, "Failed")
        await run.assert_kept(outcome, "oom_killed")
