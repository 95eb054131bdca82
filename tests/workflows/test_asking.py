"""What an agent asks waits in its workflow for the first answer, which reaches the agent once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from agent_runs.client.obstacles import open_questions, read_obstacles
from agent_runs.client.outcome import outcome_at_close, request_cancel
from agent_runs.client.tell import answer, chosen
from agent_runs.contracts import updates
from agent_runs.contracts.errors import InvalidRequest, MessageNotDelivered, PodLost
from agent_runs.contracts.messages import StreamEnd, StreamLogs
from agent_runs.contracts.outcome import ContainerEnd
from agent_runs.contracts.start import Binding, SealedMessage
from agent_runs.contracts.updates import Option, QuestionField
from agent_runs.paperclip.sealing import Opener, Sealer, SealingKey
from tests.support.requests import FakeRequest
from tests.workflows.fake_activities import (
    DEFAULTS,
    ENDED,
    PERMISSION,
    FakeActivities,
    FakeAgent,
    fail_with,
    until_cancelled,
)
from tests.workflows.fake_worker import Handle, configured, details_of, reached, running_worker

KEY = SealingKey.generate()
SEALER = Sealer(KEY.public)


def deliveries(steps: FakeActivities) -> list[Any]:
    return [input for name, input in steps.calls if name == "tell_agent"]


@asynccontextmanager
async def asking(
    temporal: Client, queue: str, request: FakeRequest, **answers: Any
) -> AsyncIterator[tuple[Handle, FakeAgent, FakeActivities]]:
    agent = FakeAgent(questions=(PERMISSION,))
    steps = FakeActivities({**agent.answers, **answers})
    async with running_worker(temporal, queue, steps) as start:
        handle = await start(request)
        await reached(agent.asked)
        yield handle, agent, steps


async def test_a_question_stands_in_the_run_until_its_answer_is_delivered(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async with asking(temporal, queue, request_of_a_run) as (handle, agent, steps):
        (question,) = await open_questions(handle)
        assert (question.title, question.asked_at is not None) == ("bash: make deploy", True)
        shown = await details_of(handle)
        assert ("**phase**: `asking`" in shown, "**question**: `bash: make deploy`" in shown) == (True, True)
        answers = chosen(question, ["allow ONCE"])
        delivery = await answer(handle, request_of_a_run.key, SEALER, question, answers, "ada")
        assert (await open_questions(handle), delivery.attempt) == ([], 1)
        shown = await details_of(handle)
        assert ("**phase**: `running`" in shown, "question" in shown) == (True, False)
        await agent.end()
        outcome = await outcome_at_close(handle)
    (input,) = deliveries(steps)
    assert (input.question, input.by) == ("1-per_1", "ada")
    binding = Binding.of_message(request_of_a_run.key, input.message_id)
    opened = Opener([KEY]).open(input.sealed, SealedMessage, binding)
    assert (opened.question, opened.answers) == ("1-per_1", (("Allow once",),))
    assert "ada answered a question of the agent in attempt 1" in outcome.warnings


async def test_why_a_run_waits_names_the_question_and_the_command(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async with asking(temporal, queue, request_of_a_run) as (handle, agent, _):
        assert await open_questions(handle)
        (obstacle, *_) = [each for each in await read_obstacles(temporal, handle) if each.kind == "asks"]
        assert "The agent asks: bash: make deploy" in obstacle.text
        assert f"agent-runs answer {request_of_a_run.run_id}" in obstacle.text
        await agent.end()
        await outcome_at_close(handle)


async def test_the_first_of_many_answers_wins_and_the_others_learn_whose_it_was(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async with asking(temporal, queue, request_of_a_run) as (handle, agent, steps):
        (question,) = await open_questions(handle)
        answers = chosen(question, ["1"])
        given = [answer(handle, request_of_a_run.key, SEALER, question, answers, f"person {n}") for n in range(9)]
        results = await asyncio.gather(*given, return_exceptions=True)
        await agent.end()
        await outcome_at_close(handle)
    (input,) = deliveries(steps)
    assert sum(isinstance(each, updates.Delivery) for each in results) == 1
    refused = [each for each in results if isinstance(each, MessageNotDelivered)]
    assert [each.message for each in refused] == [f"it has an answer already, from {input.by}"] * 8


async def test_an_answer_that_the_agent_does_not_take_leaves_the_question_open(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    refused = fail_with(MessageNotDelivered("'bash: make deploy' takes one of: Allow once, Always allow"))
    async with asking(temporal, queue, request_of_a_run, tell_agent=refused) as (handle, agent, steps):
        (question,) = await open_questions(handle)
        with pytest.raises(MessageNotDelivered, match="takes one of"):
            await answer(handle, request_of_a_run.key, SEALER, question, (("never",),), "ada")
        assert await open_questions(handle) == [question]
        steps.answers["tell_agent"] = DEFAULTS["tell_agent"][1]
        await answer(handle, request_of_a_run.key, SEALER, question, (("Allow once",),), "bob")
        await agent.end()
        await outcome_at_close(handle)


async def test_a_question_that_nobody_answers_in_time_is_rejected_by_name(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    request = configured(request_of_a_run, ask_timeout_sec=1)
    rejected = asyncio.Event()

    async def take(_: Any) -> None:
        rejected.set()

    async with asking(temporal, queue, request, tell_agent=take) as (handle, agent, steps):
        await reached(rejected)
        await agent.end()
        outcome = await outcome_at_close(handle)
    (input,) = deliveries(steps)
    assert (input.sealed, input.by) == (None, "askTimeoutSec: nobody answered within 1 s")
    assert any("nobody answered within 1 s" in each for each in outcome.warnings)


@pytest.mark.parametrize("withdrawn", [True, False], ids=["withdrawn", "no longer asked when its time is over"])
async def test_a_question_that_the_agent_does_not_ask_any_more_is_over(
    temporal: Client, queue: str, request_of_a_run: FakeRequest, withdrawn: bool
) -> None:
    request = configured(request_of_a_run, ask_timeout_sec=3600 if withdrawn else 1, timeout_sec=3600)
    gone = fail_with(MessageNotDelivered("the agent does not ask this any more"))
    async with asking(temporal, queue, request, tell_agent=gone) as (handle, agent, _):
        (question,) = await open_questions(handle)
        if withdrawn:
            await handle.signal(updates.ASKED, question.model_copy(update={"withdrawn": True}))
        async with asyncio.timeout(60):
            while await open_questions(handle):  # noqa: ASYNC110 - a question ends without an event
                await asyncio.sleep(0.05)
        assert "**phase**: `running`" in await details_of(handle)
        with pytest.raises(MessageNotDelivered, match="the agent does not ask this"):
            await answer(handle, request.key, SEALER, question, (("Allow once",),), "ada")
        await agent.end()
        assert (await outcome_at_close(handle)).failure is None


async def test_the_time_for_an_answer_does_not_count_as_the_agents_run_time(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    request = configured(request_of_a_run, ask_timeout_sec=3, timeout_sec=2)
    rejected = asyncio.Event()

    async def take(_: Any) -> None:
        rejected.set()

    async with asking(temporal, queue, request, tell_agent=take) as (handle, agent, _):
        await reached(rejected)
        await agent.end()
        outcome = await outcome_at_close(handle)
    assert outcome.failure is None


async def test_no_questions_make_an_answer_so_large_that_temporal_ends_their_run(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    options = tuple(Option(label=f"{number}", description="\u754c" * 2000) for number in range(16))
    fields = (QuestionField(text="Which?", options=options),) * 2
    async with asking(temporal, queue, request_of_a_run) as (handle, agent, _):
        for number in range(30):
            large = PERMISSION.model_copy(update={"id": f"1-large-{number}", "fields": fields})
            await handle.signal(updates.ASKED, large)
        found = await open_questions(handle)
        assert [each.id for each in found[:3]] == ["1-per_1", "1-large-0", "1-large-1"]
        assert 3 < len(found) < 31
        await answer(handle, request_of_a_run.key, SEALER, found[1], (("1",),) * 2, "ada")
        assert (await open_questions(handle))[1].id == "1-large-1"
        await agent.end()
        assert (await outcome_at_close(handle)).failure is None


async def test_a_question_ends_with_its_run(temporal: Client, queue: str, request_of_a_run: FakeRequest) -> None:
    async def never(_: Any) -> None:
        await until_cancelled(None)

    async with asking(temporal, queue, request_of_a_run, tell_agent=never) as (handle, _, steps):
        (question,) = await open_questions(handle)
        waiting = asyncio.create_task(answer(handle, request_of_a_run.key, SEALER, question, (("Allow once",),), "ada"))
        async with asyncio.timeout(60):
            while not deliveries(steps):  # noqa: ASYNC110 - the fake has no event of its own
                await asyncio.sleep(0.02)
        await request_cancel(handle, "no longer wanted")
        with pytest.raises(MessageNotDelivered, match="the run has ended"):
            await waiting
        await outcome_at_close(handle)
        with pytest.raises(MessageNotDelivered, match="the run has ended"):
            await answer(handle, request_of_a_run.key, SEALER, question, (("Allow once",),), "ada")


async def test_the_loss_of_its_pod_ends_a_question_by_name(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    request = configured(request_of_a_run, infrastructure_retries=0)
    lost = ENDED.model_copy(update={"container": ContainerEnd(), "failure": PodLost.as_failure("the node went away")})
    agent = FakeAgent(questions=(PERMISSION,))

    async def stream(input: StreamLogs) -> StreamEnd:
        await agent.answers["stream_logs"](input)
        return lost

    async with running_worker(temporal, queue, FakeActivities({"stream_logs": stream})) as start:
        handle = await start(request)
        await reached(agent.asked)
        (question,) = await open_questions(handle)
        await agent.end()
        outcome = await outcome_at_close(handle)
        with pytest.raises(MessageNotDelivered, match="the run has ended"):
            await answer(handle, request.key, SEALER, question, (("Allow once",),), "ada")
    assert outcome.failure is not None
    assert outcome.failure.code == PodLost.code


async def test_what_is_no_question_and_no_answer_changes_nothing(
    temporal: Client, queue: str, request_of_a_run: FakeRequest
) -> None:
    async with asking(temporal, queue, request_of_a_run) as (handle, agent, steps):
        (question,) = await open_questions(handle)
        wrong: list[Any]
        for wrong in ([], [None], [7], [{}], [question.model_copy(update={"id": "2-per_1", "attempt": 2})]):
            await handle.signal(updates.ASKED, args=wrong)
        for wrong in ([], [None], ["x"], [{}]):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update(updates.ANSWER, args=wrong)
        other = request_of_a_run.key.model_copy(update={"run_id": "another"})
        with pytest.raises(MessageNotDelivered, match="run another does not have the agent"):
            await answer(handle, other, SEALER, question, (), "ada")
        unknown = question.model_copy(update={"id": "1-per_2"})
        with pytest.raises(MessageNotDelivered, match="the agent does not ask this"):
            await answer(handle, request_of_a_run.key, SEALER, unknown, (), "ada")
        assert (await open_questions(handle), deliveries(steps)) == ([question], [])
        await agent.end()
        await outcome_at_close(handle)


def test_an_answer_is_an_option_its_number_or_own_words() -> None:
    sizes = QuestionField(text="Sizes?", options=(Option(label="S"), Option(label="L")), many=True)
    colour = QuestionField(text="Colour?", options=(Option(label="Red"),), own_words=True)
    question = PERMISSION.model_copy(update={"fields": (sizes, colour)})
    assert chosen(question, ["1, l", "green, or so"]) == (("S", "L"), ("green, or so",))
    assert chosen(question, ["L", "red"]) == (("L",), ("Red",))
    retries = QuestionField(text="Retries?", options=tuple(Option(label=f"{number}") for number in range(3)))
    assert chosen(PERMISSION.model_copy(update={"fields": (retries,)}), ["1"]) == (("1",),)
    for words, named in (
        (["S"], "2 parts"),
        (["XL", "Red"], "'Sizes.' takes S, L"),
        (["S", " "], "'Colour.' takes Red"),
    ):
        with pytest.raises(InvalidRequest, match=named):
            chosen(question, words)
