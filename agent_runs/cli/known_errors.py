"""The errors that a command shows as one line. Every other exception is a bug, whose traceback is one variable away."""

from typing import Final

from temporalio.service import RPCError, RPCStatusCode

from agent_runs.cli.program import Refused
from agent_runs.client.connection import TemporalUnreachable
from agent_runs.client.runs import UnknownRun
from agent_runs.client.settings import SettingsError
from agent_runs.contracts.errors import RunError, TranscriptsUnavailable
from agent_runs.files import UnusableFile, UnusableKey

WITH_REMEDY: Final = (
    *(SettingsError, TemporalUnreachable, UnknownRun, UnusableFile, UnusableKey),
    TranscriptsUnavailable,
)
"""Their texts already name the remedy."""


BUG: Final = 70
"""Exit code of an error of the program itself. Source: BSD's sysexits.h, EX_SOFTWARE."""


def as_bug(error: Exception, variable: str) -> Refused:
    """The refusal to show for a bug. It quotes no message, which may be of any length and hold anything.

    Args:
        variable: with which the traceback is shown.
    """
    return Refused(
        f"an error of agent-runs itself ({type(error).__name__}). Run the command again with {variable}=1 "
        "and report what it shows",
        code=BUG,
    )


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
        case RPCError(status=RPCStatusCode.NOT_FOUND) if "namespace" in error.message.lower():
            return Refused("TEMPORAL_NAMESPACE: Temporal has no such namespace. Correct it, or create the namespace")
        case RPCError():
            return Refused(
                f"Temporal refused a request or did not answer it: {error.status.name}. "
                "Check TEMPORAL_NAMESPACE and the server's log, then retry"
            )
        case _ if isinstance(error, WITH_REMEDY):
            return Refused(str(error))
        case _:
            return None
