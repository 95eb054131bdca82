"""Spans of runs: Temporal's own interceptor, with what a run needs in addition. Imports OpenTelemetry.

- The outcome of a run belongs to the trace in which the caller attached to it, also when no span is current by then.
- A run that was started without a trace (by the plugin, mostly) begins one: its trace id is Temporal's run id.
- Texts of errors are not exported: they may quote what a library was given. See `docs/adr/0012`.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import CarrierValT
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio import workflow
from temporalio.api.common.v1 import Header
from temporalio.client import (
    OutboundInterceptor,
    SignalWorkflowInput,
    StartWorkflowUpdateInput,
    WorkflowUpdateHandle,
)
from temporalio.contrib.opentelemetry import TracingInterceptor, TracingWorkflowInboundInterceptor
from temporalio.worker import WorkflowInterceptorClassInput

from agent_runs.contracts.identity import WORKFLOW_TYPE

SCOPE: Final = "agent_runs"
MAX_RUNS: Final = 1000
"""Runs whose trace a client remembers, the newest ones."""
EXIT_TIMEOUT: Final = timedelta(seconds=2)
_OPEN: Final[list[tuple[TracerProvider, SpanExporter]]] = []
ATTRIBUTES: Final = frozenset(
    {
        *("temporalWorkflowID", "temporalRunID", "temporalActivityID", "temporalActivityType", "temporalUpdateID"),
        "exception.type",
    }
)
"""What spans and their events may hold: listed, so that no version of a library adds a text."""


class RunTracing(TracingInterceptor):
    """The interceptor of a traced client and of its workers; a `RunTracer`."""

    def __init__(self, provider: TracerProvider) -> None:
        """Trace with this provider. The process's global one is not touched."""
        super().__init__(provider.get_tracer(SCOPE))
        self.text_map_propagator = TraceContextTextMapPropagator()  # without the caller's baggage: histories last
        self._runs: OrderedDict[str, Context] = OrderedDict()

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        """Continue the trace of an attach in the updates and signals that follow."""
        return _Continuing(super().intercept_client(next), self)

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[TracingWorkflowInboundInterceptor]:
        super().workflow_interceptor_class(input)
        return _RunWorkflowTracing

    @contextmanager
    def attaching(self, workflow_id: str) -> Iterator[Callable[[str], None]]:
        attributes = {"temporalWorkflowID": workflow_id}
        name = f"Attach:{WORKFLOW_TYPE}"
        with self.tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes):
            trace = context.get_current()
            yield lambda run_id: self._remember(run_id, trace)

    def header(self) -> Header:
        """The header that carries the current span; see `RunTracer`."""
        carrier = self._carrier({})
        return Header(fields={self.header_key: self.payload_converter.to_payloads([carrier])[0]})

    @contextmanager
    def continued(self, run_id: str | None) -> Iterator[None]:
        """The trace in which this client attached to the run, unless the caller has a span of its own."""
        trace = self._runs.get(run_id or "")
        if trace is None or get_current_span().get_span_context().is_valid:
            yield
            return
        token = context.attach(trace)
        try:
            yield
        finally:
            context.detach(token)

    def _carrier(self, carrier: MutableMapping[str, CarrierValT]) -> MutableMapping[str, CarrierValT]:
        self.text_map_propagator.inject(carrier)
        return carrier

    def _remember(self, run_id: str, trace: Context) -> None:
        self._runs[run_id] = trace
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)


class _Continuing(OutboundInterceptor):
    def __init__(self, inner: OutboundInterceptor, tracing: RunTracing) -> None:
        super().__init__(inner)
        self._tracing = tracing

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:
        with self._tracing.continued(input.run_id):
            return await super().start_workflow_update(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        with self._tracing.continued(input.run_id):
            await super().signal_workflow(input)


class _RunWorkflowTracing(TracingWorkflowInboundInterceptor):
    """Where a start has no trace, Temporal's interceptor would begin one with each activity."""

    def _load_workflow_context_carrier(self) -> Any:
        run_id = workflow.info().run_id.replace("-", "")
        return super()._load_workflow_context_carrier() or {"traceparent": f"00-{run_id}-{run_id[16:]}-01"}


class ErrorTextsRemoved:
    """A `SpanExporter` that passes on what `ATTRIBUTES` lists, and of an error its type."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans, without texts."""
        return self._exporter.export([_without_texts(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        flushed: bool = self._exporter.force_flush(timeout_millis)
        return flushed


def _without_texts(span: ReadableSpan) -> ReadableSpan:
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=_listed(span.attributes),
        events=[Event(event.name, _listed(event.attributes), event.timestamp) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code, (span.status.description or "").partition(":")[0] or None),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _listed(attributes: Any) -> dict[str, Any]:
    return {name: value for name, value in (attributes or {}).items() if name in ATTRIBUTES}


@cache
def exporting_tracing(program: str) -> RunTracing:
    """The tracing of this process, which exports as OpenTelemetry's variables say, until `close`."""
    own_name = {} if "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") else {"service.name": program}
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else own_name
    provider, exporter = TracerProvider(resource=Resource.create(name), shutdown_on_exit=False), OTLPSpanExporter()
    provider.add_span_processor(BatchSpanProcessor(cast("SpanExporter", ErrorTextsRemoved(exporter))))
    _OPEN.append((provider, exporter))
    return RunTracing(provider)


async def close() -> None:
    """Export what is left, at the end of the process. A collector that does not answer delays it by `EXIT_TIMEOUT`."""
    for provider, exporter in _OPEN:
        closing = asyncio.create_task(asyncio.to_thread(provider.shutdown))
        await asyncio.wait([closing], timeout=EXIT_TIMEOUT.total_seconds())
        if not closing.done():
            exporter.shutdown()  # ends its retries
        await closing
    _OPEN.clear()
