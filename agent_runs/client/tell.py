"""Tells an agent something while it works."""

import uuid
from typing import Any

from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from agent_runs.client.outcome import RunClosed, UpdatesSpent, execute_update
from agent_runs.contracts import updates
from agent_runs.contracts.errors import InvalidRequest, MessageNotDelivered
from agent_runs.contracts.identity import RunKey
from agent_runs.contracts.start import MESSAGE_LIMIT, Binding, SealedMessage
from agent_runs.paperclip.sealing import Sealer


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
    try:
        return await execute_update(handle, updates.TELL, input, updates.Delivery, update_id=f"tell:{message}")
    except RunClosed:
        raise MessageNotDelivered("the run has ended") from None
    except UpdatesSpent:
        raise MessageNotDelivered("the run takes no more updates") from None
    except WorkflowUpdateFailedError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == MessageNotDelivered.code:
            raise MessageNotDelivered(error.cause.message) from None
        raise
