"""Follows a run to its end: the story from Temporal, the output from the transcript store, side by side."""

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
from typing import TYPE_CHECKING, Final, TypeVar

from temporalio.client import WorkflowFailureError, WorkflowHandle

from cli.display import Display
from cli.lazy import lazy
from cli.refusals import Refused
from client.outcome import outcome_of
from client.story import Story, events
from contracts.identity import AttemptKey, RunKey
from contracts.outcome import Outcome
from opencode.events import printable
from workflows.agent_run import AgentRunWorkflow

if TYPE_CHECKING:
    from client import transcripts as remote
    from transcripts import follow as following
    from transcripts.store import Line, TranscriptStore

    Transcripts = TranscriptStore | remote.ServiceTranscripts
else:  # SQLAlchemy: a second that commands without output do without
    following, remote = lazy("transcripts.follow"), lazy("client.transcripts")

TAKEN: Final = timedelta(seconds=10)
"""A worker takes a run within a tenth of a second; later than this a person wants to know why nothing happens."""
POLL: Final = timedelta(milliseconds=200)
"""How often new lines of another process are looked for."""

DETACHED: Final = 130
"""Exit code of a command that was interrupted, as shells count it: 128 + SIGINT."""

Result = TypeVar("Result")


class Interrupted(Exception):
    """Somebody pressed Ctrl-C, or asked us to end: the command detaches."""


class Interrupts:
    """The first SIGINT or SIGTERM becomes an event that a command can wait for; a second one ends the process."""

    def __init__(self) -> None:
        self.first = asyncio.Event()

    def _note(self) -> None:
        if self.first.is_set():
            os._exit(DETACHED)
        self.first.set()

    @classmethod
    @contextmanager
    def caught(cls) -> Iterator[Interrupts]:
        """Catch them while the block runs."""
        interrupts, loop = cls(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, interrupts._note)
        try:
            yield interrupts
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def during(self, work: Awaitable[Result]) -> Result:
        """Do `work`.

        Raises:
            Interrupted: a signal came first; `work` was cancelled.
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
class Followed:
    """A run and where to show it.

    Attributes:
        after: show the first attempt's lines beyond this sequence.
        patience: until a note says that no worker has taken the run.
        collect: this is the run's caller: its outcome need not be kept for another one.
    """

    handle: WorkflowHandle[AgentRunWorkflow, Outcome]
    key: RunKey
    store: Transcripts
    display: Display
    after: int = 0
    patience: timedelta = TAKEN
    collect: bool = False

    async def to_the_end(self) -> Outcome:
        """Show everything as it comes, and return what came of it.

        Raises:
            Refused: the run ended without an outcome: terminated, or a bug in the workflow's code.
        """
        story = asyncio.create_task(self._story())
        try:
            await self._output(story.done)
            await story
        finally:
            story.cancel()
            await asyncio.wait([story])
        return await self.result()

    async def output(self) -> None:
        """Show the output until the run ends."""
        ended = asyncio.create_task(self._ended())
        try:
            await self._output(ended.done)
        finally:
            ended.cancel()
            await asyncio.wait([ended])

    async def result(self) -> Outcome:
        """What came of the run, once it has ended.

        Raises:
            Refused: it ended without an outcome.
        """
        try:
            return await outcome_of(self.handle, collect=self.collect)
        except WorkflowFailureError as error:
            raise ended_without_outcome(self.key.run_id, error) from None

    async def _story(self) -> None:
        story = Story()
        hint = "no worker has taken the run yet: is one up, with the same AGENT_RUNS_TASK_QUEUE? `agent-runs worker`"
        waiting = asyncio.get_running_loop().call_later(self.patience.total_seconds(), self.display.note, hint)
        try:
            async with aclosing(events(self.handle, live=True)) as told:
                async for event in told:
                    if story.steps:
                        waiting.cancel()
                    if (moment := story.read(event)) is not None:
                        self.display.moment(moment)
                    if story.closed:
                        return
        finally:
            waiting.cancel()

    async def _ended(self) -> None:
        """Return at the run's end, whatever it is."""
        with contextlib.suppress(WorkflowFailureError):
            await outcome_of(self.handle, collect=False)

    async def _output(self, over: Callable[[], bool]) -> None:
        async with aclosing(Output(self.store, self.key, over).lines(self.after)) as found:
            async for attempt, line in found:
                self.display.line(attempt, line)


def ended_without_outcome(run_id: str, error: WorkflowFailureError) -> Refused:
    """Terminated, or a bug in the workflow's code."""
    cause = error.cause
    return Refused(
        f"run {run_id} ended without an outcome, the Temporal history has the details: "
        f"{type(cause).__name__}: {printable(str(cause), 500)}",
        code=1,
    )


@dataclass(frozen=True)
class Output:
    """Every line of a run, attempt by attempt. `over` says that the run has ended."""

    store: Transcripts
    run: RunKey
    over: Callable[[], bool]

    async def lines(self, after: int = 0) -> AsyncGenerator[tuple[int, Line]]:
        """The lines in order with their attempt, from the first attempt's `after` on, until all is read."""
        attempt = 1
        while True:
            key, complete = AttemptKey(run=self.run, attempt=attempt), partial(self._complete, attempt)
            async with aclosing(self._follow(key, after, complete)) as found:
                async for line in found:
                    yield attempt, line
            if self.over() and attempt >= await self._newest():
                return
            attempt, after = attempt + 1, 0

    def _follow(self, key: AttemptKey, after: int, done: Callable[[], Awaitable[bool]]) -> AsyncGenerator[Line]:
        if isinstance(self.store, remote.ServiceTranscripts):
            return self.store.follow(key, after, done=done)
        return following.follow(self.store, key, after, done=done, poll=POLL)

    async def _complete(self, attempt: int) -> bool:
        """No more will be written to this attempt: the run is over, or its receipt or its successor is there."""
        if self.over():
            return True
        receipt = await self.store.receipt(AttemptKey(run=self.run, attempt=attempt))
        return receipt is not None or await self._newest() > attempt

    async def _newest(self) -> int:
        return max(await self.store.attempts(self.run.run_id), default=0)


async def known(handle: WorkflowHandle[AgentRunWorkflow, Outcome]) -> Story:
    """The story up to now.

    Raises:
        RPCError: the server does not answer.
    """
    story = Story()
    async with aclosing(events(handle, live=False)) as told:
        async for event in told:
            story.read(event)
    return story
