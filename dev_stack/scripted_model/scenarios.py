"""The scenarios: what the model answers to a request, as pure functions."""

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self

from dev_stack.scripted_model.conversation import Conversation
from dev_stack.scripted_model.tools import Tool

_SCRIPT: Final = re.compile(r"<<<fake-llm\s*(\{.*?\})\s*fake-llm>>>", re.DOTALL)
_TITLE: Final = re.compile(r"you are a title generator", re.IGNORECASE)
_SUMMARY: Final = re.compile(r"context summarization agent|summarize what was done in this conv", re.IGNORECASE)


@dataclass(frozen=True)
class Usage:
    """Token counts as OpenAI has them: `cached` is part of `prompt`, `reasoning` is part of `completion`."""

    prompt: int = 100
    completion: int = 20
    cached: int = 0
    reasoning: int = 0

    def plus(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
        )


@dataclass(frozen=True)
class Step:
    """One answer of the model. Times are seconds, because scripts in prompts are JSON.

    Attributes:
        status: anything but 200 is an HTTP error instead of an answer.
        delay: before the response headers.
        gap: between the chunks of the stream.
        retry_after: what an error asks the client to wait; 0: nothing is asked.
    """

    text: str = ""
    reasoning: str = ""
    tools: tuple[Tool, ...] = ()
    usage: Usage = Usage()
    status: int = 200
    delay: float = 0.0
    gap: float = 0.0
    retry_after: int = 0

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
    """One request, as a scenario sees it; `args` is what follows the scenario's name in the model's name."""

    args: tuple[str, ...]
    conversation: Conversation

    @property
    def step(self) -> int:
        """Which answer of the scenario is next, from 0."""
        return self.conversation.steps_done

    def arg(self, index: int, default: str) -> str:
        return self.args[index] if index < len(self.args) else default


def answer(conversation: Conversation) -> Step | None:
    """The answer to a request; None for a model that does not exist.

    Raises:
        ValueError, TypeError, KeyError: the scenario cannot be used with these arguments or this script.
    """
    if conversation.model == "aux/title" or _TITLE.search(conversation.system):
        return Step(text="Fake session title")
    if _SUMMARY.search(conversation.system):
        return Step(text="FAKE-SUMMARY: the user asked for something and the agent was working on it.")
    name, *args = conversation.model.removeprefix("scenario/").split(":")
    scenario = SCENARIOS.get(name)
    if scenario is None:
        return None
    step = scenario(Chat(tuple(args), conversation))
    return dataclasses.replace(step, tools=tuple(tool.among(conversation.tools) for tool in step.tools))


def _fixed(*steps: Step) -> Callable[[Chat], Step]:
    """These steps, one after the other; the last one repeats."""
    return lambda chat: steps[min(chat.step, len(steps) - 1)]


def _bash(command: str, description: str) -> Step:
    return Step(tools=(Tool("bash", {"command": command, "description": description}),))


def _echo(chat: Chat) -> Step:
    """JSON of what the model was sent, for checks of prompts and of resumed sessions."""
    asked = chat.conversation
    roles = [message.role for message in asked.messages]
    received = {"messages": len(roles), "roles": roles, "user": asked.user_texts}
    return Step(text=json.dumps(received, ensure_ascii=False))


def _error(chat: Chat) -> Step:
    """`error:STATUS:SECONDS`: always this HTTP error, by default 500, with this wait asked for."""
    return Step(status=int(chat.arg(0, "500")), retry_after=int(chat.arg(1, "0")))


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


def _tool_write(chat: Chat) -> Step:
    """`tool-write:PATH`: a file, by default written.txt, then text. Qwen demands an absolute path."""
    if chat.step:
        return Step(text="The file is written.")
    path = chat.arg(0, "written.txt")
    return Step(tools=(Tool("write", {"filePath": path, "content": "written by the fake model\n"}),))


_REPORT: Final = """
curl -sS -X PATCH "$PAPERCLIP_API_URL/api/issues/$PAPERCLIP_TASK_ID" -H "Authorization: Bearer $PAPERCLIP_API_KEY" \\
  -H "X-Paperclip-Run-Id: $PAPERCLIP_RUN_ID" -H 'Content-Type: application/json' -o /dev/null -w '%{http_code}\\n' \\
  -d '{"status": "done", "comment": "I have looked around, and there was nothing else to do."}'
""".strip()


def _usage(chat: Chat) -> Step:
    """`usage:PROMPT:CACHED:COMPLETION:REASONING`: text with these token counts, by default 1000, 400, 50, 10."""
    prompt, cached, completion, reasoning = (int(chat.arg(*each)) for each in enumerate(("1000", "400", "50", "10")))
    return Step("Counted.", "Counting.", usage=Usage(prompt, completion, cached, reasoning))


def _script(chat: Chat) -> Step:
    """The steps in the prompt; see the package's docstring."""
    for text in reversed(chat.conversation.user_texts):
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
    "tool-write": _tool_write,
    "loop": _fixed(_bash("echo the-same", "the same command")),
    "error": _error,
    "hang": _hang,
    "slow-steps": _slow_steps,
    "task": _fixed(
        dataclasses.replace(_bash("pwd; ls -A", "look at the workspace"), text="I look at the workspace first."),
        _bash(_REPORT, "set the task to done"),
        Step(text="The task is done."),
    ),
    "usage": _usage,
    "script": _script,
}
