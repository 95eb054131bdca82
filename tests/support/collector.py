"""A receiver of OpenTelemetry's spans, by OTLP over HTTP."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """An OTLP receiver on a free port."""

    def __init__(self) -> None:
        self.requests: list[tuple[Mapping[str, str], bytes]] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/v1/traces", self._receive)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield site.name.replace(":0", f":{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        self.requests.append((dict(request.headers), await request.read()))
        return web.Response()

    def spans(self) -> Iterator[tuple[str, Any]]:
        """Each span with its service's name."""
        for _, body in self.requests:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = {pair.key: pair.value.string_value for pair in resource.resource.attributes}["service.name"]
                yield from ((service, span) for scope in resource.scope_spans for span in scope.spans)
