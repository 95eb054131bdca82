"""Examines an agent that seems to be silent before it is stopped: lost contact is not silence."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio import activity

from agent_runs.agents.opencode.events import printable
from agent_runs.agents.opencode.fold import Fold
from agent_runs.contracts.errors import ClusterForbidden
from agent_runs.contracts.messages import ExamineSilence, Silence
from agent_runs.job.manifest import RUN_DIRECTORY
from agent_runs.job.secrets import RUNNER_KEY
from agent_runs.kube.port import Cluster, ExecFailed, LogCut, LogRefused
from agent_runs.logs.frames import Frame, FrameReader
from agent_runs.transcripts.store import Line, TranscriptStore

PROCESSES_COMMAND: Final = (
    "sh",
    f"{RUN_DIRECTORY}/secret/{RUNNER_KEY}",
    "--out",
    f"{RUN_DIRECTORY}/output",
    "--processes",
)
"""Makes the runner list the agent's processes."""
IDLE_TIMEOUT: Final = timedelta(seconds=15)
"""Time-out for each piece of a log or of a command's output."""
FIRST_LINE_WINDOW: Final = 1 << 20
"""Bytes of a log that are searched for the first line; some forty lines of OpenCode's log come before it."""
MAX_PROCESS_LIST: Final = 16 * 1024
"""Bytes of a list of processes."""
MAX_PROCESSES: Final = 20
"""Processes that are listed, each by at most 40 characters; never their arguments, which may hold secrets."""
RECENT_LINES: Final = 50
"""Lines in which the last output is searched."""
MAX_LAST_OUTPUT: Final = 400
"""Characters."""


@dataclass(frozen=True)
class ExamineSilenceActivity:
    """Silence counts only when store, log and container agree on it."""

    cluster: Cluster
    store: TranscriptStore

    @activity.defn
    async def examine_silence(self, input: ExamineSilence) -> Silence:
        """Returns how long the agent has been silent; with its last output and processes when that is too long.

        Raises:
            TranscriptsUnavailable, ClusterUnavailable: it cannot be learned now; retried for a while.
        """
        has_output = not input.before_first_line or any(
            line.stream == "stdout" for line in await self.store.read(input.attempt)
        )
        recent = await self._recent_lines(input)
        now = datetime.now(UTC)
        since = recent[-1].at if has_output and recent else await self._started_at(input)
        if since is None:
            return Silence(has_output=has_output)
        if now - since < input.limit:
            return Silence(silent_for=max(now - since, timedelta()), has_output=has_output)
        has_newer = await self._log_has_lines(input, None if not has_output else now - input.limit)
        if has_newer is not False:  # the store is behind the log, or the log cannot be read: that is not silence
            return Silence(has_output=has_output)
        return Silence(
            silent_for=now - since,
            has_output=has_output,
            last_output=last_output(recent),
            processes=await self._processes(input),
        )

    async def _recent_lines(self, input: ExamineSilence) -> list[Line]:
        last = await self.store.last(input.attempt) or 0
        return await self.store.read(input.attempt, max(last - RECENT_LINES, 0))

    async def _started_at(self, input: ExamineSilence) -> datetime | None:
        """When the agent's container started; None when it does not run or cannot be seen."""
        pod = await self.cluster.read_pod(input.pod.namespace, input.pod.name)
        status = pod.container(input.pod.container) if pod is not None and pod.metadata.uid == input.pod.uid else None
        running = status.state.running if status is not None else None
        return running.started_at if running is not None else None

    async def _log_has_lines(self, input: ExamineSilence, since: datetime | None) -> bool | None:
        """Whether the container's log has a line since then, or any line of stdout at all; None: it cannot be read."""
        pod, reader, size = input.pod, FrameReader(timestamps=True), 0
        try:
            async with self.cluster.open_log(
                pod.namespace, pod.name, pod.container, follow=False, since=since, idle_timeout=IDLE_TIMEOUT
            ) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    items = reader.feed(piece)
                    if since is not None or size > FIRST_LINE_WINDOW or any(map(is_stdout, items)):
                        return True
        except (LogRefused, LogCut, ClusterForbidden):
            return None
        return False

    async def _processes(self, input: ExamineSilence) -> tuple[str, ...]:
        """The names of the processes in the container; none if they cannot be read."""
        pod, listing = input.pod, b""
        with suppress(ExecFailed, ClusterForbidden):
            async with self.cluster.exec_output(
                pod.namespace,
                pod.name,
                pod.container,
                PROCESSES_COMMAND,
                limit=MAX_PROCESS_LIST,
                idle_timeout=IDLE_TIMEOUT,
            ) as pieces:
                async for piece in pieces:
                    listing += piece
        names = [printable(name, 40) for name in listing.decode(errors="replace").splitlines()]
        return tuple(name for name in names if name)[:MAX_PROCESSES]


def is_stdout(item: object) -> bool:
    """Whether a line of the log is the agent's stdout; in a log without frames every line counts as that."""
    return item.stream == "stdout" if isinstance(item, Frame) else True


def last_output(recent: list[Line]) -> str:
    """The last line that people would want to read, bounded."""
    fold = Fold()
    for line in recent:
        fold.add(line)
    return printable(fold.progress.last_output, MAX_LAST_OUTPUT)
