"""Images: the cluster gets them from its own tool, or from a registry beside it."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from agent_runs.kube.client import Cluster
from tests.real_cluster.installed_images import InstalledImages, build
from tests.real_cluster.python_image import OWN_IMAGE, make_python_image
from tests.real_cluster.requirements import TOOL, skip_without
from tests.support.agent_pods import SIDECAR_IMAGE
from tests.support.file_lock import FileLock
from tests.support.image_registry import image_registry, skip_without_programs
from tests.support.ran import FILE, note_ran


@pytest.fixture(scope="session", autouse=True)
async def sidecar_image(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[None]:
    """Workers and test pods find the image in their environment; without the tool it is pulled."""
    with pytest.MonkeyPatch.context() as environment:
        if TOOL in os.environ and SIDECAR_IMAGE not in os.environ:
            lock = tmp_path_factory.getbasetemp().parent / "python-image.lock"  # of all runs of this user
            with await asyncio.to_thread(FileLock, lock):
                await make_python_image(tmp_path_factory.mktemp("image"))
            environment.setenv(SIDECAR_IMAGE, OWN_IMAGE)
        yield


@pytest.fixture(scope="session", autouse=True)
async def noted_version() -> None:
    """Noted, for the page of what is compatible."""
    if FILE in os.environ and "KUBECONFIG" in os.environ:
        async with await Cluster.connect(os.environ["KUBECONFIG"], environ={}) as cluster:
            note_ran("Kubernetes", (await cluster.version()).removeprefix("v"))


@pytest.fixture(scope="session")
async def images(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InstalledImages]:
    """The worker's image and the agents', as `./dev images` builds and pushes them, to a registry on this machine."""
    skip_without("KUBECONFIG", TOOL)
    skip_without_programs("buildah", "mmdebstrap", "docker-registry")
    folder = tmp_path_factory.mktemp("images")
    with image_registry(folder / "registry") as address:
        yield await asyncio.to_thread(build, folder, folder / "registry", address)
