"""Follows the agent's output into the transcript store, line by line, whoever restarts in between."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.known_secrets import KnownSecrets
from cluster.diagnosis import Failing, why_it_ended
from cluster.follower import Batch, Cursor, Follower
from cluster.port import Cluster
from cluster.reading import LogLine, Tally
from contracts.errors import PodLost, RunTimeout
from contracts.identity import AttemptKey
from contracts.messages import StreamEnd, StreamLogs, StreamProgress
from contracts.outcome import ContainerEnd, Gap
from opencode.fold import Fold
from paperclip.redaction import Redaction
from transcripts.store import Line, TranscriptStore, Writer

GAP: Final = "gap"
"""Stream name of a line that says what is missing; its sequence is that of the first missing frame."""
HANDED_OVER: Final = timedelta(milliseconds=100)
"""Until the next worker may begin: long enough for this one's open polls to close. A try that one of those takes along
is missed only when its heartbeat is."""
BEAT: Final = timedelta(seconds=2)
"""Between heartbeats of one stream."""
BEATS: Final = timedelta(milliseconds=20)
"""Between heartbeats of all streams of this worker: each costs some 0.5 ms of CPU here, and more in Temporal."""
SLOWEST: Final = timedelta(seconds=10)
"""Between heartbeats of one stream, however many there are: a third of their time-out."""


@dataclass
class Account:
    """What is stored of one attempt so far, and where it stands."""

    sequence: int = 0
    tally: Tally = field(default_factory=Tally)
    gaps: list[Gap] = field(default_factory=list)
    fold: Fold = field(default_factory=Fold)

    def add(self, written: Sequence[LogLine], shown: Sequence[LogLine], gaps: Iterable[Gap] = ()) -> None:
        """Takes lines and gaps that are stored: as the agent wrote them, and as the transcript shows them."""
        self.gaps += gaps
        self.tally.add(written)
        for line in shown:
            self.sequence = max(self.sequence, line.sequence)
            if line.stream == "stdout":
                self.fold.stdout(line.data, cut=not line.whole, terminated=line.terminated)
            else:
                self.fold.stderr(line.data)

    @property
    def progress(self) -> StreamProgress:
        """A hint for people; the store's own last sequence is the cursor."""
        now = self.fold.progress
        return StreamProgress(
            sequence=self.sequence,
            lines=self.tally.lines["stdout"],
            session_id=now.session_id,
            last_words=now.last_words,
        )


@dataclass
class Pulse:
    """How often each of a worker's streams says that it lives: the more there are, the less often."""

    streams: int = 0

    @property
    def pause(self) -> timedelta:
        """Until a stream's next heartbeat."""
        return min(max(BEAT, self.streams * BEATS), SLOWEST)


@dataclass(frozen=True)
class LogStreaming:
    """The only writer of a transcript. A repeated line changes nothing in the store."""

    cluster: Cluster
    store: TranscriptStore
    secrets: KnownSecrets
    pulse: Pulse = field(default_factory=Pulse)

    @activity.defn
    async def stream_logs(self, order: StreamLogs) -> StreamEnd:
        """Stores the attempt's output until its container has ended, and says how it ended.

        Goes on where the store ends, so a killed worker costs no line and doubles none; where in the log that is, the
        last try's heartbeat tells, and it may be wrong. An earlier try that still runs elsewhere is fenced off by the
        store. What a try has sealed stands: a later one only learns how the container ended. Heartbeats carry a
        `StreamProgress` every 2 s, or up to 10 s where one worker follows hundreds. When the worker shuts down, the
        step is handed over at once.

        The run's known secrets are replaced before a line is stored; the receipt counts what the agent wrote.

        Raises:
            TranscriptsUnavailable: the store does not answer; Temporal tries again.
            TranscriptFenced: a later try follows this output.
        """
        writer = this_try()
        await self.store.claim(order.attempt, writer)  # before reading, so that nothing is added behind our back
        redaction = await self.secrets.redaction()
        account = await self._stored(order.attempt, redaction)
        sealed = await self.store.receipt(order.attempt)
        place = Place(account, resumed(account, last_heartbeat()))
        async with beating(place, self.pulse), Follower(self.cluster, order.job, order.pod, place.cursor) as follower:
            async for batch in handed_over(follower):
                if sealed is None:
                    batch.gaps = [gap for gap in batch.gaps if gap not in account.gaps]  # told by an earlier try
                    shown = replace(batch, lines=each(redaction.hidden, batch.lines))
                    await self.store.append(order.attempt, rows(told(shown, account), datetime.now(UTC)), writer)
                    account.add(batch.lines, shown.lines, batch.gaps)
                    place.cursor = batch.cursor or place.cursor
        receipt = account.tally.receipt(follower.last, account.gaps, framed=follower.framed)
        receipt = await self.store.seal(order.attempt, receipt, writer)
        end = container_end(follower)
        outside = follower.fate if isinstance(follower.fate, Failing) else ended_from_outside(end)
        if outside is not None and issubclass(outside.error, PodLost):
            # Before Kubernetes 1.29 a Job whose pod was deleted makes another one, which waits for its prompt for ever.
            await self.cluster.delete_job(order.job.namespace, order.job.name, order.job.uid)
        return StreamEnd(
            container=end, receipt=receipt, failure=outside.error.as_failure(outside.message) if outside else None
        )

    async def _stored(self, key: AttemptKey, redaction: Redaction) -> Account:
        """The account of what earlier tries of this step have stored."""
        account = Account()
        while page := await self.store.read(key, account.sequence):
            shown = [
                LogLine(line.sequence, "stdout" if line.stream == "stdout" else "stderr", line.data, line.terminated)
                for line in page
                if line.stream != GAP
            ]
            gaps = [gap_of(line) for line in page if line.stream == GAP]
            account.add(each(redaction.restored, shown), shown, gaps)
            account.sequence = max(account.sequence, page[-1].sequence)
            activity.heartbeat(account.progress)
        return account


def each(change: Callable[[bytes], bytes], lines: Sequence[LogLine]) -> list[LogLine]:
    """The lines with their text changed; those that it leaves alone are the same objects."""
    changed = ((line, change(line.data)) for line in lines)
    return [line if data is line.data else msgspec.structs.replace(line, data=data) for line, data in changed]


def this_try() -> Writer:
    """This try of the step, as the store orders writers."""
    info = activity.info()
    return Writer(info.scheduled_time, info.attempt, info.workflow_run_id or "")


async def handed_over(follower: Follower) -> AsyncIterator[Batch]:
    """The batches, until this worker is told to stop: then the step goes to another worker at once.

    Raises:
        ApplicationError: `WorkerShutdown`, tried again after `HANDED_OVER`.
    """
    stopping = asyncio.create_task(activity.wait_for_worker_shutdown())
    stopping.add_done_callback(lambda _: follower.wake())
    try:
        while not stopping.done():
            batch = await follower.next_batch()
            if batch is None:
                return
            if batch.lines or batch.gaps:
                yield batch
    finally:
        stopping.cancel()
    raise ApplicationError(
        "the worker is shutting down",
        type="WorkerShutdown",
        next_retry_delay=HANDED_OVER,
        category=ApplicationErrorCategory.BENIGN,
    )


@dataclass
class Place:
    """What is stored, and where in the log another worker finds what follows it."""

    account: Account
    cursor: Cursor

    @property
    def progress(self) -> StreamProgress:
        """The heartbeat."""
        now, at = self.account.progress, self.cursor
        if not at.framed or now.sequence != max(at.after, at.covered):
            return now
        return now.model_copy(update={"needed_from": at.first, "second": at.second})


def last_heartbeat() -> StreamProgress:
    """What the try before this one said last; nothing if that cannot be read."""
    with suppress(ValueError, IndexError):
        return StreamProgress.model_validate(activity.info().heartbeat_details[0])
    return StreamProgress()


def resumed(account: Account, hint: StreamProgress) -> Cursor:
    """Where to go on: behind the last stored line and the last gap, as the store knows them."""
    told_until = max((gap.after_sequence + (gap.frames or 0) for gap in account.gaps), default=0)
    cursor = Cursor(after=account.sequence, covered=told_until)
    return cursor if hint.needed_from is None else cursor.hinted(hint.sequence, hint.needed_from, hint.second)


def told(batch: Batch, account: Account) -> Batch:
    """The batch as the transcript can hold it: what is missing before the last stored line is for the receipt only."""
    if not batch.gaps:
        return batch
    return replace(batch, gaps=[gap for gap in batch.gaps if gap.after_sequence >= account.sequence])


@asynccontextmanager
async def beating(place: Place, pulse: Pulse) -> AsyncIterator[None]:
    """Heartbeats while the agent is silent, too: silence is normal, a dead worker is not."""

    async def beat() -> None:
        while True:
            activity.heartbeat(place.progress)
            await asyncio.sleep(pulse.pause.total_seconds())

    pulse.streams += 1
    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        pulse.streams -= 1
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def container_end(follower: Follower) -> ContainerEnd:
    """The container's own end, with the runner's word where Kubernetes has none."""
    end, last = follower.end or ContainerEnd(), follower.last
    if last is None or last.error is None:
        return end
    told = f"runner: {last.error}" + (f" ({last.detail})" if last.detail else "")
    return end.model_copy(update={"message": "; ".join(text for text in (end.message, told) if text)})


def ended_from_outside(end: ContainerEnd) -> Failing | None:
    """Who ended the agent, if it was neither itself nor us; what it did itself is judged by its output."""
    why = why_it_ended(end)
    return why if why is not None and issubclass(why.error, PodLost | RunTimeout) else None


def rows(batch: Batch, at: datetime) -> list[Line]:
    """A batch as the store keeps it; a gap is a line of its own, so that no reader overlooks it."""
    lines = [Line(line.sequence, line.stream, line.data, line.terminated, at=at) for line in batch.lines]
    return [*lines, *(missing(gap, at) for gap in batch.gaps)]


def missing(gap: Gap, at: datetime) -> Line:
    """What is missing, under the number of the first missing frame."""
    text = json.dumps({"frames": gap.frames, "afterSequence": gap.after_sequence}).encode()
    return Line(gap.after_sequence + 1, GAP, text, at=at)


def gap_of(line: Line) -> Gap:
    """The gap that `missing` wrote."""
    told = json.loads(line.data)
    return Gap(after_sequence=told["afterSequence"], frames=told["frames"])
