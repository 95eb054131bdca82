"""A request to the model, whichever protocol it came in: what a scenario looks at."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dev_stack.scripted_model.tools import Offered

Role = Literal["system", "user", "assistant", "tool"]
_REMINDER: Final = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)


@dataclass(frozen=True)
class Message:
    """One turn: the system's, the user's, the model's, or the result of its tool calls.

    A protocol may spread an answer of the model over several items (its text, each of its calls): they are one message.
    """

    role: Role
    text: str = ""


@dataclass(frozen=True)
class Conversation:
    """What a request asks.

    Attributes:
        model: the name that was asked for, such as `scenario/text`.
        tools: what the agent offers.
    """

    model: str
    messages: tuple[Message, ...]
    tools: Offered = field(default_factory=dict)
    stream: bool = False

    @property
    def system(self) -> str:
        """The system's texts, whether apart or among the messages."""
        return "\n".join(message.text for message in self.messages if message.role == "system")

    @property
    def user_texts(self) -> list[str]:
        """What the user wrote, without the reminders that Claude Code adds to it."""
        return [_REMINDER.sub("", message.text) for message in self.messages if message.role == "user"]

    @property
    def steps_done(self) -> int:
        """The model's messages after the user's last one."""
        roles = [message.role for message in self.messages]
        last_user = max((index for index, role in enumerate(roles) if role == "user"), default=-1)
        return roles[last_user + 1 :].count("assistant")


def text_of(content: Any) -> str:
    """The text of a message's content, whether a string or a list of parts with `text`."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def merged(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The messages, with neighbours of the model made one."""
    result: list[Message] = []
    for message in messages:
        if message.role == "assistant" and result and result[-1].role == "assistant":
            result[-1] = Message("assistant", result[-1].text + message.text)
        else:
            result.append(message)
    return tuple(result)
