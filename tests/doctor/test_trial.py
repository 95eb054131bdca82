"""The Job with which a pod is tried: a run's own, with other commands. What it finds is tested on a real cluster."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from joserfc.jwk import OctKey
from starlette.applications import Starlette

from agent_runs.agents.profile import load
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.messages import CreateJob, PodProfile, PromptBundle
from agent_runs.contracts.request import AgentRef, RunConfig, RunRequest
from agent_runs.contracts.start import Finding
from agent_runs.doctor.objects import Planned
from agent_runs.doctor.trial import ASK_AGENT, ASK_OPENCODE, ASK_THE_REST, _agent, _opencode, _rest, _trial_job
from agent_runs.job.agent_pod import AgentPodSettings
from agent_runs.job.manifest import plan_job
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.server import serving
from agent_runs.web.workspaces import Workspaces
from agent_runs.workspace.store import WorkspaceStore


def planned(**config: object) -> Planned:
    attempt = AttemptKey(run=RunKey(agent_id="check", company_id="acme", run_id="c1"))
    profile = PodProfile(namespace="agents", image="agent:1", data_claim="paperclip-data")
    prompt = PromptBundle(namespace="agents", secret_name=attempt.prompt_secret_name, sha256="", size=0)
    chosen = RunConfig.model_validate({"model": "fake/x$(HOME)", **config})
    request = RunRequest(run_id="c1", agent=AgentRef(id="check", company_id="acme"), config=chosen)
    input = CreateJob(attempt=attempt, request=request, profile=profile, prompt=prompt)
    plan = plan_job(input, argv=["opencode"], environment={}, opencode_config="{}", settings=AgentPodSettings())
    return Planned(input, plan, profile, "http://paperclip:3100", worker_has_data=True)


def test_no_container_of_a_tried_pod_runs_the_agent_and_it_ends_soon() -> None:
    job = _trial_job(planned(), "file")
    sidecar, agent = job["spec"]["template"]["spec"]["containers"]
    assert agent["command"][0:2] == ["sh", "-c"]
    assert agent["command"][3:] == ["check", "fake", "fake/x$$(HOME)"]
    assert agent["args"] == []
    assert sidecar["args"] == ["http://paperclip:3100", "/agent-run/checked/file", ""]
    assert sidecar["volumeMounts"][-1] == {"name": "data", "mountPath": "/agent-run/checked", "readOnly": True}
    assert (job["spec"]["activeDeadlineSeconds"], job["spec"]["ttlSecondsAfterFinished"]) == (120, 60)


def test_a_tried_pod_is_placed_secured_and_mounted_as_a_runs() -> None:
    own = planned()
    tried, run = (each["spec"]["template"]["spec"] for each in (_trial_job(own, ""), own.plan.job))
    for key in run.keys() - {"containers", "terminationGracePeriodSeconds"}:
        assert tried[key] == run[key], key
    for theirs, ours in zip(tried["containers"], run["containers"], strict=True):
        assert {**theirs, "command": 0, "args": 0} == {**ours, "command": 0, "args": 0}


def test_an_agents_own_volume_is_not_needed_by_a_tried_pod() -> None:
    own = planned(agentDbMode="dedicated_pvc", agentDbStorageClass="fast")
    volumes = {each["name"]: each for each in _trial_job(own, "")["spec"]["template"]["spec"]["volumes"]}
    assert volumes["opencode-db"] == {"name": "opencode-db", "emptyDir": {}}
    assert volumes["data"]["persistentVolumeClaim"]["claimName"] == "paperclip-data"


def test_another_agent_is_asked_for_its_version_and_an_image_without_it_is_named() -> None:
    claude = load()["claude"]
    tried = replace(planned(agent="claude"), agent=claude)
    command = _trial_job(tried, "")["spec"]["template"]["spec"]["containers"][1]["command"]
    assert command[3:] == ["check", "claude-agent-acp", "--version"]
    assert [each.code for each in _agent(["yes", "0.101.0"], "agent:1", claude)] == ["agent"]
    newer = [each.code for each in _agent(["yes", "1.0.0"], "agent:1", claude)]
    assert newer == ["agent", "agent_version_unsupported"]
    (missing,) = _agent(["no", "sh: claude-agent-acp: not found"], "agent:1", claude)
    assert (missing.code, missing.level) == ("agent_missing", "error")
    assert "does not have Claude Code" in missing.message


def test_opencode_2_is_not_asked_for_its_models_and_a_later_one_is_refused(tmp_path: Path) -> None:
    """Its command for that starts a service that stays, or prints nothing."""
    script, log = ASK_OPENCODE.replace("/dev/termination-log", str(tmp_path / "log")), tmp_path / "log"
    program = tmp_path / "opencode"
    found = {}
    for version in ("2.0.15", "3.1.0"):
        program.write_text(f'#!/bin/sh\n[ "$1" = --version ] || touch {tmp_path}/asked\necho opencode v{version}\n')
        program.chmod(0o755)
        variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", script, "check", "fake", "fake/x"], env=variables, check=True)
        found[version] = [each.code for each in _opencode(log.read_text().strip().split("\n"), "agent:1", "fake/x")]
    assert found == {"2.0.15": ["opencode"], "3.1.0": ["opencode", "agent_version_unsupported"]}
    assert not (tmp_path / "asked").exists()


def test_the_question_for_a_version_is_answered_by_a_posix_shell(tmp_path: Path) -> None:
    script, log = ASK_AGENT.replace("/dev/termination-log", str(tmp_path / "log")), tmp_path / "log"
    for words, answer in ((["printf", "1.2\\n3"], "yes\n1.2\n"), (["no-such-agent", "--version"], "no\n")):
        subprocess.run(["sh", "-c", script, "check", *words], env={**os.environ, "HOME": str(tmp_path)}, check=True)
        assert log.read_text().startswith(answer)


async def rest_of(planned: Planned, log: Path) -> dict[str, Finding]:
    """What the sidecar of a tried pod finds from here."""
    sidecar = _trial_job(planned, "")["spec"]["template"]["spec"]["containers"][0]
    script = ASK_THE_REST.replace("/dev/termination-log", str(log))
    variables = {"http_proxy": "http://127.0.0.1:1"}
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", script, "", *sidecar["args"][1:], env=variables
    )
    assert await program.wait() == 0
    answer = await asyncio.to_thread(log.read_text)
    return {each.code: each for each in _rest(answer.split("\n"), planned, "")}


async def test_a_tried_pod_reaches_the_port_for_workspaces_or_says_why_not(tmp_path: Path) -> None:
    store = WorkspaceStore.open(f"file://{tmp_path}/store")
    log, tried = tmp_path / "log", replace(planned(), paperclip=None)
    service = Workspaces(store, Tokens([OctKey.generate_key(256)])).application
    another = Starlette()
    another.state.draining = asyncio.Event()
    async with serving(service) as base, serving(another) as other:
        assert list(await rest_of(replace(tried, workspaces=base), log)) == ["workspaces_reached"]
        assert list(await rest_of(tried, log)) == []
        for address, reason in ((other, "Not Found"), ("http://127.0.0.1:1", "Connection refused")):
            found = await rest_of(replace(tried, workspaces=address), log)
            assert (list(found), found["workspaces_unreachable"].level) == (["workspaces_unreachable"], "error")
            assert reason in found["workspaces_unreachable"].message
            assert "AGENT_RUNS_WORKSPACE_URL" in (found["workspaces_unreachable"].hint or "")
