"""Phase, steps and outcome of a run, and lists of runs, from Temporal. A port: pages also work without Temporal."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Protocol

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle, WorkflowQueryFailedError
from temporalio.service import RPCError

from agent_runs.client.links import web_ui_url
from agent_runs.client.obstacles import Obstacle, obstacles_of_runs, open_questions, read_obstacles
from agent_runs.client.outcome import fetch_outcome, request_cancel
from agent_runs.client.run_list import RunFilter, RunPage, RunsUnavailable, list_page
from agent_runs.client.runs import RunSummary, find_by_key
from agent_runs.client.settings import ClientSettings
from agent_runs.client.tell import Answers, answer, tell
from agent_runs.client.timeline import Step, read_timeline
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.contracts.request import Capabilities
from agent_runs.contracts.updates import Delivery, Question
from agent_runs.files import UnusableKey
from agent_runs.paperclip.sealing import Sealer, public_key

TEMPORAL_TIMEOUT: Final = timedelta(seconds=5)
DELIVERY_TIMEOUT: Final = timedelta(seconds=30)
"""Of a message for which a page waits; it goes on to the agent afterwards."""


class RunInfoUnavailable(Exception):
    """Temporal does not answer."""


@dataclass(frozen=True)
class RunInfo:
    """Temporal's part of a run's page.

    Attributes:
        warnings: what the run's steps have warned of so far.
        obstacles: what keeps the run from going on now.
        facts: what the run is, by its name for people.
        reasons: why each attempt that failed has failed.
        capabilities: what its agent can do; None: not known yet.
        outcome: None while the run is open, or when it closed without one (terminated).
        web_ui: URL of the run in Temporal's Web UI.
    """

    run: RunSummary
    steps: Sequence[Step] = ()
    outcome: Outcome | None = None
    web_ui: str | None = None
    warnings: Sequence[str] = ()
    obstacles: Sequence[Obstacle] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[int, str] = field(default_factory=dict)
    capabilities: Capabilities | None = None


class RunInfoSource(Protocol):
    """What the pages ask of Temporal."""

    async def run_info(self, run: RunKey) -> RunInfo | None:
        """This run; None when Temporal does not know it.

        Raises:
            RunInfoUnavailable: Temporal does not answer.
        """
        ...

    async def list_page(self, wanted: RunFilter, cursor: bytes | None) -> RunPage:
        """A page of runs.

        Raises:
            RunsUnavailable: Temporal does not answer.
        """
        ...

    async def cancel(self, run: RunKey, reason: str) -> bool:
        """Request the cancel of this run. False: Temporal does not know it.

        Raises:
            RunInfoUnavailable: Temporal does not answer.
        """
        ...

    async def tell(self, run: RunKey, text: str, by: str, message: str) -> bool:
        """Send this run's agent a message, and return once it has it. False: Temporal does not know the run.

        Raises:
            InvalidRequest, MessageNotDelivered: as `agent_runs.client.tell.tell`.
            RunInfoUnavailable: Temporal does not answer, or no worker has answered yet.
        """
        ...

    async def questions(self, run: RunKey) -> Sequence[Question]:
        """What this run's agent asks and waits for; nothing of one that Temporal does not know.

        Raises:
            RunInfoUnavailable: Temporal or a worker does not answer.
        """
        ...

    async def answer(self, run: RunKey, question: Question, answers: Answers, by: str, message: str) -> bool:
        """Answer a question of this run's agent, and return once it has the answer; raises as `tell`."""
        ...


class NoRunInfo:
    """Used when Temporal could not be reached at the start: each call raises."""

    async def run_info(self, run: RunKey) -> RunInfo | None:
        raise RunInfoUnavailable(f"run {run.run_id}: this service is not connected to Temporal")

    async def list_page(self, wanted: RunFilter, cursor: bytes | None) -> RunPage:  # noqa: ARG002 (the port's)
        raise RunsUnavailable("This service is not connected to Temporal")

    async def cancel(self, run: RunKey, reason: str) -> bool:  # noqa: ARG002 (the port's)
        raise RunInfoUnavailable(f"run {run.run_id}: this service is not connected to Temporal")

    async def tell(self, run: RunKey, text: str, by: str, message: str) -> bool:  # noqa: ARG002 (the port's)
        raise RunInfoUnavailable(f"run {run.run_id}: this service is not connected to Temporal")

    async def questions(self, run: RunKey) -> Sequence[Question]:
        raise RunInfoUnavailable(f"run {run.run_id}: this service is not connected to Temporal")

    async def answer(self, run: RunKey, question: Question, answers: Answers, by: str, message: str) -> bool:  # noqa: ARG002 (the port's)
        raise RunInfoUnavailable(f"run {run.run_id}: this service is not connected to Temporal")


@dataclass(frozen=True)
class TemporalRunInfo:
    """Queries Temporal at each call."""

    client: Client
    settings: ClientSettings

    async def run_info(self, run: RunKey) -> RunInfo | None:
        try:
            async with asyncio.timeout(TEMPORAL_TIMEOUT.total_seconds()):
                found = await find_by_key(self.client, run)
                return None if found is None else await self._run_info(found)
        except (RPCError, TimeoutError):
            raise RunInfoUnavailable("Temporal does not answer") from None

    async def list_page(self, wanted: RunFilter, cursor: bytes | None) -> RunPage:
        page = await list_page(self.client, wanted, cursor)
        return replace(page, obstacles=await obstacles_of_runs(self.client, page.runs))

    async def cancel(self, run: RunKey, reason: str) -> bool:
        try:
            async with asyncio.timeout(TEMPORAL_TIMEOUT.total_seconds()):
                found = await find_by_key(self.client, run)
                if found is not None:
                    await request_cancel(found.handle(self.client), reason)
                return found is not None
        except (RPCError, TimeoutError):
            raise RunInfoUnavailable("Temporal does not answer") from None

    async def tell(self, run: RunKey, text: str, by: str, message: str) -> bool:
        return await self._deliver(run, lambda handle, sealer: tell(handle, run, sealer, text, by, message))

    async def questions(self, run: RunKey) -> Sequence[Question]:
        try:
            async with asyncio.timeout(TEMPORAL_TIMEOUT.total_seconds()):
                found = await find_by_key(self.client, run)
                return await open_questions(found.handle(self.client)) if found and not found.decided else ()
        except (RPCError, TimeoutError, WorkflowQueryFailedError):
            raise RunInfoUnavailable("Temporal or a worker does not answer") from None

    async def answer(self, run: RunKey, question: Question, answers: Answers, by: str, message: str) -> bool:
        return await self._deliver(
            run, lambda handle, sealer: answer(handle, run, sealer, question, answers, by, message)
        )

    async def _deliver(
        self, run: RunKey, deliver: Callable[[WorkflowHandle[Any, Any], Sealer], Awaitable[Delivery]]
    ) -> bool:
        try:
            sealer = Sealer(public_key(self.settings.sealing_key_file))
            async with asyncio.timeout(DELIVERY_TIMEOUT.total_seconds()):
                found = await find_by_key(self.client, run)
                if found is not None:
                    await deliver(found.handle(self.client), sealer)
                return found is not None
        except (RPCError, TimeoutError):
            raise RunInfoUnavailable("Temporal or a worker does not answer") from None
        except UnusableKey:
            raise RunInfoUnavailable("This service has no key with which a message can be sealed") from None

    async def _run_info(self, run: RunSummary) -> RunInfo:
        handle = run.handle(self.client)
        timeline = await read_timeline(handle)
        outcome = await _outcome(handle) if run.decided else None
        web_ui = web_ui_url(self.settings, run.workflow_id, run.workflow_run_id)
        obstacles = () if run.decided else await read_obstacles(self.client, handle, timeline.steps)
        return RunInfo(
            run,
            timeline.steps,
            outcome,
            web_ui,
            warnings=timeline.warnings,
            obstacles=obstacles,
            facts=timeline.facts,
            reasons=timeline.reasons,
            capabilities=timeline.capabilities,
        )


async def _outcome(handle: WorkflowHandle[Any, Outcome]) -> Outcome | None:
    try:
        return await fetch_outcome(handle, collect=False)
    except WorkflowFailureError:
        return None
