"""Spans of runs: Temporal's own interceptor, with what a run needs in addition. Imports OpenTelemetry.

- A run that was started without a trace begins one: its trace id is Temporal's run id.
- The span of a run lasts from its start to its end, and has its ids, its model and its failure. It is exported when the
  run has ended: a workflow may move to another worker, which could not end a span that this one has begun.
- Texts of errors are not exported: they may quote what a library was given. See `docs/adr/0012`.
"""

import asyncio
import os
from collections.abc import MutableMapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import CarrierValT
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from temporalio import workflow
from temporalio.api.common.v1 import Header
from temporalio.client import Client
from temporalio.contrib.opentelemetry import TracingInterceptor, TracingWorkflowInboundInterceptor
from temporalio.worker import WorkflowInterceptorClassInput

from workflows import attributes

SCOPE: Final = "agent_runs"
EXIT_TIMEOUT: Final = timedelta(seconds=2)
_OPEN: Final[list[tuple[TracerProvider, SpanExporter]]] = []
OF_A_RUN: Final = {
    "runId": attributes.PAPERCLIP_RUN_ID,
    "agentId": attributes.AGENT_ID,
    "model": attributes.MODEL,
    "failureCode": attributes.FAILURE_KIND,
}
"""What the span of a run says of it, and the search attribute that has it."""
_TIMES: Final = ("started", "ended")
"""Of the span of a run, in nanoseconds, on their way out of the workflow's sandbox."""
_SPAN_ID: Final = (1 << 64) - 1
"""The bits of a trace id that are the id of the span of a run that begins a trace."""
ATTRIBUTES: Final = frozenset(
    {
        *OF_A_RUN,
        *("temporalWorkflowID", "temporalRunID", "temporalActivityID", "temporalActivityType", "temporalUpdateID"),
        "exception.type",
    }
)
"""What spans and their events may hold: listed, so that no version of a library adds a text."""


class RunTracing(TracingInterceptor):
    """The interceptor of a traced client and of its workers."""

    def __init__(self, provider: TracerProvider) -> None:
        """Trace with this provider. The process's global one is not touched."""
        super().__init__(provider.get_tracer(SCOPE))
        self.text_map_propagator = TraceContextTextMapPropagator()  # without the caller's baggage: histories last

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[TracingWorkflowInboundInterceptor]:
        super().workflow_interceptor_class(input)
        return _RunWorkflowTracing

    def _completed_workflow_span(self, params: Any) -> Any:
        """Export the span of a run, whose times are among its attributes; all others are points in time."""
        found = dict(params.attributes)
        started, ended = (found.pop(name, None) for name in _TIMES)
        if started is None:
            return super()._completed_workflow_span(params)
        parent = self.text_map_propagator.extract(params.context)
        span = self.tracer.start_span(params.name, parent, kind=params.kind, attributes=found, start_time=started)
        if (failure := found.get("failureCode")) or params.exception:
            span.set_status(Status(StatusCode.ERROR, failure))
        span.end(ended)
        return None

    def header(self) -> Header | None:
        """The header that carries the current span into a workflow; None: no span is current."""
        carrier: MutableMapping[str, CarrierValT] = {}
        self.text_map_propagator.inject(carrier)
        if not carrier:
            return None
        return Header(fields={self.header_key: self.payload_converter.to_payloads([carrier])[0]})


class _RunWorkflowTracing(TracingWorkflowInboundInterceptor):
    """Where a start has no trace, Temporal's interceptor would begin one with each activity.

    It exports two points in time for a workflow, `RunWorkflow` and `CompleteWorkflow`; here they are one span.
    """

    def _completed_span(self, span_name: str, **options: Any) -> None:
        kind, _, name = span_name.partition(":")
        if kind == "CompleteWorkflow":
            info = workflow.info()
            known = {each: info.typed_search_attributes.get(key) for each, key in OF_A_RUN.items()}
            ended = info.typed_search_attributes.get(attributes.ENDED_AT) or workflow.now()
            times = [int(at.timestamp() * 1e9) for at in (info.workflow_start_time, ended)]
            options["additional_attributes"] = {
                **{each: value for each, value in known.items() if value},
                **dict(zip(_TIMES, times, strict=True)),
            }
            options["kind"], span_name = SpanKind.SERVER, f"RunWorkflow:{name}"
        elif kind == "RunWorkflow":
            return
        super()._completed_span(span_name, **options)

    def _load_workflow_context_carrier(self) -> Any:
        run_id = workflow.info().run_id.replace("-", "")
        return super()._load_workflow_context_carrier() or {"traceparent": f"00-{run_id}-{run_id[16:]}-01"}


class ErrorTextsRemoved:
    """A `SpanExporter` that passes on what `ATTRIBUTES` lists, and of an error its type."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([_without_texts(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        flushed: bool = self._exporter.force_flush(timeout_millis)
        return flushed


def _without_texts(span: ReadableSpan) -> ReadableSpan:
    context, parent = span.get_span_context(), span.parent
    if span.name.startswith("RunWorkflow:") and parent is not None and parent.span_id == parent.trace_id & _SPAN_ID:
        context, parent = parent, None  # the parent of all others in a trace that the run has begun
    return ReadableSpan(
        name=span.name,
        context=context,
        parent=parent,
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


def _listed(found: Any) -> dict[str, Any]:
    return {name: value for name, value in (found or {}).items() if name in ATTRIBUTES}


def start_header(client: Client) -> Header | None:
    """The header of a start by this client; None: it is not traced, or no span is current."""
    tracing = next((each for each in client.config()["interceptors"] if isinstance(each, RunTracing)), None)
    return None if tracing is None else tracing.header()


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
