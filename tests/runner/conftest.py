"""Fixtures: the runner under every shell of this machine."""

from pathlib import Path

import pytest

from tests.runner.harness import SHELLS, Runner


@pytest.fixture(params=sorted(SHELLS))
def runner(request: pytest.FixtureRequest, tmp_path: Path) -> Runner:
    return Runner(SHELLS[request.param], tmp_path)
