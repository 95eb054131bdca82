"""OpenAI's Chat Completions, as most providers speak them."""

import json
from collections.abc import Iterator
from typing import Any, Final

from dev_stack.scripted_model.conversation import Conversation, Message, Role, text_of
from dev_stack.scripted_model.protocols.encoding import Answer, Encoding, JsonObject, pieces, sse
from dev_stack.scripted_model.scenarios import Step, Usage

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
}
_KINDS: Final = {429: "requests", 400: "invalid_request_error", 401: "invalid_request_error",
                 404: "invalid_request_error"}  # fmt: skip


def _read(body: JsonObject) -> Conversation:
    messages = tuple(
        Message(_ROLES.get(str(message.get("role")), "user"), text_of(message.get("content")))
        for message in body.get("messages") or ()
    )
    functions = [tool["function"] for tool in body.get("tools") or ()]
    tools = {
        function["name"]: frozenset((function.get("parameters") or {}).get("properties", {})) for function in functions
    }
    return Conversation(str(body.get("model", "")), messages, tools, stream=bool(body.get("stream")))


def _whole(answer: Answer) -> JsonObject:
    step = answer.step
    calls = [
        {**_call(answer, index), "function": {"name": tool.name, "arguments": json.dumps(tool.args)}}
        for index, tool in enumerate(step.tools)
    ]
    message = {"role": "assistant", "content": step.text or None} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "message": message, "finish_reason": _finish_reason(step)}
    return _head(answer, "chat.completion") | {"choices": [choice], "usage": _usage(step.usage)}


def _events(answer: Answer) -> Iterator[str]:
    for delta in _deltas(answer):
        yield sse(_chunk(answer, [{"index": 0, "delta": delta, "finish_reason": None}]))
    yield sse(_chunk(answer, [{"index": 0, "delta": {}, "finish_reason": _finish_reason(answer.step)}]))
    if (answer.request.get("stream_options") or {}).get("include_usage"):
        yield sse({**_chunk(answer, []), "usage": _usage(answer.step.usage)})
    yield "data: [DONE]\n\n"


def _deltas(answer: Answer) -> Iterator[JsonObject]:
    yield {"role": "assistant", "content": ""}
    for piece in pieces(answer.step.reasoning):
        yield {"reasoning_content": piece}
    for piece in pieces(answer.step.text):
        yield {"content": piece}
    for index, tool in enumerate(answer.step.tools):
        call = {"index": index, **_call(answer, index), "function": {"name": tool.name, "arguments": ""}}
        yield {"tool_calls": [call]}
        for piece in pieces(json.dumps(tool.args)):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _chunk(answer: Answer, choices: list[JsonObject]) -> JsonObject:
    return _head(answer, "chat.completion.chunk") | {"choices": choices}


def _head(answer: Answer, kind: str) -> JsonObject:
    return {"id": f"chatcmpl-fake-{answer.serial}", "object": kind, "created": 0, "model": answer.model}


def _call(answer: Answer, index: int) -> JsonObject:
    return {"id": answer.call_id(index), "type": "function"}


def _finish_reason(step: Step) -> str:
    return "tool_calls" if step.tools else "stop"


def _usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def error(status: int, message: str, _retry_after: int) -> dict[str, Any]:
    """An error as OpenAI writes it, in both of its protocols."""
    return {"error": {"message": message, "type": _KINDS.get(status, "server_error"), "param": None}}


OPENAI_CHAT: Final = Encoding("openai-chat", _read, _whole, _events, error)
