"""What Temporal knows of a run: phase, steps, outcome. A port, because the page also works without Temporal."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from client.outcome import outcome_of
from client.runs import RunSummary, web_ui, with_run_id
from client.settings import ClientSettings
from client.story import Step, Story, events
from contracts.outcome import Outcome
from workflows.agent_run import AgentRunWorkflow

PATIENCE: Final = timedelta(seconds=5)


class FactsUnavailable(Exception):
    """Temporal does not answer now."""


@dataclass(frozen=True)
class Facts:
    """One run.

    Attributes:
        outcome: None while it goes on, or when it ended without one (terminated).
        web_ui: its page in Temporal's Web UI.
    """

    run: RunSummary
    steps: Sequence[Step] = ()
    outcome: Outcome | None = None
    web_ui: str | None = None


class Runs(Protocol):
    """Where facts come from."""

    async def facts(self, run_id: str) -> Facts | None:
        """What is known of the run, or None.

        Raises:
            FactsUnavailable: nobody answers.
        """
        ...


class NoRuns:
    """Where Temporal is out of reach."""

    async def facts(self, run_id: str) -> Facts | None:
        """Nothing."""
        raise FactsUnavailable(f"run {run_id}: this service does not reach Temporal")


@dataclass(frozen=True)
class TemporalRuns:
    """Facts from Temporal, asked anew each time."""

    client: Client
    settings: ClientSettings

    async def facts(self, run_id: str) -> Facts | None:
        """The run with exactly this id."""
        try:
            async with asyncio.timeout(PATIENCE.total_seconds()):
                run = await with_run_id(self.client, run_id)
                return None if run is None else await self._facts(run)
        except (RPCError, TimeoutError) as error:
            raise FactsUnavailable(f"Temporal does not answer: {type(error).__name__}") from None

    async def _facts(self, run: RunSummary) -> Facts:
        handle = run.handle(self.client)
        story = Story()
        async with aclosing(events(handle, live=False)) as told:
            async for event in told:
                story.read(event)
        outcome = await _outcome(handle) if run.decided else None
        return Facts(run, story.steps, outcome, web_ui(self.settings, run.workflow_id, run.workflow_run_id))


async def _outcome(handle: WorkflowHandle[AgentRunWorkflow, Outcome]) -> Outcome | None:
    try:
        return await outcome_of(handle, collect=False)
    except WorkflowFailureError:
        return None
