"""Agents on a real cluster call Paperclip through the proxy in their pod, however they end.

Needs KUBECONFIG and TEST_AGENT_IMAGE.
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

from agent_runs.contracts.pod import SIDECAR_CONTAINER
from agent_runs.kube.objects import Pod
from tests.pod.paperclip import FakePaperclip, serving
from tests.real_cluster.objects import api_request
from tests.real_cluster.observed_runs import ObservedRun, observed_run
from tests.real_cluster.pod_observer import CONTAINER
from tests.real_cluster.requirements import TOOL, skip_without
from tests.real_cluster.stack import RealSystem, open_real_system
from tests.real_cluster.test_losses import MANY_PROCESSES, ONE_GIGABYTE

pytestmark = [pytest.mark.real_cluster, pytest.mark.timeout(900)]

TOKENS = ("canary-token-of-the-first-run", "canary-token-of-the-later-run")
ASK = (
    'ask() { wget -S -O /dev/null --post-data "{}" --header "Authorization: Bearer $PAPERCLIP_API_KEY"'
    ' --header "X-Paperclip-Run-Id: $PAPERCLIP_RUN_ID" "$PAPERCLIP_API_URL/api/issues/1" 2>&1'
    " | sed -n 's|.*HTTP/1.[01] \\([0-9]*\\).*|\\1|p' | head -n 1; }"
)
COUNT_VARIABLES = "for each in /proc/[0-9]*/environ; do tr '\\0' '\\n' < $each; done 2>/dev/null | grep -c"
"""How many environment variables of the container's processes match. OpenCode needs a permission to `cat` them."""
COUNT_FILES = "find /agent-run /home/agent -type f -exec grep -l canary-[t]oken {} + | wc -l"
JOINED = f"""{ASK}
echo first $(ask)
until [ -e /tmp/joined ]; do sleep 0.1; done
echo then $(ask)
until [ $(ask) = 200 ]; do sleep 0.2; done
echo at last 200
echo keys $({COUNT_VARIABLES} ^PAPERCLIP_API_KEY=paperclip-api-proxy)
echo tokens $({COUNT_VARIABLES} canary-[t]oken) $({COUNT_FILES})"""
WORKING = f"{ASK}\necho first $(ask); sleep 600"


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealSystem]:
    async with open_real_system(tmp_path_factory.mktemp("stack")) as opened:
        yield opened


@pytest.fixture
def paperclip(system: RealSystem) -> Iterator[FakePaperclip]:
    """A Paperclip at an address that pods reach."""
    with serving(system.stack.addresses.model_host) as server:
        yield server


async def until_requests(paperclip: FakePaperclip, times: int) -> None:
    while len(paperclip.requests) < times:  # noqa: ASYNC110 - another thread
        await asyncio.sleep(0.05)


async def assert_job_ended(run: ObservedRun, condition: str) -> None:
    """The Job ended by itself, the proxy exited 0, and the token is deleted; then the Job is deleted."""
    (own,) = await run.cluster.jobs_of_agent(run.namespace, run.agent_id)
    async with asyncio.timeout(60):
        while (job := await run.cluster.read_job(run.namespace, own.metadata.name)) is not None:
            if job.condition(condition):
                break
            await asyncio.sleep(0.1)
    assert job is not None
    (pod,) = run.observer.pods.values()
    proxy = pod.container(SIDECAR_CONTAINER)
    assert proxy is not None
    assert proxy.state.terminated is not None
    assert proxy.state.terminated.exit_code == 0
    assert await run.cluster.read_secret_metadata(run.namespace, run.key().run_secret_name) is None
    await run.cluster.delete_job(run.namespace, job.metadata.name, job.metadata.uid)


async def test_a_run_that_is_joined_uses_the_token_of_the_later_one(
    system: RealSystem, paperclip: FakePaperclip
) -> None:
    agent_id = str(uuid.uuid4())
    config: dict[str, Any] = {"paperclipApiUrl": paperclip.url, "retainJobs": True}
    async with observed_run(system, 1, agent_id=agent_id, command=JOINED, token=TOKENS[0], **config) as run:
        paperclip.owner = (TOKENS[0], run.wake.key.run_id)
        pod = await run.observer.started_pod(1)
        await run.unless_ended(until_requests(paperclip, 1))
        later = system.wake("script", agent_id, token=TOKENS[1], **config)
        paperclip.owner = (TOKENS[1], later.key.run_id)
        await run.unless_ended(run.execute(pod, "touch", "/tmp/joined"))
        await run.unless_ended(until_requests(paperclip, 2))
        joined = await system.start(later)
        assert (joined.kind, joined.workflow_run_id) == ("joined", run.ticket.workflow_run_id)
        outcome = await run.outcome()
        (tool,) = await run.tools()
        *statuses, keys, tokens = tool["output"].splitlines()
        assert statuses == ["step-1", "first 200", "then 409", "at last 200"]
        assert int(keys.removeprefix("keys ")) > 0
        assert tokens == "tokens 0 0"
        assert [note for note in (outcome.result_json or {}).get("notes") or [] if "joined" in note] == []
        assert paperclip.requests[-1].headers["X-Paperclip-Run-Id"] == later.key.run_id
        await assert_no_token_in_specification(run, pod)
        await assert_job_ended(run, "Complete")
        await run.assert_guarantees(outcome, None)


async def assert_no_token_in_specification(run: ObservedRun, pod: Pod) -> None:
    path = f"/api/v1/namespaces/{run.namespace}/pods/{pod.metadata.name}"
    specified = str(await api_request(run.cluster, "GET", path))
    assert SIDECAR_CONTAINER in specified
    assert "canary-token" not in specified


async def test_the_job_ends_when_the_agents_container_is_killed(system: RealSystem, paperclip: FakePaperclip) -> None:
    skip_without(TOOL)
    config: dict[str, Any] = {"paperclipApiUrl": paperclip.url, "retainJobs": True}
    async with observed_run(system, 1, command=WORKING, token=TOKENS[0], **config) as run:
        paperclip.owner = (TOKENS[0], run.wake.key.run_id)
        pod = await run.observer.started_pod(1)
        await run.unless_ended(until_requests(paperclip, 1))
        os.kill(first_process(pod), signal.SIGKILL)
        outcome = await run.outcome()
        await assert_job_ended(run, "Failed")
        await run.assert_guarantees(outcome, "opencode_crashed")


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


async def test_the_job_ends_when_the_agent_has_no_memory_left(system: RealSystem, paperclip: FakePaperclip) -> None:
    config: dict[str, Any] = {"paperclipApiUrl": paperclip.url, "retainJobs": True, "resources": ONE_GIGABYTE}
    async with observed_run(system, 1, command=MANY_PROCESSES, token=TOKENS[0], **config) as run:
        outcome = await run.outcome()
        await assert_job_ended(run, "Failed")
        await run.assert_guarantees(outcome, "oom_killed")
