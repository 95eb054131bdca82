"""Fixtures: the embedded cluster, and a scripted server for answers that no Kubernetes should give."""

import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agent_runs.kube.client import Cluster
from dev_stack.cluster import EmbeddedCluster

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(scope="session")
async def embedded_session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def embedded(embedded_session: EmbeddedCluster) -> AsyncIterator[EmbeddedCluster]:
    """The embedded cluster without any faults."""
    yield embedded_session
    embedded_session.faults.clear()


@pytest.fixture
async def cluster(embedded: EmbeddedCluster) -> AsyncIterator[Cluster]:
    """Our client of it."""
    async with await Cluster.connect(str(embedded.kubeconfig_path), environ={}) as client:
        yield client


class Scripted:
    """An HTTP server with scripted answers, and the requests it got."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answer: Answer = _empty
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(
            (
                request.method,
                request.path_qs,
                {name.lower(): value for name, value in request.headers.items()},
                await request.read(),
            )
        )
        return await self.answer(request)

    def answer_with(self, status: int, body: object, content_type: str = "application/json") -> None:
        """Answer every request with this; a body that is no text is sent as JSON."""
        text = body if isinstance(body, str) else json.dumps(body)

        async def answer(_: web.Request) -> web.Response:
            return web.Response(status=status, text=text, content_type=content_type)

        self.answer = answer

    def refuse_with(self, status: int, reason: str, message: str, **more: Any) -> None:
        """Answer every request with a Status of Kubernetes."""
        self.answer_with(status, {"kind": "Status", "code": status, "reason": reason, "message": message, **more})


async def _empty(_: web.Request) -> web.Response:
    return web.json_response({})


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    server = Scripted()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


@pytest.fixture
async def client(scripted: Scripted, tmp_path: Path) -> AsyncIterator[Cluster]:
    """Our client of the scripted server."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(scripted.url, {"token": "the-token"})))
    async with await Cluster.connect(str(path), environ={}) as client:
        yield client


def kubeconfig(url: str, user: dict[str, Any], **context: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
        "current-context": "x",
    }


@pytest.fixture
def name() -> str:
    """A unique object name."""
    return f"t-{uuid.uuid4().hex[:10]}"
