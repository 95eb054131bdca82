"""Opens what is sealed for the run, checks all of it, and returns the part without secrets, which the history holds."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from temporalio import activity

from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.messages import PrepareRun
from agent_runs.contracts.request import RunRequest
from agent_runs.job.checks import Checks
from agent_runs.job.data_volume import Owner, RunFolders
from agent_runs.paperclip.preparation import Preparations
from agent_runs.paperclip.session import working_directory


@dataclass(frozen=True)
class PrepareRunActivity:
    """The first step of a run: nothing is created before it has succeeded.

    Attributes:
        open_run: as `TranscriptStore.open_run`.
    """

    preparations: Preparations
    checks: Checks
    open_run: Callable[[RunKey, str], Awaitable[str]]

    @activity.defn
    async def prepare_run(self, input: PrepareRun) -> RunRequest:
        """Returns the request that all later steps use.

        Raises:
            PaperclipBudgetExceeded: nothing is left of the agent's monthly budget in Paperclip.
            InvalidRequest: names every wrong field by its Paperclip path with the remedy, and quotes no value; or the
                ids and the task of the start are not those that are sealed; or the run was started before.
            PolicyRefused: names every field whose value the operator's policy does not allow.
            WorkspaceNotShared: the workspace would be lost with the agent's pod.
            PodIntrospectionFailed: the worker's pod cannot be read, or lacks a container.
            SealedFieldUnreadable: sealed with another key, or for another use.
            ClusterUnavailable: the API server refused or timed out; retried.
            TranscriptsUnavailable: the store does not answer; retried.
        """
        prepared = await self.preparations.current()
        request = prepared.request
        _check_start(input, request)
        await self.checks.check(prepared.chosen, folders_of(request))
        await self._open_run(input.run)
        return self.checks.bounded(request)

    async def _open_run(self, run: RunKey) -> None:
        """Refuses a start that repeats an ended run's: its agent would work again, for a transcript that is sealed."""
        ours = activity.info().workflow_run_id or ""
        if (maker := await self.open_run(run, ours)) != ours:
            raise InvalidRequest(
                f"run {run.run_id} of this agent was started before, as Temporal's run {maker}: a run is made once"
            )


def folders_of(request: RunRequest) -> RunFolders:
    context = request.context
    return RunFolders(
        owner=Owner(request.agent.company_id, request.agent.id),
        directory=working_directory(context.paperclip_workspace, request.config),
        workspace=context.paperclip_workspace,
        projects=context.paperclip_workspaces,
        instructions=request.config.instructions_file_path,
    )


def _check_start(input: PrepareRun, request: RunRequest) -> None:
    """The readable fields decide who holds the agent, and the sealed ones what runs: they must agree."""
    started = {
        "runId": (input.run.run_id, request.run_id),
        "agent.id": (input.run.agent_id, request.agent.id),
        "agent.companyId": (input.run.company_id, request.agent.company_id),
        "task": (input.task, request.task),
    }
    if wrong := [field for field, (readable, sealed) in started.items() if readable != sealed]:
        raise InvalidRequest(
            f"{', '.join(wrong)}: the start and the sealed context differ; start the run with the context's own",
            fields=", ".join(wrong),
        )
