"""Folds the stored transcript into the attempt's report: session, usage, cost, summary, errors, verdict."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from temporalio import activity

from agent_runs.agents.profile import AgentProfile, title_of
from agent_runs.contracts.messages import ParseTranscript
from agent_runs.contracts.outcome import GAP_STREAM, Interruption, OutputReceipt, Report
from agent_runs.job.redactions import Redactions
from agent_runs.logs.stored_output import fold_stored
from agent_runs.logs.usage import record_report
from agent_runs.paperclip.redaction import Redaction
from agent_runs.transcript.agent_state import AgentState
from agent_runs.transcript.fold import Fold
from agent_runs.transcript.pricing import cost_of
from agent_runs.transcript.store import TranscriptStore

OUTPUT_DIFFERS: Final = (
    "The stored output differs from what the runner wrote, and it is not known where: "
    "answer, usage and cost may be wrong"
)

TEXTS: Final = ("session_id", "finish_reason", "summary", "last_output", "agent_version")
LISTS_OF_TEXTS: Final = ("warnings", "errors", "tool_errors")
"""Fields of a report that hold what an agent wrote."""


@dataclass(frozen=True)
class ParseTranscriptActivity:
    """Reads only what is stored, so it can be repeated at any time. For lists of runs it records the usage.

    Attributes:
        agents: the profiles of agents other than OpenCode, by name.
    """

    store: TranscriptStore
    redactions: Redactions
    agents: Mapping[str, AgentProfile] = field(default_factory=dict)

    @activity.defn
    async def parse_transcript(self, input: ParseTranscript) -> Report:
        """Returns what the attempt's output and its container's end show together.

        Stored lines are redacted, but JSON may spell a secret in a way that only its reading undoes, so the texts of
        the report are redacted as well.

        Raises:
            TranscriptsUnavailable: the store does not answer, or this worker does not know the secrets; retried.
        """
        redaction = await self.redactions.current(input.joined)
        fold = Fold(input.resumed_session)
        sequence = await fold_stored(self.store, input.attempt, fold, activity.heartbeat)
        report = fold.report(
            input.end.container,
            stopped=input.stopped,
            missing=where_output_is_missing(input.end.receipt, sequence),
            verified=input.end.receipt.state == "verified",
            agent=title_of(input.agent, self.agents),
        )
        cost = cost_of(input.model, report.usage, report.cost_usd)
        warnings = (*report.warnings, *receipt_warnings(input.end.receipt))
        report = report.model_copy(
            update={
                "cost_usd": cost.usd,
                "cost_estimated": cost.estimated,
                "warnings": warnings,
                "interruption": await self._interruption(input, fold),
            }
        )
        report = without_secrets(report, redaction)
        await record_report(self.store, input.attempt, input.model, report)
        return report

    async def _interruption(self, input: ParseTranscript, fold: Fold) -> Interruption | None:
        """What the loss of the pod has interrupted. Of `opencode run` only its log shows that a tool has begun."""
        found, lost = fold.interruption, input.stopped is not None and input.stopped.budget == "infrastructure"
        if not lost or found.at is None or found.tools:
            return found if lost and found.at else None
        state, sequence = AgentState(), 0
        while page := await self.store.read(input.attempt, sequence):
            state.add([line for line in page if line.stream != GAP_STREAM])
            sequence = page[-1].sequence
            activity.heartbeat(sequence)
        return found.model_copy(update={"tools": state.tools})


def where_output_is_missing(receipt: OutputReceipt, last: int) -> Literal["nothing", "middle", "end"]:
    """Whether output is missing in the middle or at its end, where the answer may have been."""
    if not receipt.gaps:
        return "nothing"
    return "end" if any(gap.after_sequence >= last for gap in receipt.gaps) else "middle"


def receipt_warnings(receipt: OutputReceipt) -> tuple[str, ...]:
    """A warning if the receipt differs without a gap: no line is missing, and yet it is not what the runner wrote."""
    return (OUTPUT_DIFFERS,) if receipt.state == "differs" and not receipt.gaps else ()


def without_secrets(report: Report, redaction: Redaction) -> Report:
    """The report with secrets hidden in every text that comes from the agent."""
    failure, interruption = report.failure, report.interruption
    if failure is not None:
        failure = failure.model_copy(update={"message": redaction.hide(failure.message)})
    if interruption is not None:
        interruption = interruption.model_copy(update={"tools": tuple(map(redaction.hide, interruption.tools))})
    return report.model_copy(
        update={
            "failure": failure,
            "interruption": interruption,
            **{name: redaction.hide_in(getattr(report, name)) for name in TEXTS},
            **{name: tuple(map(redaction.hide, getattr(report, name))) for name in LISTS_OF_TEXTS},
        }
    )
