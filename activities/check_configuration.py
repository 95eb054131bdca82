"""Checks an agent's configuration as `prepare_run` does, for Paperclip's environment test."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from temporalio import activity

from agent_runs.contracts.errors import InvalidRequest, PolicyRefused
from agent_runs.contracts.request import Workspace
from agent_runs.contracts.start import Binding, CheckReport, CheckStart, Finding, SealedCheck
from agent_runs.job.checks import Checks
from agent_runs.job.data_volume import Owner, RunFolders
from agent_runs.job.redactions import WorkerValues
from agent_runs.paperclip.environment import api_url_warning
from agent_runs.paperclip.preparation import WrongFields, split
from agent_runs.paperclip.sealing import Opener
from agent_runs.paperclip.session import working_directory

TOKEN = "check-token"  # noqa: S105 - no secret
"""Stands for the one that each run gets: it is one of the secrets of a run."""
CORRECT_FIELD = "Correct the field in the agent's configuration."


@dataclass(frozen=True)
class CheckConfigurationActivity:
    """Creates nothing, and reads nothing but its input and the worker's own pod.

    Attributes:
        paperclip_api_url: the worker's setting, for an agent whose Paperclip names no address.
        worker_values: reads what the worker puts into the pod of any agent.
    """

    opener: Opener
    checks: Checks
    paperclip_api_url: str | None
    worker_values: Callable[[], Awaitable[WorkerValues]]

    @activity.defn
    async def check_configuration(self, input: CheckStart) -> CheckReport:
        """Returns what is wrong with the configuration, or how its agents reach Paperclip.

        Raises:
            SealedFieldUnreadable: sealed with another key, or for another use.
            PodIntrospectionFailed: the worker's pod is none that could be read.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        use = Binding(
            purpose="check",
            workflow_id=activity.info().workflow_id or "",
            company_id=input.company_id,
            run_id=input.check_id,
        )
        check = await asyncio.to_thread(self.opener.open, input.sealed, SealedCheck, use)
        return CheckReport(findings=tuple([finding async for finding in self._findings(check, input.company_id)]))

    async def _findings(self, check: SealedCheck, company_id: str) -> AsyncIterator[Finding]:
        run = {
            "runId": "check",
            "authToken": TOKEN,
            "agent": {"id": "check", "companyId": "check"},
            "config": check.config,
        }
        try:
            prepared = await asyncio.to_thread(split, run, check.host)
            directory = working_directory(Workspace(), prepared.chosen)
            await self.checks.check(prepared.chosen, RunFolders(Owner(company_id, None), directory))
            values = await self.worker_values()
            await asyncio.to_thread(values.redaction, prepared.secrets)  # refuses too many, as `create_job` does
        except WrongFields as wrong:
            for problem in wrong.problems:
                yield Finding(code="agent_configuration", level="error", message=str(problem), hint=CORRECT_FIELD)
            return
        except InvalidRequest as refused:
            yield Finding(code="agent_configuration", level="error", message=refused.message, hint=CORRECT_FIELD)
            return
        except PolicyRefused as refused:
            yield Finding(code="operator_policy", level="error", message=refused.message, hint=refused.next_step)
            return
        url = prepared.request.config.paperclip_api_url or self.paperclip_api_url
        if warning := api_url_warning(url):
            hint = "Set AGENT_RUNS_PAPERCLIP_API_URL, at Paperclip's server or at the worker."
            yield Finding(code="paperclip_url", level="warn", message=warning, hint=hint)
        else:
            yield Finding(code="paperclip_url", level="info", message=f"Agents reach Paperclip at {url}")
