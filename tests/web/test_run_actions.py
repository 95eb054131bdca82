"""Operators cancel a run on its page, after a question, send its agent messages, and answer it; nobody else does."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from joserfc.jwk import OctKey
from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_runs.contracts.errors import MessageNotDelivered
from agent_runs.contracts.updates import Option, Question, QuestionField
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.operators import Operators
from agent_runs.web.refusals import FOREIGN_FORM, Refusals
from agent_runs.web.render import Templates
from agent_runs.web.run_actions import BY, MAX_FORM, REASON
from tests.support.cases import case
from tests.web.parts import RUN, Site, run_info
from tests.web.run_list_parts import BEARER, operated

PATH = f"/runs/{RUN}/cancel"
TELL = f"/runs/{RUN}/tell"
ANSWER = f"/runs/{RUN}/answer"
MESSAGE = "6f0c4c4e-5b0e-4d53-9f3f-2f4d0b5d8a51"
HTML = {"Accept": "text/html"}
Form = dict[str, str] | list[tuple[str, str]]


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Site]:
    async with operated(tmp_path) as made:
        made.source.info = run_info("running")
        yield made


async def asked(
    here: Site, method: str, path: str = PATH, form: Form | None = None, /, **headers: str
) -> tuple[int, str, str]:
    """Status, text and target of an operator's request."""
    sent = {**HTML, **BEARER, **headers}
    async with (
        aiohttp.ClientSession(here.base) as person,
        person.request(method, path, data=form, headers=sent, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.text(), answer.headers.get("Location", "")


async def test_a_cancel_is_requested_after_a_question_and_leads_back_to_the_run(here: Site) -> None:
    status, question, _ = await asked(here, "GET")
    assert status == 200
    assert "Cancel this run?" in question
    assert here.source.cancelled == []
    assert await asked(here, "POST", **{"Sec-Fetch-Site": "same-origin"}) == (303, "", f"../{RUN}")
    assert here.source.cancelled == [(RUN, REASON)]


async def test_the_page_of_an_open_run_leads_operators_and_nobody_else_to_the_question(here: Site) -> None:
    async with aiohttp.ClientSession(here.base, headers=HTML | BEARER) as person, person.get(f"/runs/{RUN}") as answer:
        assert f'href="{RUN}/cancel"' in await answer.text()
    assert "/cancel" not in await here.get(f"/runs/{RUN}")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_the_link_of_a_run_does_not_cancel_it(here: Site, method: str) -> None:
    async with here.http.request(method, PATH, headers=HTML) as answer:
        assert answer.status == 401
    assert here.source.cancelled == []


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
async def test_a_form_of_another_site_does_not_cancel(here: Site, site: str) -> None:
    status, _, _ = await asked(here, "POST", **{"Sec-Fetch-Site": site})
    assert status == 403
    assert here.source.cancelled == []


async def test_a_cancel_with_a_foreign_origin_is_refused_also_by_browsers_that_say_nothing_else(here: Site) -> None:
    same, evil = {"Sec-Fetch-Site": "same-origin"}, {"Origin": "https://evil.example"}
    for headers in (evil, evil | same, {"Origin": "null"}, {"Origin": f"https://evil.example/{here.base}"}):
        with case(headers):
            assert (await asked(here, "POST", **headers))[0] == 403
    assert here.source.cancelled == []
    ours: list[dict[str, str]] = [{}, {"Origin": here.base}, {"Origin": here.base} | same, {"Origin": "null"} | same]
    for headers in ours:
        with case(headers):
            assert (await asked(here, "POST", **headers))[0] == 303


def test_a_refused_form_is_not_called_a_link_of_another_run() -> None:
    scope = {"type": "http", "path": PATH, "path_params": {"run": RUN}, "query_string": b"", "headers": []}
    refusals = Refusals(Templates(), Operators(Tokens([OctKey.generate_key(256)])))
    page = bytes(refusals.page(Request(scope), HTTPException(403, FOREIGN_FORM)).body).decode()
    assert "Nothing was done to this run" in page
    assert "AGENT_RUNS_TRANSCRIPTS_PUBLIC_URL" in page
    assert "another run" not in page


async def test_behind_a_proxy_the_origin_is_that_of_the_public_address(tmp_path: Path) -> None:
    async with operated(tmp_path, transcripts_public_url="https://runs.example/here") as here:
        here.source.info = run_info("running")
        assert (await asked(here, "POST", Origin="https://runs.example"))[0] == 303
        assert (await asked(here, "POST", Origin="https://runs.example.evil"))[0] == 403


async def test_without_temporal_and_for_an_unknown_run_nothing_is_said_to_be_cancelled(here: Site) -> None:
    status, text, _ = await asked(here, "POST", "/runs/another/cancel")
    assert status == 404
    assert "nothing was cancelled" in text
    here.source.down = True
    status, text, _ = await asked(here, "POST")
    assert status == 503
    assert "nothing was cancelled, try again" in text


async def test_a_message_goes_to_the_agent_and_leads_back_to_the_run(here: Site) -> None:
    status, page, _ = await asked(here, "GET", TELL)
    assert (status, here.source.messages) == (200, [])
    (message,) = re.findall(r'name="message" value="([0-9a-f-]+)"', page)
    answer = await asked(here, "POST", TELL, {"message": message, "text": "Use the other branch.\r\nThanks"})
    assert answer == (303, "", f"../{RUN}")
    assert here.source.messages == [(RUN, "Use the other branch.\nThanks", BY, message)]


async def test_a_message_that_was_not_delivered_is_shown_again_with_the_reason(here: Site) -> None:
    here.source.refusal = MessageNotDelivered("the run has ended")
    status, page, _ = await asked(here, "POST", TELL, {"message": MESSAGE, "text": "Stop </textarea><b>"})
    assert (status, "the run has ended" in page, "Comment on the task instead" in page) == (409, True, True)
    assert "Stop &lt;/textarea&gt;&lt;b&gt;</textarea>" in page


@pytest.mark.parametrize(
    ("form", "headers", "status"),
    [
        ({"message": MESSAGE, "text": "x"}, {"Sec-Fetch-Site": "cross-site"}, 403),
        ({"message": "../1", "text": "x"}, {}, 400),
        ({"message": MESSAGE, "text": "x" * MAX_FORM}, {}, 413),
    ],
    ids=["of another site", "without an id", "too large"],
)
async def test_a_form_that_is_not_ours_sends_nothing(
    here: Site, form: dict[str, str], headers: dict[str, str], status: int
) -> None:
    assert (await asked(here, "POST", TELL, form, **headers))[0] == status
    assert here.source.messages == []


async def test_the_link_of_a_run_sends_its_agent_nothing(here: Site) -> None:
    for method in ("GET", "POST"):
        async with here.http.request(method, TELL, headers=HTML) as answer:
            assert answer.status == 401
    assert here.source.messages == []


async def test_the_page_of_an_open_run_leads_to_the_form(here: Site) -> None:
    for phase, leads in (("running", True), ("succeeded", False)):
        here.source.info = run_info(phase)
        _, page, _ = await asked(here, "GET", f"/runs/{RUN}")
        assert (f'href="{RUN}/tell"' in page) is leads


async def test_without_temporal_x_has_the_message(here: Site) -> None:
    here.source.down = True
    status, text, _ = await asked(here, "POST", TELL, {"message": MESSAGE, "text": "x"})
    assert (status, "the transcript shows whether the agent has the message" in text) == (503, True)


SIZES = QuestionField(text="Sizes?", options=(Option(label="S"), Option(label="L")), many=True)
WHY = QuestionField(text="Why <b>?", own_words=True)
QUESTION = Question(id="1-que_1", attempt=1, kind="question", fields=(SIZES, WHY))


async def test_what_the_agent_asks_is_answered_on_its_page(here: Site) -> None:
    here.source.info, here.source.asks = run_info("asking"), [QUESTION]
    async with aiohttp.ClientSession(here.base, headers=HTML | BEARER) as person, person.get(f"/runs/{RUN}") as answer:
        assert f'href="{RUN}/answer"' in await answer.text()
    status, page, _ = await asked(here, "GET", ANSWER)
    assert (status, "Sizes?" in page, "Why &lt;b&gt;?" in page, "Decline" in page) == (200, True, True, True)
    (message,) = re.findall(r'name="message" value="([0-9a-f-]+)"', page)
    form = {"message": message, "question": QUESTION.id}
    chosen = [*form.items(), ("choice-0", "1"), ("choice-0", "2"), ("own-1", " because, well ")]
    assert await asked(here, "POST", ANSWER, chosen) == (303, "", f"../{RUN}")
    assert await asked(here, "POST", ANSWER, form | {"reject": "yes"}) == (303, "", f"../{RUN}")
    answers = (("S", "L"), ("because, well",))
    assert here.source.answers == [(RUN, QUESTION.id, each, BY, message) for each in (answers, ())]


async def test_own_words_on_the_page_are_no_number_and_an_option_may_have_any_label(here: Site) -> None:
    count = QuestionField(text="How many?", options=(Option(label="2"), Option(label="1")), own_words=True)
    sizes = QuestionField(text="Sizes?", options=(Option(label="S, or M"),), many=True, own_words=True)
    here.source.asks = [QUESTION.model_copy(update={"fields": (count, sizes)})]
    form = {"message": MESSAGE, "question": QUESTION.id, "choice-1": "1"}
    given: dict[tuple[tuple[str, ...], ...], Form] = {
        (("2",), ("S, or M",)): form | {"choice-0": "1"},
        (("3",), ("S, or M",)): form | {"choice-0": "1", "own-0": "3"},
        (("1",), ("S, or M", "L, XL")): form | {"own-0": "1", "own-1": "L, XL"},
    }
    for answers, sent in given.items():
        with case(answers):
            assert (await asked(here, "POST", ANSWER, sent))[0] == 303
            assert here.source.answers.pop()[2] == answers
    for number in ("0", "3", "-1", "\u0661", "9" * 5000):
        with case(number[:9]):
            assert (await asked(here, "POST", ANSWER, form | {"choice-0": number}))[0] == 409


async def test_an_answer_that_is_none_or_comes_too_late_is_shown_with_the_reason(here: Site) -> None:
    here.source.asks = [QUESTION]
    form = {"message": MESSAGE, "question": QUESTION.id, "choice-0": "1", "own-1": ""}
    status, page, _ = await asked(here, "POST", ANSWER, form)
    assert (status, "was not delivered" in page) == (409, True)
    here.source.refusal = MessageNotDelivered("it has an answer already, from ada")
    status, page, _ = await asked(here, "POST", ANSWER, form | {"own-1": "because"})
    assert (status, "it has an answer already, from ada" in page) == (409, True)
    here.source.asks = []
    status, page, _ = await asked(here, "POST", ANSWER, form)
    assert (status, "does not ask this any more" in page, "asks nothing" in page) == (409, True, True)
    here.source.down = True
    assert (await asked(here, "GET", ANSWER))[0] == 503
    assert here.source.answers == []


async def test_the_link_of_a_run_answers_nothing(here: Site) -> None:
    here.source.asks = [QUESTION]
    for method in ("GET", "POST"):
        async with here.http.request(method, ANSWER, headers=HTML) as answer:
            assert answer.status == 401
    status, _, _ = await asked(here, "POST", ANSWER, {"message": MESSAGE}, **{"Sec-Fetch-Site": "cross-site"})
    assert (status, here.source.answers) == (403, [])
