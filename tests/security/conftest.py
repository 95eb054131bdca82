"""A system without a worker for each test: it decides what the worker and its pod are given."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from tests.runs.system import System, open_system


@pytest.fixture
async def system(temporal: Client, tmp_path: Path) -> AsyncIterator[System]:
    """The system; no worker runs yet."""
    async with open_system(temporal, tmp_path) as opened:
        yield opened
