"""The transcript store: a port of ours, and its SQL implementation for SQLite (the default) and PostgreSQL.

Lines are only ever added, and only at the end: what a reader has seen never changes, and nothing appears behind its
cursor. So a writer repairs a gap before it writes what lies beyond it, or writes the gap. The primary key (run,
attempt, sequence) makes a repeated batch harmless, reading goes by pages bounded in lines and bytes, and a seal ends
an attempt with its receipt. Of several writers of one attempt only the latest is heard.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy import Column, Connection, Row, and_, delete, func, or_, select, tuple_, update

from contracts.errors import RunError, TranscriptFenced, TranscriptSealed, TranscriptsUnavailable
from contracts.identity import AttemptKey
from contracts.outcome import OutputReceipt
from transcripts.database import Database, Insert, Work
from transcripts.group_commit import GroupCommit
from transcripts.lines import Line, page_end
from transcripts.migrations import bring_up_to_date
from transcripts.news import News
from transcripts.schema import EPOCH, attempts, lines

__all__ = [
    "GATHER",
    "GROUP_BYTES",
    "NOBODY",
    "PAGE_BYTES",
    "PAGE_LINES",
    "STATEMENT_BYTES",
    "Expiry",
    "Forgotten",
    "Line",
    "News",
    "RunSummary",
    "SqlTranscripts",
    "TranscriptStore",
    "Writer",
    "page_end",
    "portions",
]

PAGE_LINES: Final = 1000
PAGE_BYTES: Final = 4 * 1024 * 1024
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Of several writers' lines in one transaction; it bounds how long the next one waits."""
STATEMENT_BYTES: Final = 1024 * 1024
"""Of lines in one statement, which makes a copy of them."""
GATHER: Final = timedelta(milliseconds=20), timedelta(milliseconds=100)
"""Between two transactions: each costs some ms of CPU however small it is, and under load many wait for it."""

_Result = TypeVar("_Result")
_Place = tuple[str, int]  # run id, attempt


@dataclass(frozen=True, slots=True, order=True)
class Writer:
    """One try of the step that writes an attempt. Of two tries the greater is the later one.

    A try's number alone is not enough: a step that is scheduled again, or a run that is reset, counts from 1 again.

    Attributes:
        since: when Temporal scheduled the step's first try, by its own clock.
        number: of the try, from 1 on.
        run_id: Temporal's id of the run, for the message.
    """

    since: datetime
    number: int
    run_id: str = field(compare=False)

    def __str__(self) -> str:
        return f"try {self.number} of {self.since.isoformat()} in run {self.run_id}"


NOBODY: Final = Writer(EPOCH, 0, "")
"""May write for as long as nobody has claimed the attempt."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run as a list shows it: totals over its attempts. `sealed` speaks of the newest attempt."""

    run_id: str
    agent_id: str
    company_id: str
    attempts: int
    lines: int
    bytes: int
    started_at: datetime | None
    last_at: datetime | None
    sealed: bool


class TranscriptStore(Protocol):
    """What the rest of the application knows of a transcript store. Every method may raise TranscriptsUnavailable."""

    async def claim(self, key: AttemptKey, writer: Writer) -> None:
        """From now on no earlier writer of this attempt is heard. Claim before reading where to resume.

        Raises:
            TranscriptFenced: a later one has claimed it.
        """
        ...

    async def append(self, key: AttemptKey, batch: Sequence[Line], writer: Writer = NOBODY) -> int:
        """Keep these lines, all or none; those already kept stay as they are. Returns how many were new.

        Raises:
            TranscriptFenced: a later writer has claimed the attempt.
            TranscriptSealed: the attempt is sealed, and these are not repeats of what it has.
            ValueError: a new line lies before one that was kept earlier, where no reader would look for it.
        """
        ...

    async def last(self, key: AttemptKey) -> int | None:
        """The highest sequence kept: where to resume. None before the first line."""
        ...

    async def read(
        self, key: AttemptKey, after: int = 0, limit: int = PAGE_LINES, max_bytes: int = PAGE_BYTES
    ) -> list[Line]:
        """The next page in order of sequence: at most `limit` lines of `max_bytes` together, but at least one."""
        ...

    async def attempts(self, run_id: str) -> list[int]:
        """The attempts that were claimed, wrote or were sealed, ascending."""
        ...

    async def runs(self, limit: int = 100) -> list[RunSummary]:
        """The newest runs first."""
        ...

    async def seal(self, key: AttemptKey, receipt: OutputReceipt, writer: Writer = NOBODY) -> OutputReceipt:
        """Record how the attempt's output ended. The first receipt stands and is returned, whoever asks again.

        Raises:
            TranscriptFenced: a later writer has claimed the attempt.
        """
        ...

    async def receipt(self, key: AttemptKey) -> OutputReceipt | None:
        """The receipt, or None while the attempt is not sealed."""
        ...

    def news(self, key: AttemptKey) -> News:
        """Wakes on changes that this process makes to the attempt; hold it for as long as you listen."""
        ...

    async def close(self) -> None:
        """Give the connections back."""
        ...


@dataclass(frozen=True)
class Expiry:
    """Which transcripts may go: by their last line, or else by when they were opened.

    Attributes:
        sealed: sealed ones from before this.
        all: whatever is older than this, although it may never be sealed.
    """

    sealed: datetime
    all: datetime


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What one step of forgetting deleted. `whole`: nothing is left of that attempt."""

    lines: int
    bytes: int
    whole: bool


@dataclass(frozen=True)
class _Batch:
    """Lines of one attempt on their way into the store."""

    key: AttemptKey
    lines: Sequence[Line]
    writer: Writer

    @property
    def place(self) -> _Place:
        return self.key.run.run_id, self.key.attempt

    def bytes(self) -> int:
        return sum(len(line.data) for line in self.lines)

    def opening(self) -> dict[str, Any]:
        """The attempt's row, if this is the first that is heard of it."""
        return {
            "run_id": self.key.run.run_id,
            "attempt": self.key.attempt,
            "agent_id": self.key.run.agent_id,
            "company_id": self.key.run.company_id,
            "lines": 0,
            "bytes": 0,
            "opened_at": datetime.now(UTC),
            "writer_run_id": self.writer.run_id,
            "writer_since": self.writer.since,
            "writer_number": self.writer.number,
        }


class _Taken(NamedTuple):
    """What was new of a batch, and the attempt's last line until then."""

    lines: list[Line]
    before: int


@dataclass
class _Standing:
    """An attempt as a transaction finds it, and what the transaction adds to it."""

    place: _Place
    writer: Writer
    sealed: bool
    last: int
    added: dict[int, Line] = field(default_factory=dict)

    @classmethod
    def told(
        cls, run_id: str, attempt: int, since: int, number: int, by: str, receipt: str | None, highest: int | None
    ) -> Self:
        """As the database tells it, times in microseconds."""
        writer = Writer(EPOCH + timedelta(microseconds=since), number, by)
        return cls((run_id, attempt), writer, sealed=receipt is not None, last=highest or 0)

    def fence(self, writer: Writer) -> TranscriptFenced | None:
        if writer >= self.writer:
            return None
        who = "nobody" if writer == NOBODY else str(writer)
        return TranscriptFenced(f"run {self.place[0]}, attempt {self.place[1]}: {self.writer} writes it, not {who}")

    def take(self, batch: Sequence[Line], kept: Mapping[int, Line | None]) -> "_Taken | RunError | ValueError":
        """Add what is new, or say why nothing is. `kept`: what is there already up to `last`."""
        fresh: dict[int, Line] = {}
        for line in batch:
            known = self.added.get(line.sequence) or kept.get(line.sequence)
            if line.sequence > self.last:
                fresh.setdefault(line.sequence, line)
            elif self.sealed and not (known and line.repeats(known)):
                return self._sealed(line)
            elif line.sequence not in self.added and line.sequence not in kept:
                return ValueError(
                    f"line {line.sequence} comes after line {self.last} was kept: repair a gap before you write on"
                )
        if fresh and self.sealed:
            return self._sealed(next(iter(fresh.values())))
        self.added |= fresh
        before, self.last = self.last, max(fresh, default=self.last)
        return _Taken(list(fresh.values()), before)

    def _sealed(self, line: Line) -> TranscriptSealed:
        return TranscriptSealed(
            f"run {self.place[0]}, attempt {self.place[1]}: line {line.sequence} came after its receipt"
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        run_id, attempt = self.place
        for line in self.added.values():
            yield {
                "run_id": run_id,
                "attempt": attempt,
                "sequence": line.sequence,
                "stream": line.stream,
                "data": line.data,
                "terminated": line.terminated,
                "at": line.at,
            }

    def counts(self) -> dict[str, Any]:
        """What was added, for the attempt's running counts. The rest is there already, and stays."""
        new = list(self.added.values())
        return {
            "run_id": self.place[0],
            "attempt": self.place[1],
            "agent_id": "",
            "company_id": "",
            "lines": len(new),
            "bytes": sum(len(line.data) for line in new),
            "first_at": new[0].at,
            "last_at": new[-1].at,
        }


_IDENTITY: Final = ("run_id", "attempt", "agent_id", "company_id", "lines", "bytes")
_WRITER: Final = ("writer_run_id", "writer_since", "writer_number")
_LATER: Final = tuple_(attempts.c.writer_since, attempts.c.writer_number)
_HIGHEST: Final = (
    select(func.max(lines.c.sequence))
    .where(lines.c.run_id == attempts.c.run_id, lines.c.attempt == attempts.c.attempt)
    .correlate(attempts)
    .scalar_subquery()
)
"""One step in the primary key's index, and true also beside workers of a version that knew no writers."""
_STANDING: Final = (
    *(attempts.c.run_id, attempts.c.attempt, attempts.c.writer_since, attempts.c.writer_number),
    *(attempts.c.writer_run_id, attempts.c.receipt, _HIGHEST),
)


class _Statements:
    """What a transaction of a writer says, written once: SQLAlchemy takes longer to write one than SQLite to run it."""

    def __init__(self, database: Database) -> None:
        self.add = database.many(database.insert(lines), *lines.c)
        self.note = database.many(_noting(database.insert(attempts)), *_columns("opened_at", *_WRITER))
        self.count = database.many(_counting(database.insert(attempts)), *_columns("first_at", "last_at"))
        places = database.among((attempts.c.run_id, attempts.c.attempt), "places")
        self.standing = select(database.packed(*_STANDING)).where(places)


def _columns(*names: str) -> Iterator[Column[Any]]:
    return (attempts.c[name] for name in (*_IDENTITY, *names))


def _noting(row: Insert) -> Insert:
    """An attempt's row with its writer, unless a later writer is noted there."""
    return row.on_conflict_do_update(
        index_elements=["run_id", "attempt"],
        set_={name: row.excluded[name] for name in _WRITER},
        where=tuple_(row.excluded.writer_since, row.excluded.writer_number) >= _LATER,
    )


def _counting(row: Insert) -> Insert:
    """Running counts of an attempt, so that no list ever scans the lines."""
    new = row.excluded
    return row.on_conflict_do_update(
        index_elements=["run_id", "attempt"],
        set_={
            "lines": attempts.c.lines + new.lines,
            "bytes": attempts.c.bytes + new.bytes,
            "first_at": func.coalesce(attempts.c.first_at, new.first_at),
            "last_at": new.last_at,
        },
    )


class SqlTranscripts:
    """Transcripts in SQLite or PostgreSQL. One writer at a time per process; readers page beside it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = _Statements(database)
        self._writing = asyncio.Lock()
        self._appending = GroupCommit(
            self._append_all,
            turn=self._writing,
            weigh=_Batch.bytes,
            limit=GROUP_BYTES,
            shared=TranscriptsUnavailable,
            pause=GATHER,
        )
        self._news: WeakValueDictionary[_Place, News] = WeakValueDictionary()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect to `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`, made or brought up to date.

        Raises:
            ValueError: the URL is not one of these; SQLite needs a file, because a database in memory has one
                connection and no readers beside the writer.
            TranscriptsUnavailable: the file or server cannot be used, or a newer version has changed it.
        """
        database = Database(url)
        try:
            await bring_up_to_date(database)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    async def close(self) -> None:
        """Give the connections back, once nobody uses them."""
        await self._appending.idle()
        await self._database.close()

    async def claim(self, key: AttemptKey, writer: Writer) -> None:
        """Note the writer, unless a later one is noted: then TranscriptFenced."""
        batch = _Batch(key, (), writer)
        standing = await self._alone(lambda connection: self._enter(connection, [batch]))
        if fenced := standing[batch.place].fence(writer):
            raise fenced

    async def append(self, key: AttemptKey, batch: Sequence[Line], writer: Writer = NOBODY) -> int:
        """Keep these lines in one transaction; those already kept stay as they are. Returns how many were new."""
        if not batch:
            return 0
        taken = await self._appending.submit(_Batch(key, batch, writer))
        if isinstance(taken, Exception):
            raise taken
        if taken.lines and (heard := self._heard(key)) is not None:
            await heard.announce(taken.lines, taken.before)
        return len(taken.lines)

    async def last(self, key: AttemptKey) -> int | None:
        """The highest sequence kept, or None."""
        highest = select(func.max(lines.c.sequence)).where(*_of(key, lines.c))
        for (sequence,) in await self._database.rows(highest):
            return None if sequence is None else int(sequence)
        return None

    async def read(
        self, key: AttemptKey, after: int = 0, limit: int = PAGE_LINES, max_bytes: int = PAGE_BYTES
    ) -> list[Line]:
        """The next page. Sizes are asked first, so that what does not fit is never loaded."""
        beyond = *_of(key, lines.c), lines.c.sequence > after
        ahead = select(lines.c.sequence, func.length(lines.c.data)).where(*beyond).order_by(lines.c.sequence)

        def fetch(connection: Connection) -> Sequence[Row[int, str, bytes, bool, datetime]]:
            sizes = connection.execute(ahead.limit(limit))
            until = page_end(((sequence, size) for sequence, size in sizes), max_bytes)
            if until is None:
                return []
            page = select(*_LINE).where(*beyond, lines.c.sequence <= until).order_by(lines.c.sequence)
            return connection.execute(page).all()

        return [_line(row) for row in await self._database.ask(fetch)]

    async def attempts(self, run_id: str) -> list[int]:
        """The attempts that were claimed, wrote or were sealed, ascending."""
        known = select(attempts.c.attempt).where(attempts.c.run_id == run_id).order_by(attempts.c.attempt)
        return [attempt for (attempt,) in await self._database.rows(known)]

    async def runs(self, limit: int = 100) -> list[RunSummary]:
        """The newest runs first."""
        opened = func.min(attempts.c.opened_at)
        newest = select(attempts.c.run_id, opened).group_by(attempts.c.run_id).order_by(opened.desc())
        order = [run_id for run_id, _ in await self._database.rows(newest.limit(limit))]
        members: dict[str, list[Row[Any]]] = {run_id: [] for run_id in order}
        known = select(attempts).where(attempts.c.run_id.in_(order)).order_by(attempts.c.attempt)
        for row in await self._database.rows(known):
            members[row.run_id].append(row)
        return [_summary(rows) for rows in members.values() if rows]

    async def seal(self, key: AttemptKey, receipt: OutputReceipt, writer: Writer = NOBODY) -> OutputReceipt:
        """Record the receipt unless there is one; returns the one that stands."""
        batch = _Batch(key, (), writer)
        record = update(attempts).where(*_of(key, attempts.c), attempts.c.receipt.is_(None))

        def write(connection: Connection) -> None:
            standing = self._enter(connection, [batch])
            if fenced := standing[batch.place].fence(writer):
                raise fenced
            connection.execute(record.values(receipt=receipt.model_dump_json()))

        await self._alone(write)
        if (heard := self._heard(key)) is not None:
            await heard.announce()
        return await self.receipt(key) or receipt

    async def receipt(self, key: AttemptKey) -> OutputReceipt | None:
        """The receipt, or None while the attempt is not sealed."""
        for (text,) in await self._database.rows(select(attempts.c.receipt).where(*_of(key, attempts.c))):
            return None if text is None else OutputReceipt.model_validate_json(text)
        return None

    def news(self, key: AttemptKey) -> News:
        """Wakes on changes that this process makes to the attempt."""
        return self._news.setdefault((key.run.run_id, key.attempt), News())

    def _heard(self, key: AttemptKey) -> News | None:
        """Where the attempt's readers listen, if there are any."""
        return self._news.get((key.run.run_id, key.attempt))

    async def forget(self, expiry: Expiry) -> Forgotten | None:
        """Delete a page of an expired transcript, and with the last page its attempt. None: nothing is expired.

        A reader in the middle of it finds its end early. SQLite's file keeps its size and uses the room again.
        """
        return await self._alone(lambda connection: _forget_page(connection, expiry))

    async def _alone(self, work: Work[_Result]) -> _Result:
        """A transaction while this process writes nothing else."""

        async def write() -> _Result:
            async with self._writing:
                return await self._database.write(work)

        return await self._database.undisturbed(write())

    async def _append_all(self, batches: Sequence["_Batch"]) -> list[_Taken | RunError | ValueError]:
        """In one transaction; how many lines were new or why none, batch by batch."""
        return await self._database.write(lambda connection: self._append(connection, batches))

    def _append(self, connection: Connection, batches: Sequence["_Batch"]) -> list[_Taken | RunError | ValueError]:
        """Insert what is missing."""
        answers: list[_Taken | RunError | ValueError] = []
        standing = self._enter(connection, batches)
        for batch in batches:
            attempt = standing[batch.place]
            refused = attempt.fence(batch.writer)
            answers.append(refused or attempt.take(batch.lines, _kept(connection, batch, attempt)))
        grown = [attempt for attempt in standing.values() if attempt.added]
        if grown:
            for rows in portions((row for attempt in grown for row in attempt.rows()), STATEMENT_BYTES):
                self._sql.add(connection, rows)
            self._sql.count(connection, [attempt.counts() for attempt in grown])
        return answers

    def _enter(self, connection: Connection, batches: Sequence["_Batch"]) -> dict[_Place, "_Standing"]:
        """Lock the attempts, note the latest writer of each, and say how they stand.

        Always in the same order: two processes that lock the same attempts in different orders wait for each other.
        """
        latest: dict[_Place, _Batch] = {}
        for batch in sorted(batches, key=lambda batch: batch.writer):
            latest[batch.place] = batch
        if not self._database.alone:
            self._note(connection, list(latest.values()))
            return self._standing(connection, latest)
        standing = self._standing(connection, latest)
        news = [
            batch for place, batch in latest.items() if place not in standing or standing[place].writer < batch.writer
        ]
        if news:
            self._note(connection, news)
            standing = self._standing(connection, latest)
        return standing

    def _note(self, connection: Connection, batches: Sequence["_Batch"]) -> None:
        """Write down who writes these attempts, unless a later writer is written down."""
        ordered = sorted(batches, key=lambda batch: batch.place)
        self._sql.note(connection, [batch.opening() for batch in ordered])

    def _standing(self, connection: Connection, places: Iterable[_Place]) -> dict[_Place, "_Standing"]:
        """How the attempts stand that are known."""
        found = connection.execute(self._sql.standing, {"places": self._database.places(sorted(places))})
        known = found.scalar_one() or []
        return {(told[0], told[1]): _Standing.told(*told) for told in known}


def _kept(connection: Connection, batch: "_Batch", attempt: "_Standing") -> dict[int, Line | None]:
    """Which of the batch's lines are there already; with their contents when these must be compared."""
    old = [line.sequence for line in batch.lines if line.sequence <= attempt.last]
    kept: dict[int, Line | None] = {}
    for start in range(0, len(old), PAGE_LINES):
        there = _of(batch.key, lines.c), lines.c.sequence.in_(old[start : start + PAGE_LINES])
        if attempt.sealed:
            found = connection.execute(select(*_LINE).where(*there[0], there[1]))
            kept |= {line.sequence: line for line in map(_line, found)}
        else:
            numbers = connection.execute(select(lines.c.sequence).where(*there[0], there[1]))
            kept |= dict.fromkeys(numbers.scalars())
    return kept


def _forget_page(connection: Connection, expiry: Expiry) -> Forgotten | None:
    age = func.coalesce(attempts.c.last_at, attempts.c.opened_at)
    expired = or_(age < expiry.all, and_(attempts.c.receipt.is_not(None), age < expiry.sealed))
    oldest = (
        select(attempts.c.run_id, attempts.c.attempt).where(expired).order_by(attempts.c.run_id, attempts.c.attempt)
    )
    place = (connection.execute(oldest.limit(1).with_for_update(skip_locked=True))).first()
    if place is None:
        return None
    here = lines.c.run_id == place.run_id, lines.c.attempt == place.attempt
    ahead = select(lines.c.sequence, func.length(lines.c.data)).where(*here).order_by(lines.c.sequence)
    sizes = [(sequence, size) for sequence, size in connection.execute(ahead.limit(PAGE_LINES))]
    until = page_end(sizes, PAGE_BYTES) or 0
    gone = [size for sequence, size in sizes if sequence <= until]
    connection.execute(delete(lines).where(*here, lines.c.sequence <= until))
    whole = len(gone) == len(sizes) < PAGE_LINES
    if whole:
        itself = attempts.c.run_id == place.run_id, attempts.c.attempt == place.attempt
        connection.execute(delete(attempts).where(*itself))
    return Forgotten(len(gone), sum(gone), whole)


def portions(rows: Iterable[dict[str, Any]], max_bytes: int) -> Iterator[list[dict[str, Any]]]:
    """The rows in lists whose lines have at most `max_bytes` together; a longer line is alone."""
    portion: list[dict[str, Any]] = []
    total = 0
    for row in rows:
        total += len(row["data"])
        if portion and total > max_bytes:
            yield portion
            portion, total = [], len(row["data"])
        portion.append(row)
    if portion:
        yield portion


_LINE: Final = (lines.c.sequence, lines.c.stream, lines.c.data, lines.c.terminated, lines.c.at)


def _line(row: Row[Any, Any, Any, Any, Any]) -> Line:
    sequence, stream, data, terminated, at = row
    return Line(sequence, stream, data, terminated, at=at)


def _of(key: AttemptKey, columns: Any) -> tuple[Any, Any]:
    return columns.run_id == key.run.run_id, columns.attempt == key.attempt


def _summary(rows: Sequence[Row[Any]]) -> RunSummary:
    """Attempts of one run, ascending, as one line of a list."""
    starts = [row.first_at for row in rows if row.first_at is not None]
    ends = [row.last_at for row in rows if row.last_at is not None]
    newest = rows[-1]
    return RunSummary(
        run_id=newest.run_id,
        agent_id=newest.agent_id,
        company_id=newest.company_id,
        attempts=len(rows),
        lines=sum(row.lines for row in rows),
        bytes=sum(row.bytes for row in rows),
        started_at=min(starts, default=None),
        last_at=max(ends, default=None),
        sealed=newest.receipt is not None,
    )
