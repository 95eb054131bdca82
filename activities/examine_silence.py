"""Looks at an agent that seems to be silent, before anybody stops it: lost contact is not silence."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from temporalio import activity

from activities.stream_logs import GAP
from cluster.frames import LINE_LIMIT, Frame, FrameReader
from cluster.manifest import RUN_DIRECTORY
from cluster.port import Cluster, ExecFailed, LogCut, LogRefused
from cluster.secrets import RUNNER_KEY
from contracts.errors import ClusterForbidden
from contracts.messages import ExamineSilence, Silence
from opencode.events import printable
from opencode.fold import Fold
from transcripts.store import Line, TranscriptStore

PROCESSES: Final = ("sh", f"{RUN_DIRECTORY}/secret/{RUNNER_KEY}", "--out", f"{RUN_DIRECTORY}/output", "--processes")
"""The runner's command for naming the agent's processes."""
IDLE: Final = timedelta(seconds=15)
"""How long an answer may take."""
OPENING: Final = 1 << 20
"""Bytes of a log that are looked through for a first line; before it there are some forty lines of OpenCode's log."""
LISTING: Final = 16 * 1024
"""Bytes of a list of processes."""
NAMES: Final = 20
"""Processes that are named, each by at most 40 characters; never their arguments, which may hold secrets."""
RECENT: Final = 50
"""Lines in which the last words are looked for."""
WORDS: Final = 400


@dataclass(frozen=True)
class SilenceExamination:
    """Silence counts only when store, log and container agree on it."""

    cluster: Cluster
    store: TranscriptStore

    @activity.defn
    async def examine_silence(self, order: ExamineSilence) -> Silence:
        """How long the agent has been silent; with what it said and does last, when that is too long.

        Raises:
            TranscriptsUnavailable, ClusterUnavailable: nobody can tell now; Temporal tries again for a while.
        """
        spoke = not order.first or any(line.stream == "stdout" for line in await self.store.read(order.attempt))
        recent = await self._recent(order)
        now = datetime.now(UTC)
        since = recent[-1].at if spoke and recent else await self._began(order)
        if since is None:
            return Silence(spoke=spoke)
        if now - since < order.limit:
            return Silence(silent_for=max(now - since, timedelta()), spoke=spoke)
        heard = await self._heard(order, None if not spoke else now - order.limit)
        if heard is not False:  # the log has more than the store, or cannot be read: we are behind, it is not silent
            return Silence(spoke=spoke)
        return Silence(
            silent_for=now - since,
            spoke=spoke,
            last_words=last_words(recent),
            processes=await self._processes(order),
        )

    async def _recent(self, order: ExamineSilence) -> list[Line]:
        last = await self.store.last(order.attempt) or 0
        return await self.store.read(order.attempt, max(last - RECENT, 0))

    async def _began(self, order: ExamineSilence) -> datetime | None:
        """When the agent's container began; None when it does not run or cannot be seen: its stream tells the rest."""
        pod = await self.cluster.read_pod(order.pod.namespace, order.pod.name)
        status = pod.container(order.pod.container) if pod is not None and pod.metadata.uid == order.pod.uid else None
        running = status.state.running if status is not None else None
        return running.started_at if running is not None else None

    async def _heard(self, order: ExamineSilence, since: datetime | None) -> bool | None:
        """Whether the container's log has a line since then, or any line of stdout at all; None: it cannot be read."""
        pod, reader, size = order.pod, FrameReader(timestamps=True), 0
        try:
            async with self.cluster.open_log(
                pod.namespace, pod.name, pod.container, follow=False, since=since, idle=IDLE
            ) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    found = reader.feed(piece)
                    if since is not None or size > OPENING or any(map(speaks, found)):
                        return True
        except (LogRefused, LogCut, ClusterForbidden):
            return None
        return False

    async def _processes(self, order: ExamineSilence) -> tuple[str, ...]:
        """The names of what runs in the container; none if nobody answers."""
        pod, listing = order.pod, b""
        with suppress(ExecFailed, ClusterForbidden):
            async with self.cluster.exec_output(
                pod.namespace, pod.name, pod.container, PROCESSES, limit=LISTING, idle=IDLE
            ) as pieces:
                async for piece in pieces:
                    listing += piece
        names = [printable(name, 40) for name in listing.decode(errors="replace").splitlines()]
        return tuple(name for name in names if name)[:NAMES]


def speaks(item: object) -> bool:
    """Whether a line of the log is the agent's own stdout; a log without frames has nothing else."""
    return item.stream == "stdout" if isinstance(item, Frame) else True


def last_words(recent: list[Line]) -> str:
    """What a person would want to read of the last lines, bounded."""
    fold = Fold()
    for line in recent:
        if line.stream == "stdout":
            fold.stdout(line.data, cut=len(line.data) >= LINE_LIMIT, terminated=line.terminated)
        elif line.stream != GAP:
            fold.stderr(line.data)
    return printable(fold.progress.last_words, WORDS)
