"""A worker of another version reads what is in a history; what it cannot read stops a workflow task, not the run."""

from dataclasses import replace
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter

from agent_runs.client.outcome import outcome_at_close
from agent_runs.contracts.messages import PodProfile
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import FakeActivities, answer_with
from tests.workflows.fake_worker import Handle, running_worker


class NewerProfile(PodProfile):
    """What a newer version returns: a field more."""

    zone: str = "west"


class OtherVersion(PydanticPayloadConverter):
    """Of a version whose PodProfile has another required field."""

    def from_payloads(self, payloads: Any, type_hints: Any = None) -> list[Any]:
        if type_hints == [PodProfile]:
            PodProfile.model_validate({})
        return super().from_payloads(payloads, type_hints)


async def test_a_result_with_a_field_that_this_version_does_not_know_is_read(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    newer = answer_with(lambda _: NewerProfile(namespace="default", image="agent:1"))
    async with running_worker(temporal, queue, FakeActivities({"introspect_pod": newer})) as start:
        outcome = await outcome_at_close(await start(request_of_a_run))
    assert outcome.failure is None


async def test_a_result_that_this_version_cannot_read_waits_for_a_version_that_can(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    config = temporal.config()
    config["data_converter"] = replace(pydantic_data_converter, payload_converter_class=OtherVersion)
    async with running_worker(Client(**config), queue, FakeActivities(), replays=False) as start:
        handle = await start(request_of_a_run)
        await task_failed(handle)
    async with running_worker(temporal, queue, FakeActivities()):
        outcome = await outcome_at_close(handle)
    assert outcome.failure is None


async def task_failed(handle: Handle) -> None:
    async for event in handle.fetch_history_events(wait_new_event=True):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            return
