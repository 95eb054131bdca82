"""Tells an agent something while it works, and answers what it asks."""

import uuid
from collections.abc import Sequence
from typing import Any, Final

from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from agent_runs.client.outcome import RunClosed, UpdatesSpent, execute_update
from agent_runs.contracts import updates
from agent_runs.contracts.errors import InvalidRequest, MessageNotDelivered
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.start import MESSAGE_LIMIT, Binding, SealedMessage
from agent_runs.paperclip.sealing import Sealer

WORDS_LIMIT: Final = 2000
"""Characters of one answer."""
Answers = tuple[tuple[str, ...], ...]
"""For each field of a question what was chosen; empty: the question is rejected."""


async def tell(
    handle: WorkflowHandle[Any, Any], run: RunKey, sealer: Sealer, text: str, by: str, message: str | None = None
) -> updates.Delivery:
    """Return once the agent has the message. It is delivered once, however often Temporal or a worker restarts.

    Args:
        by: who says it, for people.
        message: its id; repeated with the same one it is delivered once. None: a new one.

    Raises:
        InvalidRequest: there is no text, or too much.
        MessageNotDelivered: the run has ended, or the agent takes no message while it works.
        RPCError: no such run, or not allowed.
    """
    if not text.strip() or len(text) > MESSAGE_LIMIT:
        raise InvalidRequest(f"the text must have 1 to {MESSAGE_LIMIT:,} characters")
    message = message or str(uuid.uuid4())
    sealed = sealer.seal(SealedMessage(binding=Binding.of_message(run, message), text=text))
    input = updates.Tell(message_id=message, run_id=run.run_id, by=by, sealed=sealed)
    return await _deliver(handle, updates.TELL, input)


async def answer(
    handle: WorkflowHandle[Any, Any],
    run: RunKey,
    sealer: Sealer,
    question: updates.Question,
    answers: Answers,
    by: str,
    message: str | None = None,
) -> updates.Delivery:
    """Return once the agent has the answer. The first answer counts, and it is delivered once.

    Args:
        by: who answers, for people.
        message: the answer's id; repeated with the same one it is the same answer. None: a new one.

    Raises:
        MessageNotDelivered: the agent does not ask this, somebody else has answered, or the answer does not fit.
        RPCError: no such run, or not allowed.
    """
    message = message or str(uuid.uuid4())
    content = SealedMessage(binding=Binding.of_message(run, message), question=question.id, answers=answers)
    sealed = sealer.seal(content) if answers else None
    input = updates.Answer(message_id=message, run_id=run.run_id, question_id=question.id, by=by, sealed=sealed)
    return await _deliver(handle, updates.ANSWER, input)


def chosen(question: updates.Question, words: Sequence[str]) -> Answers:
    """What somebody has chosen who gives for each field an option, its number, or own words; several by commas.

    Raises:
        InvalidRequest: names the field and what it takes.
    """
    fields = question.fields
    if len(words) != len(fields):
        raise InvalidRequest(f"the question has {len(fields)} parts: give an answer to each of {question.title!r}")
    return tuple(_of_field(field, text) for field, text in zip(fields, words, strict=True))


def _of_field(field: updates.QuestionField, text: str) -> tuple[str, ...]:
    if len(text) > WORDS_LIMIT:
        raise InvalidRequest(f"the answer to {field.text!r} is too long")
    known = {str(number): option.label for number, option in enumerate(field.options, 1)}
    known |= {option.label.casefold(): option.label for option in field.options}
    parts = [part.strip() for part in text.split(",")] if field.many else [text.strip()]
    if all(part.casefold() in known for part in parts):
        return tuple(known[part.casefold()] for part in parts)
    if field.own_words and text.strip():
        return (text.strip(),)
    raise InvalidRequest(f"{field.text!r} takes {', '.join(option.label for option in field.options)}")


async def _deliver(
    handle: WorkflowHandle[Any, Any], update: str, input: updates.Tell | updates.Answer
) -> updates.Delivery:
    try:
        return await execute_update(handle, update, input, updates.Delivery, update_id=f"{update}:{input.message_id}")
    except RunClosed:
        raise MessageNotDelivered("the run has ended") from None
    except UpdatesSpent:
        raise MessageNotDelivered("the run takes no more updates") from None
    except WorkflowUpdateFailedError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == MessageNotDelivered.code:
            raise MessageNotDelivered(error.cause.message) from None
        raise
