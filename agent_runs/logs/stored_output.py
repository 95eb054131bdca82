"""What is stored of one attempt's output: counted as the agent wrote it, stored redacted, and read back from the store
by whoever continues: another worker, the run's next attempt, the report at the end.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, ParamSpec, Self, TypeVar

import msgspec

from agent_runs.contracts.identity import AttemptKey
from agent_runs.contracts.messages import Claimed, PodRef, StreamProgress
from agent_runs.contracts.outcome import GAP_STREAM, Gap, OutputReceipt, Receipt
from agent_runs.logs.buffer import Batch
from agent_runs.logs.frames import LastFrame
from agent_runs.logs.log_resume import Cursor
from agent_runs.logs.questions import Questions
from agent_runs.metrics.definitions import FIRST_LINE, LINE_DELAY, OUTPUT_BYTES, OUTPUT_GAPS, OUTPUT_LINES
from agent_runs.metrics.recorder import Recorder
from agent_runs.paperclip.redaction import Redaction
from agent_runs.pod.sidecar.encoding import Checksum
from agent_runs.transcript.agent_state import AgentState
from agent_runs.transcript.fold import Fold
from agent_runs.transcript.store import Line, TranscriptStore

P = ParamSpec("P")
T = TypeVar("T")

CLOCK_TOLERANCE: Final = timedelta(seconds=2)
"""The sidecar's clock and that of the log's time stamps are the same node's; they only may be set."""
LARGE: Final = 64 * 1024
"""Bytes of lines that are redacted, counted, folded or encoded in a thread."""
_THREADS: Final = ThreadPoolExecutor(2, "large-lines")
"""Few, because each keeps Python's lock a part of the time; and their own, so that pages never wait for them."""


async def off_loop(size: int, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls it: for a large amount of data in a thread, so that other runs go on, otherwise at once, for less CPU."""
    if size <= LARGE:
        return call(*args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(call, *args, **kwargs))


@dataclass
class Tally:
    """Counts what was stored of one attempt, to be compared with the last frame. Add lines in their order.

    Attributes:
        whole: of no line something may be missing.
    """

    lines: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    sizes: dict[str, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    checksums: dict[str, Checksum] = field(default_factory=lambda: {"stdout": Checksum(), "stderr": Checksum()})
    whole: bool = True

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Continues that of another worker; None: nothing is stored."""
        if text is None:
            return cls()
        known = json.loads(text)
        checksums = {stream: Checksum(each) for stream, each in known["checksums"].items()}
        return cls(known["lines"], known["sizes"], checksums, known["whole"])

    def __str__(self) -> str:
        checksums = {stream: str(each) for stream, each in self.checksums.items()}
        return json.dumps({"lines": self.lines, "sizes": self.sizes, "checksums": checksums, "whole": self.whole})

    def add(self, lines: Iterable[Line]) -> None:
        for line in lines:
            raw = line.raw
            self.lines[line.stream] += line.terminated
            self.sizes[line.stream] += len(raw)
            self.checksums[line.stream].update(raw)
            self.whole = self.whole and line.whole

    def receipt(self, last: LastFrame | None, gaps: Iterable[Gap] = ()) -> OutputReceipt:
        """Return the receipt for stdout; its state depends on stderr, too."""
        missing = tuple(gaps)
        return OutputReceipt(
            state=self._state(last, missing),
            lines=self.lines["stdout"],
            bytes=self.sizes["stdout"],
            checksum=str(self.checksums["stdout"]),
            gaps=missing,
        )

    def _state(self, last: LastFrame | None, gaps: tuple[Gap, ...]) -> Receipt:
        if gaps:
            return "differs"
        if last is None or last.error == "last_frame_unreadable":
            return "unverified" if self.whole else "differs"
        reported = {"stdout": last.stdout, "stderr": last.stderr}
        counted = all(
            (self.lines[stream], self.sizes[stream]) == (reported[stream].lines, reported[stream].bytes)
            and reported[stream].checksum in {None, str(self.checksums[stream])}
            for stream in self.lines
        )
        if not counted or not (self.whole or last.stdout.checksum):  # equal ones prove an incomplete line complete
            return "differs"
        return "unverified" if last.stdout.checksum is None else "verified"


@dataclass
class StoredOutput:
    """What is stored of one attempt so far.

    Attributes:
        agent_state: the follower adds what is not stored yet.
        questions: None where nobody is asked.
        cursor: where in the log another worker finds what follows.
        run_size: bytes that the whole run takes in the store, all attempts together.
    """

    redaction: Redaction = field(default_factory=Redaction)
    sequence: int = 0
    tally: Tally = field(default_factory=Tally)
    gaps: list[Gap] = field(default_factory=list)
    fold: Fold = field(default_factory=Fold)
    agent_state: AgentState = field(default_factory=AgentState)
    cursor: Cursor = field(default_factory=Cursor)
    run_size: int = 0
    questions: Questions | None = None

    @classmethod
    async def read(
        cls,
        store: TranscriptStore,
        key: AttemptKey,
        redaction: Redaction,
        heartbeat: Callable[[StreamProgress], None],
        questions: Questions | None = None,
    ) -> Self:
        """What earlier activity attempts have stored.

        Raises:
            TranscriptsUnavailable: the store does not answer.
        """
        stored = cls(redaction, tally=Tally.of(await store.tally(key)), questions=questions)
        while page := await store.read(key, stored.sequence):
            shown = [line for line in page if line.stream != GAP_STREAM]
            gaps = [gap_of(line) for line in page if line.stream == GAP_STREAM]
            size = sum(len(line.data) for line in shown)
            await off_loop(size, stored.add, shown, gaps)
            await off_loop(size, stored.agent_state.add, shown)
            stored.sequence = page[-1].sequence
            heartbeat(stored.progress)
        return stored

    def redact(self, line: Line) -> bytes:
        """The line as it is stored. One whose end is missing may end inside a secret."""
        return self.redaction.redact(line.data, is_cut=not (line.terminated and line.whole))

    def counted(self, written: Sequence[Line]) -> list[Line]:
        """Counts the lines as the agent wrote them, and returns them as the transcript shows them."""
        self.tally.add(written)
        redacted = ((line, self.redact(line)) for line in written)
        return [line if data is line.data else msgspec.structs.replace(line, data=data) for line, data in redacted]

    def add(self, shown: Sequence[Line], gaps: Iterable[Gap] = ()) -> None:
        self.gaps += gaps
        for line in shown:
            self.sequence = max(self.sequence, line.sequence)
            self.fold.add(line)
        if self.questions is not None:
            self.questions.add(shown)

    @property
    def progress(self) -> StreamProgress:
        """The details of a heartbeat; a place in the log only if one is known and all before it is stored."""
        progress, cursor = self.fold.progress, self.cursor
        is_place_known = cursor.first > 1 and self.sequence == max(cursor.after, cursor.covered)
        return StreamProgress(
            sequence=self.sequence,
            needed_from=cursor.first if is_place_known else None,
            second=cursor.second if is_place_known else None,
            lines=self.tally.lines["stdout"],
            session_id=self.redaction.hide_in(progress.session_id),
            last_output=self.redaction.hide(progress.last_output),
        )

    def resumed_at(self, hint: StreamProgress, claimed: Claimed | None = None) -> Cursor:
        """Where to continue: after the last stored line and the last gap, according to the store.

        The log of a pod that had rested begins with the output of other runs.
        """
        covered = max((gap.after_sequence + (gap.frames or 0) for gap in self.gaps), default=0)
        cursor = Cursor(after=self.sequence, covered=covered)
        if claimed is not None:
            before = claimed.first - 1
            begin = claimed.at.replace(microsecond=0) - CLOCK_TOLERANCE
            cursor = Cursor(max(self.sequence, before), claimed.first, begin, max(covered, before))
        return cursor if hint.needed_from is None else cursor.with_hint(hint.sequence, hint.needed_from, hint.second)

    def rows(self, batch: Batch, at: datetime) -> list[Line]:
        """A batch as rows of the store; a gap is a row of its own, so that no reader overlooks it.

        Gaps before the last stored line are in the receipt alone: the transcript only grows.
        """
        return [*batch.lines, *(gap_row(gap, at) for gap in batch.gaps if gap.after_sequence >= self.sequence)]


class OutputMetrics:
    """Records each batch once it is stored.

    Args:
        has_stdout: lines on stdout are stored already, so the first one is not to come.
    """

    def __init__(self, recorder: Recorder, pod: PodRef, *, has_stdout: bool) -> None:
        self._recorder = recorder
        self._started_at = None if has_stdout else pod.started_at

    def stored(self, batch: Batch) -> None:
        now = datetime.now(UTC)
        self._recorder.count(OUTPUT_LINES, len(batch.lines))
        self._recorder.count(OUTPUT_BYTES, sum(len(line.data) + line.terminated for line in batch.lines))
        self._recorder.count(OUTPUT_GAPS, len(batch.gaps))
        if batch.written_at is not None:
            self._recorder.observe(LINE_DELAY, (now - batch.written_at).total_seconds())
        if self._started_at is not None and any(line.stream == "stdout" for line in batch.lines):
            self._recorder.observe(FIRST_LINE, (now - self._started_at).total_seconds())
            self._started_at = None


async def fold_stored(store: TranscriptStore, key: AttemptKey, fold: Fold, heartbeat: Callable[[int], None]) -> int:
    """Fold all that is stored of an attempt.

    Returns:
        The sequence of the last line, with which `heartbeat` is called after each page.

    Raises:
        TranscriptsUnavailable: the store does not answer.
    """
    sequence = 0
    while page := await store.read(key, sequence):
        await off_loop(sum(len(line.data) for line in page), _add_all, fold, page)
        sequence = page[-1].sequence
        heartbeat(sequence)
        await asyncio.sleep(0)  # other runs share this event loop
    return sequence


def gap_row(gap: Gap, at: datetime) -> Line:
    """A gap as a row, with the sequence of the first missing line."""
    text = json.dumps({"frames": gap.frames, "afterSequence": gap.after_sequence}).encode()
    return Line(gap.after_sequence + 1, GAP_STREAM, text, at=at)


def gap_of(line: Line) -> Gap:
    values = json.loads(line.data)
    return Gap(after_sequence=values["afterSequence"], frames=values["frames"])


def _add_all(fold: Fold, page: Sequence[Line]) -> None:
    for line in page:
        fold.add(line)
