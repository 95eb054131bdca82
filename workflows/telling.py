"""Delivers what people send an agent that works."""

from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from agent_runs.contracts import activities
    from agent_runs.contracts.errors import MessageNotDelivered
    from agent_runs.contracts.messages import QueuedMessage, TellAgent
    from agent_runs.contracts.updates import Answer, Delivery, Tell
    from workflows.activity_calls import (
        RETRIES,
        SHORT_HEARTBEAT_TIMEOUT,
        WAIT_CANCELLATION_COMPLETED,
        failure_of_activity,
    )
    from workflows.attempt import Attempt
    from workflows.run_state import RunState

DELIVERY: Final = timedelta(minutes=5)
"""Outlasts an API server or a node that is away for as long as the claim of a pod does."""
MAX_MESSAGES: Final = 100
"""Of one run: each is in its history."""
MAX_QUEUED: Final = 20
"""They fit into one prompt."""


async def tell(run: RunState, message: Tell) -> Delivery:
    """Delivers a message as soon as the agent works. An agent that takes none then gets it as its next prompt.

    Raises:
        MessageNotDelivered: it does not work any more, or takes none.
    """
    await workflow.wait_condition(lambda: run.is_at_work or run.has_ended)
    attempt = run.current
    if attempt and run.is_at_work and not run.takes_messages:
        return _queue(run, attempt, message)
    delivery = await deliver(run, message, DELIVERY)
    run.note(f"{message.by} sent the agent a message in attempt {delivery.attempt}")
    return delivery


def _queue(run: RunState, attempt: Attempt, message: Tell) -> Delivery:
    if not (attempt.job and attempt.job.keeps_sessions):
        raise MessageNotDelivered("it takes no message while it works, and its session ends with its pod")
    if len(run.queued) >= MAX_QUEUED:
        raise MessageNotDelivered(f"{MAX_QUEUED} messages wait for it, which is the most")
    run.queued += (QueuedMessage(id=message.message_id, by=message.by, sealed=message.sealed),)
    run.warn(f"a message of {message.by} is the agent's next prompt, once attempt {attempt.key.attempt} has ended")
    return Delivery(run_id=run.start.run_id, attempt=attempt.key.attempt, at=workflow.now(), queued=True)


async def deliver(run: RunState, message: Tell | Answer, limit: timedelta) -> Delivery:
    """Gives the agent of the current attempt a message or an answer; gives up when the attempt ends.

    Raises:
        MessageNotDelivered: it has ended, or does not take it.
    """
    attempt = run.current
    if attempt is None or attempt.job is None or run.has_ended:
        raise MessageNotDelivered("the run has ended")
    question = message.question_id if isinstance(message, Answer) else None
    step = workflow.start_activity(
        activities.tell_agent,
        TellAgent(
            attempt=attempt.key,
            job=attempt.job,
            message_id=message.message_id,
            by=message.by,
            sealed=message.sealed,
            question=question,
        ),
        summary=f"answer the agent's question {question}" if question else f"tell the agent {message.message_id}",
        start_to_close_timeout=DELIVERY,
        schedule_to_close_timeout=limit,
        heartbeat_timeout=SHORT_HEARTBEAT_TIMEOUT,
        retry_policy=RETRIES,
        cancellation_type=WAIT_CANCELLATION_COMPLETED,
    )
    await workflow.wait_condition(lambda: step.done() or run.current is not attempt or run.has_ended)
    if not step.done():
        step.cancel()
    try:
        await step
    except ActivityError as error:
        if run.has_ended or run.current is not attempt:
            raise MessageNotDelivered("the run has ended; its transcript shows whether the agent had it") from None
        raise MessageNotDelivered(failure_of_activity(run, error).message) from None
    return Delivery(run_id=run.start.run_id, attempt=attempt.key.attempt, at=workflow.now())
