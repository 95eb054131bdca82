"""Anthropic's Messages API, which Claude Code speaks."""

import json
from collections.abc import Iterator
from typing import Any, Final

from dev_stack.scripted_model.conversation import Conversation, Message, text_of
from dev_stack.scripted_model.protocols.encoding import Answer, Encoding, JsonObject, pieces, sse
from dev_stack.scripted_model.scenarios import Usage

_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _read(body: JsonObject) -> Conversation:
    messages = (Message("system", text_of(body.get("system"))), *map(_message, body.get("messages") or ()))
    tools = {
        tool["name"]: frozenset((tool.get("input_schema") or {}).get("properties", {}))
        for tool in body.get("tools") or ()
    }
    return Conversation(str(body.get("model", "")), messages, tools, stream=bool(body.get("stream")))


def _message(message: JsonObject) -> Message:
    content = message.get("content")
    if message.get("role") == "assistant":
        return Message("assistant", text_of(content))
    if message.get("role") == "system":
        return Message("system", text_of(content))
    results = [part for part in content if part.get("type") == "tool_result"] if isinstance(content, list) else []
    if results:  # whatever else the agent says with it, such as a reminder, is not the user's
        return Message("tool", "".join(text_of(result.get("content")) for result in results))
    return Message("user", text_of(content))


def _whole(answer: Answer) -> JsonObject:
    return _head(answer) | {
        "content": list(_blocks(answer)),
        "stop_reason": _stop_reason(answer),
        "usage": _usage(answer.step.usage),
    }


def _events(answer: Answer) -> Iterator[str]:
    return (sse(event, event["type"]) for event in _objects(answer))


def _objects(answer: Answer) -> Iterator[JsonObject]:
    yield {"type": "message_start", "message": {**_head(answer), "usage": _usage(answer.step.usage, written=1)}}
    for index, block in enumerate(_blocks(answer)):
        yield {"type": "content_block_start", "index": index, "content_block": _begun(block)}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": _usage(answer.step.usage)}
    yield {"type": "message_stop"}


def _blocks(answer: Answer) -> Iterator[JsonObject]:
    step = answer.step
    if step.reasoning:
        yield {"type": "thinking", "thinking": step.reasoning, "signature": "fake"}
    if step.text or not step.tools:
        yield {"type": "text", "text": step.text}
    for index, tool in enumerate(step.tools):
        yield {"type": "tool_use", "id": answer.call_id(index), "name": tool.name, "input": tool.args}


def _begun(block: JsonObject) -> JsonObject:
    empty: dict[str, Any] = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {key: empty.get(key, value) if key != "type" else value for key, value in block.items()}


def _deltas(block: JsonObject) -> Iterator[JsonObject]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
        case "thinking":
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"]))
            yield {"type": "signature_delta", "signature": block["signature"]}
        case _:
            for piece in pieces(json.dumps(block["input"])):
                yield {"type": "input_json_delta", "partial_json": piece}


def _head(answer: Answer) -> JsonObject:
    return {
        "id": f"msg_fake_{answer.serial}", "type": "message", "role": "assistant", "model": answer.model,
        "content": [], "stop_reason": None, "stop_sequence": None,
    }  # fmt: skip


def _stop_reason(answer: Answer) -> str:
    return "tool_use" if answer.step.tools else "end_turn"


def _usage(usage: Usage, written: int | None = None) -> JsonObject:
    """Here tokens read from the cache are not part of the input's; reasoning has no count of its own."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion if written is None else written,
    }


def _error(status: int, message: str, _retry_after: int) -> JsonObject:
    return {"type": "error", "error": {"type": _KINDS.get(status, "api_error"), "message": message}}


ANTHROPIC_MESSAGES: Final = Encoding("anthropic-messages", _read, _whole, _events, _error)
