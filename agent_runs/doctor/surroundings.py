"""What a worker checks of its surroundings for an agent: API server, permissions, the objects of a run, its store."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from agent_runs.contracts.start import Finding
from agent_runs.doctor.checks import Check, run_checks
from agent_runs.doctor.objects import CheckedAgent, Objects
from agent_runs.doctor.permissions import permission_findings
from agent_runs.job.pod_source import deployment_namespace
from agent_runs.kube.client import Cluster
from agent_runs.transcripts.store import TranscriptStore


@dataclass(frozen=True)
class Surroundings:
    """The worker's connections and settings, for the checks of one agent."""

    cluster: Cluster
    store: TranscriptStore
    objects: Objects

    async def findings(self, namespace: str | None, agent: CheckedAgent | None, limit: timedelta) -> Sequence[Finding]:
        """What is found for an agent.

        Args:
            namespace: of its Jobs; None: the worker's setting of it.
            agent: None if its configuration is wrong: then no object of a run can be tried.
            limit: the time of each check.
        """
        jobs = namespace or self.cluster.namespace
        checks = [
            Check("the API server", self._api_server),
            Check("the worker's permissions", lambda: permission_findings(self.cluster, jobs, self._deployment())),
            Check("the transcript store", self._store),
        ]
        if agent is not None:
            checks.append(Check("the objects of a run", lambda: self.objects.findings(agent)))
        return await run_checks(checks, limit)

    def _deployment(self) -> str | None:
        choice = self.objects.settings.inheritance.deployment
        return deployment_namespace(self.cluster, choice) if choice else None

    async def _api_server(self) -> Sequence[Finding]:
        message = f"The API server answers, version {await self.cluster.version()}"
        return [Finding(code="kubernetes", level="info", message=message)]

    async def _store(self) -> Sequence[Finding]:
        await self.store.check_writable()
        return [Finding(code="transcript_store", level="info", message="The transcript store can be written")]
