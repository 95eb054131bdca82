"""Paperclip's wake payload in the normal form that agents read from `PAPERCLIP_WAKE_PAYLOAD_JSON`.

Field names, their order and the defaults follow what Paperclip 2026.916.1 gives to its own local agents, byte for
byte. What Paperclip adds in later versions inside a part that is passed on whole (continuation, reviews) stays as
it is.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from agent_runs.paperclip.javascript import stringify, trim

WATCHDOG_INSTRUCTIONS: Final = 4000
WATCHDOG_LEAVES: Final = 25
WATCHDOG_CAPABILITIES: Final = 50
WAKE_ROLES: Final = ("reviewer", "approver", "executor")

Normal = Callable[[Any], Any]


def wake_payload(wake: object) -> str | None:
    """The payload as compact JSON, nulls kept; None when there is nothing worth waking for."""
    payload = normalize(wake)
    return None if payload is None else stringify(payload)


def normalize(wake: object) -> dict[str, Any] | None:
    """`context.paperclipWake` in normal form; None when nothing in it is worth waking for, such as a bare reason."""
    if not isinstance(wake, Mapping):
        return None
    payload = {name: normal(wake.get(name)) for name, normal in _WAKE_FIELDS.items()}
    latest = payload["latestCommentId"] or (payload["commentIds"] or [None])[-1]
    payload["latestCommentId"] = latest
    payload |= _counts(wake, payload)
    if not any(payload[name] for name in _MEANINGFUL):
        return None
    return {name: payload[name] for name in _ORDER}


def _text(value: Any) -> str | None:
    return (trim(value) or None) if isinstance(value, str) else None


def _flag(value: Any) -> bool:
    return value is True


def _texts(value: Any) -> list[str]:
    return [trim(item) for item in _list(value) if isinstance(item, str) and trim(item)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) and value else None


def _wholes(value: Any) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict) and item]


def _object(**fields: Normal) -> Normal:
    def normal(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            return None
        found = {name: reads(value.get(name)) for name, reads in fields.items()}
        return found if any(item not in (None, False, []) for item in found.values()) else None

    return normal


def _objects(**fields: Normal) -> Normal:
    one = _object(**fields)
    return lambda value: [found for item in _list(value) if (found := one(item)) is not None]


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _body(value: Any) -> str | None:
    return value if isinstance(value, str) and trim(value) else None


def _role(value: Any) -> str | None:
    return value if value in WAKE_ROLES else None


def _issue(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    issue: dict[str, Any] = {name: _text(value.get(name)) for name in ("id", "identifier", "title")}
    if not any(issue.values()):
        return None
    issue["description"] = _body(value.get("description"))
    issue["descriptionTruncated"] = _flag(value.get("descriptionTruncated"))
    return issue | {name: _text(value.get(name)) for name in ("status", "workMode", "priority")}


def _comment(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or _body(value.get("body")) is None:
        return None
    author = value.get("author")
    author = author if isinstance(author, dict) else {}
    return {
        "id": _text(value.get("id")),
        "issueId": _text(value.get("issueId")),
        "body": value["body"],
        "bodyTruncated": _flag(value.get("bodyTruncated")),
        "createdAt": _text(value.get("createdAt")),
        "authorType": _text(author.get("type")),
        "authorId": _text(author.get("id")),
    }


def _comments(value: Any) -> list[dict[str, Any]]:
    return [found for item in _list(value) if (found := _comment(item)) is not None]


def _watchdog(value: Any) -> dict[str, Any] | None:
    if not (watchdog := _whole(value)):
        return None
    cut = dict(watchdog)
    if isinstance(instructions := cut.get("instructions"), str):
        cut["instructions"] = instructions[:WATCHDOG_INSTRUCTIONS]
    for name, items in watchdog.items():
        if isinstance(items, list):
            cut[name] = items[: WATCHDOG_LEAVES if "lea" in name.lower() else WATCHDOG_CAPABILITIES]
    return cut


def _counts(wake: Mapping[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    window = wake.get("commentWindow")
    window = window if isinstance(window, dict) else {}
    included = len(payload["comments"])
    defaults = {
        "requestedCount": included or len(payload["commentIds"]),
        "includedCount": included,
        "missingCount": 0,
    }
    given = {name: _number(window.get(name)) for name in defaults}
    return {name: defaults[name] if given[name] is None else given[name] for name in defaults}


_PARTY: Final = _object(type=_text, agentId=_text, userId=_text)

_WAKE_FIELDS: Final[dict[str, Normal]] = {
    "reason": _text,
    "executionContinuation": _whole,
    "recovery": _whole,
    "issue": _issue,
    "checkedOutByHarness": _flag,
    "externalChatExecutionBound": _flag,
    "externalChatProvider": _text,
    "externalChatQuestionResponse": _whole,
    "skillTest": bool,
    "simplifiedEnglishInteractions": _flag,
    "dependencyBlockedInteraction": _flag,
    "treeHoldInteraction": _flag,
    "activeTreeHold": _object(holdId=_text, rootIssueId=_text, mode=_text, reason=_text),
    "unresolvedBlockerIssueIds": _texts,
    "unresolvedBlockerSummaries": _objects(
        id=_text, identifier=_text, title=_text, status=_text, priority=_text, summary=_text
    ),
    "executionStage": _object(
        wakeRole=_role,
        stageId=_text,
        stageType=_text,
        currentParticipant=_PARTY,
        returnAssignee=_PARTY,
        reviewRequest=_object(instructions=_text),
        lastDecisionOutcome=_text,
        allowedActions=_texts,
    ),
    "continuationSummary": _object(key=_text, title=_text, body=_body, bodyTruncated=_flag, updatedAt=_text),
    "planReviewContext": _whole,
    "documentReviewContext": _whole,
    "annotationDeltas": _wholes,
    "livenessContinuation": _object(
        attempt=_number, maxAttempts=_number, sourceRunId=_text, state=_text, reason=_text, instruction=_text
    ),
    "taskWatchdog": _watchdog,
    "interactionId": _text,
    "sourceRunId": _text,
    "interactionKind": _text,
    "interactionStatus": _text,
    "externalInteractionContinuation": _flag,
    "checkboxSelection": _object(prompt=_text, selectedOptionIds=_texts, selectedOptions=_wholes),
    "questionResponse": _whole,
    "executionWorkspace": _whole,
    "agentMessage": _whole,
    "childIssueSummaries": _objects(
        id=_text, identifier=_text, title=_text, status=_text, priority=_text, summary=_text
    ),
    "childIssueSummaryTruncated": _flag,
    "commentIds": _texts,
    "latestCommentId": _text,
    "comments": _comments,
    "truncated": _flag,
    "fallbackFetchNeeded": _flag,
}

_COUNTS: Final = ("requestedCount", "includedCount", "missingCount")
_ORDER: Final = (
    *(name for name in _WAKE_FIELDS if name not in ("truncated", "fallbackFetchNeeded")),
    *_COUNTS,
    "truncated",
    "fallbackFetchNeeded",
)
_MEANINGFUL: Final = (
    "issue",
    "executionContinuation",
    "recovery",
    "activeTreeHold",
    "unresolvedBlockerIssueIds",
    "unresolvedBlockerSummaries",
    "executionStage",
    "continuationSummary",
    "planReviewContext",
    "documentReviewContext",
    "annotationDeltas",
    "livenessContinuation",
    "taskWatchdog",
    "checkboxSelection",
    "questionResponse",
    "externalChatQuestionResponse",
    "agentMessage",
    "childIssueSummaries",
    "commentIds",
    "comments",
)
