"""The cluster under test: the embedded one, or the one that KUBECONFIG names, in a namespace of its own."""

from __future__ import annotations

import asyncio
import os
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes.aio import config
from kubernetes.aio.client import Configuration

from dev_stack.cluster import EmbeddedCluster
from tests.contract.api import TIMEOUT, Api, pod


@pytest.fixture(scope="session")
async def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    if given := os.environ.get("KUBECONFIG"):
        yield Path(given)
        return
    async with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.kubeconfig_path


@pytest.fixture(scope="session")
async def access(kubeconfig: Path) -> Configuration:
    access = Configuration()
    load: Any = config.load_kube_config  # it has no annotations
    await load(str(kubeconfig), client_configuration=access)
    return access


@pytest.fixture(scope="session")
async def session(access: Configuration) -> AsyncIterator[aiohttp.ClientSession]:
    tls = ssl.create_default_context(cafile=access.ssl_ca_cert)
    if access.cert_file:
        tls.load_cert_chain(access.cert_file, access.key_file)
    token = await access.get_api_key_with_prefix("BearerToken")
    headers = {"Authorization": token} if token else {}
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with aiohttp.ClientSession(access.host, connector=connector, headers=headers) as session:
        yield session


@pytest.fixture(scope="session")
async def api(session: aiohttp.ClientSession) -> AsyncIterator[Api]:
    """The API, in a namespace made for this run and deleted after it."""
    api = Api(session, f"contract-{uuid.uuid4().hex[:8]}", real=bool(os.environ.get("KUBECONFIG")))
    created = await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": api.namespace}})
    assert created.code == 201, created
    if api.real:
        await _until_pods_are_accepted(api)
    yield api
    await api.call("DELETE", f"/api/v1/namespaces/{api.namespace}")


async def _until_pods_are_accepted(api: Api) -> None:
    """Controllers make a new namespace's ServiceAccount, and before Kubernetes 1.24 then its token."""
    async with asyncio.timeout(TIMEOUT):
        while (await api.create("pods", pod("true"), dryRun="All")).code != 201:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.1)


@pytest.fixture
def name() -> str:
    """A name no other object has."""
    return f"it-{uuid.uuid4().hex[:10]}"
