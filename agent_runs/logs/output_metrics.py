"""What one agent's stored output counts for Prometheus."""

from datetime import UTC, datetime

from agent_runs.contracts.messages import PodRef
from agent_runs.logs.buffer import Batch
from agent_runs.metrics.definitions import FIRST_LINE, LINE_DELAY, OUTPUT_BYTES, OUTPUT_GAPS, OUTPUT_LINES
from agent_runs.metrics.recorder import Recorder


class OutputMetrics:
    """Records each batch once it is stored.

    Args:
        has_stdout: lines on stdout are stored already, so the first one is not to come.
    """

    def __init__(self, recorder: Recorder, pod: PodRef, *, has_stdout: bool) -> None:
        self._recorder = recorder
        self._started_at = None if has_stdout else pod.started_at

    def stored(self, batch: Batch) -> None:
        """Record a batch: its amounts, its delay, and whether it has the first line."""
        now = datetime.now(UTC)
        self._recorder.count(OUTPUT_LINES, len(batch.lines))
        self._recorder.count(OUTPUT_BYTES, sum(len(line.data) + line.terminated for line in batch.lines))
        self._recorder.count(OUTPUT_GAPS, len(batch.gaps))
        if batch.written_at is not None:
            self._recorder.observe(LINE_DELAY, (now - batch.written_at).total_seconds())
        if self._started_at is not None and any(line.stream == "stdout" for line in batch.lines):
            self._recorder.observe(FIRST_LINE, (now - self._started_at).total_seconds())
            self._started_at = None
