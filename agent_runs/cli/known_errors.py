"""The errors that a command shows as one line. Every other exception is a bug, whose traceback is one variable away."""

import errno

from temporalio.service import RPCError, RPCStatusCode

from agent_runs.cli.program import Refused
from agent_runs.client.connection import TemporalUnreachable
from agent_runs.client.runs import UnknownRun
from agent_runs.client.settings import SettingsError
from agent_runs.contracts.errors import InvalidRequest, RunError
from agent_runs.files import UnusableFile, UnusableKey


def as_refusal(error: Exception) -> Refused | None:
    """The refusal to show for an error; None for a bug."""
    match error:
        case SettingsError() | TemporalUnreachable() | UnknownRun() | UnusableFile() | UnusableKey():
            return Refused(str(error))  # their texts name the remedy
        case InvalidRequest():
            return Refused(error.message)
        case RunError():
            return Refused(f"{error.message}. {error.next_step}")
        case OSError(errno=errno.ENOSPC):
            return Refused("no space is left where the output is written: free some, or write it elsewhere")
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
        case _:
            return None
