"""What callers say to a run that goes on, and what it answers: cancel it, join it, fetch its outcome."""

from datetime import datetime
from typing import Final, Literal

from pydantic import Field

from contracts.base import PaperclipContract
from contracts.outcome import Stop
from contracts.request import Identifier, OptionalText

CANCEL: Final = "cancel"
"""Update: `Cancel` -> `Cancelled`, once the agent has stopped and its work is judged."""
JOIN: Final = "join"
"""Update: `Join` -> `Joined`. Refused as `AgentBusy` while the agent works on another task."""
OUTCOME: Final = "outcome"
"""Update: -> `Outcome`, as soon as there is one."""
COLLECTED: Final = "collected"
"""Signal: the outcome has arrived at its caller; the run need not wait for one any longer."""


class Cancel(PaperclipContract):
    """Asks to stop the agent. May be repeated: the first reason counts, every caller gets the same answer."""

    reason: str = "Run cancelled"


class Cancelled(PaperclipContract):
    """What became of a cancel.

    Attributes:
        outcome: `cancelled`, or `ended before`: the run had an outcome of its own already.
        failure_code: of the outcome; None when the run had succeeded before the cancel came.
    """

    outcome: Literal["cancelled", "ended before"]
    stop: Stop
    session_id: str | None = None
    failure_code: str | None = None


class Join(PaperclipContract):
    """A wake that found the agent held by another run, and says whose it is.

    Attributes:
        run_id: Paperclip's id of the new run.
        task: what it is about; only the same task may join.
        sealed_secrets: `Secrets` sealed for the new run id. The agent's pod speaks to Paperclip with its token from
            then on; None leaves it with the old one.
    """

    run_id: Identifier
    task: OptionalText = None
    sealed_secrets: str | None = Field(default=None, repr=False)


class Joined(PaperclipContract):
    """How a run takes a wake that is not its own.

    Attributes:
        kind: `joined` the run goes on for both, or its uncollected outcome is the new wake's; `released` the run had
            ended and kept the agent only for a caller that never came: attach again.
        run_id: Paperclip's id of the run that holds the agent; output and outcome carry this one.
    """

    kind: Literal["joined", "released"]
    run_id: str
    phase: str
    since: datetime
    finished: bool
