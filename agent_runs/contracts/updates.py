"""Updates, signals and the query of an open run. A cancel is Temporal's own cancellation request."""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from agent_runs.contracts.base import PaperclipContract
from agent_runs.contracts.messages import BudgetLimit
from agent_runs.contracts.request import Identifier, OptionalText, ShortTexts

JOIN: Final = "join"
"""Update: `Join` -> `Joined`. Refused as `AgentBusy` while the agent works on another task."""
OUTCOME: Final = "outcome"
"""Update: -> `Outcome`, completed as soon as there is one; that of a success may come before its pod is deleted.
Also the query, -> `Outcome` or None, for a caller of a run that takes no more updates; and the memo key of the outcome
of a cancelled run, because a workflow that closes as Canceled has no result."""
TELL: Final = "tell"
"""Update: `Tell` -> `Delivery`, completed once the agent or its queue has the message. Refused as
`MessageNotDelivered`."""
ASKED: Final = "asked"
"""Signal: `Question`, from the worker that follows the agent's output. Repeated, it is the same question."""
QUESTIONS: Final = "questions"
"""Query: -> `Question`s that wait for an answer, oldest first."""
ANSWER: Final = "answer"
"""Update: `Answer` -> `Delivery`, completed once the agent has the answer. Refused as `MessageNotDelivered`."""
COLLECTED: Final = "collected"
"""Signal: the caller has the outcome, so the run may close."""
BUDGET_WARNING: Final = "budget_warning"
"""Signal: `BudgetWarning`, from the worker that follows the agent's output."""
QUESTION_LIMIT: Final = 2000
"""Characters of one text; what the pod writes may be longer after a secret in it was replaced by its name."""
QuestionId = Annotated[str, Field(pattern=r"^[0-9]{1,6}-[\w.:-]{1,128}$")]
QuestionText = Annotated[
    str, BeforeValidator(lambda value: value[:QUESTION_LIMIT] if isinstance(value, str) else value)
]
JOIN_LIMIT: Final = 32 * 1024
"""Characters of the sealed text of a join, two tokens of `TOKEN_LIMIT`, and of a message. All of a run are in its
history."""


class Join(ShortTexts):
    """A wake of an agent that is held by another run.

    Attributes:
        run_id: Paperclip's id of the run that wants to join.
        company_id, task: of that run; only the same company's same task may join.
        sealed: compact JWE of `SealedJoin`, the tokens of that run. From then on the agent reaches Paperclip with them;
            None: the agent keeps its token.
    """

    run_id: Identifier
    company_id: Identifier
    task: OptionalText = None
    sealed: str | None = Field(default=None, max_length=JOIN_LIMIT, repr=False)


class Tell(ShortTexts):
    """What somebody tells the agent of a run while it works.

    Attributes:
        message_id: chosen by the caller; a message is delivered once.
        run_id: Paperclip's id of the run.
        by: who says it, for people.
        sealed: compact JWE of `SealedMessage`.
    """

    message_id: Identifier
    run_id: Identifier
    by: str
    sealed: str = Field(max_length=JOIN_LIMIT, repr=False)


class Option(PaperclipContract):
    """What may be chosen; agent output, as are the other texts of a question."""

    label: QuestionText
    description: QuestionText = ""


class QuestionField(PaperclipContract):
    """One thing that is asked.

    Attributes:
        many: several options may be chosen.
        own_words: any other text may be an answer, too.
    """

    text: QuestionText
    options: tuple[Option, ...] = Field(default=(), max_length=16)
    many: bool = False
    own_words: bool = False


class Question(PaperclipContract):
    """What the agent asks people, and for which it waits.

    Attributes:
        id: unique in the run.
        fields: of a permission one, whose options give it.
        asked_at: when the run learned of it.
        withdrawn: the agent no longer waits for an answer, and nobody has given one.
    """

    id: QuestionId
    attempt: int
    kind: Literal["permission", "question"]
    fields: tuple[QuestionField, ...] = Field(min_length=1, max_length=8)
    asked_at: datetime | None = None
    withdrawn: bool = False

    @property
    def title(self) -> str:
        """The whole question in one line."""
        return "; ".join(" ".join(field.text.split()) for field in self.fields)


class Answer(ShortTexts):
    """What somebody answers to a question of the agent.

    Attributes:
        message_id: chosen by the caller; an answer is delivered once.
        by: who answers, for people.
        sealed: compact JWE of `SealedMessage`; None: the question is rejected.
    """

    message_id: Identifier
    run_id: Identifier
    question_id: QuestionId
    by: str
    sealed: str | None = Field(default=None, max_length=JOIN_LIMIT, repr=False)


class Delivery(PaperclipContract):
    """The agent has the message, or gets it.

    Attributes:
        attempt: the one whose agent has it, or whose end it waits for.
        queued: the agent takes none while it works, so the message becomes its next prompt in this run.
    """

    run_id: str
    attempt: int
    at: datetime
    queued: bool = False


class BudgetWarning(ShortTexts):
    """Much of one limit of a run's budget is used; the agent works on.

    Attributes:
        text: for people.
    """

    limit: BudgetLimit
    text: str


class Joined(PaperclipContract):
    """How a run answers a later wake.

    Attributes:
        kind: `joined`: the run continues for both, or the wake gets its uncollected outcome; `released`: the run has
            ended, and its outcome was collected or belongs to another task, or it was cancelled and cleans up, so
            the agent is free as soon as the run has closed: attach once more. With the phase `finishing` its clean-up
            is not over yet.
        run_id: Paperclip's id of the run that holds the agent, which names its output and outcome.
    """

    kind: Literal["joined", "released"]
    run_id: str
    phase: str
    since: datetime
    finished: bool
