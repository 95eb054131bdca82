"""OpenCode's `error` events: their text as Paperclip's built-in adapters read it, and the failure each one means."""

import json
import re
from typing import Any, Final, NamedTuple

from agent_runs.agents.opencode.events import number, printable
from agent_runs.contracts.errors import (
    ContextOverflow,
    ModelRefused,
    OpenCodeFailed,
    OutputCutOff,
    ProviderCredentials,
    ProviderQuota,
    ProviderRejected,
    ProviderUnavailable,
    ResponseTypeCrash,
    RunError,
    StreamTruncated,
)

ERROR_TEXT_LIMIT: Final = 1000
BODY_LIMIT: Final = 20_000
SERVER_ERRORS: Final = 500

BY_NAME: Final[dict[str, type[RunError]]] = {
    "ContextOverflowError": ContextOverflow,
    "ContentFilterError": ModelRefused,
    "ProviderAuthError": ProviderCredentials,
    "MessageOutputLengthError": OutputCutOff,
    "ProviderModelNotFoundError": ProviderRejected,
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
    (re.compile(r"(?:ProviderModelNotFoundError: )?Model not found: "), ProviderRejected),
    (re.compile(r"(?:AI_)?LoadAPIKeyError\b"), ProviderCredentials),
)
_OVERFLOW_CODE: Final = re.compile(r"""\\?["']code\\?["']\s*:\s*\\?["']context_length_exceeded\\?["']""")
_REFERENCE: Final = re.compile(r"err_\w{1,64}")


class ProviderError(NamedTuple):
    """One `error` event.

    Attributes:
        text: for people, bounded.
        reference: `err_…`, under which OpenCode's log names the cause.
        overflow: the provider's own code means that the context window is exceeded.
    """

    text: str
    name: str | None = None
    status: int | None = None
    retryable: bool = False
    reference: str | None = None
    overflow: bool = False


def provider_error(error: object) -> ProviderError:
    """What an error object of any shape holds; OpenCode 2 has `type` and `message` instead of `name` and `data`."""
    if not isinstance(error, dict):
        return ProviderError(text=error_text(error), overflow=_overflows(error))
    data = error.get("data")
    details: dict[str, Any] = data if isinstance(data, dict) else {}
    status = number(details.get("statusCode"))
    reference = details.get("ref")
    name = error.get("name", error.get("type"))
    return ProviderError(
        text=error_text(error),
        name=printable(name, 80) if isinstance(name, str) else None,
        status=int(status) if status is not None and status.is_integer() else None,
        retryable=details.get("isRetryable") is True,
        reference=reference if isinstance(reference, str) and _REFERENCE.fullmatch(reference) else None,
        overflow=_overflows(error),
    )


def error_text(error: object) -> str:
    """The error as text: the string itself, `message`, `data.message`, `name`, `code`, else compact JSON."""
    if isinstance(error, str):
        return printable(error, ERROR_TEXT_LIMIT)
    if not isinstance(error, dict):
        return printable(_json({} if error is None else error), ERROR_TEXT_LIMIT)
    data = error.get("data")
    candidates = (error.get("message"), _message(data), error.get("name"), error.get("code"))
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
    if error.overflow:
        return ContextOverflow
    failure = BY_NAME.get(error.name or "")
    if failure is not None:
        return failure
    if error.status is not None:
        return _by_status(error.status)
    text = cause or error.text
    for pattern, kind in BY_TEXT:
        if pattern.search(text):
            return kind
    return ProviderUnavailable if error.retryable else OpenCodeFailed


def _by_status(status: int) -> type[RunError]:
    if status >= SERVER_ERRORS:
        return ProviderUnavailable
    return BY_STATUS.get(status, ProviderRejected)


def _overflows(error: object) -> bool:
    """Whether the provider's own code stands anywhere in the error, its response body included."""
    return _OVERFLOW_CODE.search(_json(error)[:BODY_LIMIT]) is not None


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return "{}"


def _message(data: object) -> object:
    return data.get("message") if isinstance(data, dict) else None
