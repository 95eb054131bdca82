"""Checks an agent's configuration as `prepare_run` does, for Paperclip's environment test."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity

from agent_runs.contracts.errors import (
    AgentVersionUnsupported,
    ClusterForbidden,
    InvalidRequest,
    PodIntrospectionFailed,
    PolicyRefused,
    WorkspaceNotShared,
)
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.request import Capabilities, Workspace
from agent_runs.contracts.start import Binding, CheckReport, CheckStart, Finding, SealedCheck
from agent_runs.doctor.objects import CheckedAgent
from agent_runs.doctor.surroundings import Surroundings
from agent_runs.doctor.trial import pod_findings
from agent_runs.job.acp_plan import capabilities_of
from agent_runs.job.checks import Checks
from agent_runs.job.data_volume import Owner, RunFolders
from agent_runs.job.redactions import WorkerValues
from agent_runs.paperclip.advanced import fold
from agent_runs.paperclip.environment import api_url_warning
from agent_runs.paperclip.preparation import WrongFields, split
from agent_runs.paperclip.sealing import Opener
from agent_runs.paperclip.session import working_directory

TOKEN = "check-token"  # noqa: S105 - no secret
"""Stands for the one that each run gets: it is one of the secrets of a run."""
LIMIT = timedelta(seconds=10)
"""Of an activity without one; half of it is the time of each check, so that one that hangs does not hide the others."""


@dataclass(frozen=True)
class CheckConfigurationActivity:
    """Creates nothing that lasts: what a check writes, it writes by a dry run or in a transaction that deletes it.
    Only `try_pod` creates a Job, and deletes it.

    Attributes:
        paperclip_api_url: the worker's setting, for an agent whose Paperclip names no address.
        worker_values: reads what the worker puts into the pod of any agent.
        surroundings: what a run needs of Kubernetes and the store; None: not checked.
    """

    opener: Opener
    checks: Checks
    paperclip_api_url: str | None
    worker_values: Callable[[], Awaitable[WorkerValues]]
    surroundings: Surroundings | None = None

    @activity.defn
    async def check_configuration(self, input: CheckStart) -> CheckReport:
        """Returns what is wrong with the configuration, or how its agents reach Paperclip.

        Raises:
            SealedFieldUnreadable: sealed with another key, or for another use.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        check = await self._opened(input)
        findings, agent = await self._configuration(check, _key(input))
        return CheckReport(findings=(*findings, *await self._surroundings(check, agent)))

    @activity.defn
    async def try_pod(self, input: CheckStart) -> CheckReport:
        """Runs a pod like that of the agent's next run, which calls no model, and returns what it finds.

        Raises:
            SealedFieldUnreadable: sealed with another key, or for another use.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        _, agent = await self._configuration(await self._opened(input), _key(input))
        if agent is None or self.surroundings is None:
            return CheckReport()
        return CheckReport(findings=tuple(await pod_findings(self.surroundings.objects, agent, activity.heartbeat)))

    async def _opened(self, input: CheckStart) -> SealedCheck:
        use = Binding(
            purpose="check",
            workflow_id=activity.info().workflow_id or "",
            company_id=input.company_id,
            run_id=input.check_id,
        )
        return await asyncio.to_thread(self.opener.open, input.sealed, SealedCheck, use)

    async def _surroundings(self, check: SealedCheck, agent: CheckedAgent | None) -> Sequence[Finding]:
        """What is found even for a wrong configuration, so that all is reported at once."""
        if self.surroundings is None:
            return ()
        namespace = fold(check.config).config.get("namespace")
        limit = (activity.info().start_to_close_timeout or LIMIT) / 2
        chosen = namespace if isinstance(namespace, str) and namespace else None
        return await self.surroundings.findings(chosen, agent, limit)

    async def _configuration(self, check: SealedCheck, key: RunKey) -> tuple[Sequence[Finding], CheckedAgent | None]:
        """What is found in the configuration, and the agent if nothing in it is wrong.

        A workspace that the configuration leaves open is carried where there is a store, as the plugin decides.
        """
        config = check.config
        if self.checks.carries and config.get("workspace") in (None, "", "auto"):
            config = {**config, "workspace": "carried"}
        run = {
            "runId": "check",
            "authToken": TOKEN,
            "agent": {"id": "check", "companyId": "check"},
            "config": config,
            "context": {"paperclipWorkspace": {"cwd": check.workspaces}},
        }
        try:
            prepared = await asyncio.to_thread(split, run, check.host)
        except WrongFields as wrong:
            errors = [Finding.error("agent_configuration", str(problem)) for problem in wrong.problems]
            return [*errors, *map(_warning, wrong.warnings)], None
        except InvalidRequest as refused:
            return [Finding.error("agent_configuration", refused.message)], None
        warnings = [_warning(warning) for warning in prepared.warnings]
        try:
            folders = RunFolders(Owner(key.company_id, None), working_directory(Workspace(), prepared.chosen))
            await self.checks.check(prepared.chosen, None if prepared.chosen.workspace == "carried" else folders)
            values = await self.worker_values()
            await asyncio.to_thread(values.redaction, prepared.secrets)  # refuses too many, as `create_job` does
            await self.checks.check_volume(prepared.chosen, "paperclipWorkspace.cwd, which Paperclip gives every run,")
        except InvalidRequest as refused:
            return [Finding.error("agent_configuration", refused.message), *warnings], None
        except PolicyRefused as refused:
            return [Finding.error("operator_policy", refused.message, refused.next_step), *warnings], None
        except (WorkspaceNotShared, AgentVersionUnsupported, PodIntrospectionFailed, ClusterForbidden) as refused:
            return [Finding.error(refused.code, refused.message, refused.next_step), *warnings], None
        checked = prepared.request.config
        warnings += [_warning(text) for text in self.checks.warnings(checked)]
        url = checked.paperclip_api_url or self.paperclip_api_url
        found = [
            await self._address(url),
            _abilities(checked.agent, capabilities_of(checked, self.checks.agents)),
            *warnings,
        ]
        return found, CheckedAgent(key, prepared, values)

    async def _address(self, url: str | None) -> Finding:
        """As in a run, a worker outside of a pod does not judge an address: pods may share its loopback."""
        in_pod = self.surroundings is None or await self.surroundings.objects.cluster.own_pod() is not None
        if (in_pod or not url) and (warning := api_url_warning(url)):
            return Finding(code="paperclip_url", level="warn", message=warning)
        return Finding(code="paperclip_url", level="info", message=f"Agents reach Paperclip at {url}")


def _key(input: CheckStart) -> RunKey:
    return RunKey(agent_id="check", company_id=input.company_id, run_id=input.check_id)


def _warning(text: str) -> Finding:
    return Finding(code="agent_configuration_warning", level="warn", message=text)


def _abilities(agent: str, can: Capabilities) -> Finding:
    words = ", ".join(f"{what}: {answer}" for what, answer in can.words.items())
    return Finding(code="agent_capabilities", level="info", message=f"What the agent {agent} can do: {words}")
