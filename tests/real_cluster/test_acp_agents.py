"""Whole runs of the real Claude Code, Codex, Gemini CLI, Qwen Code and pi in their images, with the scripted model.

Needs KUBECONFIG, TEST_AGENT_IMAGE and TEST_CLUSTER_TOOL, and the programs that build an image.
"""

import json
import shutil
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.request import SessionParams
from agent_runs.kube.client import Cluster
from agent_runs.kube.ownership import agent_selector
from dev_stack.agent_programs import PROGRAMS, provider_variables
from dev_stack.scripted_model import Usage
from tests.real_cluster.acp_images import load_image
from tests.real_cluster.objects import OWN_CLASS, api_request, created_object
from tests.real_cluster.requirements import TOOL, cluster_and_image, skip_without
from tests.real_cluster.stack import RealSystem, open_real_system
from tests.runs.real_agents import COUNTED, KEY, SPENT, key_of, spent
from tests.support.image_registry import skip_without_programs

pytestmark = [pytest.mark.real_cluster, pytest.mark.installs, pytest.mark.timeout(1800)]

DATA = "real-tests-homes"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"
OBJECTS = ("/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods")
PLAYED = "scenario/script"
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "2Gi"}}


def data_volume(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Paperclip's data volume in this folder, in which agents have their homes, and its claim."""
    size, modes = {"storage": "1Gi"}, ["ReadWriteMany"]
    shared = {"accessModes": modes, "storageClassName": OWN_CLASS}
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": DATA, "namespace": "default"},
        "spec": {**shared, "volumeName": DATA, "resources": {"requests": size}},
    }
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": DATA},
        "spec": {**shared, "capacity": size, "hostPath": {"path": str(folder)}},
    }
    return volume, claim


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealSystem]:
    skip_without(TOOL)
    skip_without_programs("buildah", "mmdebstrap")
    folder = tmp_path_factory.mktemp("stack")
    kubeconfig, _ = cluster_and_image()
    (homes := folder / "homes").mkdir()
    shutil.chown(homes, 1000, 1000)
    volume, claim = data_volume(homes)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AGENT_RUNS_DATA_CLAIM", DATA)
        async with (
            await Cluster.connect(kubeconfig, namespace="default", environ={}) as cluster,
            created_object(cluster, "/api/v1/persistentvolumes", volume),
            created_object(cluster, CLAIMS, claim),
            open_real_system(folder) as opened,
        ):
            yield opened


class Agent:
    """One agent whose runs have the same session."""

    def __init__(self, system: RealSystem, name: str, image: str) -> None:
        self._system, self._name, self._image = system, name, image
        self._agent_id = str(uuid.uuid4())

    async def run(
        self, *steps: dict[str, Any], scenario: str = "script", session: SessionParams | None = None
    ) -> tuple[Outcome, list[dict[str, Any]]]:
        """A run with these answers of the model: how it ended, and the lines of its output."""
        wake = self._system.wake(
            scenario,
            self._agent_id,
            {"steps": steps},
            session=session,
            agent=self._name,
            image=self._image,
            env={**provider_variables(self._name, self._system.stack.addresses.model), key_of(self._name): KEY},
            resources=RESOURCES,
            retainJobs=True,
        )
        outcome = await self._system.outcome(wake)
        return outcome, [json.loads(line) for line in await self._system.stdout(AttemptKey(run=wake.key))]

    async def retained_objects(self) -> list[dict[str, Any]]:
        """Jobs and pods of the agent, as the API server has them after the end."""
        labels = [("labelSelector", agent_selector(self._agent_id))]
        pages = [await api_request(self._system.cluster, "GET", path, query=labels) for path in OBJECTS]
        return [item for page in pages for item in page["items"]]

    async def delete_jobs(self) -> None:
        for job in await self._system.cluster.jobs_of_agent("default", self._agent_id):
            await self._system.cluster.delete_job("default", job.metadata.name, job.metadata.uid)


def assert_verified(outcome: Outcome) -> None:
    assert outcome.failure is None, outcome.failure
    assert [attempt.failure_code for attempt in outcome.attempts] == [None]
    assert outcome.receipt is not None
    assert (outcome.receipt.state, outcome.receipt.gaps) == ("verified", ())


@pytest.mark.parametrize("name", PROGRAMS)
async def test_an_agent_in_its_image_works_says_what_it_used_and_continues_its_session(
    system: RealSystem, name: str, tmp_path: Path
) -> None:
    agent = Agent(system, name, await load_image(name, tmp_path))
    try:
        late = "sleep 2; " if name == "codex" else ""  # it loses what a command prints at once
        command = {"command": f"{late}id -u; echo heron; env", "description": "look around"}
        calls = {"text": "I look around.", "tools": [{"name": "bash", "args": command}], **COUNTED}
        one, lines = await agent.run(calls, {"text": "The word is heron.", **COUNTED})
        assert_verified(one)
        assert one.summary == "The word is heron."
        (tool,) = [event["part"]["state"] for event in lines if event["type"] == "tool_use"]
        assert tool["status"] == "completed"
        if name != "gemini":  # it does not tell what a command has printed
            assert {"1000", "heron"} <= set(str(tool["output"]).split())
            assert f"[[secret:{key_of(name)}" in str(tool["output"])
        handed_out = [each["usage"] for each in system.answers() if each["model"] == PLAYED]
        assert handed_out[-2:] == [asdict(Usage(**COUNTED["usage"]))] * 2
        assert spent(one) == SPENT[name]

        asked = len(system.answers())
        two, _ = await agent.run(scenario="echo", session=one.session_params)
        assert_verified(two)
        assert two.session_id == one.session_id
        assert "not resumed" not in str((two.result_json or {}).get("notes"))
        echoed = [each["status"] for each in system.answers()[asked:] if each["model"] == "scenario/echo"]
        assert echoed == [200] * (2 if name == "claude" else 1)  # it first tries a model that is new to it, by a "Hi"
        assert json.loads(two.summary or "")["roles"].count("assistant") == 2

        objects = await agent.retained_objects()
        assert sorted(item["spec"].get("restartPolicy", "Job") for item in objects) == ["Job", "Job", "Never", "Never"]
        assert KEY not in json.dumps([objects, lines, one.model_dump_json()])
    finally:
        await agent.delete_jobs()
