"""What one answer of the model looks like, and what a scene sees of a request."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Tool:
    """One tool call. `raw` overrides the JSON text of the arguments."""

    name: str
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    raw: str | None = None

    def arguments(self) -> str:
        """The arguments as the model writes them: JSON text, unless `raw` says otherwise."""
        return self.raw if self.raw is not None else json.dumps(self.args)


@dataclass(frozen=True)
class Usage:
    """Token counts as OpenAI reports them: `cached` is part of `prompt`, `reasoning` is part of `completion`."""

    prompt: int = 100
    completion: int = 20
    cached: int | None = None
    reasoning: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The `usage` object of a chat completion."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        }
        if self.cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached}
        if self.reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning}
        return usage


@dataclass(frozen=True)
class Step:
    """One answer of the model; every field is optional. Times are seconds, because scripts in prompts are JSON.

    Attributes:
        finish: finish reason; by default `tool_calls` with tools, else `stop`.
        usage: None sends none.
        status: anything but 200 is an HTTP error instead of an answer.
        error_body: of such an error: a JSON value, or a str sent as it is with `content_type`.
        delay: before the response headers.
        hold: between the headers and the first chunk.
        gap: between chunks.
        chunk: characters of text per chunk.
        drop_after: cut the connection after so many chunks.
        error_after: send an error object after so many chunks, and end.
        garbage_after: send a broken JSON line after so many chunks, and go on.
        send_finish: False ends the stream without a finish chunk.
        send_done: False ends the stream without `data: [DONE]`.
    """

    text: str = ""
    reasoning: str = ""
    tools: tuple[Tool, ...] = ()
    finish: str | None = None
    usage: Usage | None = Usage()
    status: int = 200
    error_body: Any = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    content_type: str | None = None
    delay: float = 0.0
    hold: float = 0.0
    gap: float = 0.0
    chunk: int = 64
    drop_after: int | None = None
    error_after: int | None = None
    garbage_after: int | None = None
    send_finish: bool = True
    send_done: bool = True

    @property
    def finish_reason(self) -> str:
        """The finish reason that is sent."""
        return self.finish or ("tool_calls" if self.tools else "stop")

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """A step of a script.

        Raises:
            ValueError: a field that no step has.
            TypeError: a tool or usage with wrong fields.
        """
        unknown = set(raw) - {known.name for known in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"unknown step fields: {sorted(unknown)}")
        values = dict(raw)
        values["tools"] = tuple(Tool(**tool) for tool in raw.get("tools", ()))
        if isinstance(raw.get("usage"), dict):
            values["usage"] = Usage(**raw["usage"])
        return cls(**values)


@dataclass(frozen=True)
class Ask:
    """One request as a scene sees it.

    Attributes:
        args: what follows the scene's name in the model's name.
        step: assistant messages after the last user message.
        attempt: 1 for the first time that these messages are sent.
        tools: names of the tools on offer.
    """

    model: str
    args: tuple[str, ...]
    messages: list[dict[str, Any]]
    step: int
    attempt: int
    tools: tuple[str, ...]

    def arg(self, index: int, default: str) -> str:
        """An argument of the scene, or what holds without it."""
        return self.args[index] if index < len(self.args) else default

    def number(self, index: int, default: int) -> int:
        """An argument that is a whole number."""
        return int(self.arg(index, str(default)))

    def user_texts(self) -> list[str]:
        """What the user said, message by message."""
        return [text_of(message) for message in self.messages if message.get("role") == "user"]


def text_of(message: dict[str, Any]) -> str:
    """The text of a chat message, whether a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return ""


def openai_error(message: str, kind: str, code: str | None = None) -> dict[str, Any]:
    """An error body as OpenAI-compatible providers write it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
