"""The final fold over the stored transcript: session, usage, cost, summary, errors, verdict."""

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

from temporalio import activity

from activities.stream_logs import GAP
from cluster.frames import LINE_LIMIT
from contracts.messages import ParseTranscript
from contracts.outcome import OutputReceipt, Report
from opencode.fold import Fold
from opencode.pricing import cost_of
from transcripts.store import Line, TranscriptStore

DIFFERS: Final = (
    "The stored output differs from what the runner says it wrote, and nobody knows where: "
    "answer, usage and cost may be wrong"
)


@dataclass(frozen=True)
class TranscriptParsing:
    """Reads what is stored and nothing else, so it can be repeated at any time."""

    store: TranscriptStore

    @activity.defn
    async def parse_transcript(self, order: ParseTranscript) -> Report:
        """What the attempt's output and its container's end say together.

        Raises:
            TranscriptsUnavailable: the store does not answer; Temporal tries again.
        """
        fold, sequence = Fold(order.resumed_session), 0
        while page := await self.store.read(order.attempt, sequence):
            for line in page:
                feed(fold, line)
            sequence = page[-1].sequence
            activity.heartbeat(sequence)
            await asyncio.sleep(0)  # other runs share this event loop
        report = fold.report(
            order.end.container,
            stopped=order.stopped,
            missing=lost(order.end.receipt, sequence),
            verified=order.end.receipt.state == "verified",
        )
        cost, billing = cost_of(order.model, report.usage, report.cost_usd)
        warnings = (*report.warnings, *doubts(order.end.receipt))
        return report.model_copy(
            update={"cost_usd": cost, "cost_estimated": billing == "metered_api", "warnings": warnings}
        )


def feed(fold: Fold, line: Line) -> None:
    """One stored line into the fold; a gap is no output."""
    if line.stream == "stdout":
        fold.stdout(line.data, cut=len(line.data) >= LINE_LIMIT, terminated=line.terminated)
    elif line.stream != GAP:
        fold.stderr(line.data)


def lost(receipt: OutputReceipt, last: int) -> Literal["nothing", "middle", "end"]:
    """Where output is missing: what was lost at the end may have held the answer."""
    if not receipt.gaps:
        return "nothing"
    return "end" if any(gap.after_sequence >= last for gap in receipt.gaps) else "middle"


def doubts(receipt: OutputReceipt) -> tuple[str, ...]:
    """A receipt that differs without a gap: nothing is known to be missing, and yet it is not what was written."""
    return (DIFFERS,) if receipt.state == "differs" and not receipt.gaps else ()
