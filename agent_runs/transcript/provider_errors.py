"""OpenCode's `error` events: their text as Paperclip's built-in adapters read it, and the failure each one means."""

import json
import re
from typing import Final, NamedTuple

from agent_runs.contracts.errors import (
    ContextOverflow,
    ModelRefused,
    ModelUnknown,
    OpenCodeFailed,
    OutputCutOff,
    ProviderCredentials,
    ProviderQuota,
    ProviderRejected,
    ProviderUnavailable,
    ResponseTypeCrash,
    RunError,
    SessionRejected,
    StreamTruncated,
)
from agent_runs.transcript.events import as_object, number, printable

ERROR_TEXT_LIMIT: Final = 1000
BODY_LIMIT: Final = 20_000
SERVER_ERRORS: Final = 500

BY_NAME: Final[dict[str, type[RunError]]] = {
    "ContextOverflowError": ContextOverflow,
    "ContentFilterError": ModelRefused,
    "ProviderAuthError": ProviderCredentials,
    "MessageOutputLengthError": OutputCutOff,
    "ProviderModelNotFoundError": ModelUnknown,
}
BY_STATUS: Final[dict[int, type[RunError]]] = {
    401: ProviderCredentials,
    402: ProviderQuota,
    403: ProviderCredentials,
    407: ProviderCredentials,
    408: ProviderUnavailable,
    413: ContextOverflow,
    425: ProviderUnavailable,
    429: ProviderQuota,
}
BY_TEXT: Final[tuple[tuple[re.Pattern[str], type[RunError]], ...]] = (
    (re.compile(r"JSON Parse error.{0,200}Unexpected EOF", re.IGNORECASE | re.DOTALL), StreamTruncated),
    (
        re.compile(
            r"undefined is not an object \(evaluating '[\w$.\[\]]{1,100}\.type'\)"
            r"|Cannot read propert(?:y|ies) of undefined.{0,40}reading 'type'",
            re.IGNORECASE,
        ),
        ResponseTypeCrash,
    ),
    (re.compile(r"(?:ProviderModelNotFoundError: )?Model not found: "), ModelUnknown),
    (re.compile(r"(?:AI_)?LoadAPIKeyError\b"), ProviderCredentials),
)
_OVERFLOW: Final = re.compile(
    r"""\\?["']code\\?["']\s*:\s*\\?["']context_length_exceeded\\?["']"""
    r"|context (?:length|limit|size|window) exceeded|(?:prompt|input|context) is too long|prompt too long"
    r"|exceed\w* (?:(?:the|its|your|available|max\w*|model'?s) ){0,3}context|maximum context length"
    r"|maximum prompt length is \d|(?:token count|input tokens?)\b.{0,60}\bexceeds? the (?:maximum|limit)"
    r"|reduce the length of the (?:messages|prompt|input)|(?:greater|larger) than the context|context window exceeds"
    r"|exceeded model token limit",
    re.IGNORECASE,
)
"""How providers and gateways word it that have no code for it. Source: OpenCode 1.18's own list, and public reports."""
_HISTORY: Final = re.compile(
    r"\b(?:messages|input|contents)(?:\.\[?|\[)\d{1,6}\b"  # a path into the history
    r"|tool_use\b.{0,80}\btool_result|tool_result\b.{0,80}\btool_use|\btool_calls\b.{0,80}\bmust be followed"
    r"|role .{0,4}tool\b.{0,40}\bmust (?:be a response|follow)|No tool (?:output|call) found for function call"
    r"|tool messages following|\btool_call_id\b.{0,80}\bnot found|unexpected role\b|function calls and responses"
    r"|function (?:call turn|response parts?)\b.{0,120}\b(?:immediately after|equal to)"
    r"|\b(?:low|high|lone|lead\w*|trail\w*|unpaired)[\w ]{0,20}surrogate|surrogates? not allowed|hex escape"
    r"|\b(?:images?|PDFs?|documents?)\b[^.]{0,60}\b(?:exceeds?|not valid|too (?:large|big|many))|too many images"
    r"|(?:process|unsupported|invalid|valid) image\b|\bPDF pages\b"
    r"|\breasoning\b.{0,40}\bwithout its required|thinking\W{0,3} blocks?\b.{0,80}\bcannot be modified"
    r"|\breasoning_content\b.{0,80}\bmust be|encrypted content\b|\bitem with id\b.{0,160}\bnot found"
    r"|non-?empty content|content blocks must (?:be|contain) non-",
    re.IGNORECASE | re.DOTALL,
)
"""What only a history can hold: a call without its result, half a surrogate, an image or a thought that is refused."""
BY_WORDS: Final[tuple[tuple[re.Pattern[str], type[RunError]], ...]] = (
    (_OVERFLOW, ContextOverflow),
    (_HISTORY, SessionRejected),
)
_REFERENCE: Final = re.compile(r"err_\w{1,64}")


class ProviderError(NamedTuple):
    """One `error` event.

    Attributes:
        text: for people, bounded.
        reference: `err_…`, under which OpenCode's log names the cause.
        worded: what its words mean, those of the provider's response included, whatever its name and status.
    """

    text: str
    name: str | None = None
    status: int | None = None
    retryable: bool = False
    reference: str | None = None
    worded: type[RunError] | None = None


def provider_error(error: object) -> ProviderError:
    """What an error object of any shape holds; OpenCode 2 has `type` and `message` instead of `name` and `data`."""
    if not isinstance(error, dict):
        return ProviderError(text=error_text(error), worded=_worded(_json(error)))
    details = as_object(error.get("data"))
    status = number(details.get("statusCode"))
    reference = details.get("ref")
    name = error.get("name", error.get("type"))
    return ProviderError(
        text=error_text(error),
        name=printable(name, 80) if isinstance(name, str) else None,
        status=int(status) if status is not None and status.is_integer() else None,
        retryable=details.get("isRetryable") is True,
        reference=reference if isinstance(reference, str) and _REFERENCE.fullmatch(reference) else None,
        worded=_worded(_json(error)),
    )


def error_text(error: object) -> str:
    """The error as text: the string itself, `message`, `data.message`, `name`, `code`, else compact JSON."""
    if isinstance(error, str):
        return printable(error, ERROR_TEXT_LIMIT)
    if not isinstance(error, dict):
        return printable(_json({} if error is None else error), ERROR_TEXT_LIMIT)
    nested = as_object(error.get("data")).get("message")
    candidates = (error.get("message"), nested, error.get("name"), error.get("code"))
    for candidate in candidates:
        if isinstance(candidate, str) and (text := printable(candidate, ERROR_TEXT_LIMIT)):
            return text
    return printable(_json(error), ERROR_TEXT_LIMIT)


def failure_for(error: ProviderError, cause: str | None = None) -> type[RunError]:
    """The failure that an error event means.

    Args:
        error: what the event holds.
        cause: the text in OpenCode's log under the error's reference.
    """
    failure = BY_NAME.get(error.name or "") or BY_STATUS.get(error.status or 0)
    if failure is not None:
        return failure
    text = cause or error.text
    worded = error.worded or _worded(text)
    is_answer = error.status is None or error.status < SERVER_ERRORS
    if worded is not None and (is_answer or worded is ContextOverflow):
        return worded
    if error.status is not None:
        return ProviderUnavailable if error.status >= SERVER_ERRORS else ProviderRejected
    for pattern, kind in BY_TEXT:
        if pattern.search(text):
            return kind
    return ProviderUnavailable if error.retryable else OpenCodeFailed


def _worded(text: str) -> type[RunError] | None:
    bounded = text[:BODY_LIMIT]
    return next((kind for words, kind in BY_WORDS if words.search(bounded)), None)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return "{}"
