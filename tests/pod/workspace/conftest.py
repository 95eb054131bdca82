"""Fixtures: the real service, a run, and pods of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pod.workspace.pods import Pod
from tests.pod.workspace.service import Run, Service, serving_workspaces


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving_workspaces(tmp_path / "store") as service:
        yield service


@pytest.fixture
def run(service: Service) -> Run:
    return service.new_run()


@pytest.fixture
def pod(run: Run, tmp_path: Path) -> Iterator[Pod]:
    pod = Pod(run, tmp_path / "pod")
    yield pod
    pod.clean_up()


@pytest.fixture
def other(run: Run, tmp_path: Path) -> Iterator[Pod]:
    """The next pod of the run."""
    pod = Pod(run, tmp_path / "other")
    yield pod
    pod.clean_up()
