"""What OpenCode asks is put to people, and the answer reaches it once."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_runs.pod.sidecar.drivers import inbox
from dev_stack.opencode_binary import VERSION, VERSION_2
from tests.pod.driving import START, Played, Served, bash, result, script, serving, task

COLOUR = {"question": "Which colour?", "header": "Colour", "options": [{"label": "Red", "description": "the red one"}]}
SIZES = {
    "question": "Which sizes?",
    "header": "Sizes",
    "multiple": True,
    "options": [{"label": "S", "description": "small"}, {"label": "L", "description": "large"}],
}


@pytest.fixture(params=[VERSION, VERSION_2])
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path, request.param, bash="ask", question="allow") as server:
        yield server


def lines_of(turn: Path, kind: str) -> list[dict[str, Any]]:
    events = turn / "events"
    written = events.read_bytes() if events.exists() else b""
    whole = written[: written.rfind(b"\n") + 1].splitlines()
    return [line for line in map(json.loads, whole) if line["type"] == kind]


async def asked(turn: Path, number: int = 1) -> dict[str, Any]:
    """The question of this number, once it is asked."""
    async with asyncio.timeout(60):
        while len(found := lines_of(turn, "question_asked")) < number:  # noqa: ASYNC110 - another process's file
            await asyncio.sleep(0.05)
    question: dict[str, Any] = found[number - 1]["question"]
    return question


def answer(turn: Path, question: str, answers: list[list[str]], number: int = 1) -> None:
    content = {"id": f"a{number}", "by": "Ada", "text": "", "question": question, "answers": answers}
    inbox.put(str(turn), number, content)


async def ended(driver: asyncio.subprocess.Process, turn: Path) -> Played:
    assert await driver.wait() == 0
    return result(turn)


def question_tool(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [{"name": "question", "args": {"questions": questions}}]}


async def test_a_permission_that_somebody_gives_is_used(served: Served) -> None:
    turn = served.turn(script(bash("echo heron"), {"text": "Done."}), asks=True)
    driver = await served.start(turn)
    question = await asked(turn)
    assert (question["kind"], question["fields"][0]["options"][0]["label"]) == ("permission", "Allow once")
    assert "echo heron" in question["fields"][0]["text"]
    answer(turn, question["id"], [["Allow once"]])
    ours = await ended(driver, turn)
    (given,) = lines_of(turn, "question_answered")
    assert given["question"] == {"id": question["id"], "by": "Ada", "answers": [["Allow once"]]}
    assert (ours.end["code"], ours.report.summary, ours.report.failure) == (0, "Done.", None)
    assert not lines_of(turn, "permission_rejected")
    assert inbox.answer_to(str(turn), 1) == {"delivered": True, "reason": ""}


async def test_a_permission_that_somebody_refuses_is_named_and_the_turn_goes_on(served: Served) -> None:
    turn = served.turn(script(bash("echo heron"), {"text": "I go on."}), asks=True)
    driver = await served.start(turn)
    question = await asked(turn)
    answer(turn, question["id"], [])
    ours = await ended(driver, turn)
    (rejected,) = lines_of(turn, "permission_rejected")
    assert (rejected["patterns"], rejected["by"]) == ("echo heron", "Ada")
    assert (ours.end["code"], ours.report.summary) == (0, "I go on.")
    (tool,) = [each for each in served.model.requests[-1]["messages"] if each["role"] == "tool"]
    words = "Ada has rejected this" if served.is_opencode_1 else "Unable to execute command"
    assert words in tool["content"]


async def test_a_request_that_opencode_ends_itself_is_over(tmp_path: Path) -> None:
    """A permission that is always given answers the requests of its kind that wait."""
    async with serving(tmp_path, bash="ask") as served:
        both = {"tools": [*bash("echo heron")["tools"], *bash("echo stork")["tools"]]}
        turn = served.turn(script(both, bash("printf third"), {"text": "Done."}), asks=True)
        driver = await served.start(turn)
        second = await asked(turn, 2)
        answer(turn, (await asked(turn))["id"], [["Always allow"]])
        third = await asked(turn, 3)
        async with asyncio.timeout(60):
            while len(lines_of(turn, "question_answered")) < 2:  # noqa: ASYNC110 - another process's file
                await asyncio.sleep(0.05)
        answer(turn, third["id"], [["Allow once"]], 2)
        ours = await ended(driver, turn)
    assert (ours.end["code"], ours.report.summary) == (0, "Done.")
    over = [(line["question"]["id"], line["question"]["by"]) for line in lines_of(turn, "question_answered")]
    assert over[1:] == [(second["id"], ""), (third["id"], "Ada")]


async def test_a_question_is_answered_with_what_was_chosen_and_with_own_words(served: Served) -> None:
    turn = served.turn(script(question_tool(COLOUR, SIZES), {"text": "Done."}), asks=True, asks_questions=True)
    driver = await served.start(turn)
    question = await asked(turn)
    assert [(each["text"], each["many"], each["ownWords"]) for each in question["fields"]] == [
        ("Which colour?", False, True),
        ("Which sizes?", True, True),
    ]
    answer(turn, question["id"], [["Red"]])
    answer(turn, question["id"], [["a green one"], ["S", "L"]], 2)
    ours = await ended(driver, turn)
    assert "has 2 parts" in inbox.answer_to(str(turn), 1)["reason"]
    assert (ours.end["code"], ours.report.summary) == (0, "Done.")
    (tool,) = [line for line in ours.events if line["type"] == "tool_use"]
    assert all(word in tool["part"]["state"]["output"] for word in ("a green one", "S", "L"))


async def test_a_question_that_nobody_answers_is_declined_and_an_answer_to_another_one_is_refused(
    served: Served,
) -> None:
    turn = served.turn(script(question_tool(COLOUR), {"text": "I go on."}), asks=True, asks_questions=True)
    driver = await served.start(turn)
    question = await asked(turn)
    answer(turn, "another", [["Red"]])
    answer(turn, question["id"], [], 2)
    ours = await ended(driver, turn)
    assert inbox.answer_to(str(turn), 1)["reason"] == "the agent does not ask this any more"
    assert lines_of(turn, "question_answered")[0]["question"]["answers"] == []
    assert ours.end["reason"] is None


async def test_a_question_that_is_too_large_for_a_history_is_declined(served: Served) -> None:
    """A hundred of them make tasks of its workflow that no worker can do in time."""
    options = [{"label": f"{number}", "description": "x" * 240} for number in range(16)]
    large = [{**COLOUR, "question": "y" * 900, "options": options}] * 8
    turn = served.turn(script(question_tool(*large), {"text": "I go on."}), asks=True, asks_questions=True)
    ours = await ended(await served.start(turn), turn)
    assert (ours.end["reason"], lines_of(turn, "question_asked")) == (None, [])


async def test_what_is_asked_beyond_the_limit_of_a_turn_is_rejected_by_name(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = "from agent_runs.pod.sidecar.drivers import questions; questions.MAX_ASKED = 1"
    limited = START.replace("served.ABORT", f"{limited}; served.ABORT")
    monkeypatch.setattr("tests.pod.driving.START", limited)
    turn = served.turn(script(bash("echo heron"), bash("echo stork"), {"text": "I go on."}), asks=True)
    driver = await served.start(turn)
    answer(turn, (await asked(turn))["id"], [["Allow once"]])
    ours = await ended(driver, turn)
    assert (ours.end["code"], ours.report.summary) == (0, "I go on.")
    (rejected,) = lines_of(turn, "permission_rejected")
    assert (rejected["patterns"], rejected["by"]) == ("echo stork", "the limit of 100 questions of one run")
    assert len(lines_of(turn, "question_asked")) == 1


async def test_a_sub_agent_asks_as_its_agent_does(served: Served) -> None:
    tool = task(bash("echo heron"), {"text": "part"}) if served.is_opencode_1 else None
    if tool is None:
        args = {"description": "a part", "prompt": script(bash("echo heron"), {"text": "part"}), "agent": "general"}
        tool = {"tools": [{"name": "subagent", "args": args}]}
    turn = served.turn(script(tool, {"text": "Done."}), asks=True)
    driver = await served.start(turn)
    answer(turn, (await asked(turn))["id"], [["Allow once"]])
    ours = await ended(driver, turn)
    assert (ours.end["code"], ours.report.summary) == (0, "Done.")


async def test_an_answer_is_given_once_although_the_driver_is_killed(served: Served) -> None:
    steps = [bash(f"echo {number}") for number in range(4)]
    turn = served.turn(script(*steps, {"text": "Done."}), asks=True)
    for number in range(1, 5):
        driver = await served.start(turn)
        question = await asked(turn, number)
        driver.kill()
        await driver.wait()
        answer(turn, question["id"], [["Allow once"]], number)
        driver = await served.start(turn)
        async with asyncio.timeout(60):
            while not (  # noqa: ASYNC110 - another process's file
                inbox.answer_to(str(turn), number)
                if number % 2
                else json.loads((turn / "state").read_text()).get("answering") == question["id"]
            ):
                await asyncio.sleep(0.01)
        driver.kill()
        await driver.wait()
    ours = await ended(await served.start(turn), turn)
    assert (ours.end["code"], ours.report.summary) == (0, "Done.")
    assert [inbox.answer_to(str(turn), number).get("delivered") for number in range(1, 5)] == [True] * 4
    asked_ids = [line["question"]["id"] for line in lines_of(turn, "question_asked")]
    assert asked_ids == [line["question"]["id"] for line in lines_of(turn, "question_answered")]
    assert len(asked_ids) == 4
    assert ours.parts == await served.parts_of(ours.end["session"])
