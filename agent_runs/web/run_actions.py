"""Operators cancel a run on its page, send its agent messages, and answer what it asks.

    GET /runs/{run}/cancel      asks
    POST /runs/{run}/cancel     requests the cancel in Temporal and goes back to the run's page
    GET /runs/{run}/tell        has the field for a message
    POST /runs/{run}/tell       sends it and goes back to the run's page
    GET /runs/{run}/answer      has what the agent asks
    POST /runs/{run}/answer     answers one question and goes back to the run's page

A run's link allows neither. A form from another site is refused by `Sec-Fetch-Site`, or `Origin` in older browsers:
a proxy adds its header to every request. Source: W3C, Fetch Metadata Request Headers.
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from agent_runs.client.tell import Answers
from agent_runs.contracts.errors import InvalidRequest, MessageNotDelivered
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.start import MESSAGE_LIMIT
from agent_runs.contracts.updates import Question
from agent_runs.web.access import requested_run
from agent_runs.web.forms import first, form
from agent_runs.web.operators import CHALLENGE, Operators
from agent_runs.web.refusals import FOREIGN_FORM, NO_STORE, with_forms
from agent_runs.web.render import Templates
from agent_runs.web.run_info import RunInfoSource, RunInfoUnavailable

REASON: Final = "Cancelled by an operator on the run's page"
BY: Final = "an operator"
ONLY_OPERATORS: Final = "only operators may do this: sign in, or use `agent-runs cancel` and `agent-runs tell`"
MAX_FORM: Final = 16 * MESSAGE_LIMIT
"""Bytes: a character has at most four, and each of them three in a form."""
ANSWER_FIELDS: Final = 200
"""A question has up to eight parts with sixteen options each."""
_WITH_ORIGIN: Final = {"Referrer-Policy": "same-origin"}
"""Without a referrer a form's origin is `null`, also for browsers that say nothing else."""


class RunActions:
    """What operators do to a run, each a page with a form."""

    def __init__(self, operators: Operators, source: RunInfoSource, templates: Templates) -> None:
        self._operators = operators
        self._source = source
        self._templates = templates

    @property
    def routes(self) -> list[BaseRoute]:
        return [
            Route("/runs/{run}/cancel", self.ask_whether_to_cancel),
            Route("/runs/{run}/cancel", self.cancel, methods=["POST"]),
            Route("/runs/{run}/tell", self.ask_what_to_tell),
            Route("/runs/{run}/tell", self.tell, methods=["POST"]),
            Route("/runs/{run}/answer", self.ask_for_answers),
            Route("/runs/{run}/answer", self.answer, methods=["POST"]),
        ]

    async def ask_whether_to_cancel(self, request: Request) -> Response:
        return self._page("cancel.html", self._operated(request))

    async def cancel(self, request: Request) -> Response:
        """Request the cancel; the run's page then shows how it goes."""
        run = self._submitted(request)
        try:
            known = await self._source.cancel(run, REASON)
        except RunInfoUnavailable as error:
            raise HTTPException(503, f"{error}; nothing was cancelled, try again") from None
        return _back_to(run, known=known, otherwise="nothing was cancelled")

    async def ask_what_to_tell(self, request: Request) -> Response:
        return self._message_page(self._operated(request))

    async def tell(self, request: Request) -> Response:
        """Send the message; the transcript then shows it. One that is not delivered is shown again, with the reason."""
        run = self._submitted(request)
        fields = await form(request, MAX_FORM)
        text = first(fields, "text").replace("\r\n", "\n")
        try:
            known = await self._source.tell(run, text, BY, _message_id(first(fields, "message")))
        except RunInfoUnavailable as error:
            raise HTTPException(503, f"{error}; the transcript shows whether the agent has the message") from None
        except (InvalidRequest, MessageNotDelivered) as refused:
            return self._message_page(run, text, f"{refused.message}. {refused.next_step}", status=409)
        return _back_to(run, known=known, otherwise="nothing was sent")

    async def ask_for_answers(self, request: Request) -> Response:
        return await self._question_page(self._operated(request))

    async def answer(self, request: Request) -> Response:
        """Give the agent the answer; the transcript then shows it."""
        run = self._submitted(request)
        fields = await form(request, MAX_FORM, fields=ANSWER_FIELDS)
        message, wanted = _message_id(first(fields, "message")), first(fields, "question")
        question = next((each for each in await self._questions(run) if each.id == wanted), None)
        if question is None:
            return await self._question_page(run, "the agent does not ask this any more", status=409)
        try:
            answers = () if "reject" in fields else _answers(question, fields)
            known = await self._source.answer(run, question, answers, BY, message)
        except RunInfoUnavailable as error:
            raise HTTPException(503, f"{error}; the transcript shows whether the agent has the answer") from None
        except (InvalidRequest, MessageNotDelivered) as refused:
            return await self._question_page(run, refused.message, status=409)
        return _back_to(run, known=known, otherwise="nothing was answered")

    async def _question_page(self, run: RunKey, reason: str = "", status: int = 200) -> Response:
        questions = [(each, uuid.uuid4()) for each in await self._questions(run)]
        return self._page("answer.html", run, status, questions=questions, reason=reason)

    async def _questions(self, run: RunKey) -> Sequence[Question]:
        try:
            return await self._source.questions(run)
        except RunInfoUnavailable as error:
            raise HTTPException(503, f"{error}; try again") from None

    def _message_page(self, run: RunKey, text: str = "", reason: str = "", status: int = 200) -> Response:
        content = {"message": uuid.uuid4(), "text": text, "reason": reason, "limit": MESSAGE_LIMIT}
        return self._page("tell.html", run, status, **content)

    def _page(self, template: str, run: RunKey, status: int = 200, **content: Any) -> Response:
        html = self._templates.html(template, run=run, base=quote(run.name, safe=""), **content)
        return HTMLResponse(html, status, headers=NO_STORE | with_forms() | _WITH_ORIGIN)

    def _operated(self, request: Request) -> RunKey:
        """The run, if an operator asks."""
        if not self._operators.admits(request):
            raise HTTPException(401, ONLY_OPERATORS, CHALLENGE)
        return requested_run(request)

    def _submitted(self, request: Request) -> RunKey:
        """The run, if an operator has sent a form of ours."""
        run = self._operated(request)
        if not self._operators.is_our_form(request):
            raise HTTPException(403, FOREIGN_FORM)
        return run


def _answers(question: Question, fields: Mapping[str, list[str]]) -> Answers:
    """For each part of the question what was chosen, or own words.

    Raises:
        InvalidRequest: a part has no answer.
    """
    answers = []
    for part, field in enumerate(question.fields):
        labels = {str(number): option.label for number, option in enumerate(field.options, 1)}
        chosen = [labels[each] for each in fields.get(f"choice-{part}", []) if each in labels]
        own = first(fields, f"own-{part}").strip()
        answers.append((*(chosen if field.many or not own else ()), *filter(None, (own,))))
    if not all(answers):
        raise InvalidRequest("each part of the question needs an answer")
    return tuple(answers)


def _message_id(text: str) -> str:
    """That of the form, so that a form which is sent twice has one message.

    Raises:
        HTTPException: 400, the text is not a UUID.
    """
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise HTTPException(400, "the form has no id of a message: open it again") from None


def _back_to(run: RunKey, *, known: bool, otherwise: str) -> Response:
    """Leads to the run's page.

    Raises:
        HTTPException: 404, Temporal does not know the run.
    """
    if not known:
        raise HTTPException(404, f"Run {run.run_id} is not known to Temporal, so {otherwise}.")
    return Response(status_code=303, headers={"Location": f"../{quote(run.name, safe='')}", **NO_STORE})
