"""What a protocol has to provide."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dev_stack.scripted_model.conversation import Conversation
from dev_stack.scripted_model.scenarios import Step

JsonObject = dict[str, Any]
PIECE: Final = 64
"""Characters of text per event of a stream."""


@dataclass(frozen=True)
class Answer:
    """A step that is about to be sent.

    Attributes:
        serial: differs between the answers of a server; ids are made of it.
        request: the body that is answered.
    """

    step: Step
    model: str
    serial: int
    request: Mapping[str, Any]

    def call_id(self, index: int) -> str:
        return f"call_fake_{self.serial}_{index}"


@dataclass(frozen=True)
class Encoding:
    """A protocol.

    Attributes:
        read: the conversation in a request's body; raises ValueError, TypeError, KeyError or AttributeError.
        whole: the body of an answer that is not streamed.
        events: the events of one that is, each as it goes over the wire.
        error: the body of an error, from the HTTP status, the text and the seconds to wait.
    """

    name: str
    read: Callable[[JsonObject], Conversation]
    whole: Callable[[Answer], JsonObject]
    events: Callable[[Answer], Iterator[str]]
    error: Callable[[int, str, int], JsonObject]


def sse(data: JsonObject, event: str = "") -> str:
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(data)}\n\n"


def pieces(text: str) -> Iterator[str]:
    """A text as a stream sends it."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))
