"""One system for all tests of whole runs; each test has an agent of its own."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from tests.runs.ground import Ground, ground


@pytest.fixture(scope="session")
async def system(temporal: Client, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """The system with one worker."""
    async with ground(temporal, tmp_path_factory.mktemp("system")) as made, made.worker():
        yield made
