"""Google's generateContent and streamGenerateContent, which Gemini's CLI speaks.

The model's name and whether the answer is streamed are in the path; the server puts them into the body as `model`
and `stream`.
"""

from collections.abc import Iterator
from typing import Final

from dev_stack.scripted_model.conversation import Conversation, Message, text_of
from dev_stack.scripted_model.protocols.encoding import Answer, Encoding, JsonObject, pieces, sse
from dev_stack.scripted_model.scenarios import Usage

_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def _read(body: JsonObject) -> Conversation:
    system = (body.get("systemInstruction") or {}).get("parts")
    messages = (Message("system", text_of(system)), *map(_message, body.get("contents") or ()))
    tools = {
        function["name"]: _arguments(function)
        for tool in body.get("tools") or ()
        for function in tool.get("functionDeclarations") or ()
    }
    return Conversation(str(body.get("model", "")), messages, tools, stream=bool(body.get("stream")))


def _arguments(function: JsonObject) -> frozenset[str]:
    schema = function.get("parametersJsonSchema") or function.get("parameters") or {}
    return frozenset(schema.get("properties", {}))


def _message(content: JsonObject) -> Message:
    parts = content.get("parts") or []
    if content.get("role") == "model":
        return Message("assistant", text_of(parts))
    if any("functionResponse" in part for part in parts):
        return Message("tool")
    return Message("user", text_of(parts))


def _whole(answer: Answer) -> JsonObject:
    return _chunk(answer, list(_parts(answer)), end=True)


def _events(answer: Answer) -> Iterator[str]:
    for part in _parts(answer):
        for piece in pieces(part["text"]) if "text" in part else ():
            yield sse(_chunk(answer, [{**part, "text": piece}]))
        if "functionCall" in part:
            yield sse(_chunk(answer, [part]))
    yield sse(_chunk(answer, [{"text": ""}], end=True))


def _parts(answer: Answer) -> Iterator[JsonObject]:
    step = answer.step
    if step.reasoning:
        yield {"text": step.reasoning, "thought": True}
    if step.text or not step.tools:
        yield {"text": step.text}
    for index, tool in enumerate(step.tools):
        yield {"functionCall": {"id": answer.call_id(index), "name": tool.name, "args": tool.args}}


def _chunk(answer: Answer, parts: list[JsonObject], *, end: bool = False) -> JsonObject:
    candidate: JsonObject = {"index": 0, "content": {"role": "model", "parts": parts}}
    head = {"modelVersion": answer.model, "responseId": f"fake-{answer.serial}"}
    if not end:
        return {"candidates": [candidate], **head}
    return {"candidates": [{**candidate, "finishReason": "STOP"}], **head, "usageMetadata": _usage(answer.step.usage)}


def _usage(usage: Usage) -> JsonObject:
    """Here reasoning is not part of the candidates' tokens."""
    return {
        "promptTokenCount": usage.prompt,
        "cachedContentTokenCount": usage.cached,
        "candidatesTokenCount": usage.completion - usage.reasoning,
        "thoughtsTokenCount": usage.reasoning,
        "totalTokenCount": usage.prompt + usage.completion,
    }


def _error(status: int, message: str, retry_after: int) -> JsonObject:
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry_after}s"}
    details = [retry] if retry_after else []
    return {"error": {"code": status, "message": message, "status": _STATUSES.get(status, "INTERNAL"),
                      "details": details}}  # fmt: skip


GOOGLE_CONTENT: Final = Encoding("google-content", _read, _whole, _events, _error)
