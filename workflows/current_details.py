"""The current details of a run, which operators read in Temporal's Web UI: phase, pod, session, tokens, cost."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Final, Self

from agent_runs.contracts.outcome import Report
from agent_runs.contracts.request import RunRequest
from agent_runs.contracts.start import RunStart

MAX_WARNINGS: Final = 5
LINKS: Final = frozenset({"transcript"})
"""Values that are addresses of our own services."""
OF_ATTEMPT: Final = frozenset({"job", "pod", "node", "question", "stopping"})
"""Values that are not those of the next attempt."""
WHY_IT_WAITS: Final = "the last heartbeat of await_schedule, under Pending Activities"
_ADDRESS: Final = re.compile(r"https?://[A-Za-z0-9._~:/%?=&+-]{1,300}")
MAX_VALUE_LENGTH: Final = 400
"""Characters of one value, such as agent output."""


class Phase(StrEnum):
    """The phase of a run; also the search attribute `RunPhase`."""

    QUEUED = "queued"
    PREPARING = "preparing"
    SCHEDULING = "scheduling"
    RUNNING = "running"
    ASKING = "asking"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"


FINAL_PHASES: Final = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.TIMED_OUT, Phase.CANCELLED})
"""Phases of a run that has its outcome; the workflow may still be open until a caller has fetched it."""


@dataclass(frozen=True)
class CurrentDetails:
    """What the current details of a run show. Agent output in them is quoted and bounded: it is hostile.

    Attributes:
        values: what is known by now, by its name for people.
        warnings: for people, such as instructions that could not be read; the newest `MAX_WARNINGS` are shown.
    """

    agent: str
    run_id: str
    task: str | None
    model: str = ""
    phase: Phase = Phase.QUEUED
    values: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, start: RunStart) -> Self:
        """The current details of a run that no worker has begun."""
        return cls(agent=start.agent_id, run_id=start.run_id, task=start.task)

    def with_request(self, request: RunRequest) -> Self:
        """These details with what the request says of the agent."""
        return replace(self, agent=request.agent.name or request.agent.id, model=request.config.model)

    def in_phase(self, phase: Phase, **values: str | None) -> Self:
        """These details in another phase, with more values; those of the last attempt end with it."""
        left_out = OF_ATTEMPT if phase is Phase.PREPARING else ()
        kept = {name: text for name, text in self.values.items() if name not in left_out}
        known = {name: text for name, text in values.items() if text}
        return replace(self, phase=phase, values={**kept, **known})

    def without(self, name: str) -> Self:
        """These details without a value that is over."""
        return replace(self, values={key: text for key, text in self.values.items() if key != name})

    def with_warnings(self, warnings: Iterable[str]) -> Self:
        """These details with more warnings."""
        return replace(self, warnings=(*self.warnings, *warnings))

    def with_report(self, report: Report) -> Self:
        """These details with what the transcript shows."""
        usage = report.usage
        cost = report.cost_usd if report.cost_usd is not None else Decimal(0)
        values = {
            "session": report.session_id or "none",
            "tokens": f"{usage.uncached_tokens} in, {usage.cached_input_tokens} cached, {usage.output_tokens} out",
            "cost": f"${cost:.4f}",
            "last output": report.last_output or report.summary,
        }
        return replace(self, values={**self.values, **values})

    @property
    def markdown(self) -> str:
        """The details as Markdown, which the Web UI renders."""
        known = {"model": self.model, "run": self.run_id, "task": self.task}
        rows = {"phase": self.phase.value, "agent": self.agent, **{name: text for name, text in known.items() if text}}
        if self.phase is Phase.SCHEDULING:
            rows["why it waits"] = WHY_IT_WAITS
        warnings = [("warning", text) for text in self.warnings[-MAX_WARNINGS:]]
        lines = [*rows.items(), *self.values.items(), *warnings]
        return "\n".join(f"- **{name}**: {_linked(text) if name in LINKS else _quoted(text)}" for name, text in lines)


def _linked(text: str) -> str:
    """A link, if the text is nothing but an address without characters that Markdown takes for its own."""
    return f"[{text}]({text})" if _ADDRESS.fullmatch(text) else _quoted(text)


def _quoted(text: str) -> str:
    """One line of plain text: no Markdown, no HTML, no line breaks from the agent."""
    line = " ".join(text[: MAX_VALUE_LENGTH * 2].split())[:MAX_VALUE_LENGTH].replace("`", "'")
    return f"`{line}`"
