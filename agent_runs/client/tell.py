"""Tells an agent something while it works."""

import uuid
from typing import Any, Final

from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from agent_runs.client.outcome import RunClosed, UpdatesSpent, execute_update
from agent_runs.contracts import updates
from agent_runs.contracts.errors import InvalidRequest, MessageNotDelivered
from agent_runs.contracts.identity import RunKey, workflow_id
from agent_runs.contracts.start import Binding, SealedMessage
from agent_runs.paperclip.sealing import Sealer

MAX_TEXT: Final = 16 * 1024


async def tell(handle: WorkflowHandle[Any, Any], run: RunKey, sealer: Sealer, text: str, by: str) -> updates.Delivery:
    """Return once the agent has the message. It is delivered once, however often Temporal or a worker restarts.

    Args:
        by: who says it, for people.

    Raises:
        InvalidRequest: there is no text, or too much.
        MessageNotDelivered: the run has ended, or the agent takes no message while it works.
        RPCError: no such run, or not allowed.
    """
    if not text.strip() or len(text) > MAX_TEXT:
        raise InvalidRequest(f"the text must have 1 to {MAX_TEXT:,} characters")
    message = str(uuid.uuid4())
    binding = Binding(
        purpose="message",
        workflow_id=workflow_id(run.agent_id),
        company_id=run.company_id,
        run_id=run.run_id,
        task=message,
    )
    sealed = sealer.seal(SealedMessage(binding=binding, text=text))
    input = updates.Tell(message_id=message, run_id=run.run_id, by=by, sealed=sealed)
    try:
        return await execute_update(handle, updates.TELL, input, updates.Delivery, update_id=f"tell:{message}")
    except RunClosed:
        raise MessageNotDelivered("the run has ended") from None
    except UpdatesSpent:
        raise MessageNotDelivered("the run takes no more updates") from None
    except WorkflowUpdateFailedError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type == MessageNotDelivered.code:
            raise MessageNotDelivered(error.cause.message.removeprefix(f"{MessageNotDelivered.code}: ")) from None
        raise
