"""A wake as its caller sends it: a few readable ids, and everything else sealed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_runs.client.names import Names
from agent_runs.contracts.identity import RunKey, workflow_id
from agent_runs.contracts.request import RunRequest
from agent_runs.contracts.start import Binding, HostTexts, Purpose, RunStart, SealedJoin, SealedRun
from agent_runs.job.checks import check_config
from agent_runs.paperclip.preparation import prepare
from agent_runs.paperclip.proxy_env import TOOLS_TOKEN
from agent_runs.paperclip.sealing import Sealer


@dataclass(frozen=True)
class Wake:
    """A wake that needs a run.

    Attributes:
        start: the workflow's input.
        names: for people.
        task_key: Paperclip's key of the task, by which runs are listed.
        join: its tokens, sealed for an open run that it joins.
        notes: for people, such as why a stored session is not resumed.
    """

    start: RunStart
    names: Names = field(default_factory=Names)
    task_key: str | None = None
    join: str | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> RunKey:
        return self.start.key


def build_wake(
    raw: Mapping[str, Any],
    sealer: Sealer,
    host: HostTexts = HostTexts(),  # noqa: B008 - it is frozen
    *,
    outcome_retention_sec: int = 24 * 3600,
) -> Wake:
    """Seals an execution context, JSON as Paperclip passes it, for a run.

    The context is checked here with the worker's own code, so that a wrong one is refused without a worker.

    Args:
        raw: Paperclip's execution context.
        sealer: of the worker's key.
        host: what Paperclip's own process knows besides.
        outcome_retention_sec: how long an outcome that no caller has fetched is kept, in seconds.

    Raises:
        InvalidRequest: names every wrong field by its Paperclip path with the remedy; nothing has been started.
        PaperclipBudgetExceeded: nothing is left of the agent's monthly budget in Paperclip.
    """
    prepared = prepare(raw, host)
    request, secrets = prepared.request, prepared.secrets
    check_config(request.config)
    tokens = SealedJoin(
        binding=_binding("join", request),
        auth_token=secrets.auth_token,
        tools_token=secrets.paperclip_env.get(TOOLS_TOKEN),
    )
    start = RunStart(
        run_id=request.run_id,
        agent_id=request.agent.id,
        company_id=request.agent.company_id,
        task=request.task,
        sealed=sealer.seal(SealedRun(binding=_binding("run", request), context=dict(raw), host=host)),
        outcome_retention_sec=outcome_retention_sec,
    )
    return Wake(
        start,
        names=Names.in_context(raw),
        task_key=request.runtime.task_key or request.task_id,
        join=sealer.seal(tokens) if tokens.auth_token else None,
        notes=request.notes,
    )


def _binding(purpose: Purpose, request: RunRequest) -> Binding:
    return Binding(
        purpose=purpose,
        workflow_id=workflow_id(request.agent.id),
        company_id=request.agent.company_id,
        run_id=request.run_id,
        task=request.task,
    )
