"""Images: the cluster gets them from its own tool, or from a registry beside it."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.paperclip_server.installation import FileLock
from tests.real_cluster.installed_images import InstalledImages, build
from tests.real_cluster.python_image import OWN_IMAGE, make_python_image
from tests.real_cluster.requirements import TOOL, skip_without
from tests.support.agent_pods import SIDECAR_IMAGE
from tests.support.image_registry import image_registry, skip_without_programs

INSTALLED: Final = (
    *("test_acp_agents", "test_agents_namespace", "test_installation", "test_production", "test_wrong_installations"),
)
"""Modules that build images in the same storage, or install into the same namespaces."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` one process has these modules, and another one all else."""
    for item in items:
        if item.path.parent.name == "real_cluster":
            item.add_marker(pytest.mark.xdist_group("installed" if item.path.stem in INSTALLED else "others"))


@pytest.fixture(scope="session", autouse=True)
async def sidecar_image(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[None]:
    """Workers and test pods find the image in their environment; without the tool it is pulled."""
    with pytest.MonkeyPatch.context() as environment:
        if TOOL in os.environ and SIDECAR_IMAGE not in os.environ:
            run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
            made = tmp_path_factory.getbasetemp().parent / f"python-image-{run}"  # by one process of this run
            with await asyncio.to_thread(FileLock, made.with_suffix(".lock")):
                if not made.exists():
                    await make_python_image(tmp_path_factory.mktemp("image"))
                    made.touch()
            environment.setenv(SIDECAR_IMAGE, OWN_IMAGE)
        yield


@pytest.fixture(scope="session")
async def images(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InstalledImages]:
    """The worker's image and the agents', as `./dev images` builds and pushes them, to a registry on this machine."""
    skip_without("KUBECONFIG", TOOL)
    skip_without_programs("buildah", "mmdebstrap", "docker-registry")
    folder = tmp_path_factory.mktemp("images")
    with image_registry(folder / "registry") as address:
        yield await asyncio.to_thread(build, folder, folder / "registry", address)
