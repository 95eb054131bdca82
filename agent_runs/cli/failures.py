"""The errors that a command shows as one line. Every other exception is a bug and keeps its traceback."""

from typing import Final

from temporalio.service import RPCError, RPCStatusCode

from agent_runs.cli.refusals import Refused
from agent_runs.client.connection import TemporalUnreachable
from agent_runs.client.runs import UnknownRun
from agent_runs.client.settings import SettingsError
from agent_runs.contracts.errors import RunError, TranscriptsUnavailable
from agent_runs.paperclip.sealing import UnusableKey
from agent_runs.transcripts.tokens import UnusableTokenKey

WITH_REMEDY: Final = (
    *(SettingsError, TemporalUnreachable, UnknownRun, UnusableKey, UnusableTokenKey),
    TranscriptsUnavailable,
)
"""Their texts already name the remedy."""


def as_refusal(error: Exception) -> Refused | None:
    """The refusal to show for an error; None for a bug."""
    match error:
        case Refused():
            return error
        case RunError():
            return Refused(f"{error.message}. {error.next_step}")
        case RPCError(status=RPCStatusCode.INVALID_ARGUMENT) if "search attribute" in error.message:
            return Refused(
                "Temporal's namespace lacks the search attributes of runs: start a worker, which registers them, or "
                "register them as docs/temporal.md says, then retry"
            )
        case RPCError():
            return Refused(
                f"Temporal refused a request or did not answer it: {error.status.name}. "
                "Check TEMPORAL_NAMESPACE and the server's log, then retry"
            )
        case _ if isinstance(error, WITH_REMEDY):
            return Refused(str(error))
        case _:
            return None
