"""What can be wrong with what a person asked for, as one line each. All else is a bug and keeps its traceback."""

from typing import Final

from temporalio.service import RPCError

from cli.refusals import Refused
from client.connection import TemporalUnreachable
from client.runs import UnknownRun
from client.settings import SettingsError
from contracts.errors import RunError, TranscriptsUnavailable
from local.children import StackError
from paperclip.sealing import UnusableKey
from transcripts.tokens import UnusableTokenKey

PLAIN: Final = (
    *(StackError, SettingsError, TemporalUnreachable, UnknownRun, UnusableKey, UnusableTokenKey),
    TranscriptsUnavailable,
)
"""Their text already says what to do."""


def told(error: Exception) -> Refused | None:
    """The refusal to show for an error; None for a bug of ours."""
    match error:
        case Refused():
            return error
        case RunError():
            return Refused(f"{error.message}. {error.next_step}")
        case RPCError():
            return Refused(f"Temporal refused or went away: {error.message}. Try again, or look at its log.")
        case _ if isinstance(error, PLAIN):
            return Refused(str(error))
        case _:
            return None
