"""OpenAI's Responses API, which Codex speaks."""

import itertools
import json
from collections.abc import Iterator
from typing import Final

from dev_stack.scripted_model.conversation import Conversation, Message, Role, merged, text_of
from dev_stack.scripted_model.protocols.encoding import Answer, Encoding, JsonObject, pieces, sse
from dev_stack.scripted_model.protocols.openai_chat import error
from dev_stack.scripted_model.scenarios import Usage

_ROLES: Final[dict[str, Role]] = {"system": "system", "developer": "system", "assistant": "assistant"}
_CALLS: Final = ("function_call", "reasoning")


def _read(body: JsonObject) -> Conversation:
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages = merged([Message("system", body.get("instructions") or ""), *map(_message, items)])
    tools = {
        tool["name"]: frozenset((tool.get("parameters") or {}).get("properties", {}))
        for tool in body.get("tools") or ()
        if "name" in tool
    }
    return Conversation(str(body.get("model", "")), messages, tools, stream=bool(body.get("stream")))


def _message(item: JsonObject) -> Message:
    kind = item.get("type")
    if kind in _CALLS:
        return Message("assistant")
    if kind == "function_call_output":
        return Message("tool", text_of(item.get("output")))
    return Message(_ROLES.get(str(item.get("role")), "user"), text_of(item.get("content")))


def _whole(answer: Answer) -> JsonObject:
    return _response(answer, "completed", _items(answer))


def _events(answer: Answer) -> Iterator[str]:
    numbers = itertools.count()
    for event in _objects(answer):
        yield sse({**event, "sequence_number": next(numbers)}, event["type"])


def _objects(answer: Answer) -> Iterator[JsonObject]:
    yield {"type": "response.created", "response": _response(answer, "in_progress", [])}
    items = _items(answer)
    for index, item in enumerate(items):
        where = {"output_index": index, "item_id": item["id"]}
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        yield from ({**event, **where} for event in _parts(item))
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": _response(answer, "completed", items)}


def _parts(item: JsonObject) -> Iterator[JsonObject]:
    """What comes between the beginning and the end of an output item."""
    match item["type"]:
        case "message":
            yield from _text(item["content"][0], "response.content_part", "response.output_text", "content_index")
        case "reasoning":
            part, text = "response.reasoning_summary_part", "response.reasoning_summary_text"
            yield from _text(item["summary"][0], part, text, "summary_index")
        case _:
            yield from _deltas("response.function_call_arguments", item["arguments"])
            yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"]}


def _text(part: JsonObject, part_event: str, text_event: str, index: str) -> Iterator[JsonObject]:
    at = {index: 0}
    yield {"type": f"{part_event}.added", **at, "part": {**part, "text": ""}}
    yield from ({**event, **at} for event in _deltas(text_event, part["text"]))
    yield {"type": f"{text_event}.done", **at, "text": part["text"]}
    yield {"type": f"{part_event}.done", **at, "part": part}


def _deltas(kind: str, text: str) -> Iterator[JsonObject]:
    return ({"type": f"{kind}.delta", "delta": piece} for piece in pieces(text))


def _begun(item: JsonObject) -> JsonObject:
    empty: JsonObject = {"content": [], "summary": [], "arguments": ""}
    begun = {key: empty.get(key, value) for key, value in item.items()}
    return begun | ({"status": "in_progress"} if "status" in item else {})


def _items(answer: Answer) -> list[JsonObject]:
    step = answer.step
    items: list[JsonObject] = []
    if step.reasoning:
        summary = [{"type": "summary_text", "text": step.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_fake_{answer.serial}", "summary": summary})
    if step.text or not step.tools:
        content = [{"type": "output_text", "text": step.text, "annotations": []}]
        items.append({"type": "message", "id": f"msg_fake_{answer.serial}", "role": "assistant",
                      "status": "completed", "content": content})  # fmt: skip
    return items + [_call(answer, index) for index in range(len(step.tools))]


def _call(answer: Answer, index: int) -> JsonObject:
    tool = answer.step.tools[index]
    call = {"id": f"fc_fake_{answer.serial}_{index}", "call_id": answer.call_id(index), "name": tool.name}
    return {"type": "function_call", "status": "completed", **call, "arguments": json.dumps(tool.args)}


def _response(answer: Answer, status: str, output: list[JsonObject]) -> JsonObject:
    usage = _usage(answer.step.usage) if status == "completed" else None
    return {
        "id": f"resp_fake_{answer.serial}", "object": "response", "created_at": 0, "status": status,
        "model": answer.model, "output": output, "usage": usage, "error": None, "incomplete_details": None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    }  # fmt: skip


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


OPENAI_RESPONSES: Final = Encoding("openai-responses", _read, _whole, _events, error)
