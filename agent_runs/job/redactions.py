"""The redaction of a run, for every step that passes on what its pod wrote or what Kubernetes reports about it.

What the worker itself puts into pods is read here, once for `create_job` and once for the redaction: the same code says
what goes in and what is hidden.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_runs.contracts.errors import (
    InvalidRequest,
    PodIntrospectionFailed,
    SealedFieldUnreadable,
    TranscriptsUnavailable,
)
from agent_runs.contracts.messages import JoinedRun
from agent_runs.contracts.opencode import problems
from agent_runs.contracts.request import Secrets
from agent_runs.contracts.start import SealedJoin
from agent_runs.files import UnusableFile, read_json_object
from agent_runs.job.pod_profile import Inheritance, inherited_literals
from agent_runs.job.pod_source import inherited_pod
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.preparation import Preparations
from agent_runs.paperclip.redaction import Redaction
from agent_runs.paperclip.sealing import Opener
from agent_runs.paperclip.secret_values import secret_values, token_values, warnings


@dataclass(frozen=True)
class WorkerValues:
    """What the worker puts into the pod of any agent.

    Attributes:
        inherited: literal variables of the worker's own pod, or of Paperclip's Deployment.
        opencode: the operator's OpenCode configuration.
        keys: names of variables with the keys of agents' providers, of all agents that the worker knows.
    """

    inherited: dict[str, str] = field(default_factory=dict, repr=False)
    opencode: dict[str, Any] = field(default_factory=dict, repr=False)
    keys: frozenset[str] = frozenset()

    def redaction(self, secrets: Secrets, joined: SealedJoin | None = None) -> Redaction:
        """The redaction of an agent that gets these values and these secrets. It takes a while if there are many.

        Args:
            joined: the tokens of a later run, which the agent has instead; the run's own may be in its files.

        Raises:
            InvalidRequest: there are too many to be searched for.
        """
        values = secret_values(secrets, self.inherited, self.opencode, self.keys)
        return Redaction.of((*values, *(token_values(joined) if joined else ())))

    def warnings(self, secrets: Secrets) -> tuple[str, ...]:
        """What that redaction leaves out, for people."""
        return warnings(secrets, self.inherited, self.opencode, self.keys)


@dataclass(frozen=True)
class Redactions:
    """Makes the redaction of the run that scheduled the calling activity.

    It depends on nothing but what is sealed for the run, the worker's own pod, the operator's OpenCode configuration
    and profiles of agents, so all workers of a deployment make the same.

    Attributes:
        inheritance: what agents inherit from the worker's own pod.
        opencode_config: the file of the operator's OpenCode configuration.
        opener: opens the tokens of runs that have joined.
        keys: as in `WorkerValues`.
    """

    cluster: Cluster
    preparations: Preparations
    inheritance: Inheritance = field(default_factory=Inheritance)
    opencode_config: Path | None = None
    opener: Opener = field(default_factory=lambda: Opener(()))
    keys: frozenset[str] = frozenset()

    async def current(self, joined: JoinedRun | None = None) -> Redaction:
        """Returns the redaction of this run.

        Args:
            joined: the later run whose tokens the pod has.

        Raises:
            TranscriptsUnavailable: this worker does not know the run's secrets; retried. During a roll a worker may
                come whose rules do not refuse what `prepare_run` has taken.
        """
        try:
            prepared = await self.preparations.current()
            run = prepared.request.key
            tokens = await asyncio.to_thread(self.opener.tokens, joined, run) if joined else None
            values = await self.worker_values()
            return await asyncio.to_thread(values.redaction, prepared.secrets, tokens)
        except (SealedFieldUnreadable, InvalidRequest, PodIntrospectionFailed) as error:
            raise TranscriptsUnavailable(f"the run's secrets cannot be kept out of its transcript: {error}") from None

    async def worker_values(self) -> WorkerValues:
        """Reads what this worker puts into pods.

        Raises:
            InvalidRequest: the operator's OpenCode configuration cannot be read, or something in it has a wrong type.
            PodIntrospectionFailed: the pod or Deployment from which agents inherit cannot be read.
            ClusterUnavailable: the API server refused or timed out; retried.
        """
        pod: Mapping[str, Any] | None = None
        if self.inheritance.variables:
            pod = await inherited_pod(self.cluster, self.inheritance)
        return WorkerValues(
            inherited=inherited_literals(pod, self.inheritance) if pod else {},
            opencode=await asyncio.to_thread(provider_settings, self.opencode_config),
            keys=self.keys,
        )


def provider_settings(file: Path | None) -> dict[str, Any]:
    """Reads the OpenCode configuration file of the worker's settings; empty without one.

    Raises:
        InvalidRequest: the file cannot be read or is not a JSON object.
    """
    if file is None:
        return {}
    try:
        content = read_json_object(file, "AGENT_RUNS_OPENCODE_CONFIG:", "OpenCode's configuration")
    except UnusableFile as error:
        raise InvalidRequest(str(error)) from None
    if wrong := [f"{path} {remedy}".strip() for path, remedy in problems(content)]:
        raise InvalidRequest(f"AGENT_RUNS_OPENCODE_CONFIG: {file}: {'; '.join(wrong)}")
    return content
