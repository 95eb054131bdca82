"""Images: a cluster without a registry gets them from the cluster's own tool."""

import os
from collections.abc import AsyncIterator

import pytest

from tests.real_cluster import installed_images
from tests.real_cluster.python_image import make_python_image
from tests.real_cluster.requirements import TOOL
from tests.support.agent_pods import SIDECAR_IMAGE


@pytest.fixture(scope="session", autouse=True)
async def sidecar_image(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[None]:
    """Workers and test pods find the image in their environment; without the tool it is pulled."""
    with pytest.MonkeyPatch.context() as environment:
        if TOOL in os.environ and SIDECAR_IMAGE not in os.environ:
            environment.setenv(SIDECAR_IMAGE, await make_python_image(tmp_path_factory.mktemp("image")))
        yield


@pytest.fixture(scope="session")
async def images(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The worker's image and the agents', as `./dev images` builds them."""
    await installed_images.images_in_the_cluster(tmp_path_factory.mktemp("images"))
