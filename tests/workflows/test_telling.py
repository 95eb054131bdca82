"""What somebody tells an agent reaches it once, while it works, or is refused in words."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowHandle, WorkflowUpdateFailedError

from agent_runs.client.outcome import fetch_outcome, outcome_at_close
from agent_runs.client.tell import tell
from agent_runs.contracts import updates
from agent_runs.contracts.errors import InvalidRequest, MessageNotDelivered, PodLost, ProviderRejected
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.messages import EndJob
from agent_runs.contracts.outcome import Outcome, Report, Usage
from agent_runs.contracts.request import Capabilities
from agent_runs.contracts.start import MESSAGE_LIMIT, Binding, SealedMessage
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey
from tests.support.requests import FakeRequest, prepared
from tests.workflows.fake_activities import (
    DEFAULTS,
    EARLY,
    GOOD,
    Answer,
    FakeActivities,
    FakeAgent,
    answer_with,
    fail_with,
)
from tests.workflows.fake_worker import reached, running_worker

KEY = SealingKey.generate()
SEALER = Sealer(KEY.public)


def messages_in(steps: FakeActivities) -> list[Any]:
    return [input for name, input in steps.calls if name == "tell_agent"]


async def test_an_agent_gets_a_message_while_it_works_and_the_history_does_not_have_its_text(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    steps = FakeActivities(agent.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started)
        answer = await tell(handle, request_of_a_run.key, SEALER, "the branch is heron", "ada")
        await agent.end()
        outcome = await outcome_at_close(handle)
    assert (answer.run_id, answer.attempt) == (request_of_a_run.run_id, 1)
    (input,) = messages_in(steps)
    assert (input.by, input.attempt.attempt) == ("ada", 1)
    binding = Binding.of_message(request_of_a_run.key, input.message_id)
    assert Opener([KEY]).open(input.sealed, SealedMessage, binding).text == "the branch is heron"
    assert "ada sent the agent a message in attempt 1" in outcome.warnings
    history = b"".join([event.SerializeToString() for event in (await handle.fetch_history()).events])
    assert (b"ada sent" in history, b"heron" in history) == (True, False)


async def test_a_message_waits_for_the_agent_to_work_and_is_delivered_once(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent, scheduled = FakeAgent(), asyncio.Event()

    async def schedule(input: Any) -> Any:
        await scheduled.wait()
        return await DEFAULTS["await_schedule"][1](input)

    steps = FakeActivities({**agent.answers, "await_schedule": schedule})
    message = updates.Tell(message_id="m1", run_id=request_of_a_run.run_id, by="ada", sealed="sealed")
    once: dict[str, Any] = {"id": "tell:m1", "result_type": updates.Delivery}
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        asked = [asyncio.create_task(handle.execute_update(updates.TELL, message, **once)) for _ in range(3)]
        async for event in handle.fetch_history_events(wait_new_event=True):
            if event.HasField("workflow_execution_update_accepted_event_attributes"):
                break
        assert messages_in(steps) == []
        scheduled.set()
        answers = await asyncio.gather(*asked)
        await agent.end()
        await outcome_at_close(handle)
    assert len(messages_in(steps)) == 1
    assert len({each.at for each in answers}) == 1


async def test_a_message_that_does_not_reach_the_agent_says_why_and_changes_nothing(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    agent = FakeAgent()
    steps = FakeActivities({**agent.answers, "tell_agent": fail_with(MessageNotDelivered("pi takes no message"))})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(agent.started)
        with pytest.raises(MessageNotDelivered) as refused:
            await tell(handle, request_of_a_run.key, SEALER, "hello", "ada")
        for text in ("", " \n", "x" * (MESSAGE_LIMIT + 1)):
            with pytest.raises(InvalidRequest):
                await tell(handle, request_of_a_run.key, SEALER, text, "ada")
        other = request_of_a_run.key.model_copy(update={"run_id": "another"})
        with pytest.raises(MessageNotDelivered, match="run another does not have the agent"):
            await tell(handle, other, SEALER, "hello", "ada")
        wrong: list[Any]
        for wrong in ([], [None], ["x"], [{}], [7]):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(updates.TELL, args=wrong)
        await agent.end()
        outcome = await fetch_outcome(handle, collect=True)
        await outcome_at_close(handle)
        with pytest.raises(MessageNotDelivered, match="the run has ended"):
            await tell(handle, request_of_a_run.key, SEALER, "hello", "ada")
    assert refused.value.message == "pi takes no message"
    assert (outcome.failure, outcome.warnings) == (None, ())


async def test_a_message_that_waits_when_the_run_ends_is_refused(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    asked = asyncio.Event()

    async def schedule(_: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    steps = FakeActivities({"await_schedule": schedule})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(asked)
        waiting = asyncio.create_task(tell(handle, request_of_a_run.key, SEALER, "hello", "ada"))
        await handle.cancel()
        with pytest.raises(MessageNotDelivered, match="the run has ended"):
            await waiting
    assert messages_in(steps) == []


@dataclass
class Turns:
    """An agent that takes no messages while it works: what `stream_logs` and `create_job` do in each attempt.

    Attributes:
        at_work: set in each attempt; `may_end` ends one.
        failures: of the attempts, in order; further ones have none.
    """

    keeps_sessions: bool = True
    failures: list[Exception | None] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    rests: bool = False
    at_work: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def answers(self) -> dict[str, Answer]:
        return {
            "prepare_run": answer_with(lambda input: prepared(input).model_copy(update={"capabilities": NO_MESSAGES})),
            "create_job": self._create,
            "stream_logs": self._stream,
            "parse_transcript": answer_with(lambda _: self.reports.pop(0) if self.reports else GOOD),
        }

    async def _create(self, input: Any) -> Any:
        job = await DEFAULTS["create_job"][1](input)
        return job.model_copy(update={"keeps_sessions": self.keeps_sessions})

    async def _stream(self, _: Any) -> Any:
        self.at_work.set()
        while not self.may_end.is_set():
            activity.heartbeat()
            await asyncio.sleep(0.02)
        if failure := self.failures.pop(0) if self.failures else None:
            raise failure
        return EARLY.model_copy(update={"rests": self.rests})


NO_MESSAGES = Capabilities(resumes=True, rests=True, takes_messages=False, tokens=None, cost=False)


def bundled(steps: FakeActivities) -> list[tuple[int, list[str], bool, bool]]:
    """Of each prompt: the attempt, who has sent its messages, and what else it has."""
    found = []
    for name, input in steps.calls:
        if name == "bundle_prompt":
            by = [message.by for message in input.messages]
            found.append((input.attempt.attempt, by, input.resuming, input.continues))
    return found


@pytest.mark.parametrize("rests", [False, True], ids=["its pod ends", "its pod could rest"])
async def test_an_agent_that_takes_no_messages_while_it_works_gets_them_as_its_next_prompt(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, rests: bool
) -> None:
    turns = Turns(rests=rests)
    steps = FakeActivities(turns.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(turns.at_work)
        first = await tell(handle, request_of_a_run.key, SEALER, "the branch is heron", "ada", "m1")
        again = await tell(handle, request_of_a_run.key, SEALER, "the branch is heron", "ada", "m1")
        await tell(handle, request_of_a_run.key, SEALER, "and push it", "bob")
        turns.may_end.set()
        outcome = await outcome_at_close(handle)
    assert (first.queued, first.attempt, first) == (True, 1, again)
    assert bundled(steps) == [(1, [], False, False), (2, ["ada", "bob"], True, True)]
    (message, _) = steps.last_input("bundle_prompt").messages
    binding = Binding.of_message(request_of_a_run.key, message.id)
    assert Opener([KEY]).open(message.sealed, SealedMessage, binding).text == "the branch is heron"
    assert steps.last_input("create_job").session.session_id == GOOD.session_id
    first_end = next(input for name, input in steps.calls if name == "finish")
    assert isinstance(first_end, EndJob)  # nothing of it is left when the next one begins
    assert (outcome.failure, len(outcome.attempts), outcome.usage) == (None, 2, Usage(input_tokens=20, output_tokens=4))
    for by in ("ada", "bob"):
        assert f"a message of {by} is the agent's next prompt, once attempt 1 has ended" in outcome.warnings
        assert f"{by} sent the agent a message, the prompt of attempt 2" in outcome.warnings
    assert messages_in(steps) == []


async def outcome_after_a_message(handle: WorkflowHandle[Any, Outcome], run: RunKey, turns: Turns) -> Outcome:
    """The outcome of a run whose agent is sent a message in its first attempt, which may end then."""
    await reached(turns.at_work)
    await tell(handle, run, SEALER, "the branch is heron", "ada")
    turns.may_end.set()
    return await outcome_at_close(handle)


async def test_messages_are_repeated_with_a_lost_pod_and_go_into_a_fresh_session_with_all_else(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    unknown = Report(exit_code=1, unknown_session=True)
    turns = Turns(failures=[None, PodLost("gone")], reports=[GOOD, Report(), unknown, GOOD])
    steps = FakeActivities(turns.answers)
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_after_a_message(await start(request_of_a_run), request_of_a_run.key, turns)
    assert bundled(steps) == [
        (1, [], False, False),
        (2, ["ada"], True, True),
        (3, ["ada"], True, True),
        (4, ["ada"], False, True),
    ]
    assert outcome.failure is None


async def test_a_message_that_waits_when_the_agent_fails_is_named(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    turns = Turns(reports=[GOOD.model_copy(update={"failure": ProviderRejected.as_failure("no")})])
    steps = FakeActivities(turns.answers)
    async with running_worker(temporal, queue, steps) as start:
        outcome = await outcome_after_a_message(await start(request_of_a_run), request_of_a_run.key, turns)
    assert (outcome.error_code, len(outcome.attempts)) == (ProviderRejected.code, 1)
    assert "the run ended before the agent got a message of ada" in outcome.warnings


async def test_a_cancel_ends_what_a_message_would_have_begun_and_names_it(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    turns, judging, may_judge = Turns(), asyncio.Event(), asyncio.Event()

    async def judge(_: object) -> Report:
        judging.set()
        await may_judge.wait()
        return GOOD

    steps = FakeActivities({**turns.answers, "parse_transcript": judge})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(turns.at_work)
        await tell(handle, request_of_a_run.key, SEALER, "the branch is heron", "ada")
        turns.may_end.set()
        await reached(judging)
        await handle.cancel()
        may_judge.set()
        outcome = await outcome_at_close(handle)
    assert (outcome.error_code, len(outcome.attempts)) == ("cancelled", 1)
    assert "the run ended before the agent got a message of ada" in outcome.warnings


@pytest.mark.parametrize(
    ("keeps_sessions", "allowed", "reason"),
    [(False, 0, "its session ends with its pod"), (True, 20, "20 messages wait")],
)
async def test_a_message_is_not_queued_where_no_session_is_kept_or_too_many_wait(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, keeps_sessions: bool, allowed: int, reason: str
) -> None:
    turns = Turns(keeps_sessions=keeps_sessions)
    steps = FakeActivities(turns.answers)
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request_of_a_run)
        await reached(turns.at_work)
        for number in range(allowed):
            await tell(handle, request_of_a_run.key, SEALER, f"message {number}", "ada")
        with pytest.raises(MessageNotDelivered, match=reason):
            await tell(handle, request_of_a_run.key, SEALER, "one more", "ada")
        turns.may_end.set()
        outcome = await outcome_at_close(handle)
    assert (outcome.failure, len(outcome.attempts)) == (None, 2 if allowed else 1)
