"""A workspace store in a folder, and one on a real S3 server, encrypted and not."""

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from agent_runs.workspace.store import WorkspaceStore
from tests.workspace.s3 import S3Server, s3_server

KEY = bytes(range(32))


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.up().items():
            environment.setenv(name, value)
        yield server


@pytest.fixture(
    params=[
        *("folder", "encrypted folder"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("S3", "encrypted S3")),
    ]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WorkspaceStore]:
    """Each with nothing in it."""
    key = KEY if "encrypted" in request.param else None
    if "S3" in request.param:
        request.getfixturevalue("s3")
        yield WorkspaceStore.open(f"s3://{os.environ['S3_BUCKET']}/{uuid.uuid4()}", key)
    else:
        yield WorkspaceStore.open(f"file://{tmp_path}/store", key)
