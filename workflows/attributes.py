"""The search attributes of a run: keywords, two dates and one keyword list. Nothing else of the worker sets any.

Temporal ends a workflow as terminated when it sets a value of more than 2,048 bytes, and PostgreSQL keeps 255
characters of a keyword. Source: Temporal server 1.32, observed.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

KEYWORD_BYTES: Final = 200
"""In UTF-8. A character may be escaped in JSON with six times its bytes."""
LIST_BYTES: Final = 2000
"""Of a list's JSON."""

AGENT_ID: Final = SearchAttributeKey.for_keyword("AgentId")
COMPANY_ID: Final = SearchAttributeKey.for_keyword("CompanyId")
PAPERCLIP_RUN_ID: Final = SearchAttributeKey.for_keyword("PaperclipRunId")
TASK_KEY: Final = SearchAttributeKey.for_keyword("TaskKey")
MODEL: Final = SearchAttributeKey.for_keyword("Model")
RUN_PHASE: Final = SearchAttributeKey.for_keyword("RunPhase")
FAILURE_KIND: Final = SearchAttributeKey.for_keyword("FailureKind")
ENDED_AT: Final = SearchAttributeKey.for_datetime("EndedAt")
"""When the run had its outcome; the workflow may stay open to keep it."""
OUTCOME_KEPT_UNTIL: Final = SearchAttributeKey.for_datetime("OutcomeKeptUntil")
"""Until then an open run that has ended keeps its outcome for the next wake of its task."""
JOINED_RUN_IDS: Final = SearchAttributeKey.for_keyword_list("JoinedRunIds")
"""Paperclip's ids of all later runs that joined this one: by it their callers find it."""

ALL: Final = (
    *(AGENT_ID, COMPANY_ID, PAPERCLIP_RUN_ID, TASK_KEY, MODEL, RUN_PHASE, FAILURE_KIND, JOINED_RUN_IDS),
    *(ENDED_AT, OUTCOME_KEPT_UNTIL),
)


def typed(values: Mapping[SearchAttributeKey[Any], Any]) -> TypedSearchAttributes:
    """The values as Temporal takes them: keywords are cut, and what is absent is left out."""
    pairs = [SearchAttributePair(key, _bounded(value)) for key, value in values.items() if value]
    return TypedSearchAttributes(pairs)


def publish(values: Mapping[SearchAttributeKey[Any], Any]) -> None:
    """Sets search attributes of the workflow that is running."""
    workflow.upsert_search_attributes([pair.key.value_set(pair.value) for pair in typed(values)])


def fits(values: Sequence[str]) -> bool:
    """Whether a keyword list can hold all of these ids."""
    return sum(len(value) + len('"",') for value in values) <= LIST_BYTES


def cut(text: str, limit: int = KEYWORD_BYTES) -> str:
    """Its whole characters within so many bytes of UTF-8."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")


def _bounded(value: Any) -> Any:
    return cut(value) if isinstance(value, str) else value
