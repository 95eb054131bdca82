"""The card operators read in the Web UI while a run goes on: phase, pod, session, tokens, cost, last words."""

from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Self

from contracts.outcome import Report
from contracts.request import RunRequest

WORDS = 400
"""Characters of agent output on the card."""


class Phase(StrEnum):
    """Where a run stands; also the search attribute `RunPhase`."""

    QUEUED = "queued"
    PREPARING = "preparing"
    SCHEDULING = "scheduling"
    RUNNING = "running"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"


FINAL = frozenset(phase.value for phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.TIMED_OUT, Phase.CANCELLED))
"""Phases of a run that has its outcome; the workflow may still be open until a caller has fetched it."""


@dataclass(frozen=True)
class Card:
    """What the card shows. Agent text on it is quoted and bounded: it is hostile."""

    agent: str
    model: str
    run_id: str
    task: str | None
    phase: Phase = Phase.QUEUED
    attempt: int = 1
    facts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, request: RunRequest) -> Self:
        """The card of a run that has just been asked for."""
        agent = request.agent.name or request.agent.id
        return cls(agent=agent, model=request.config.model, run_id=request.run_id, task=request.task_id)

    def at(self, phase: Phase, **facts: str | None) -> Self:
        """The card one phase further; facts add up."""
        known = {name: text for name, text in facts.items() if text}
        return replace(self, phase=phase, facts={**self.facts, **known})

    def reporting(self, report: Report) -> Self:
        """The card with what the transcript says."""
        usage = report.usage
        cost = report.cost_usd if report.cost_usd is not None else Decimal(0)
        facts = {
            "session": report.session_id or "none",
            "tokens": f"{usage.input_tokens} in, {usage.cached_input_tokens} cached, {usage.output_tokens} out",
            "cost": f"${cost:.4f}",
            "last words": report.last_words or report.summary,
        }
        return replace(self, facts={**self.facts, **facts})

    @property
    def markdown(self) -> str:
        """The card as the Web UI renders it."""
        rows = {"phase": self.phase.value, "agent": self.agent, "model": self.model, "run": self.run_id}
        if self.task:
            rows["task"] = self.task
        if self.attempt > 1:
            rows["attempt"] = str(self.attempt)
        return "\n".join(f"- **{name}**: {_quoted(text)}" for name, text in {**rows, **self.facts}.items())


def _quoted(text: str) -> str:
    """One line of plain text: no Markdown, no HTML, no line breaks of the agent's making."""
    line = " ".join(text[: WORDS * 2].split())[:WORDS].replace("`", "'")
    return f"`{line}`"
