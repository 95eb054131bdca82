"""Runs scenarios on a real Paperclip: independent ones concurrently, those that affect all others alone.

Each scenario is a test, which waits for its result.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

import pytest

from tests.paperclip_server.environment import Environment

CONCURRENT_LIMIT: Final = 5
"""Concurrent scenarios, on two cores that also run two Paperclips, Temporal, a worker and the agents."""
SCENARIO_TIMEOUT: Final = 1200
"""Seconds for one scenario."""
RESULT_TIMEOUT: Final = 2400
"""Seconds until a test has its result: all scenarios before it may have to end."""

ScenarioFunction = Callable[[Environment], Awaitable[None]]


class Schedule(Enum):
    CONCURRENT = auto()
    """Concurrently with others."""
    DISRUPTING = auto()
    """One after the other, on a Paperclip of their own, which they may kill; concurrently with the others."""
    EXCLUSIVE = auto()
    """After all others: it affects what all use."""


@dataclass(frozen=True)
class Scenario:
    """One scenario, by the name of its test."""

    name: str
    schedule: Schedule
    function: ScenarioFunction


SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(schedule: Schedule) -> Callable[[ScenarioFunction], Callable[..., Awaitable[None]]]:
    """Decorates a scenario; the result is a test that waits until the runner has run it."""

    def register(function: ScenarioFunction) -> Callable[..., Awaitable[None]]:
        name = getattr(function, "__name__", "")
        SCENARIOS[name] = Scenario(name, schedule, function)

        async def test(runner: ScenarioRunner) -> None:
            await runner.result_of(name)

        test.__name__, test.__doc__, test.__module__ = name, function.__doc__, function.__module__
        marked: Callable[..., Awaitable[None]] = pytest.mark.timeout(RESULT_TIMEOUT)(pytest.mark.paperclip(test))
        return marked

    return register


@dataclass
class ScenarioRunner:
    """Runs the scenarios of the tests that this session selected."""

    environment: Environment
    selected: list[Scenario]
    results: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    _all: asyncio.Task[None] | None = None

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self.results = {one.name: loop.create_future() for one in self.selected}
        self._all = asyncio.create_task(self._run_all())

    async def result_of(self, name: str) -> None:
        """Returns when the scenario has succeeded; raises what it raised."""
        await self.results[name]

    async def end(self) -> None:
        if self._all is not None:
            self._all.cancel()
            await asyncio.gather(self._all, return_exceptions=True)
        for result in self.results.values():
            if not result.done():
                result.cancel()
            elif not result.cancelled():
                result.exception()  # a test that did not run does not retrieve it

    async def _run_all(self) -> None:
        slots = asyncio.Semaphore(CONCURRENT_LIMIT)
        async with asyncio.TaskGroup() as group:
            for one in self._with(Schedule.CONCURRENT):
                group.create_task(self._run(one, slots))
            group.create_task(self._run_sequentially(Schedule.DISRUPTING))
        await self._run_sequentially(Schedule.EXCLUSIVE)

    async def _run_sequentially(self, schedule: Schedule) -> None:
        for one in self._with(schedule):
            await self._run(one, asyncio.Semaphore())

    async def _run(self, one: Scenario, slots: asyncio.Semaphore) -> None:
        result = self.results[one.name]
        try:
            async with slots, asyncio.timeout(SCENARIO_TIMEOUT):
                self._log(f"started  {one.name}")
                await one.function(self.environment)
        except Exception as error:  # noqa: BLE001 - its test raises it
            result.set_exception(error)
            self._log(f"failed  {one.name}: {str(error)[:1000]}")
        else:
            result.set_result(None)
            self._log(f"passed  {one.name}")

    def _log(self, message: str) -> None:
        """Appends to `scenarios.log`, for a person who wants to know what takes so long."""
        with (self.environment.folder / "scenarios.log").open("a") as file:
            file.write(f"{datetime.now(UTC):%H:%M:%S} {message}\n")

    def _with(self, schedule: Schedule) -> list[Scenario]:
        return [one for one in self.selected if one.schedule is schedule]
