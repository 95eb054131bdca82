"""Fixtures: the runner under every shell of this machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pod.harness import SHELLS, Runner


@pytest.fixture(params=sorted(SHELLS))
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runner]:
    runner = Runner(SHELLS[request.param], tmp_path)
    yield runner
    runner.clean_up()
