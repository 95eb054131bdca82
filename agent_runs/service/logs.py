"""The worker's log: every line on stdout is one JSON object, whoever logs, with the ids of the run it is about.

`event` says what happened, `run_id`, `agent_id` and `attempt` whose run it is (Paperclip's ids), `workflow_id` and
`temporal_run_id` the same for Temporal, `exception` is a whole traceback in one string. Lines of Temporal's native core
have its own keys (`timestamp`, `level`, `fields`).
"""

import logging
import sys
import threading
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any, Final

import structlog
from structlog.contextvars import merge_contextvars
from structlog.typing import Processor
from temporalio import activity, workflow
from temporalio.runtime import LoggingConfig, LoggingFormat, TelemetryFilter

CORE_LOGS: Final = LoggingConfig(
    filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), format=LoggingFormat.JSON
)
TEXT_LIMIT: Final = 20_000
"""Characters of one text in a line: a traceback may quote what others sent."""

log: Final[Any] = structlog.get_logger()


def configure_logs() -> None:
    """Make every line of this process JSON: ours, those of libraries and asyncio, warnings, and uncaught errors."""
    shared: list[Processor] = [
        merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _bound_texts,
    ]
    structlog.configure(processors=[*shared, structlog.processors.JSONRenderer()])
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, _add_temporal_ids, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(capture=True)
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False
    sys.excepthook = _log_uncaught
    sys.unraisablehook = lambda error: log.error(
        "error.ignored", place=repr(error.object)[:200], exc_info=error.exc_value
    )
    threading.excepthook = lambda error: log.error("worker.thread_ended", exc_info=error.exc_value)


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        log.critical("worker.crashed", exc_info=(kind, error, trace))


def _bound_texts(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > TEXT_LIMIT:
            event[key] = f"{value[: TEXT_LIMIT // 2]}\n…\n{value[-TEXT_LIMIT // 2 :]}"
    return event


def _add_temporal_ids(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """What the SDK's loggers know of the workflow or the activity that logs."""
    record = event["_record"].__dict__
    if (info := record.get("temporal_activity")) is not None:
        event.update(workflow_id=info.get("workflow_id"), temporal_run_id=info.get("workflow_run_id"))
        event["activity"] = info.get("activity_type")
    elif (info := record.get("temporal_workflow")) is not None:
        event.update(workflow_id=info.get("workflow_id"), temporal_run_id=info.get("run_id"))
    return event
