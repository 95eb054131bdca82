"""The whole stack against a real cluster, for one test."""

import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.client import KubernetesCluster
from contracts.identity import AttemptKey
from contracts.request import RunRequest
from local import demo
from local.plan import Plan, Ports
from local.stack import Stack
from paperclip.preparation import prepare
from paperclip.sealing import Sealer, load_or_create
from transcripts.store import SqlTranscripts

SCRIPT = re.compile(r"<<<fake-llm.*?fake-llm>>>", re.DOTALL)


@dataclass(frozen=True)
class Real:
    """The stack, and the cluster as an operator sees it."""

    stack: Stack
    cluster: KubernetesCluster
    store: SqlTranscripts

    def request(
        self,
        scenario: str,
        agent_id: str,
        script: Mapping[str, Any] | None = None,
        token: str | None = None,
        **config: Any,
    ) -> RunRequest:
        """A run of an agent whose model plays this scenario; its outcome waits for nobody.

        Args:
            script: for the scenario `script`, instead of the demonstration's.
            token: with which the agent speaks to Paperclip, instead of the demonstration's.
        """
        raw = demo.context(scenario, agent_id)
        if script is not None:
            raw = rewritten(raw, f"<<<fake-llm\n{json.dumps(script)}\nfake-llm>>>")
        raw["config"] |= config
        raw["authToken"] = token or raw["authToken"]
        demo.furnish(self.stack.plan.data_root, raw)
        sealer = Sealer(load_or_create(self.stack.settings.sealing_key_file)[0].public)
        return prepare(raw, sealer).model_copy(update={"linger_sec": 0})

    async def said(self, key: AttemptKey) -> list[bytes]:
        """The agent's standard output so far."""
        return [line.data for line in await self.store.read(key) if line.stream == "stdout"]


def rewritten(value: Any, script: str) -> Any:
    """A context with another script in each of its texts that has one."""
    if isinstance(value, dict):
        return {key: rewritten(each, script) for key, each in value.items()}
    if isinstance(value, list):
        return [rewritten(each, script) for each in value]
    return SCRIPT.sub(lambda _: script, value) if isinstance(value, str) else value


@asynccontextmanager
async def real(folder: Path) -> AsyncIterator[Real]:
    """Skips the test where there is no real cluster."""
    kubeconfig, image = os.environ.get("KUBECONFIG"), os.environ.get("TEST_AGENT_IMAGE")
    if not (kubeconfig and image):
        pytest.skip("KUBECONFIG and TEST_AGENT_IMAGE are not both set")
    async with (
        Stack.up(Plan(folder, Ports(), Path(kubeconfig), image, None)) as stack,
        await KubernetesCluster.connect(kubeconfig, namespace="default", environ={}) as cluster,
    ):
        store = await SqlTranscripts.open(stack.settings.transcripts)
        try:
            yield Real(stack, cluster, store)
        finally:
            await store.close()
