"""A turn survives cuts, kills and repeated requests, with the server of either OpenCode."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_runs.pod.sidecar.drivers import inbox
from dev_stack.opencode_binary import VERSION, VERSION_2
from tests.pod.driving import Served, bash, result, script, serving
from tests.pod.interrupting import CUTS, address_of, killed_again_and_again, relaying, until_a_tool_runs

pytestmark = pytest.mark.slow


@pytest.fixture(params=[VERSION, VERSION_2])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """A server without the sessions of other tests, which every read of its journal would have."""
    async with serving(tmp_path, request.param) as server:
        yield server


@pytest.mark.timeout(900)
async def test_nothing_is_lost_or_doubled_by_cuts(served: Served, tmp_path: Path) -> None:
    steps = [{"text": f"Step {number}.", **bash(f"seq {number}")} for number in range(60)]
    async with relaying(served.port, longest=0.04) as relayed:
        address = address_of(relayed.port, tmp_path, is_opencode_1=served.is_opencode_1)
        while relayed.cuts < CUTS:
            ours = await served.play(script(*steps), server=address)
            assert ours.end["code"] == 0
            assert ours.parts == await served.parts_of(ours.end["session"])
            assert ours.counts == {"step_start": 61, "step_finish": 61, "text": 61, "tool_use": 60}


async def test_a_driver_that_is_killed_again_and_again_loses_and_doubles_nothing(served: Served) -> None:
    turn = served.turn("to be killed\n" + script(*[bash(f"seq {number}") for number in range(40)]))
    kills = await killed_again_and_again(served, turn)
    ours, requests = result(turn), [each for each in served.model.requests if "to be killed" in json.dumps(each)]
    assert kills > 3
    assert ours.end["code"] == 0
    assert ours.counts == {"step_start": 41, "step_finish": 41, "text": 1, "tool_use": 40}
    assert ours.parts == await served.parts_of(ours.end["session"])
    prompts = [[message["role"] for message in request["messages"]].count("user") for request in requests]
    assert prompts == [1] * 41


async def test_a_message_reaches_the_turn_that_runs(served: Served) -> None:
    turn = served.turn(script(bash("sleep 4; echo heron"), {"text": "Done."}))
    driver = await served.start(turn)
    await until_a_tool_runs(turn)
    inbox.put(str(turn), 1, {"id": "m1", "by": "Ada", "text": script({"text": "I have read it."})})
    inbox.put(str(turn), 2, {"id": "m2", "by": "Bob", "text": "by Bob"})
    assert await driver.wait() == 0
    ours = result(turn)
    assert [inbox.answer_to(str(turn), number)["delivered"] for number in (1, 2)] == [True, True]
    assert [line["message"]["by"] for line in ours.events if line["type"] == "user_message"] == ["Ada", "Bob"]
    assert (ours.end["code"], ours.end["reason"]) == (0, None)
    assert ours.report.summary.endswith("I have read it.")
    assert [line["part"]["state"]["output"].strip() for line in ours.events if line["type"] == "tool_use"] == ["heron"]
    assert ours.parts == await served.parts_of(ours.end["session"])
    asked = [json.dumps(request) for request in served.model.requests]
    assert sum("by Bob" in each for each in asked) == 1


async def until_delivered(turn: Path, number: int) -> None:
    """Every second message only until it may have been sent, so that some drivers are killed in the middle."""
    async with asyncio.timeout(120):
        while not is_delivered(turn, number):  # noqa: ASYNC110 - a file of another process has no event
            await asyncio.sleep(0.01)


def is_delivered(turn: Path, number: int) -> bool:
    if number % 2:
        return bool(inbox.answer_to(str(turn), number))
    state = turn / "state"
    return state.exists() and len(json.loads(state.read_text()).get("messages", [])) >= number


async def test_a_message_is_delivered_once_although_the_driver_is_killed(served: Served) -> None:
    turn = served.turn(script(*[bash(f"sleep 1; seq {number}") for number in range(4)]))
    for number in range(1, 6):
        inbox.put(str(turn), number, {"id": f"m{number}", "by": "Ada", "text": f"message {number}"})
        driver = await served.start(turn)
        await until_delivered(turn, number)
        driver.kill()
        await driver.wait()
    driver = await served.start(turn)
    assert await driver.wait() == 0
    ours = result(turn)
    assert (ours.end["code"], ours.end["reason"]) == (0, None)
    assert [inbox.answer_to(str(turn), number).get("delivered") for number in range(1, 6)] == [True] * 5
    assert [line["message"]["id"] for line in ours.events if line["type"] == "user_message"] == [
        "m1",
        "m2",
        "m3",
        "m4",
        "m5",
    ]
    latest = json.dumps(served.model.requests[-1])
    assert [latest.count(f"message {number}") for number in range(1, 6)] == [1] * 5
    assert ours.parts == await served.parts_of(ours.end["session"])


async def test_a_prompt_that_is_sent_twice_is_one_prompt(served: Served) -> None:
    first = await served.play(model="fake/scenario/text")
    turn = served.turn(model="fake/scenario/text")
    state = json.loads((served.folder / f"turn-{served.turns - 1}" / "state").read_text())
    (turn / "state").write_text(json.dumps(state))
    latest = served.model.requests[-1]
    driver = await served.start(turn)
    assert await driver.wait() == 0
    assert served.model.requests[-1] is latest
    assert result(turn).parts == first.parts


async def test_a_prompt_whose_answer_is_lost_is_followed_to_its_end_and_not_repeated(
    served: Served, tmp_path: Path
) -> None:
    async with relaying(served.port, unanswered=b"/prompt") as relayed:
        address = address_of(relayed.port, tmp_path, is_opencode_1=served.is_opencode_1)
        ours = await served.play("answer lost", model="fake/scenario/text", server=address)
    requests = [each for each in served.model.requests if "answer lost" in json.dumps(each)]
    assert len(requests) == 1
    assert (relayed.cuts, ours.end["code"], ours.end["reason"], ours.counts["text"]) == (1, 0, None, 1)
