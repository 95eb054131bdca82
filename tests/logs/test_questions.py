"""A question that is stored reaches its run, whatever Temporal and the worker do; one that is answered does not."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from agent_runs.background import in_background
from agent_runs.contracts.updates import Question
from agent_runs.logs.questions import Questions
from agent_runs.pod.sidecar.drivers import questions as asking
from agent_runs.transcript.lines import Line
from tests.support.virtual_time import run_in_virtual_time

ASKED = {"id": "per_1", "kind": "permission", "fields": [{"text": "bash: make", "options": [{"label": "Allow once"}]}]}


def line(kind: str, question: dict[str, Any], stream: str = "stdout") -> Line:
    data = json.dumps({"type": kind, "timestamp": 1, "question": question}, separators=(",", ":")).encode()
    return Line(1, stream, data, at=datetime.now(UTC))


class Run:
    """Takes questions, but for the first so many times."""

    def __init__(self, refuses: int = 0) -> None:
        self.refuses = refuses
        self.asked: list[Question] = []

    async def ask(self, question: Question) -> bool:
        if self.refuses:
            self.refuses -= 1
            return False
        self.asked.append(question)
        return True


async def sent(run: Run, *batches: list[Line]) -> list[str]:
    """The ids of the questions that a worker sends which stores these batches, a minute each."""
    known = Questions(2, run.ask)
    async with in_background(known.send()):
        for batch in batches:
            known.add(batch)
            await asyncio.sleep(60)
    return [question.id for question in run.asked]


def test_a_question_is_sent_once_and_again_while_temporal_does_not_take_it() -> None:
    run = Run(refuses=7)
    assert run_in_virtual_time(sent(run, [line("question_asked", ASKED)], [line("text", {})])) == ["2-per_1"]
    assert (run.asked[0].attempt, run.asked[0].title) == (2, "bash: make")


def test_a_question_that_is_answered_by_then_is_not_sent() -> None:
    lines = [line("question_asked", ASKED), line("question_answered", {"id": "per_1", "by": "Ada"})]
    assert run_in_virtual_time(sent(Run(), lines)) == []
    away = Run(refuses=3)
    assert run_in_virtual_time(sent(away, lines[:1], lines[1:])) == ["2-per_1"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"id": "per 1"}, {"id": ""}, {"fields": []}, {"fields": [{}] * 9}, {"kind": "order"}, {"fields": None}),
        *({"fields": [{"text": "x", "options": [{"label": "y"}] * 17}]}, {"id": "x" * 200}),
    ],
)
def test_what_no_driver_writes_is_not_sent(wrong: dict[str, Any]) -> None:
    lines = [line("question_asked", ASKED | wrong), line("question_asked", {**ASKED, "id": "per_2"}, "stderr")]
    assert run_in_virtual_time(sent(Run(), lines)) == []


def test_a_text_that_has_grown_by_the_name_of_a_secret_is_cut_and_sent() -> None:
    run = Run()
    long = {**ASKED, "fields": [{"text": "s" * 5000, "options": [{"label": "l" * 5000}]}]}
    assert run_in_virtual_time(sent(run, [line("question_asked", long)])) == ["2-per_1"]
    assert len(run.asked[0].title) == len(run.asked[0].fields[0].options[0].label) == 2000


def test_a_question_that_the_agent_has_ended_itself_is_sent_as_withdrawn_also_by_another_worker() -> None:
    lines = [line("question_asked", ASKED), line("question_answered", {"id": "per_1", "by": "", "answers": []})]
    one, another = Run(refuses=1), Run()
    run_in_virtual_time(sent(one, lines[:1], lines[1:], [line("text", {})]))
    run_in_virtual_time(sent(another, lines))
    assert [question.withdrawn for question in one.asked] == [False, True]
    assert [question.withdrawn for question in another.asked] == [True]


def test_what_a_driver_asks_at_its_limits_is_sent_and_what_is_beyond_them_it_does_not_show() -> None:
    option = {"label": "l " * 900, "description": "d " * 900, "value": "v"}
    widest = asking.field("x " * 5000, [option] * 16, "value")
    assert widest is not None
    assert asking.field("x", [option] * 17, "value") is None
    narrow = asking.Field("x", ["l"])
    for run, asked in (
        (Run(), asking.question("q" * 128, "s", "question", [widest])),
        (Run(), asking.question("q", "s", "question", [narrow] * 8)),
        (Run(), asking.permission("p", "s", "n " * 5000, ["a " * 5000] * 50, ("once", "always"))),
    ):
        assert asked.can_be_shown
        assert len(run_in_virtual_time(sent(run, [line(asked.line.type, asked.line.content["question"])]))) == 1
    for asked in (
        asking.question("q", "s", "question", [widest, widest]),
        asking.question("q", "s", "question", [narrow] * 9),
        asking.question("q" * 129, "s", "question", [narrow]),
    ):
        assert not asked.can_be_shown


def test_the_agent_is_answered_by_its_own_name_of_a_request_however_long_that_is() -> None:
    for length in (1, 128, 129, 1000):
        assert asking.permission("p" * length, "s", "bash", ["make"], ()).id == "p" * length
        assert asking.question("q" * length, "s", "question", []).id == "q" * length
