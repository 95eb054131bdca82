"""One system for all tests of whole runs; each test has an agent of its own."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from tests.runs.system import System, open_system


@pytest.fixture(scope="session")
async def system(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """The system with one worker."""
    async with open_system(temporal, tmp_path_factory.mktemp("system")) as opened, opened.worker():
        yield opened
