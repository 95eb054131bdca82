"""Updates and signals of an open run: cancel it, join it, fetch its outcome."""

from datetime import datetime
from typing import Final, Literal

from pydantic import Field

from agent_runs.contracts.base import PaperclipContract
from agent_runs.contracts.outcome import Stop
from agent_runs.contracts.request import Identifier, OptionalText

CANCEL: Final = "cancel"
"""Update: `Cancel` -> `Cancelled`, completed once the agent has stopped and its output is parsed."""
JOIN: Final = "join"
"""Update: `Join` -> `Joined`. Refused as `AgentBusy` while the agent works on another task."""
OUTCOME: Final = "outcome"
"""Update: -> `Outcome`, completed as soon as there is one."""
COLLECTED: Final = "collected"
"""Signal: the caller has the outcome, so the run may close."""


class Cancel(PaperclipContract):
    """Stops the agent. May be repeated: the first reason counts, and every caller gets the same result."""

    reason: str = "Run cancelled"


class Cancelled(PaperclipContract):
    """The result of a cancel.

    Attributes:
        outcome: `cancelled`, or `ended before`: the run already had an outcome of its own.
        failure_code: of the outcome; None when the run had succeeded before the cancel.
    """

    outcome: Literal["cancelled", "ended before"]
    stop: Stop
    session_id: str | None = None
    failure_code: str | None = None


class Join(PaperclipContract):
    """A wake of an agent that is held by another run.

    Attributes:
        run_id: Paperclip's id of the run that wants to join.
        task: the task of that run; only the same task may join.
        sealed_secrets: `Secrets`, sealed for the id of that run. From then on the agent reaches Paperclip with its
            token; None: the agent keeps its token.
    """

    run_id: Identifier
    task: OptionalText = None
    sealed_secrets: str | None = Field(default=None, repr=False)


class Joined(PaperclipContract):
    """How a run answers a later wake.

    Attributes:
        kind: `joined`: the run continues for both, or the wake gets its uncollected outcome; `released`: the run had
            ended and only kept its outcome, so the agent is free: attach once more.
        run_id: Paperclip's id of the run that holds the agent, which names its output and outcome.
    """

    kind: Literal["joined", "released"]
    run_id: str
    phase: str
    since: datetime
    finished: bool
