"""Plays the stories: independent ones side by side, those that strike the whole system alone, each told by its test."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

import pytest

from tests.paperclip_server.system import System

AT_ONCE: Final = 5
"""Stories side by side: on two cores, beside two Paperclips, a Temporal, a worker and their agents."""
LONGEST: Final = 300
"""Seconds of one story."""
PATIENCE: Final = 900
"""Seconds until a test has been told: all stories before it may have to end."""

Telling = Callable[[System], Awaitable[None]]


class Act(Enum):
    """When a story is played."""

    TOGETHER = auto()
    """Beside the others."""
    MORTAL = auto()
    """One after the other, beside the others, in an office of their own, whose Paperclip they may kill."""
    ALONE = auto()
    """After all others: it strikes what all use."""


@dataclass(frozen=True)
class Story:
    name: str
    act: Act
    tell: Telling


STORIES: Final[dict[str, Story]] = {}


def story(act: Act) -> Callable[[Telling], Callable[..., Awaitable[None]]]:
    """Makes a test of a story: it waits until the stage has played it."""

    def register(tell: Telling) -> Callable[..., Awaitable[None]]:
        name = getattr(tell, "__name__", "")
        STORIES[name] = Story(name, act, tell)

        async def test(stage: Stage) -> None:
            await stage.told(name)

        test.__name__, test.__doc__, test.__module__ = name, tell.__doc__, tell.__module__
        marked: Callable[..., Awaitable[None]] = pytest.mark.timeout(PATIENCE)(pytest.mark.paperclip(test))
        return marked

    return register


@dataclass
class Stage:
    """Plays the stories that this session asked for."""

    system: System
    wanted: list[Story]
    endings: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    _all: asyncio.Task[None] | None = None

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self.endings = {one.name: loop.create_future() for one in self.wanted}
        self._all = asyncio.create_task(self._play())

    async def told(self, name: str) -> None:
        """Returns when the story has ended well; raises what it raised."""
        await self.endings[name]

    async def end(self) -> None:
        if self._all is not None:
            self._all.cancel()
            await asyncio.gather(self._all, return_exceptions=True)
        for ending in self.endings.values():
            if not ending.done():
                ending.cancel()
            elif not ending.cancelled():
                ending.exception()  # a test that was not run does not ask

    async def _play(self) -> None:
        room = asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as together:
            for one in self._of(Act.TOGETHER):
                together.create_task(self._tell(one, room))
            together.create_task(self._one_by_one(Act.MORTAL))
        await self._one_by_one(Act.ALONE)

    async def _one_by_one(self, act: Act) -> None:
        for one in self._of(act):
            await self._tell(one, asyncio.Semaphore())

    async def _tell(self, one: Story, room: asyncio.Semaphore) -> None:
        ending = self.endings[one.name]
        try:
            async with room, asyncio.timeout(LONGEST):
                self._note(f"begins {one.name}")
                await one.tell(self.system)
        except Exception as error:  # noqa: BLE001 - its test raises it
            ending.set_exception(error)
            self._note(f"failed {one.name}: {str(error)[:1000]}")
        else:
            ending.set_result(None)
            self._note(f"ended  {one.name}")

    def _note(self, what: str) -> None:
        """Into `stories.log`, which a person reads when something takes too long."""
        with (self.system.folder / "stories.log").open("a") as file:
            file.write(f"{datetime.now(UTC):%H:%M:%S} {what}\n")

    def _of(self, act: Act) -> list[Story]:
        return [one for one in self.wanted if one.act is act]
