"""A traced run is one trace from attach to outcome, with a span for every activity, and no text of any error in it."""

import uuid
from typing import cast

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError
from temporalio.worker import Replayer

from agent_runs.client import spans
from agent_runs.client.attach import attach
from agent_runs.client.connection import connect
from agent_runs.client.outcome import fetch_outcome, outcome_at_close
from agent_runs.client.settings import ClientSettings
from agent_runs.client.spans import ErrorTextsRemoved, RunTracing
from agent_runs.contracts.errors import PolicyRefused
from agent_runs.contracts.identity import workflow_id
from tests.support.collector import Collector
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import FakeActivities
from tests.workflows.fake_worker import running_worker
from workflows.agent_run import AgentRunWorkflow

SECRET = "canary-of-a-secret"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(temporal: Client, exported: InMemorySpanExporter) -> Client:
    """The session's client, traced; its worker is then traced, too."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(cast("SpanExporter", ErrorTextsRemoved(exported))))
    config = temporal.config()
    config["interceptors"] = [RunTracing(provider)]
    return Client(**config)


def names(exported: InMemorySpanExporter, trace_id: int) -> set[str]:
    return {span.name for span in exported.get_finished_spans() if span.context.trace_id == trace_id}


def trace_ids(exported: InMemorySpanExporter) -> set[int]:
    return {span.context.trace_id for span in exported.get_finished_spans()}


def steps_of(exported: InMemorySpanExporter) -> set[str]:
    """The activities that have a span of their execution."""
    return {span.name.removeprefix("RunActivity:") for span in of_kind(exported, "RunActivity:")}


def of_kind(exported: InMemorySpanExporter, prefix: str) -> list[ReadableSpan]:
    return [span for span in exported.get_finished_spans() if span.name.startswith(prefix)]


async def test_a_caller_that_is_traced_itself_has_the_run_in_its_own_trace(
    traced: Client, exported: InMemorySpanExporter, queue: str, request_of_a_run: FakeRequest
) -> None:
    own = TracerProvider(shutdown_on_exit=False).get_tracer("caller")
    async with running_worker(traced, queue, FakeActivities()) as start:
        token = context.attach(baggage.set_baggage("mine", SECRET))
        with own.start_as_current_span("wake") as span:
            handle = await start(request_of_a_run.model_copy(update={"outcome_retention_sec": 3600}))
            await fetch_outcome(handle, collect=True)
            await handle.result()
        context.detach(token)
        history = b"".join(event.SerializeToString() for event in (await handle.fetch_history()).events)
    trace_id = span.get_span_context().trace_id
    assert trace_ids(exported) == {trace_id}
    assert names(exported, trace_id) >= {
        *("RunWorkflow:AgentRunWorkflow", "RunActivity:create_job"),
        *("StartWorkflowUpdate:outcome", "HandleUpdate:outcome", "SignalWorkflow:collected", "HandleSignal:collected"),
    }
    assert f'{{"traceparent":"00-{trace_id:032x}-'.encode() in history
    assert SECRET.encode() not in history  # a caller's baggage


async def test_a_run_that_was_started_without_a_trace_is_a_trace_with_its_temporal_run_id(
    temporal: Client, traced: Client, exported: InMemorySpanExporter, queue: str, request_of_a_run: FakeRequest
) -> None:
    activities = FakeActivities()
    async with running_worker(traced, queue, activities):
        ticket = await attach(temporal, ClientSettings(task_queue=queue), request_of_a_run.wake)
        await ticket.handle(temporal).result()
    assert trace_ids(exported) == {uuid.UUID(ticket.workflow_run_id).int}
    assert steps_of(exported) == set(activities.names)
    (root,) = [span for span in exported.get_finished_spans() if span.parent is None]
    assert root.name == "RunWorkflow:AgentRunWorkflow"
    parents = {span.parent.span_id for span in of_kind(exported, "StartActivity:") if span.parent}
    assert parents == {root.context.span_id}


async def test_the_span_of_a_run_lasts_as_long_as_the_run_and_has_its_ids_its_model_and_its_failure(
    traced: Client, exported: InMemorySpanExporter, queue: str, request_of_a_run: FakeRequest
) -> None:
    async def fail(_input: object) -> None:
        raise PolicyRefused(SECRET)

    async with running_worker(traced, queue, FakeActivities({"create_job": fail})) as start:
        handle = await start(request_of_a_run)
        await outcome_at_close(handle)
        began = (await handle.describe()).start_time
    (run,) = of_kind(exported, "RunWorkflow:")
    steps = [span for span in exported.get_finished_spans() if span.name.startswith("StartActivity:")]
    assert run.start_time is not None
    assert run.end_time is not None
    assert abs(run.start_time / 1e9 - began.timestamp()) < 1
    assert run.start_time < min(span.start_time or 0 for span in steps)
    assert run.end_time > max(span.start_time or 0 for span in steps if "finish" not in span.name)
    assert {name: value for name, value in (run.attributes or {}).items() if not name.startswith("temporal")} == {
        "runId": request_of_a_run.run_id,
        "agentId": request_of_a_run.agent.id,
        "model": request_of_a_run.config.model,
        "failureCode": PolicyRefused.code,
    }
    assert (run.status.is_ok, run.status.description) == (False, PolicyRefused.code)


async def test_what_an_error_says_is_not_exported_only_its_type(
    traced: Client, exported: InMemorySpanExporter, queue: str, request_of_a_run: FakeRequest
) -> None:
    async def fail(_input: object) -> None:
        raise ApplicationError(SECRET, SECRET, non_retryable=True) from ValueError(SECRET)

    async with running_worker(traced, queue, FakeActivities({"create_job": fail})) as start:
        assert (await outcome_at_close(await start(request_of_a_run))).failure is not None
    (failed,) = of_kind(exported, "RunActivity:create_job")
    assert not failed.status.is_ok
    assert failed.status.description == "ApplicationError"
    assert [dict(event.attributes or {}) for event in failed.events] == [
        {"exception.type": "temporalio.exceptions.ApplicationError"}
    ]
    assert SECRET not in "".join(span.to_json() for span in exported.get_finished_spans())


async def test_a_history_replays_whether_its_worker_was_traced_or_not_and_a_replay_exports_nothing(
    temporal: Client, traced: Client, exported: InMemorySpanExporter, queue: str, request_of_a_run: FakeRequest
) -> None:
    histories = []
    for client in (temporal, traced):
        agent = request_of_a_run.agent.model_copy(update={"id": str(uuid.uuid4())})
        request = request_of_a_run.model_copy(update={"agent": agent, "run_id": str(uuid.uuid4())})
        async with running_worker(client, queue, FakeActivities()) as start:
            await (handle := await start(request)).result()
            histories.append(await handle.fetch_history())
    tracing = cast("RunTracing", traced.config()["interceptors"][0])
    exported.clear()
    for history in histories:
        for interceptors in ([], [tracing]):
            replayer = Replayer(
                workflows=[AgentRunWorkflow],
                data_converter=pydantic_data_converter,
                interceptors=interceptors,
                debug_mode=True,
            )
            await replayer.replay_workflow(history)
    assert exported.get_finished_spans() == ()


# what OpenTelemetry's variables do


async def test_the_standard_variables_switch_it_on_for_caller_and_worker(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, activities = Collector(), FakeActivities()
    async with collector.serving() as address:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={SECRET}")
        monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.service_client.config.target_host)
        client = await connect(ClientSettings.read(), program="test")
        async with running_worker(client, queue, activities) as start:
            await (await start(request_of_a_run)).result()
        await spans.close()
        received = list(collector.spans())
    assert {service for service, _ in received} == {"test"}
    assert len({span.trace_id for _, span in received}) == 1
    assert {f"RunActivity:{name}" for name in activities.names} <= {span.name for _, span in received}
    assert all(headers["api-key"] == SECRET for headers, _ in collector.requests)
    assert SECRET.encode() not in b"".join(body for _, body in collector.requests)


async def test_an_untraced_start_has_no_header(temporal: Client, queue: str, request_of_a_run: FakeRequest) -> None:
    async with running_worker(temporal, queue, FakeActivities()) as start:
        handle = await start(request_of_a_run)
        await handle.result()
        events = (await handle.fetch_history()).events
    assert not events[0].workflow_execution_started_event_attributes.header.fields
    assert AgentRunWorkflow.__name__ == events[0].workflow_execution_started_event_attributes.workflow_type.name
    assert handle.id == workflow_id(request_of_a_run.agent.id)
