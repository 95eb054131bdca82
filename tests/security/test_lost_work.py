"""No work is lost silently: a workspace outlives its pod, or the run is refused, unless its agent may lose it."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.check_configuration import CheckConfigurationActivity
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.start import Binding, CheckReport, CheckStart, SealedCheck
from agent_runs.job.checks import Checks
from agent_runs.job.pod_profile import Inheritance
from agent_runs.job.redactions import WorkerValues
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.preparation import prepare
from agent_runs.service import startup
from tests.paperclip.contexts import OPENER, SEALER, minimal, with_value
from tests.runs.system import System, open_system

CWD = "context.paperclipWorkspace.cwd"


@pytest.fixture(scope="module")
async def alone(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system whose worker shares no data volume with agents."""
    async with open_system(temporal, tmp_path_factory.mktemp("alone")) as opened, opened.worker():
        yield opened


def shared_agent(system: System, script: str = "cat > /dev/null") -> dict[str, Any]:
    """An agent whose configuration says nothing about its workspace."""
    raw = system.agent(script)
    raw["config"].pop("workspace", None)
    return raw


async def test_a_run_whose_workspace_no_volume_keeps_is_refused_before_anything_exists(alone: System) -> None:
    raw = shared_agent(alone)
    before = len(alone.changes)
    outcome = await alone.outcome(raw)
    assert outcome.error_code == "workspace_not_shared"
    assert "paperclipWorkspace.cwd" in (outcome.error_message or "")
    assert outcome.never_started
    assert outcome.failure is not None
    for remedy in ("AGENT_RUNS_WORKSPACE_STORE", "`workspace`", "`ephemeral`"):
        assert remedy in outcome.failure.next_step
    assert alone.changes[before:] == []


async def test_an_agent_whose_files_may_be_lost_says_so_and_works_without_a_volume(alone: System) -> None:
    raw = shared_agent(alone, 'cat > /dev/null; echo "in $PWD"')
    raw["config"]["workspace"] = "ephemeral"
    await alone.outcome(raw)
    assert await alone.stdout(raw) == [f"in {raw['context']['paperclipWorkspace']['cwd']}".encode()]


async def test_a_run_without_a_workspace_has_none_to_lose(alone: System) -> None:
    raw = shared_agent(alone, 'cat > /dev/null; echo "in $PWD"')
    raw["context"].pop("paperclipWorkspace")
    await alone.outcome(raw)
    assert await alone.stdout(raw) == [b"in /home/agent"]


async def test_a_claim_of_the_workers_setting_is_a_shared_volume(alone: System) -> None:
    sharing = await alone.with_data_volume("paperclip")
    async with sharing.worker():
        raw = shared_agent(sharing, "cat > /dev/null; echo kept > file; echo done")
        await sharing.outcome(raw)
    volume = alone.volume("paperclip")
    workspace = raw["context"]["paperclipWorkspace"]["cwd"].removeprefix("/paperclip/")
    assert (volume / workspace / "file").read_text() == "kept\n"


def worker_pod(*mounts: dict[str, str]) -> Cluster:
    """A cluster in which the worker's own pod has these mounts of a claim."""

    class InAPod:
        async def own_pod(self) -> dict[str, Any]:
            container = {"name": "worker", "image": "worker:1", "volumeMounts": list(mounts)}
            volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "paperclip-data"}}]
            return {"metadata": {"name": "worker-1"}, "spec": {"containers": [container], "volumes": volumes}}

    return cast("Cluster", InAPod())


@pytest.mark.parametrize(
    ("setting", "mounts", "found"),
    [
        (None, [{"name": "data", "mountPath": "/paperclip"}], "paperclip-data"),
        (None, [{"name": "data", "mountPath": "/elsewhere"}], None),
        (None, [], None),
        ("named", [], "named"),
        ("named", [{"name": "data", "mountPath": "/paperclip"}], "named"),
    ],
)
async def test_the_shared_volume_is_the_one_that_the_agents_pod_gets(
    setting: str | None, mounts: list[dict[str, str]], found: str | None
) -> None:
    assert await startup.data_claim(worker_pod(*mounts), setting, Inheritance()) == found


OUTSIDE = ["/etc", "/", "/paperclipped/app", "/paperclip/../etc", "//etc", "/tmp/x", "/home/agents", "/home"]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("field", ["config.cwd", CWD])
def test_a_working_directory_that_no_volume_keeps_is_refused_by_its_field(field: str, path: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^invalid_request: {field} must be below /paperclip") as refused:
        prepare(with_value(minimal(), field, path))
    assert "`ephemeral`" in refused.value.message
    assert ("let it be carried" in refused.value.message) == (field == CWD)


@pytest.mark.parametrize("path", ["/paperclip/app", "/paperclip", "//paperclip/app", "/home/agent", "/home/agent/x/.."])
@pytest.mark.parametrize("field", ["config.cwd", CWD])
def test_a_working_directory_on_the_data_volume_is_taken(field: str, path: str) -> None:
    assert prepare(with_value(minimal(), field, path)).request


@pytest.mark.parametrize("field", ["config.cwd", CWD])
def test_an_agent_whose_files_may_be_lost_may_work_anywhere(field: str) -> None:
    assert prepare(with_value(minimal(workspace="ephemeral"), field, "/srv/app")).request


def test_a_workspace_that_would_be_lost_is_refused_unless_the_configuration_says_ephemeral() -> None:
    assert prepare(minimal()).request.config.workspace == "auto"
    assert prepare(minimal(workspace="")).request.config.workspace == "auto"
    with pytest.raises(InvalidRequest, match=r"config\.workspace .*'shared', 'carried' or 'ephemeral'"):
        prepare(minimal(workspace="local"))


# Paperclip's environment test


async def no_values() -> WorkerValues:
    return WorkerValues()


async def claim() -> str:
    return "paperclip-data"


async def findings(config: dict[str, Any], checks: Checks, workspaces: str | None = None) -> dict[str, str]:
    """Code and level of what the environment test says about a configuration."""
    environment = ActivityEnvironment()
    workflow_id = environment.info.workflow_id or ""
    binding = Binding(purpose="check", workflow_id=workflow_id, company_id="acme", run_id="check-1")
    sealed = SEALER.seal(SealedCheck(binding=binding, config=config, workspaces=workspaces))
    step = CheckConfigurationActivity(OPENER, checks, "http://paperclip:3100", no_values).check_configuration
    report: CheckReport = await environment.run(step, CheckStart(check_id="check-1", company_id="acme", sealed=sealed))
    return {finding.code: finding.level for finding in report.findings}


async def test_the_environment_test_refuses_a_home_of_paperclip_that_pods_do_not_see() -> None:
    config = {"model": "fake/model"}
    outside = "/home/ada/.paperclip/instances/default/workspaces"
    assert await findings(config, Checks(), workspaces=outside) == {"agent_configuration": "error"}
    assert "error" not in (await findings({**config, "workspace": "ephemeral"}, Checks(), workspaces=outside)).values()
    inside = "/paperclip/instances/default/workspaces"
    assert await findings(config, Checks(), workspaces=inside) == {"workspace_not_shared": "error"}


async def test_the_environment_test_refuses_what_every_run_of_paperclip_would_be_refused_for() -> None:
    config = {"model": "fake/model"}
    assert await findings(config, Checks()) == {"workspace_not_shared": "error"}
    assert await findings({**config, "cwd": "/paperclip/app"}, Checks()) == {"workspace_not_shared": "error"}
    assert await findings({**config, "workspace": "ephemeral"}, Checks()) == {
        "paperclip_url": "info",
        "agent_capabilities": "info",
    }
    assert await findings(config, Checks(data_claim=claim)) == {"paperclip_url": "info", "agent_capabilities": "info"}
    assert await findings({**config, "cwd": "/etc"}, Checks(data_claim=claim)) == {"agent_configuration": "error"}
