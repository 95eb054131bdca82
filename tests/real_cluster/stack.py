"""The whole stack against a real cluster, for one test."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_runs.client.attach import Ticket, attach
from agent_runs.client.outcome import outcome_at_close
from agent_runs.client.wake import Wake, build_wake
from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.request import SessionParams
from agent_runs.kube.client import Cluster
from agent_runs.paperclip.sealing import Sealer, load_or_create
from agent_runs.transcript.store import TranscriptStore
from dev_stack import demo
from dev_stack.plan import Plan, Ports
from dev_stack.stack import Stack
from tests.real_cluster.requirements import cluster_and_image
from tests.runs.real_opencode import playing
from tests.support.policies import anything_allowed


@dataclass(frozen=True)
class RealSystem:
    """The stack, and clients of the cluster and the transcript store."""

    stack: Stack
    cluster: Cluster
    store: TranscriptStore

    def wake(
        self,
        scenario: str,
        agent_id: str,
        script: Mapping[str, Any] | None = None,
        token: str | None = None,
        run_id: str | None = None,
        session: SessionParams | None = None,
        **config: Any,
    ) -> Wake:
        """A run of an agent whose model plays this scenario; it ends without a caller that collects its outcome.

        Args:
            script: for the scenario `script`, instead of the demonstration's.
            token: the agent's token for Paperclip, instead of the demonstration's.
            session: of an earlier run, to be continued.
        """
        raw = demo.context(scenario, agent_id)
        if script is not None:
            raw = playing(raw, *script["steps"])
        raw["config"] |= {"keepWarmSec": 0, **config}
        raw = demo.later_context(raw, session)
        raw["runId"] = run_id or raw["runId"]
        raw["authToken"] = token or raw["authToken"]
        sealer = Sealer(load_or_create(self.stack.settings.sealing_key_file)[0].public)
        return build_wake(raw, sealer, outcome_retention_sec=0)

    async def start(self, wake: Wake) -> Ticket:
        """Attach, as every caller does."""
        return await attach(self.stack.client, self.stack.settings, wake)

    async def outcome(self, wake: Wake) -> Outcome:
        """Start and wait."""
        return await outcome_at_close((await self.start(wake)).handle(self.stack.client))

    def answers(self) -> list[dict[str, Any]]:
        """What the model has answered, oldest first: protocol, model, status, and usage unless it is an error."""
        lines = (self.stack.plan.state / "log" / "model.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def stdout(self, key: AttemptKey) -> list[bytes]:
        """The stored lines of the agent's standard output."""
        return [line.data for line in await self.store.read(key) if line.stream == "stdout"]


@asynccontextmanager
async def open_real_system(
    folder: Path, *, model_host: str | None = None, through: Path | None = None
) -> AsyncIterator[RealSystem]:
    """The stack on the real cluster; without one the test is skipped.

    Args:
        through: kubeconfig of a proxy in front of the cluster.
        model_host: address of this machine that pods reach; None finds it out, which needs to list nodes.
    """
    kubeconfig, image = cluster_and_image()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AGENT_RUNS_POLICY", str(anything_allowed(folder)))
        async with _opened(folder, str(through or kubeconfig), image, model_host) as system:
            yield system


@asynccontextmanager
async def _opened(folder: Path, kubeconfig: str, image: str, model_host: str | None) -> AsyncIterator[RealSystem]:
    async with (
        Stack.up(Plan(folder, Ports(), Path(kubeconfig), image, model_host)) as stack,
        await Cluster.connect(kubeconfig, namespace="default", environ={}) as cluster,
    ):
        store = await TranscriptStore.open(stack.settings.transcripts)
        try:
            yield RealSystem(stack, cluster, store)
        finally:
            await store.close()
