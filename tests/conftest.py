"""Real parts for the tests: one Temporal dev server for the whole session, one queue per test."""

import asyncio
import gc
import os
import re
import signal
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from temporalio.client import Client

from agent_runs.client.connection import EXIT_DELAY_SEC
from agent_runs.contracts.request import AgentRef, RunConfig
from dev_stack.agent_programs import PROGRAMS
from dev_stack.scripted_model import ScriptedModel, serve
from tests.support.agent_samples import left_out
from tests.support.requests import FakeRequest
from tests.support.temporal import start_temporal

# Shells start background jobs with SIGINT ignored, and programs that outlive a terminal ignore SIGHUP; every process
# inherits that, and no shell can trap it then.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The gate finds the same today and tomorrow; `--hypothesis-profile default` searches anew.
settings.register_profile("gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
# The first failure is enough there.
settings.register_profile(
    "mutation",
    parent=settings.get_profile("gate"),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
settings.load_profile("gate")

REAL_PROGRAMS: Final = {"real_agents", "real_cluster"}
LAST_START: Final = float(os.environ.get("TEST_LAST_START", "inf"))
"""When the last test may begin, in seconds since 1970: `.ci/run` is stopped after a while."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of agents that are not in the sample."""
    real = [item.nodeid for item in items if REAL_PROGRAMS & {mark.name for mark in item.iter_markers()}]
    out = left_out({test: agent[1] for test in real if (agent := AGENT.search(test))})
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
    items[:] = [item for item in items if item.nodeid not in out]


class Failures:
    """Names a failure at once: a session that is stopped prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._config.get_terminal_writer().line(
                f"\nfailed: {report.nodeid} ({report.when}): {report.longreprtext[-300:]}"
            )


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Failures(config))


def pytest_collection_finish() -> None:
    """Leaves what lives now out of collections of garbage: the SDK interrupts a workflow task after 2 s of one."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > LAST_START:  # a skipped test is named; a run that is stopped names nothing
        pytest.skip(f"{item.nodeid} had not begun in time")


FIXTURES = Path(__file__).parent / "fixtures"
AGENT: Final = re.compile(rf"\[({'|'.join(PROGRAMS)})[]-]")
UNKNOWN_SESSION = "0199c0de-0000-7000-8000-000000000000"
"""A session that no agent has made."""


@pytest.fixture(scope="session")
async def temporal() -> AsyncIterator[Client]:
    """A client of a real dev server (in memory), which ends with the session."""
    async with await start_temporal() as environment:
        yield environment.client
        await asyncio.sleep(EXIT_DELAY_SEC)


@pytest.fixture
def queue() -> str:
    """A task queue that no other test polls."""
    return f"queue-{uuid.uuid4()}"


@pytest.fixture
def request_of_a_run() -> FakeRequest:
    """A valid request with ids of its own; its outcome waits for nobody."""
    return FakeRequest(
        run_id=str(uuid.uuid4()),
        agent=AgentRef(id=str(uuid.uuid4()), company_id="acme", name="Ada"),
        config=RunConfig(model="fake/scenario/text"),
    )


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    """The scripted model, for agents and clients of their providers."""
    async with serve() as served:
        yield served


@pytest.fixture(params=PROGRAMS)
def name(request: pytest.FixtureRequest) -> str:
    """Each agent that speaks the Agent Client Protocol."""
    return str(request.param)
