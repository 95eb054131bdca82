"""The search attributes of a run: keywords, two dates and one keyword list."""

from typing import Final

from temporalio.common import SearchAttributeKey

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
"""Paperclip's ids of the later runs that joined this one."""
MAX_JOINED_RUN_IDS: Final = 20
"""The newest ids are kept: the list is bounded."""

ALL: Final = (
    *(AGENT_ID, COMPANY_ID, PAPERCLIP_RUN_ID, TASK_KEY, MODEL, RUN_PHASE, FAILURE_KIND, JOINED_RUN_IDS),
    *(ENDED_AT, OUTCOME_KEPT_UNTIL),
)
