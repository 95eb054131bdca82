"""Why a run ended as it did: what happened, the evidence, what was lost, what it left, what to do. Pure.

Everything in it comes from the outcome and from stored output, which are redacted; texts of the agent are bounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agent_runs.contracts.errors import FAILURES
from agent_runs.contracts.outcome import Outcome, OutputReceipt
from agent_runs.transcript.events import printable
from agent_runs.transcript.lines import Line

MESSAGE_LIMIT: Final = 1000
LINE_LIMIT: Final = 200
LAST_LINES: Final = 3
"""Lines of the agent's log that are quoted, when the agent did not succeed."""
NAMED_GAPS: Final = 3


@dataclass(frozen=True)
class StoredLines:
    """What the store has of a run's output.

    Attributes:
        last: the number of the last line of each attempt.
        tail: the last lines of the newest attempt, of any stream.
    """

    last: Mapping[int, int] = field(default_factory=dict)
    tail: Sequence[Line] = ()


def explain(outcome: Outcome, stored: StoredLines | None = None) -> dict[str, str]:
    """Five headings and what stands under each. `stored` is None where the store was not read."""
    return {
        "what happened": _happened(outcome),
        "evidence": _evidence(outcome, stored.tail if stored else ()),
        "output": _output(outcome, stored),
        "session": _session(outcome),
        "next step": _next_step(outcome),
    }


def _happened(outcome: Outcome) -> str:
    failure = outcome.failure
    if failure is None:
        return "The run succeeded."
    kind = FAILURES.get(failure.code)
    message = f"{failure.code}: {printable(failure.message, MESSAGE_LIMIT)}"
    return f"{message}\n{meaning_of(kind.__doc__)}" if kind is not None else message


def meaning_of(documentation: str | None) -> str:
    """The first sentence of a failure's documentation, which says what the failure is."""
    return " ".join((documentation or "").split("\n\n")[0].split())


def _evidence(outcome: Outcome, log: Sequence[Line]) -> str:
    found = []
    if len(outcome.attempts) > 1:
        kinds = [f"{one.attempt}: {one.failure_code or 'succeeded'}" for one in outcome.attempts]
        found.append(f"attempts {', '.join(kinds)}")
    of_last = "of the last attempt: " if len(outcome.attempts) > 1 else ""
    reason = outcome.result_json.get("podReason") if outcome.failure else None
    end = [
        None if outcome.exit_code is None else f"exit code {outcome.exit_code}",
        f"signal {outcome.signal}" if outcome.signal else None,
        f"pod exited: {printable(str(reason), LINE_LIMIT)}" if reason else None,
    ]
    if any(end):
        found.append(of_last + ", ".join(filter(None, end)))
    elif outcome.never_started or (outcome.stop is not None and not outcome.stop.agent_started):
        found.append("no agent started")
    if outcome.agent_version:
        found.append(f"{of_last}version {printable(outcome.agent_version, LINE_LIMIT)} of the agent's program")
    if outcome.attempts and (peaks := outcome.attempts[-1].peaks.text):
        found.append(f"{of_last}peaks: {peaks}")
    found += [printable(text, MESSAGE_LIMIT) for text in outcome.warnings]
    if outcome.failure is not None:
        lines = [text for line in log if line.stream == "stderr" and (text := _text(line))]
        found += [f"the agent's log: {text}" for text in lines[-LAST_LINES:]]
    return "\n".join(found) or "none"


def _text(line: Line) -> str:
    return printable(line.data[: LINE_LIMIT * 4].decode("utf-8", errors="replace"), LINE_LIMIT)


def _output(outcome: Outcome, stored: StoredLines | None) -> str:
    """What is stored of each attempt's output, and what was lost."""
    if stored is None and not outcome.attempts:
        stored = StoredLines()  # nobody wrote any
    if len(outcome.attempts) < 2:
        return _of_attempt(outcome.receipt, max(stored.last.values(), default=0) if stored else None)
    return "\n".join(
        f"attempt {one.attempt}: {_of_attempt(one.receipt, stored.last.get(one.attempt, 0) if stored else None)}"
        for one in outcome.attempts
    )


def _of_attempt(receipt: OutputReceipt | None, last: int | None) -> str:
    """What is stored of one attempt, whose last stored line has this number; None: the store was not read."""
    uncounted = "its pod did not report its count"
    unknown = f"whether the agent wrote more is not known: {uncounted}"
    if receipt in (None, OutputReceipt()):
        if last is None:
            return f"not known: {uncounted}, and what is stored was not counted"
        if last:
            return f"lines up to number {last:,} are stored; {unknown}"
    if receipt is None:
        return "none was written"
    size = f" ({receipt.bytes:,} bytes)" if receipt.bytes else ""
    lines = f"{receipt.lines:,} lines on stdout{size} are stored"
    if receipt.gaps:
        return f"{lines}; {_gaps(receipt)}"
    if receipt.state == "verified":
        return f"{lines}; nothing was lost: the pod counted the same"
    if receipt.state == "differs":
        return f"{lines}; the pod counted others, so some of it was lost or changed"
    return f"{lines}; {unknown}"


def _gaps(receipt: OutputReceipt) -> str:
    def size(frames: int | None) -> str:
        return "an unknown amount" if frames is None else f"{frames:,} frames"

    named = [f"{size(gap.frames)} after line {gap.after_sequence:,}" for gap in receipt.gaps[:NAMED_GAPS]]
    more = len(receipt.gaps) - len(named)
    return f"lost: {', '.join(named)}" + (f", and {more} more gaps" if more else "")


def _session(outcome: Outcome) -> str:
    if outcome.session_id is None:
        return "none: the next wake begins a new one"
    if outcome.clear_session:
        return f"{outcome.session_id} cannot be resumed: the next wake begins a new one"
    kept = outcome.failure is None or outcome.stop is None or outcome.stop.session_preserved
    return f"{outcome.session_id}, " + ("which the next wake resumes" if kept else "whose database may be lost")


def _next_step(outcome: Outcome) -> str:
    if outcome.failure is None:
        return "Nothing to do."
    repeats = " Paperclip repeats such a run by itself, a limited number of times." if outcome.may_repeat else ""
    return f"{printable(outcome.failure.next_step, MESSAGE_LIMIT)}{repeats}"
