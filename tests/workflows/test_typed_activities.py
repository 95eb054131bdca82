"""The workflow refers to activities by typed references: the worker implements each with the same signature."""

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

import worker
from activities.await_schedule import AwaitScheduleActivity
from activities.bundle_prompt import BundlePromptActivity
from activities.check_configuration import CheckConfigurationActivity
from activities.create_job import CreateJobActivity
from activities.finish import FinishActivity
from activities.introspect_pod import IntrospectPodActivity
from activities.parse_transcript import ParseTranscriptActivity
from activities.prepare_run import PrepareRunActivity
from activities.rotate_token import RotateTokenActivity
from activities.stop_agent import StopAgentActivity
from activities.stream_logs import StreamLogsActivity
from activities.tell_agent import TellAgentActivity
from agent_runs.contracts import activities
from agent_runs.service.activity_context import WITHOUT_HEARTBEATS

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    method.__name__: method
    for method in (
        AwaitScheduleActivity.await_schedule,
        BundlePromptActivity.bundle_prompt,
        CheckConfigurationActivity.check_configuration,
        CheckConfigurationActivity.try_pod,
        CreateJobActivity.create_job,
        FinishActivity.finish,
        IntrospectPodActivity.introspect_pod,
        ParseTranscriptActivity.parse_transcript,
        PrepareRunActivity.prepare_run,
        RotateTokenActivity.rotate_token,
        TellAgentActivity.tell_agent,
        StopAgentActivity.stop_agent,
        StreamLogsActivity.stream_logs,
    )
}


@pytest.mark.parametrize("reference", activities.ALL, ids=lambda reference: reference.__name__)
def test_an_activity_is_implemented_with_the_signature_that_the_workflow_calls(reference: Callable[..., Any]) -> None:
    implementation = IMPLEMENTATIONS[reference.__name__]
    assert get_type_hints(implementation) == get_type_hints(reference)


def test_the_worker_has_every_activity_and_no_other() -> None:
    wired = inspect.getsource(worker.activities)
    assert set(IMPLEMENTATIONS) == {reference.__name__ for reference in activities.ALL}
    assert all(f".{name}," in wired for name in IMPLEMENTATIONS)
    assert set(IMPLEMENTATIONS) >= WITHOUT_HEARTBEATS
