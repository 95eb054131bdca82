"""An agent's configuration gets nothing that the operator's policy does not allow, and the worker's identity never."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.prepare_run import PrepareRunActivity
from agent_runs.contracts.errors import PolicyRefused
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.messages import PrepareRun
from agent_runs.job.checks import Checks
from agent_runs.job.policy import Policy
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.preparation import Preparation, prepare
from agent_runs.service import startup
from tests.paperclip.contexts import minimal, with_value
from tests.runs.system import System, open_system
from tests.support.policies import ANYTHING

REACHING_OUT: dict[str, dict[str, Any]] = {
    "serviceAccountName": {"serviceAccountName": "agent-runs-worker"},
    "namespace": {"namespace": "kube-system"},
    "labels": {"labels": {"app": "paperclip"}},
    "nodeSelector": {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}},
    "tolerations": {"tolerations": [{"operator": "Exists"}]},
    "resources.limits.cpu": {"resources": {"limits": {"cpu": "900"}}},
    "agentDbStorageCapacity": {"agentDbMode": "dedicated_pvc", "agentDbStorageCapacity": "900Ti"},
    "priorityClassName": {"priorityClassName": "system-node-critical"},
    "annotations": {"annotations": {"vault.hashicorp.com/agent-inject": "true"}},
    "extraVolumes[0].hostPath": {"extraVolumes": [{"name": "h", "mountPath": "/h", "hostPath": {"path": "/etc"}}]},
    "podTemplate": {"podTemplate": {"spec": {"hostAliases": [{"ip": "10.6.6.6", "hostnames": ["paperclip"]}]}}},
    "paperclipApiUrl": {"paperclipApiUrl": "http://attacker.example"},
}


@pytest.fixture(scope="module")
async def strict(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """A system whose operator allows nothing beyond the defaults."""
    folder = tmp_path_factory.mktemp("strict")
    policy = folder / "operator.yaml"
    policy.write_text("namespaces: [agents-two]\n")
    async with open_system(temporal, folder, policy=policy) as opened, opened.worker():
        yield opened


@pytest.mark.parametrize("field", REACHING_OUT)
async def test_a_choice_beyond_the_policy_is_refused_by_name_and_nothing_is_created(strict: System, field: str) -> None:
    raw = strict.agent("exit 0")
    raw["config"] |= REACHING_OUT[field]
    before = len(strict.changes)
    outcome = await strict.outcome(raw)
    assert outcome.error_code == "policy_refused"
    assert (outcome.error_message or "").startswith(f"{field}: ")
    assert "operator.yaml" in (outcome.error_message or "")
    assert strict.changes[before:] == []


async def open_run(_run: RunKey, by: str) -> str:
    return by


async def test_no_policy_gives_an_agent_the_workers_own_service_account() -> None:
    context = with_value(minimal(), "config.serviceAccountName", "agent-runs-worker")

    class Opened:
        async def current(self) -> Preparation:
            return prepare(context)

    class InAPod:
        async def own_pod(self) -> dict[str, Any]:
            return {"spec": {"serviceAccountName": "agent-runs-worker", "containers": []}}

    own_account = partial(startup.own_account, cast("Cluster", InAPod()))
    checks = Checks(Policy.parse(ANYTHING, "policy.yaml"), own_account=own_account)
    run = RunKey(agent_id="agent-1", company_id="company-1", run_id="run-1")
    step = PrepareRunActivity(Opened(), checks, open_run).prepare_run
    with pytest.raises(PolicyRefused, match="is the worker's own"):
        await ActivityEnvironment().run(step, PrepareRun(run=run))
