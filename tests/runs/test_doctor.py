"""`agent-runs doctor`: one line for each thing that a run needs."""

import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from agent_runs.cli.display import JsonDisplay
from agent_runs.cli.doctor import doctor
from agent_runs.contracts.errors import ClusterForbidden
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.start import HostTexts
from agent_runs.doctor.objects import CheckedAgent, Objects
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.pod_profile import PodOverrides
from agent_runs.job.redactions import WorkerValues
from agent_runs.paperclip.preparation import split
from agent_runs.paperclip.sealing import load_or_create
from tests.job.test_pod_options import EVERYTHING
from tests.runs.system import System, open_system
from tests.support.claims import data_claim


@pytest.fixture
async def system(temporal: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[System]:
    async with open_system(temporal, tmp_path) as system:
        monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.service_client.config.target_host)
        monkeypatch.setenv("AGENT_RUNS_TASK_QUEUE", system.settings.task_queue)
        monkeypatch.setenv("AGENT_RUNS_SEALING_KEY_FILE", str(system.settings.sealing_key_file))
        yield system


GOOD = {"model": "fake/x", "paperclipApiUrl": "https://paperclip.example", "workspace": "ephemeral"}


def agent_file(folder: Path, config: dict[str, Any]) -> Path:
    file = folder / "agent.json"
    file.write_text(json.dumps(config))
    return file


async def examined(config: Path | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and what was found by its code."""
    output = io.StringIO()
    code = await doctor(config, "acme", None, JsonDisplay(output))
    return code, {each["code"]: each for each in map(json.loads, output.getvalue().splitlines())}


async def test_a_complete_system_has_no_error_and_each_check_is_named(system: System, tmp_path: Path) -> None:
    async with system.worker():
        code, found = await examined(agent_file(tmp_path, GOOD))
    assert (code, {each["level"] for each in found.values()}) == (0, {"info"})
    assert list(found) == [
        *("temporal_reachable", "worker_polls", "sealing_key", "paperclip_url", "agent_capabilities"),
        *("kubernetes", "permissions", "transcript_store", "run_objects"),
    ]


def carrying(system: System, folder: Path) -> System:
    changes = {"workspace_store": f"file://{folder}/workspaces", "workspace_url": "http://worker:8092"}
    return replace(system, settings=system.settings.model_copy(update=changes))


async def test_an_agent_without_a_shared_volume_lacks_nothing_where_there_is_a_workspace_store(
    system: System, tmp_path: Path
) -> None:
    open_choice = {**GOOD, "workspace": "auto"}
    for config in (open_choice, {**GOOD, "workspace": "carried"}):
        async with carrying(system, tmp_path).worker():
            code, found = await examined(agent_file(tmp_path, config))
        assert [each for each in found.values() if each["level"] != "info"] == []
        assert code == 0
        message = found["workspace_store"]["message"]
        assert message == f"The workspace store file://{tmp_path}/workspaces can be written"
    async with system.worker():
        code, found = await examined(agent_file(tmp_path, open_choice))
    assert (code, found["workspace_not_shared"]["level"]) == (1, "error")
    assert "AGENT_RUNS_WORKSPACE_STORE" in found["workspace_not_shared"]["hint"]


async def test_a_workspace_store_that_cannot_be_written_is_an_error_with_its_next_step(
    system: System, tmp_path: Path
) -> None:
    async with carrying(system, tmp_path).worker():
        (tmp_path / "workspaces").rmdir()
        (tmp_path / "workspaces").touch()
        code, found = await examined(agent_file(tmp_path, GOOD))
    assert (code, found["workspaces_unavailable"]["level"]) == (1, "error")
    assert f"file://{tmp_path}/workspaces: " in found["workspaces_unavailable"]["message"]
    assert "AGENT_RUNS_WORKSPACE_STORE" in found["workspaces_unavailable"]["hint"]


async def test_an_api_server_that_takes_its_time_is_no_error(system: System, tmp_path: Path) -> None:
    slow = system.embedded.faults.http(path="selfsubjectaccessreviews", delay=6, times=None)
    async with system.worker():
        code, found = await examined(agent_file(tmp_path, GOOD))
    assert (code, {each["level"] for each in found.values()}) == (0, {"info"})
    assert slow.hits


async def test_what_a_run_replaces_in_a_configuration_is_named_before_any_run(system: System, tmp_path: Path) -> None:
    opencode = {"share": "auto", "instructions": ["{env:STYLE_GUIDE}"]}
    file = agent_file(tmp_path, {"model": "fake/x", "workspace": "ephemeral", "opencode": opencode})
    async with system.worker():
        report = io.StringIO()
        code = await doctor(file, "acme", None, JsonDisplay(report))
    found = [json.loads(line) for line in report.getvalue().splitlines()]
    notes = [each["message"] for each in found if (each["code"], each["level"]) == ("run_configuration", "warn")]
    assert code == 0
    assert notes[0] == "config.opencode.share is set by us: sharing is switched off"
    assert notes[1].startswith("config.opencode.instructions[0]: {env:STYLE_GUIDE} is not set")


async def test_a_wrong_configuration_is_an_error_with_a_remedy(system: System, tmp_path: Path) -> None:
    async with system.worker():
        code, found = await examined(agent_file(tmp_path, {"model": "nameless"}))
    assert code == 1
    assert found["agent_configuration"]["level"] == "error"
    assert found["agent_configuration"]["message"] == (
        "config.model must be '<provider>/<model>', for example 'anthropic/claude-sonnet-4-6'"
    )


async def test_a_remedy_is_named_once(system: System, tmp_path: Path) -> None:
    async with system.worker():
        _, found = await examined(agent_file(tmp_path, {"model": "fake/x", "workspace": "ephemeral", "color": "red"}))
    texts = [f"{each['message']} {each['hint'] or ''}" for each in found.values() if each["level"] != "info"]
    assert [text.count("docs/configuration.md") for text in texts if "config.color" in text] == [1]


async def test_a_transcript_service_that_does_not_answer_is_an_error(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", "http://127.0.0.1:1")
    async with system.worker():
        code, found = await examined()
    assert (code, found["transcripts_unreachable"]["level"]) == (1, "error")
    assert "http://127.0.0.1:1 (AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL)" in found["transcripts_unreachable"]["message"]


async def test_a_transcript_service_that_answers_is_named(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with system.service_process() as settings, system.worker():
        monkeypatch.setenv("AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL", str(settings.transcripts_public_url))
        code, found = await examined(agent_file(tmp_path, GOOD))
    assert (code, found["transcripts_reachable"]["level"]) == (0, "info")


async def test_a_missing_key_is_named(system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_RUNS_SEALING_KEY_FILE", str(tmp_path / "no-key.json"))
    async with system.worker():
        code, found = await examined()
    assert (code, found["sealing_key_unusable"]["level"]) == (1, "error")
    assert not (tmp_path / "no-key.json").exists()


async def test_a_key_that_is_not_the_workers_is_named(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_or_create(tmp_path / "other-key.json")
    monkeypatch.setenv("AGENT_RUNS_SEALING_KEY_FILE", str(tmp_path / "other-key.json"))
    async with system.worker():
        code, found = await examined()
    assert (code, found["sealing_key_mismatch"]["level"]) == (1, "error")
    assert "AGENT_RUNS_SEALING_KEY_FILE" in found["sealing_key_mismatch"]["hint"]


@pytest.mark.usefixtures("system")
async def test_a_queue_without_a_worker_is_named() -> None:
    code, found = await examined()
    assert (code, list(found)) == (1, ["temporal_reachable", "worker_missing"])


@pytest.mark.usefixtures("system")
async def test_a_missing_namespace_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nowhere")
    code, found = await examined()
    assert (code, list(found)) == (1, ["temporal_namespace_missing"])


@pytest.mark.usefixtures("system")
async def test_a_temporal_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    code, found = await examined()
    assert (code, list(found)) == (1, ["temporal_unreachable"])


async def test_a_pod_with_all_options_is_accepted_by_the_api_server_and_refused_by_a_policy_without_them(
    system: System, tmp_path: Path
) -> None:
    file = agent_file(tmp_path, {**GOOD, **EVERYTHING})
    async with system.worker():
        code, found = await examined(file)
    assert (code, found["run_objects"]["level"]) == (0, "info")
    policy = tmp_path / "strict.yaml"
    policy.write_text("paperclipApiUrls: ['*']\n")
    system.settings = system.settings.model_copy(update={"policy": policy})
    async with system.worker():
        code, found = await examined(file)
    assert code == 1
    refused = found["operator_policy"]["message"]
    for field in ("runtimeClassName", "priorityClassName", "annotations", "affinity.nodeAffinity", "extraVolumes[1]"):
        assert f"{field}" in refused
    assert "run_objects" not in found


async def test_an_agent_finds_its_extra_volume(system: System) -> None:
    raw = system.agent("echo kept > /scratch/file; cat /scratch/file >&2; exit 7")
    raw["config"]["extraVolumes"] = [{"name": "s", "mountPath": "/scratch", "emptyDir": {"sizeLimit": "1Mi"}}]
    async with system.worker():
        await system.outcome(raw)
    assert b"kept" in [line.data for line in await system.lines(raw)]


async def test_what_agents_cannot_inherit_is_an_error_before_a_run(system: System, tmp_path: Path) -> None:
    system.settings = system.settings.model_copy(update={"inherit_deployment": "app=paperclip"})
    async with system.worker():
        code, found = await examined(agent_file(tmp_path, GOOD))
    assert code == 1
    message = found["k8s_introspection_failed"]["message"]
    assert message.startswith("no Deployment in namespace default has the labels app=paperclip: correct ")
    assert {"kubernetes", "permissions", "transcript_store"} <= found.keys()


async def test_the_verb_that_a_worker_lacks_for_deployments_is_named_with_the_file_that_grants_it(
    system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbidden(*_: str) -> list[dict[str, Any]]:
        raise ClusterForbidden("deployments.apps is forbidden", verb="list", resource="deployments.apps", status=403)

    async def allowed(*asked: str) -> bool:
        return "deployments.apps" not in asked

    monkeypatch.setattr(system.kubernetes, "deployments", forbidden)
    monkeypatch.setattr(system.kubernetes, "allowed", allowed)
    system.settings = system.settings.model_copy(update={"inherit_deployment": "app=paperclip"})
    async with system.worker():
        code, found = await examined(agent_file(tmp_path, GOOD))
    assert code == 1
    assert found["permission_denied"]["message"] == "The worker may not list deployments.apps in namespace default"
    assert "deploy/components/paperclip-introspection/rbac.yaml" in found["permission_denied"]["hint"]


@pytest.mark.parametrize(("mode", "expected"), [("ReadWriteOnce", ["data_claim_one_node"]), ("ReadWriteMany", [])])
async def test_a_data_volume_that_only_one_node_can_mount_is_a_warning(
    system: System, mode: str, expected: list[str]
) -> None:
    name = f"data-{mode.lower()}"
    await system.kubernetes.ensure_claim(data_claim(name, mode))
    run = {"runId": "c", "authToken": "t", "agent": {"id": "check", "companyId": "acme"}, "config": {"model": "fake/x"}}
    key = RunKey(agent_id="check", company_id="acme", run_id="c")
    objects = Objects(system.kubernetes, AgentPodSettings(), PodOverrides(image="agent:1", data_claim=name))
    found = await objects.findings(CheckedAgent(key, split(run, HostTexts()), WorkerValues()))
    assert [each.code for each in found if each.level == "info"] == ["run_objects"]
    assert [each.code for each in found if each.level == "warn"] == expected
    assert all(
        f"{name}, the data volume, is {mode}: all pods" in each.message for each in found if each.level == "warn"
    )
