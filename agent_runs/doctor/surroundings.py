"""What a worker checks of its surroundings for an agent: API server, permissions, the objects of a run, its store."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import structlog

from agent_runs.contracts.errors import RunError, WorkspaceStoreUnavailable
from agent_runs.contracts.start import Finding
from agent_runs.doctor.objects import CheckedAgent, Objects
from agent_runs.doctor.permissions import permission_findings
from agent_runs.job.pod_source import deployment_namespace
from agent_runs.transcript.store import TranscriptStore
from agent_runs.workspace.store import WorkspaceDamaged, WorkspaceStore, WorkspacesUnavailable


@dataclass(frozen=True)
class Surroundings:
    """The worker's connections and settings, for the checks of one agent."""

    store: TranscriptStore
    objects: Objects
    workspaces: WorkspaceStore | None = None

    async def findings(self, namespace: str | None, agent: CheckedAgent | None, limit: timedelta) -> Sequence[Finding]:
        """What is found for an agent.

        Args:
            namespace: of its Jobs; None: the worker's setting of it.
            agent: None if its configuration is wrong: then no object of a run can be tried.
            limit: the time of each check.
        """
        cluster = self.objects.cluster
        jobs, choice = namespace or cluster.namespace, self.objects.settings.inheritance.deployment
        deployment = deployment_namespace(cluster, choice) if choice else None
        checks = [
            Check("the API server", self._api_server),
            Check("the worker's permissions", lambda: permission_findings(cluster, jobs, deployment)),
            Check("the transcript store", self._store),
        ]
        if self.workspaces is not None:
            checks.append(Check("the workspace store", partial(_workspaces, self.workspaces)))
        if agent is not None:
            checks.append(Check("the objects of a run", lambda: self.objects.findings(agent)))
        return await run_checks(checks, limit)

    async def _api_server(self) -> Sequence[Finding]:
        message = f"The API server answers, version {await self.objects.cluster.version()}"
        return [Finding(code="kubernetes", level="info", message=message)]

    async def _store(self) -> Sequence[Finding]:
        await self.store.check_writable()
        return [Finding(code="transcript_store", level="info", message="The transcript store can be written")]


async def _workspaces(store: WorkspaceStore) -> Sequence[Finding]:
    try:
        await store.check_writable()
    except (WorkspacesUnavailable, WorkspaceDamaged) as error:
        raise WorkspaceStoreUnavailable(str(error)) from None
    return [Finding(code="workspace_store", level="info", message=f"The workspace store {store.name} can be written")]


log: Final[Any] = structlog.get_logger()


@dataclass(frozen=True)
class Check:
    """One question to the surroundings of a run.

    Attributes:
        subject: what is checked, for the text of a failure.
        ask: returns what was found; a `RunError` that it raises is a finding, too.
    """

    subject: str
    ask: Callable[[], Awaitable[Sequence[Finding]]]


async def run_checks(checks: Sequence[Check], limit: timedelta) -> Sequence[Finding]:
    """Return what all checks find, in their order. `limit` is the time of each."""
    found = await asyncio.gather(*(_found(check, limit) for check in checks))
    return [finding for of_check in found for finding in of_check]


async def _found(check: Check, limit: timedelta) -> Sequence[Finding]:
    try:
        async with asyncio.timeout(limit.total_seconds()):
            return await check.ask()
    except TimeoutError:
        late = f"No answer within {limit.total_seconds():.0f} s about {check.subject}"
        return [Finding.error("check_timeout", late, "Test again; then look for its cause.")]
    except RunError as error:
        return [Finding.error(error.code, error.message, error.next_step)]
    except Exception as error:  # noqa: BLE001 - a library's own error says something about one check only
        log.warning("check.failed", subject=check.subject, error=type(error).__name__)
        message = f"The check of {check.subject} failed: {type(error).__name__}"
        return [Finding.error("check_failed", message, "Read the worker's log.")]
