"""An agent's next run in the pod of the last one, on a real cluster. Needs KUBECONFIG and TEST_AGENT_IMAGE."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest

from agent_runs.contracts.identity import AttemptKey
from agent_runs.kube.ownership import RESTS_SINCE
from tests.pod.driving import bash
from tests.real_cluster.stack import open_real_system
from tests.support.ends import assert_whole

pytestmark = [pytest.mark.real_cluster, pytest.mark.alone, pytest.mark.timeout(900)]


async def test_the_next_run_of_an_agent_gets_the_pod_that_rests(tmp_path: Path) -> None:
    async with open_real_system(tmp_path) as system:
        agent, address = str(uuid.uuid4()), "http://127.0.0.1:3100"
        found = []
        for _ in range(3):
            script = {"steps": [bash("echo $PAPERCLIP_RUN_ID"), {"text": "Done."}]}
            wake = system.wake("script", agent, script, transport="serve", keepWarmSec=60, paperclipApiUrl=address)
            ended = await system.outcome(wake)
            assert_whole(ended, "Done.")
            events = [json.loads(line) for line in await system.stdout(AttemptKey(run=wake.start.key))]
            (command,) = [event for event in events if event["type"] == "tool_use"]
            assert command["part"]["state"]["output"].strip() == wake.start.run_id
            found.append(ended.attempts[0].job_name)
        assert len(set(found)) == 1
        (job,) = await system.cluster.jobs_of_agent("default", agent)
        await system.cluster.delete_job("default", job.metadata.name, job.metadata.uid)


async def test_a_pod_that_rests_gives_its_place_to_one_that_waits(tmp_path: Path) -> None:
    async with open_real_system(tmp_path) as system:
        address = "http://127.0.0.1:3100"  # only a pod with the API proxy rests
        requests = {"cpu": f"{(os.cpu_count() or 1) * 0.6:.1f}", "memory": "1Gi"}  # the only node is this machine
        jobs = []
        for _ in range(2):
            agent, script = str(uuid.uuid4()), {"steps": [{"text": "Done."}]}
            config: dict[str, Any] = {
                "keepWarmSec": 600,
                "paperclipApiUrl": address,
                "resources": {"requests": requests},
            }
            wake = system.wake("script", agent, script, transport="serve", **config)
            ended = await system.outcome(wake)
            assert (ended.failure, ended.summary) == (None, "Done.")
            jobs_left = await system.cluster.jobs_of_agent("default", agent)
            assert len(jobs_left) == 1, ended.warnings
            (job,) = jobs_left
            assert RESTS_SINCE in job.metadata.annotations
            jobs.append((agent, job))
        (first, _), (_, job) = jobs
        assert await system.cluster.jobs_of_agent("default", first) == []
        await system.cluster.delete_job("default", job.metadata.name, job.metadata.uid)
