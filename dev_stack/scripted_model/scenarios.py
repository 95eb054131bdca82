"""The scenarios: what the model answers to a request, as pure functions."""

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

_SCRIPT: Final = re.compile(r"<<<fake-llm\s*(\{.*?\})\s*fake-llm>>>", re.DOTALL)
_TITLE: Final = re.compile(r"you are a title generator", re.IGNORECASE)
_SUMMARY: Final = re.compile(r"context summarization agent|summarize what was done in this conv", re.IGNORECASE)


@dataclass(frozen=True)
class Tool:
    """One tool call."""

    name: str
    args: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Usage:
    """Token counts as OpenAI reports them: `cached` is part of `prompt`, `reasoning` is part of `completion`."""

    prompt: int = 100
    completion: int = 20
    cached: int = 0
    reasoning: int = 0

    def as_json(self) -> dict[str, Any]:
        """The `usage` object of a chat completion."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }


@dataclass(frozen=True)
class Step:
    """One answer of the model. Times are seconds, because scripts in prompts are JSON.

    Attributes:
        status: anything but 200 is an HTTP error instead of an answer.
        delay: before the response headers.
        gap: between the chunks of the stream.
    """

    text: str = ""
    reasoning: str = ""
    tools: tuple[Tool, ...] = ()
    usage: Usage = Usage()
    status: int = 200
    delay: float = 0.0
    gap: float = 0.0

    @property
    def finish_reason(self) -> str:
        """The finish reason that is sent."""
        return "tool_calls" if self.tools else "stop"

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        """A step of a script.

        Raises:
            TypeError: a field that no step, tool or usage has.
        """
        tools = tuple(Tool(**tool) for tool in raw.get("tools", ()))
        return cls(**{**raw, "tools": tools, "usage": Usage(**raw.get("usage", {}))})


@dataclass(frozen=True)
class Chat:
    """One request, as a scenario sees it.

    Attributes:
        args: what follows the scenario's name in the model's name.
        step: assistant messages after the last user message.
    """

    args: tuple[str, ...]
    messages: list[dict[str, Any]]
    step: int

    def arg(self, index: int, default: str) -> str:
        """An argument of the scenario, or its default."""
        return self.args[index] if index < len(self.args) else default

    def user_texts(self) -> list[str]:
        """The user's messages, as texts."""
        return [text_of(message) for message in self.messages if message.get("role") == "user"]


def answer(body: dict[str, Any]) -> Step | None:
    """The answer to the body of a request; None for a model that does not exist.

    Raises:
        ValueError, TypeError, KeyError: the scenario cannot be used with these arguments or this script.
    """
    model, messages = str(body.get("model", "")), body.get("messages") or []
    system = "\n".join(text_of(message) for message in messages[:2] if message.get("role") in ("system", "developer"))
    if model == "aux/title" or _TITLE.search(system):
        return Step(text="Fake session title")
    if _SUMMARY.search(system):
        return Step(text="FAKE-SUMMARY: the user asked for something and the agent was working on it.")
    name, *args = model.removeprefix("scenario/").split(":")
    scenario = SCENARIOS.get(name)
    return None if scenario is None else scenario(Chat(tuple(args), messages, _steps_done(messages)))


def text_of(message: dict[str, Any]) -> str:
    """The text of a chat message, whether a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _steps_done(messages: list[dict[str, Any]]) -> int:
    roles = [message.get("role") for message in messages]
    last_user = max((index for index, role in enumerate(roles) if role == "user"), default=-1)
    return roles[last_user + 1 :].count("assistant")


def _fixed(*steps: Step) -> Callable[[Chat], Step]:
    """These steps, one after the other; the last one repeats."""
    return lambda chat: steps[min(chat.step, len(steps) - 1)]


def _bash(command: str, description: str) -> Step:
    return Step(tools=(Tool("bash", {"command": command, "description": description}),))


def _echo(chat: Chat) -> Step:
    """JSON of what the model was sent, for checks of prompts and of resumed sessions."""
    roles = [message.get("role") for message in chat.messages]
    received = {"messages": len(chat.messages), "roles": roles, "user": chat.user_texts()}
    return Step(text=json.dumps(received, ensure_ascii=False))


def _error(chat: Chat) -> Step:
    """`error:STATUS`: always this HTTP error, by default 500."""
    return Step(status=int(chat.arg(0, "500")))


def _hang(chat: Chat) -> Step:
    """`hang:N`: nothing at all for N seconds, by default 60, then text."""
    return Step(text="Sorry for the wait.", delay=float(chat.arg(0, "60")))


def _slow_steps(chat: Chat) -> Step:
    """`slow-steps:N:SECONDS`: N bash calls that sleep, by default 10 of 1 s, then text."""
    number, count = chat.step + 1, int(chat.arg(0, "10"))
    if number > count:
        return Step(text="All steps are done.")
    call = _bash(f"echo step-{number}; sleep {chat.arg(1, '1')}", f"step {number}")
    return dataclasses.replace(call, text=f"Step {number} of {count}.")


def _script(chat: Chat) -> Step:
    """The steps in the prompt; see the package's docstring."""
    for text in reversed(chat.user_texts()):
        if found := _SCRIPT.search(text):
            steps = json.loads(found.group(1))["steps"]
            return Step.from_json(steps[chat.step]) if chat.step < len(steps) else Step(text="script finished")
    raise ValueError("no script in the prompt")


SCENARIOS: Final[dict[str, Callable[[Chat], Step]]] = {
    "text": _fixed(Step(text="Hello from the fake model.")),
    "echo": _echo,
    "tool-bash": _fixed(
        _bash("echo hello-from-bash", "print a greeting"), Step(text="The command printed its greeting.")
    ),
    "tool-fail": _fixed(
        _bash("echo oops >&2; exit 3", "a failing command"),
        Step(tools=(Tool("read", {"filePath": "does-not-exist.txt"}),)),
        Step(text="Two things failed and I carried on."),
    ),
    "loop": _fixed(_bash("echo the-same", "the same command")),
    "error": _error,
    "hang": _hang,
    "slow-steps": _slow_steps,
    "script": _script,
}
