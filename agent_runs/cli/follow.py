"""Follows a run to its end: its phases from Temporal, its output from the transcript store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.background import in_background
from agent_runs.cli.display import Display
from agent_runs.cli.program import Refused
from agent_runs.cli.transcripts import RunOutput
from agent_runs.client.obstacles import Kind, Obstacle, read_obstacles
from agent_runs.client.outcome import fetch_outcome
from agent_runs.client.timeline import Timeline, events
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.outcome import Outcome
from agent_runs.transcript.events import printable

if TYPE_CHECKING:
    from agent_runs.cli.transcripts import Transcripts

OBSTACLE_INTERVAL: Final = timedelta(seconds=5)
"""Between looks at what keeps a followed run from going on."""
OBSTACLE_REMINDER: Final = timedelta(minutes=1)
"""Until an obstacle that is still there is named again."""
HAND_OVER_TIMEOUT: Final = timedelta(seconds=30)

DETACHED: Final = 130
"""Exit code of a command that was interrupted, as shells count it: 128 + SIGINT."""

Result = TypeVar("Result")


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived: the command detaches."""


class Interrupts:
    """The first SIGINT or SIGTERM sets the event `first`; a second one ends the process."""

    def __init__(self) -> None:
        self.first = asyncio.Event()

    def _on_signal(self) -> None:
        if self.first.is_set():
            os._exit(DETACHED)
        self.first.set()

    @classmethod
    @contextmanager
    def installed(cls) -> Iterator[Interrupts]:
        interrupts, loop = cls(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupts._on_signal)
        try:
            yield interrupts
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def during(self, work: Awaitable[Result]) -> Result:
        """Await `work`.

        Raises:
            Interrupted: a signal arrived first; `work` was cancelled.
        """
        task = asyncio.ensure_future(work)
        signalled = asyncio.create_task(self.first.wait())
        try:
            await asyncio.wait([task, signalled], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Interrupted
            return task.result()
        finally:
            signalled.cancel()
            task.cancel()
            await asyncio.wait([task, signalled])


@dataclass(frozen=True)
class RunFollower:
    """Shows a run on a display.

    Attributes:
        after: show the first attempt's lines after this sequence.
        look_every: time between looks at what keeps the run from going on.
        collect: acknowledge the outcome, as the run's caller: see `fetch_outcome`.
    """

    client: Client
    handle: WorkflowHandle[Any, Outcome]
    key: RunKey
    store: Transcripts
    display: Display
    after: int = 0
    look_every: timedelta = OBSTACLE_INTERVAL
    collect: bool = False

    async def follow_to_end(self) -> Outcome:
        """Show phases and output as they come, and return the outcome.

        Raises:
            Refused: the run closed without an outcome: it was terminated, or its workflow failed.
            RPCError: Temporal does not know the run, or refuses it.
        """
        await self._show_until(self._show_phases())
        return await result(self.handle, self.key.run_id, collect=self.collect)

    async def follow_output(self) -> None:
        """Show the output until the run ends.

        Raises:
            RPCError: as `follow_to_end`.
        """
        await self._show_until(self._ended())

    async def _show_until(self, end: Coroutine[Any, Any, None]) -> None:
        """Show output and obstacles until `end` returns, which is when the run has ended."""
        ended = asyncio.create_task(end)
        try:
            async with in_background(self._show_obstacles()):
                await self._show_output(ended.done)
                await ended
        finally:
            ended.cancel()
            await asyncio.wait([ended])

    async def _show_phases(self) -> None:
        timeline = Timeline()
        async with aclosing(events(self.handle, follow=True)) as history:
            async for event in history:
                if (change := timeline.add(event)) is not None:
                    self.display.phase_change(change)
                if timeline.closed:
                    return

    async def _show_obstacles(self) -> None:
        """Show what keeps the run from going on, once and then every minute; also that Temporal does not answer."""
        shown: dict[tuple[Kind, str, str], float] = {}
        away_since: float | None = None
        clock, reminder = asyncio.get_running_loop().time, OBSTACLE_REMINDER.total_seconds()
        while True:
            await asyncio.sleep(self.look_every.total_seconds())
            try:
                found = await read_obstacles(self.client, self.handle)
            except RPCError as error:
                if away_since is None:
                    away_since = clock()
                    lost = error.status is RPCStatusCode.NOT_FOUND
                    what = "does not find the run, as while its database restarts" if lost else "does not answer"
                    self.display.note(f"Temporal {what}; the run goes on without it")
                continue
            if away_since is not None:
                self.display.note(f"Temporal answers again, after {clock() - away_since:.0f} s")
                away_since = None
            keyed: dict[tuple[Kind, str, str], Obstacle] = {
                (each.kind, each.subject, each.reason): each for each in found
            }
            new = {key: each for key, each in keyed.items() if clock() - shown.get(key, -inf) >= reminder}
            shown = {key: clock() if key in new else shown[key] for key in keyed}
            self.display.obstacles(new.values())

    async def _ended(self) -> None:
        """Return when the run has its outcome or is closed."""
        with contextlib.suppress(WorkflowFailureError):
            await fetch_outcome(self.handle, collect=False)

    async def _show_output(self, ended: Callable[[], bool]) -> None:
        async with aclosing(RunOutput(self.store, self.key, ended).lines(self.after)) as output:
            async for attempt, line in output:
                self.display.line(attempt, line)


async def result(handle: WorkflowHandle[Any, Outcome], run_id: str, *, collect: bool = False) -> Outcome:
    """Wait for the outcome; `collect` as of `fetch_outcome`.

    Raises:
        Refused: the run closed without an outcome.
    """
    try:
        return await fetch_outcome(handle, collect=collect)
    except WorkflowFailureError as error:
        raise no_outcome(run_id, error) from None


async def result_of_decided(handle: WorkflowHandle[Any, Outcome], run_id: str) -> Outcome:
    """The outcome of a run that has one. A workflow that is still open hands it over only while a worker polls.

    Raises:
        Refused: as `result`, or no worker hands it over within `HAND_OVER_TIMEOUT`.
    """
    try:
        async with asyncio.timeout(HAND_OVER_TIMEOUT.total_seconds()):
            return await result(handle, run_id)
    except TimeoutError:
        raise Refused(
            f"run {run_id} has its outcome, but no worker hands it over: start one (`agent-runs worker`), then retry",
            code=1,
        ) from None


def no_outcome(run_id: str, error: WorkflowFailureError) -> Refused:
    """The error for a run that was terminated, or whose workflow failed."""
    cause = error.cause
    return Refused(
        f"run {run_id} closed without an outcome ({type(cause).__name__}: {printable(str(cause), 500)}); "
        "its history in Temporal has the details",
        code=1,
    )


async def show_new_steps(handle: WorkflowHandle[Any, Outcome], display: Display, known: int) -> None:
    """Show each step that begins after the first `known` ones, until the run is closed."""
    timeline = Timeline()
    async with aclosing(events(handle, follow=True)) as history:
        async for event in history:
            before = max(len(timeline.steps), known)
            timeline.add(event)
            for step in timeline.steps[before:]:
                display.note(f"waits for: {step.words}")
