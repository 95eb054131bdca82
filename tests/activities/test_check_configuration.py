"""Paperclip's environment test and `agent-runs doctor` warn of what a run of the same configuration warns of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from activities.check_configuration import CheckConfigurationActivity
from agent_runs.contracts.start import Binding, CheckReport, CheckStart, Finding, SealedCheck
from agent_runs.doctor.surroundings import Surroundings
from agent_runs.job.checks import Checks
from agent_runs.job.redactions import WorkerValues
from agent_runs.paperclip.preparation import prepare
from tests.paperclip.contexts import OPENER, SEALER, minimal

INEFFECTIVE: dict[str, Any] = {
    "timeoutSecs": 5,
    "resources": {"requests": {"cpus": "1"}},
    "env": {"TMPDIR": "/data/tmp", "MINE": "1"},
}


async def no_values() -> WorkerValues:
    return WorkerValues()


@dataclass
class Namespaces:
    """Surroundings that are asked for their namespace alone."""

    asked: list[str | None] = field(default_factory=list)

    async def findings(self, namespace: str | None, _agent: object, _limit: timedelta) -> Sequence[Finding]:
        self.asked.append(namespace)
        return ()


async def found(
    config: dict[str, Any],
    surroundings: Surroundings | None = None,
    paperclip: str = "http://paperclip:3100",
    *,
    carries: bool = False,
    workspaces: str | None = None,
) -> Sequence[Finding]:
    """What the environment test finds in a configuration."""
    environment = ActivityEnvironment()
    binding = Binding(
        purpose="check", workflow_id=environment.info.workflow_id or "", company_id="acme", run_id="check-1"
    )
    sealed = SEALER.seal(SealedCheck(binding=binding, config=config, workspaces=workspaces))
    checking = CheckConfigurationActivity(OPENER, Checks(carries=carries), paperclip, no_values, surroundings)
    start = CheckStart(check_id="check-1", company_id="acme", sealed=sealed)
    report: CheckReport = await environment.run(checking.check_configuration, start)
    return report.findings


def warnings(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(each.message for each in findings if each.code == "agent_configuration_warning")


@pytest.mark.parametrize("workspace", ["ephemeral", pytest.param("shared", id="which is refused without a volume")])
async def test_the_warnings_are_those_of_a_run(workspace: str) -> None:
    context = minimal(**INEFFECTIVE, workspace=workspace)
    notes = prepare(context).request.notes
    assert len(notes) == 3
    assert warnings(await found(context["config"])) == notes


async def test_a_wrong_field_hides_no_warning() -> None:
    config: dict[str, Any] = {**INEFFECTIVE, "modle": "a/b"}
    findings = await found(config)
    assert [each.message.split(" is ")[0] for each in findings if each.level == "error"] == ["config.model"]
    assert "config.modle is not known: did you mean model?" in warnings(findings)
    assert len(warnings(findings)) == 4


async def test_a_configuration_without_such_fields_has_no_warning() -> None:
    assert warnings(await found({"model": "a/b", "workspace": "ephemeral", "env": {"MINE": "1"}})) == ()


async def test_the_namespace_of_advanced_is_checked_also_where_another_field_is_wrong() -> None:
    surroundings = Namespaces()
    findings = await found({"advanced": "namespace: agents\nmaxSteps: many"}, cast("Surroundings", surroundings))
    assert [each.message.partition(" ")[0] for each in findings] == ["config.model", "config.advanced.maxSteps"]
    assert surroundings.asked == ["agents"]


async def test_a_worker_in_a_pod_warns_of_a_loopback_address_and_names_the_remedy_once() -> None:
    findings = await found({"model": "a/b", "workspace": "ephemeral"}, paperclip="http://127.0.0.1:3100")
    (warning,) = [each for each in findings if each.code == "paperclip_url"]
    assert (warning.level, warning.message.count("AGENT_RUNS_PAPERCLIP_API_URL")) == ("warn", 1)


@pytest.mark.parametrize("config", [{}, {"workspace": ""}, {"workspace": "auto"}, {"workspace": "carried"}])
async def test_paperclips_home_may_be_anywhere_where_workspaces_are_carried(config: dict[str, Any]) -> None:
    agent = {"model": "a/b", "cwd": "/srv/app", **config}
    home = "/home/ada/.paperclip/instances/default/workspaces"
    assert [each for each in await found(agent, carries=True, workspaces=home) if each.level != "info"] == []
    shared = [*await found(agent | {"workspace": "shared"}, carries=True, workspaces=home)]
    assert [each.level for each in shared] == ["error", "error"]
