"""Follows a run to its end: its phases from Temporal, its output from the transcript store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from temporalio.client import WorkflowFailureError, WorkflowHandle

from agent_runs.agents.opencode.events import printable
from agent_runs.cli.display import Display
from agent_runs.cli.lazy import lazy
from agent_runs.cli.refusals import Refused
from agent_runs.client.outcome import fetch_outcome
from agent_runs.client.timeline import Timeline, events
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import Outcome

if TYPE_CHECKING:
    from agent_runs.client import transcripts as remote
    from agent_runs.transcripts import follow as transcript_follow
    from agent_runs.transcripts.store import Line, TranscriptStore

    Transcripts = TranscriptStore | remote.ServiceTranscripts
else:  # SQLAlchemy: a second that commands without output do without
    transcript_follow, remote = lazy("agent_runs.transcripts.follow"), lazy("agent_runs.client.transcripts")

NO_WORKER_HINT_AFTER: Final = timedelta(seconds=10)
"""A worker takes a run within a tenth of a second; after this time a note explains why nothing happens."""
OUTPUT_POLL_INTERVAL: Final = timedelta(milliseconds=200)
"""Between queries for new lines of another process."""

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
        """Install the signal handlers for the block."""
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
        hint_after: time without an activity until a note says that no worker has taken the run.
        collect: acknowledge the outcome, as the run's caller: see `fetch_outcome`.
    """

    handle: WorkflowHandle[Any, Outcome]
    key: RunKey
    store: Transcripts
    display: Display
    after: int = 0
    hint_after: timedelta = NO_WORKER_HINT_AFTER
    collect: bool = False

    async def follow_to_end(self) -> Outcome:
        """Show phases and output as they come, and return the outcome.

        Raises:
            Refused: the run closed without an outcome: it was terminated, or its workflow failed.
        """
        phases = asyncio.create_task(self._show_phases())
        try:
            await self._show_output(phases.done)
            await phases
        finally:
            phases.cancel()
            await asyncio.wait([phases])
        return await self.result()

    async def follow_output(self) -> None:
        """Show the output until the run ends."""
        ended = asyncio.create_task(self._ended())
        try:
            await self._show_output(ended.done)
        finally:
            ended.cancel()
            await asyncio.wait([ended])

    async def result(self) -> Outcome:
        """Wait for the outcome.

        Raises:
            Refused: the run closed without an outcome.
        """
        try:
            return await fetch_outcome(self.handle, collect=self.collect)
        except WorkflowFailureError as error:
            raise no_outcome(self.key.run_id, error) from None

    async def _show_phases(self) -> None:
        timeline = Timeline()
        hint = "no worker has taken the run yet: start one with the same AGENT_RUNS_TASK_QUEUE (`agent-runs worker`)"
        waiting = asyncio.get_running_loop().call_later(self.hint_after.total_seconds(), self.display.note, hint)
        try:
            async with aclosing(events(self.handle, follow=True)) as history:
                async for event in history:
                    if timeline.steps:
                        waiting.cancel()
                    if (change := timeline.add(event)) is not None:
                        self.display.phase_change(change)
                    if timeline.closed:
                        return
        finally:
            waiting.cancel()

    async def _ended(self) -> None:
        """Return when the run has its outcome or is closed."""
        with contextlib.suppress(WorkflowFailureError):
            await fetch_outcome(self.handle, collect=False)

    async def _show_output(self, ended: Callable[[], bool]) -> None:
        async with aclosing(RunOutput(self.store, self.key, ended).lines(self.after)) as output:
            async for attempt, line in output:
                self.display.line(attempt, line)


def no_outcome(run_id: str, error: WorkflowFailureError) -> Refused:
    """The error for a run that was terminated, or whose workflow failed."""
    cause = error.cause
    return Refused(
        f"run {run_id} closed without an outcome ({type(cause).__name__}: {printable(str(cause), 500)}); "
        "its history in Temporal has the details",
        code=1,
    )


@dataclass(frozen=True)
class RunOutput:
    """The lines of a run, attempt by attempt. `ended` returns whether the run has ended."""

    store: Transcripts
    run: RunKey
    ended: Callable[[], bool]

    async def lines(self, after: int = 0) -> AsyncGenerator[tuple[int, Line]]:
        """Yield all lines in order with their attempt, from the first attempt's `after` on, until the run has ended."""
        attempt = 1
        while True:
            key, complete = AttemptKey(run=self.run, attempt=attempt), partial(self._complete, attempt)
            async with aclosing(self._follow(key, after, complete)) as lines:
                async for line in lines:
                    yield attempt, line
            if self.ended() and attempt >= await self._newest():
                return
            attempt, after = attempt + 1, 0

    def _follow(self, key: AttemptKey, after: int, done: Callable[[], Awaitable[bool]]) -> AsyncGenerator[Line]:
        if isinstance(self.store, remote.ServiceTranscripts):
            return self.store.follow(key, after, done=done)
        return transcript_follow.follow(self.store, key, after, done=done, poll=OUTPUT_POLL_INTERVAL)

    async def _complete(self, attempt: int) -> bool:
        """Whether nothing more will be written: the run has ended, or the attempt has a receipt or a successor."""
        if self.ended():
            return True
        receipt = await self.store.receipt(AttemptKey(run=self.run, attempt=attempt))
        return receipt is not None or await self._newest() > attempt

    async def _newest(self) -> int:
        return max(await self.store.attempts(self.run.run_id), default=0)


async def read_timeline(handle: WorkflowHandle[Any, Outcome]) -> Timeline:
    """Read the timeline up to now.

    Raises:
        RPCError: the server does not answer.
    """
    timeline = Timeline()
    async with aclosing(events(handle, follow=False)) as history:
        async for event in history:
            timeline.add(event)
    return timeline
