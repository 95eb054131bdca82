"""Attach: the guard, pinned against a real Temporal server. No worker is needed for any of it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from agent_runs.client import attach as attach_module
from agent_runs.client.attach import Ticket, attach, attach_when_free
from agent_runs.client.runs import UnknownRun, find_run
from agent_runs.client.settings import ClientSettings
from agent_runs.client.wake import Wake, build_wake
from agent_runs.contracts.errors import InvalidRequest
from agent_runs.contracts.request import WakeContext
from tests.paperclip.contexts import SEALER, minimal
from tests.support.cases import case
from tests.support.relay import open_relay
from tests.support.requests import FakeRequest


async def test_the_same_run_attached_twice_is_one_run(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings = ClientSettings(task_queue=queue)
    first = await attach(temporal, settings, request_of_a_run.wake)
    second = await attach(temporal, settings, request_of_a_run.wake)
    assert (first.kind, second.kind) == ("started", "joined")
    assert first.workflow_run_id == second.workflow_run_id


async def test_another_run_of_the_same_agent_is_refused_with_its_holder(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings = ClientSettings(task_queue=queue)
    held = await attach(temporal, settings, request_of_a_run.wake)
    refused = await attach(temporal, settings, request_of_a_run.model_copy(update={"run_id": "another"}).wake)
    assert (refused.kind, refused.workflow_run_id, refused.run_id) == (
        "busy",
        held.workflow_run_id,
        request_of_a_run.run_id,
    )
    assert refused.holder is not None
    assert refused.holder.phase == "queued"


async def test_of_many_callers_at_once_exactly_one_starts_the_agent(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings = ClientSettings(task_queue=queue)
    requests = [request_of_a_run.model_copy(update={"run_id": f"run-{n % 25}"}) for n in range(50)]
    tickets = await asyncio.gather(*(attach(temporal, settings, each.wake) for each in requests))
    assert len({ticket.workflow_run_id for ticket in tickets}) == 1
    assert sorted(ticket.kind for ticket in tickets) == ["busy"] * 48 + ["joined", "started"]
    assert len({ticket.run_id for ticket in tickets}) == 1


async def test_a_run_that_has_ended_is_joined_closed(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    settings = ClientSettings(task_queue=queue)
    ticket = await attach(temporal, settings, request_of_a_run.wake)
    await ticket.handle(temporal).terminate()
    second = await attach(temporal, settings, request_of_a_run.wake)
    assert (second.kind, second.closed, second.workflow_run_id) == ("joined", True, ticket.workflow_run_id)


async def test_a_connection_that_ends_just_before_the_start_costs_nothing(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_relay(temporal.service_client.config.target_host) as relay:
        client = await Client.connect(relay.address, data_converter=temporal.data_converter)

        async def cut(*arguments: Any) -> Any:
            request = await start_request(*arguments)
            relay.cut(refusals=1)
            return request

        start_request = attach_module._start_request
        monkeypatch.setattr(attach_module, "_start_request", cut)
        ticket = await attach(client, ClientSettings(task_queue=queue), request_of_a_run.wake)
    assert ticket.kind == "started"


async def test_an_unknown_run_is_refused_by_name(temporal: Client) -> None:
    with pytest.raises(UnknownRun, match="agent-runs list"):
        await find_run(temporal, "no-such-run")
    with pytest.raises(UnknownRun):
        await find_run(temporal, "x' OR WorkflowType != 'y")


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("config.model", {"model": "nameless"}),
        ("extraArgs", {"extraArgs": ["--format", "default"]}),
        ("cpu", {"resources": {"requests": {"cpu": "8"}, "limits": {"cpu": "1"}}}),
    ],
)
def test_a_context_that_the_worker_could_not_use_is_refused_before_anything_starts(
    field: str, config: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequest, match=field):
        build_wake(minimal(**config), SEALER)


async def test_while_the_agent_is_held_the_server_is_asked_again_only_when_the_holder_has_ended(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, asked, busy = ClientSettings(task_queue=queue), list[Ticket](), asyncio.Event()

    async def counted(client: Client, settings: ClientSettings, wake: Wake) -> Ticket:
        asked.append(await attach(client, settings, wake))
        return asked[-1]

    monkeypatch.setattr("agent_runs.client.attach.attach", counted)
    held = await attach(temporal, settings, request_of_a_run.wake)
    other = request_of_a_run.model_copy(update={"run_id": "another"})
    result, ended = WorkflowHandle.result, [RPCStatusCode.DEADLINE_EXCEEDED]

    async def ended_once(handle: WorkflowHandle[Any, Any], **options: Any) -> Any:
        """A busy server ends the first wait."""
        if ended:
            raise RPCError("busy", ended.pop(), b"")
        return await result(handle, **options)

    monkeypatch.setattr(WorkflowHandle, "result", ended_once)
    waiting = asyncio.create_task(attach_when_free(temporal, settings, other.wake, lambda _: busy.set()))
    await busy.wait()
    for _ in range(20):  # a caller that asks at once would have had as many answers
        await held.handle(temporal).describe()
    await held.handle(temporal).terminate()
    assert (await waiting).kind == "started"
    assert [ticket.kind for ticket in asked] == ["busy", "started"]


async def test_an_attach_ends_in_its_own_time_whatever_temporal_answers(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(status: RPCStatusCode, message: str = "") -> Callable[..., Awaitable[Any]]:
        async def answer(*_: object, **__: object) -> None:
            raise RPCError(message, status, b"")

        return answer

    async def silent(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    def refused(*details: object) -> Callable[..., Awaitable[Any]]:
        async def refuse(*_: object, **__: object) -> None:
            raise WorkflowUpdateFailedError(ApplicationError("busy", *details))

        return refuse

    no_worker = "no worker answered whether it may be joined"
    answers = {
        "too many at once": (answered(RPCStatusCode.RESOURCE_EXHAUSTED), no_worker),
        "no worker": (answered(RPCStatusCode.DEADLINE_EXCEEDED), no_worker),
        "a task that fails": (
            answered(RPCStatusCode.FAILED_PRECONDITION, "due to Workflow Task in failed state"),
            no_worker,
        ),
        "too many ever": (answered(RPCStatusCode.FAILED_PRECONDITION), "Temporal accepts no more requests of it"),
        "a refusal with its reason": (refused({"note": "it remembers too many"}), "it remembers too many"),
        "a refusal without details": (refused(), None),
        "a refusal with other details": (refused("text"), None),
        "silence": (silent, no_worker),
    }
    settings = ClientSettings(task_queue=queue)
    of_a_task = request_of_a_run.model_copy(update={"context": WakeContext(task_id="task")})
    await attach(temporal, settings, of_a_task.wake)
    monkeypatch.setattr(attach_module, "JOIN_TIMEOUT", timedelta(seconds=3))
    for name, (answer, note) in answers.items():
        with case(name):
            monkeypatch.setattr(WorkflowHandle, "execute_update", answer)
            async with asyncio.timeout(60):
                ticket = await attach(temporal, settings, of_a_task.model_copy(update={"run_id": "second"}).wake)
            assert ticket.kind == "busy"
            assert ticket.holder is not None
            assert ticket.holder.note == note


async def test_a_server_that_cannot_say_which_runs_were_joined_starts_nothing(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for one whose attribute no worker has registered: there no run was joined."""
    settings = ClientSettings(task_queue=queue)
    for status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.INVALID_ARGUMENT):

        async def refuse(*_: object, status: RPCStatusCode = status) -> None:
            raise RPCError("", status, b"")

        monkeypatch.setattr(attach_module, "find_joined_run", refuse)
        with case(status.name):
            if status is RPCStatusCode.INVALID_ARGUMENT:
                assert (await attach(temporal, settings, request_of_a_run.wake)).kind == "started"
                continue
            with pytest.raises(RPCError) as raised:
                await attach(temporal, settings, request_of_a_run.wake)
            assert raised.value.status is status
