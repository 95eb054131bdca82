"""The transcript store, in SQLite (the default) or PostgreSQL.

Lines are only ever added, and only at the end: what a reader has seen never changes, and nothing appears behind its
cursor. So a writer backfills a missing range before it writes the lines after it, or records the gap. The primary key
(run, attempt, sequence) makes a repeated batch harmless, reading goes by pages bounded in lines and bytes, and a seal
ends an attempt with its receipt. Of several writers of one attempt only the latest may write.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    and_,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    tuple_,
    update,
)

from agent_runs.contracts.errors import RunError, TranscriptFenced, TranscriptSealed, TranscriptsUnavailable
from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.contracts.outcome import OutputReceipt
from agent_runs.metrics.recorder import NOT_RECORDED, Recorder
from agent_runs.transcript.database import CONNECTIONS, Database, Insert, Work
from agent_runs.transcript.fleet import FleetQueries
from agent_runs.transcript.group_commit import GroupCommit
from agent_runs.transcript.lines import LINE_BYTES, Line, page_end, stored_size
from agent_runs.transcript.migrations import migrate
from agent_runs.transcript.notifier import AttemptNotifier
from agent_runs.transcript.schema import EPOCH, attempts, lines, revocations, to_ticks
from agent_runs.transcript.usage import COLUMNS as USAGE
from agent_runs.transcript.usage import StoredUsage

__all__ = [
    "BATCH_DELAY",
    "GROUP_BYTES",
    "PAGE_BYTES",
    "PAGE_LINES",
    "UNCLAIMED",
    "Expiry",
    "Line",
    "TranscriptStore",
    "Writer",
]

PAGE_LINES: Final = 1000
PAGE_BYTES: Final = 4 * 1024 * 1024
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Limit of the lines of several writers in one transaction; it bounds how long the next transaction waits."""
BATCH_DELAY: Final = timedelta(milliseconds=20), timedelta(milliseconds=100)
"""Shortest and longest pause between two transactions: each costs some ms of CPU however small it is."""

_Result = TypeVar("_Result")
_Id = tuple[str, int]  # `RunKey.name`, attempt
_Conditions = tuple[ColumnElement[bool], ...]


@dataclass(frozen=True, slots=True, order=True)
class Writer:
    """The activity attempt that writes a run attempt's transcript. Of two writers the greater is the later one.

    The number of the activity attempt alone does not order them: an activity that is scheduled a second time, or a
    workflow that is reset, counts from 1 again.

    Attributes:
        since: when Temporal scheduled the first attempt of the activity, by the server's clock.
        number: of the activity attempt, from 1 on.
        run_id: Temporal's id of the run, for messages.
    """

    since: datetime
    number: int
    run_id: str = field(compare=False)

    def __str__(self) -> str:
        return f"activity attempt {self.number} of {self.since.isoformat()} in run {self.run_id}"


UNCLAIMED: Final = Writer(EPOCH, 0, "")
"""The writer of an attempt that nobody has claimed."""


@dataclass(frozen=True)
class Expiry:
    """Which transcripts are expired, by the time of their last line, or else of their opening.

    Attributes:
        sealed: sealed transcripts from before this time.
        all: all transcripts from before this time, sealed or not.
    """

    sealed: datetime
    all: datetime


@dataclass(frozen=True, slots=True)
class Purged:
    """The amounts that were deleted. `attempts`: those of which nothing can be read any more."""

    attempts: int = 0
    lines: int = 0
    bytes: int = 0

    def __add__(self, other: "Purged") -> "Purged":
        return Purged(self.attempts + other.attempts, self.lines + other.lines, self.bytes + other.bytes)


@dataclass(frozen=True)
class _Batch:
    key: AttemptKey
    lines: Sequence[Line]
    writer: Writer
    usage: StoredUsage | None = None
    tally: str | None = None

    @property
    def id(self) -> _Id:
        return self.key.run.name, self.key.attempt

    def bytes(self) -> int:
        return stored_size(self.lines)

    def new_attempt(self, now: datetime) -> dict[str, Any]:
        """The attempt's row, for an attempt that is not in the store yet."""
        return {
            "run": self.key.run.name,
            "attempt": self.key.attempt,
            "agent_id": self.key.run.agent_id,
            "company_id": self.key.run.company_id,
            "lines": 0,
            "bytes": 0,
            "opened_at": now,
            "writer_run_id": self.writer.run_id,
            "writer_since": self.writer.since,
            "writer_number": self.writer.number,
        }


class _Added(NamedTuple):
    """The new lines of a batch, and the attempt's last line before them."""

    lines: list[Line]
    before: int


@dataclass
class _AttemptState:
    """An attempt at the start of a transaction, and the lines and the usage that the transaction adds to it."""

    id: _Id
    writer: Writer
    sealed: bool
    last: int
    added: dict[int, Line] = field(default_factory=dict)
    usage: StoredUsage | None = None
    tally: str | None = None

    @classmethod
    def from_row(
        cls,
        run: str,
        attempt: int,
        since: datetime,
        number: int,
        by: str,
        receipt: str | None,
        highest: int | None,
    ) -> Self:
        """The columns of `_STATE_COLUMNS`, and the highest sequence."""
        writer = Writer(since, number, by)
        return cls((run, attempt), writer, sealed=receipt is not None, last=highest or 0)

    def fence(self, writer: Writer) -> TranscriptFenced | None:
        if writer >= self.writer:
            return None
        other = "a writer without a claim" if writer == UNCLAIMED else str(writer)
        return TranscriptFenced(f"run {self.id[0]}, attempt {self.id[1]}: {self.writer} writes it, not {other}")

    def add(self, batch: Sequence[Line], stored: Mapping[int, Line | None]) -> "_Added | RunError | ValueError":
        """Add the new lines, or return why none may be added. `stored`: the batch's lines that are stored already."""
        new: dict[int, Line] = {}
        for line in batch:
            known = self.added.get(line.sequence) or stored.get(line.sequence)
            if line.sequence > self.last:
                new.setdefault(line.sequence, line)
            elif self.sealed and not (known and line == known):
                return self._sealed(line)
            elif line.sequence not in self.added and line.sequence not in stored:
                return ValueError(
                    f"line {line.sequence} was appended after line {self.last}: backfill a gap before later lines"
                )
        if new and self.sealed:
            return self._sealed(next(iter(new.values())))
        self.added |= new
        before, self.last = self.last, max(new, default=self.last)
        return _Added(list(new.values()), before)

    def _sealed(self, line: Line) -> TranscriptSealed:
        return TranscriptSealed(f"run {self.id[0]}, attempt {self.id[1]}: line {line.sequence} came after its receipt")

    def rows(self) -> Iterator[dict[str, Any]]:
        run, attempt = self.id
        for line in self.added.values():
            yield {
                "run": run,
                "attempt": attempt,
                "sequence": line.sequence,
                "stream": line.stream,
                "data": line.data,
                "terminated": line.terminated,
                "at": to_ticks(line.at),
            }

    def counts(self) -> dict[str, Any]:
        """The parameters of `_ADD_COUNTS`, if lines are added."""
        new = list(self.added.values())
        return {
            "of_run": self.id[0],
            "of_attempt": self.id[1],
            "new_lines": len(new),
            "new_bytes": sum(len(line.data) for line in new),
            "new_first_at": to_ticks(new[0].at),
            "new_last_at": to_ticks(new[-1].at),
            "new_tally": self.tally,
        }

    def new_usage(self, usage: StoredUsage) -> dict[str, Any]:
        """The parameters of `_SET_USAGE`."""
        new = {f"new_{name}": value for name, value in usage.row().items()}
        return {"of_run": self.id[0], "of_attempt": self.id[1], **new}


_WRITER: Final = ("writer_run_id", "writer_since", "writer_number")
_WRITER_ORDER: Final = tuple_(attempts.c.writer_since, attempts.c.writer_number)
_STATE_COLUMNS: Final = (
    *(attempts.c.run, attempts.c.attempt, attempts.c.writer_since, attempts.c.writer_number),
    *(attempts.c.writer_run_id, attempts.c.receipt),
)
_OF_ATTEMPT: Final = attempts.c.run == bindparam("of_run"), attempts.c.attempt == bindparam("of_attempt")
_ADD_COUNTS: Final = (
    update(attempts)
    .where(*_OF_ATTEMPT)
    .values(
        lines=attempts.c.lines + bindparam("new_lines"),
        bytes=attempts.c.bytes + bindparam("new_bytes"),
        first_at=func.coalesce(attempts.c.first_at, bindparam("new_first_at", type_=BigInteger)),
        tally=func.coalesce(bindparam("new_tally"), attempts.c.tally),
        last_at=bindparam("new_last_at", type_=BigInteger),
    )
)
"""Adds to an attempt's running counts, so that no query scans the lines."""
_SET_USAGE: Final = (
    update(attempts)
    .where(*_OF_ATTEMPT)
    .values({name: func.coalesce(bindparam(f"new_{name}"), attempts.c[name]) for name in USAGE})
)


class _Statements:
    """The statements of a writing transaction, built once: SQLAlchemy builds one slower than SQLite runs it."""

    def __init__(self, database: Database) -> None:
        self.add_lines = database.row_statement(insert(lines))
        self.set_writer = _set_writer(database.insert(attempts))
        self.add_counts = database.row_statement(_ADD_COUNTS)
        among = tuple_(attempts.c.run, attempts.c.attempt).in_(bindparam("ids", expanding=True))
        self.attempt_states = select(*_STATE_COLUMNS, _highest()).where(among)


def _highest() -> ColumnElement[int | None]:
    """An attempt's last sequence: one step in the primary key's index."""
    of_attempt = lines.c.run == attempts.c.run, lines.c.attempt == attempts.c.attempt
    return select(func.max(lines.c.sequence)).where(*of_attempt).correlate(attempts).scalar_subquery()


def _set_writer(row: Insert) -> Insert:
    """Insert or update an attempt's writer, unless a later writer is recorded."""
    return row.on_conflict_do_update(
        index_elements=["run", "attempt"],
        set_={name: row.excluded[name] for name in _WRITER},
        where=tuple_(row.excluded.writer_since, row.excluded.writer_number) >= _WRITER_ORDER,
    )


class TranscriptStore:
    """A process writes one transaction at a time; readers do not wait for it.

    Every method may raise TranscriptsUnavailable.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._database = database
        self._clock = clock
        self._sql = _Statements(database)
        self._write_lock = asyncio.Lock()
        self._appends = GroupCommit(
            self._append_all,
            lock=self._write_lock,
            size_of=_Batch.bytes,
            max_size=GROUP_BYTES,
            shared_error=TranscriptsUnavailable,
            pause=BATCH_DELAY,
        )
        self._notifiers: WeakValueDictionary[_Id, AttemptNotifier] = WeakValueDictionary()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        connections: int = CONNECTIONS,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        metrics: Recorder = NOT_RECORDED,
    ) -> Self:
        """Connect to `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`, and migrate the schema.

        Args:
            connections: at the most, to PostgreSQL; at least 4.
            clock: gives the time at which an attempt is opened.
            metrics: where the duration of each transaction is recorded.

        Raises:
            ValueError: the URL is not one of these; SQLite needs a file, because a database in memory has one
                connection and no readers beside the writer.
            TranscriptsUnavailable: the file or server cannot be used, or a newer version has changed its schema.
        """
        database = Database(url, connections, metrics)
        try:
            await migrate(database)
        except BaseException:
            await database.close()
            raise
        return cls(database, clock)

    async def close(self) -> None:
        await self._appends.idle()
        await self._database.close()

    async def open_run(self, run: RunKey, by: str) -> str:
        """Record Temporal's id of the run that makes this run; returns the one that is recorded: the first stays.

        It is that of the last writer once one has claimed the first attempt, and is forgotten with its transcript.
        """
        first = AttemptKey(run=run)
        row = _Batch(first, (), Writer(EPOCH, 0, by)).new_attempt(self._clock())
        add = self._database.insert(attempts).values(row).on_conflict_do_nothing()
        recorded = select(attempts.c.writer_run_id).where(*_of(first, attempts.c))

        def write(connection: Connection) -> str:
            connection.execute(add)
            maker: str = connection.execute(recorded).scalar_one()
            return maker

        return await self._write(write)

    async def claim(self, key: AttemptKey, writer: Writer) -> None:
        """Fence off all earlier writers of this attempt. Claim before reading where to resume.

        Raises:
            TranscriptFenced: a later writer has claimed it.
        """
        batch = _Batch(key, (), writer)
        states = await self._write(lambda connection: self._lock_attempts(connection, [batch]))
        if fenced := states[batch.id].fence(writer):
            raise fenced

    async def append(
        self,
        key: AttemptKey,
        batch: Sequence[Line],
        writer: Writer = UNCLAIMED,
        usage: StoredUsage | None = None,
        tally: str | None = None,
    ) -> int:
        """Store these lines, all or none; lines already stored stay as they are. Returns how many were new.

        `usage` and `tally` replace those of the attempt in the same transaction; usage may come without lines.

        Raises:
            TranscriptFenced: a later writer has claimed the attempt.
            TranscriptSealed: the attempt is sealed, and these lines are not repeats of stored ones.
            ValueError: a new line's sequence is before one that was stored earlier: readers have passed it.
        """
        if not batch and usage is None:
            return 0
        added = await self._appends.submit(_Batch(key, batch, writer, usage, tally))
        if isinstance(added, Exception):
            raise added
        if added.lines and (notifier := self._existing_notifier(key)) is not None:
            await notifier.announce(added.lines, added.before)
        return len(added.lines)

    async def tally(self, key: AttemptKey) -> str | None:
        """What the last writer has counted; None before the first line."""
        rows = await self._database.rows(select(attempts.c.tally).where(*_of(key, attempts.c)))
        text: str | None = rows[0][0] if rows else None
        return text

    async def last(self, key: AttemptKey) -> int | None:
        """The highest sequence stored: where to resume. None before the first line."""
        rows = await self._database.rows(select(func.max(lines.c.sequence)).where(*_of(key, lines.c)))
        highest: int | None = rows[0][0]
        return highest

    async def read(
        self, key: AttemptKey, after: int = 0, limit: int = PAGE_LINES, max_bytes: int = PAGE_BYTES
    ) -> list[Line]:
        """The next page in order of sequence: at most `limit` lines of `max_bytes` together, but at least one."""
        return await self._page(key, lines.c.sequence > after, limit, max_bytes, last=False)

    async def read_before(self, key: AttemptKey, before: int, limit: int, max_bytes: int) -> list[Line]:
        """The page of the last lines before a sequence, in order of sequence, as large as one of `read`."""
        return await self._page(key, lines.c.sequence < before, limit, max_bytes, last=True)

    async def _page(
        self, key: AttemptKey, part: ColumnElement[bool], limit: int, max_bytes: int, *, last: bool
    ) -> list[Line]:
        """The first or last lines of a part of an attempt."""
        sequence = lines.c.sequence

        def fetch(connection: Connection) -> Sequence[Row[int, str, bytes, bool, datetime]]:
            order = sequence.desc() if last else sequence.asc()
            sizes_query = select(sequence, func.length(lines.c.data)).where(*_of(key, lines.c), part).order_by(order)
            sizes = connection.execute(sizes_query.limit(limit))
            end = page_end(((number, size) for number, size in sizes), max_bytes)
            if end is None:
                return []
            in_page = sequence >= end if last else sequence <= end
            page = select(*_LINE).where(*_of(key, lines.c), part, in_page).order_by(sequence)
            return connection.execute(page).all()

        return [_line(row) for row in await self._database.read(fetch)]

    async def attempts(self, run: RunKey) -> list[int]:
        """The attempts that were claimed, wrote or were sealed, ascending."""
        only_opened = and_(
            *(attempts.c.writer_since == EPOCH, attempts.c.writer_number == 0),
            *(attempts.c.lines == 0, attempts.c.receipt.is_(None)),
        )
        known = select(attempts.c.attempt).where(attempts.c.run == run.name, ~only_opened).order_by(attempts.c.attempt)
        return [attempt for (attempt,) in await self._database.rows(known)]

    async def stored_bytes(self, run: RunKey) -> int:
        """The bytes that all attempts of a run take in the store, about: also that of many short lines."""
        taken = func.sum(attempts.c.bytes + attempts.c.lines * LINE_BYTES)
        ((size,),) = await self._database.rows(select(taken).where(attempts.c.run == run.name))
        return int(size or 0)

    async def record_usage(self, key: AttemptKey, usage: StoredUsage) -> None:
        """Replace the usage of an attempt that the store knows, sealed or not."""
        known = update(attempts).where(*_of(key, attempts.c)).values(usage.row())
        await self._write(lambda connection: connection.execute(known))

    @property
    def fleet(self) -> FleetQueries:
        """Queries over the attempts of many runs."""
        return FleetQueries(self._database)

    async def check_writable(self) -> None:
        """Write something, and delete it in the same transaction."""
        row = {
            "run": "",
            "attempt": secrets.randbelow(2**31),
            "agent_id": "",
            "company_id": "",
            "lines": 0,
            "bytes": 0,
        }
        own = (attempts.c.run == row["run"]) & (attempts.c.attempt == row["attempt"])

        def write(connection: Connection) -> None:
            connection.execute(insert(attempts).values(row))
            connection.execute(delete(attempts).where(own))

        await self._database.write(write)

    async def revoke_links(self, run: RunKey, until: datetime) -> None:
        """Revoke the links to a run that were created until this time. An earlier time than before changes nothing."""
        row = self._database.insert(revocations).values(run=run.name, revoked_at=until)
        later = row.on_conflict_do_update(
            index_elements=["run"],
            set_={"revoked_at": row.excluded.revoked_at},
            where=row.excluded.revoked_at > revocations.c.revoked_at,
        )
        await self._write(lambda connection: connection.execute(later))

    async def links_revoked_at(self, run: RunKey) -> datetime | None:
        """The time until which links to the run are revoked; None: none are."""
        known = select(revocations.c.revoked_at).where(revocations.c.run == run.name)
        times: list[datetime] = [until for (until,) in await self._database.rows(known)]
        return times[0] if times else None

    async def forget_revocations(self, before: datetime) -> None:
        """Delete revocations from before this time: all links from before them have expired."""
        expired = delete(revocations).where(revocations.c.revoked_at < before)
        await self._write(lambda connection: connection.execute(expired))

    async def seal(self, key: AttemptKey, receipt: OutputReceipt, writer: Writer = UNCLAIMED) -> OutputReceipt:
        """Record the attempt's receipt. The first one is final; a repeated call returns it.

        Raises:
            TranscriptFenced: a later writer has claimed the attempt.
        """
        batch = _Batch(key, (), writer)
        record = update(attempts).where(*_of(key, attempts.c), attempts.c.receipt.is_(None))

        def write(connection: Connection) -> None:
            states = self._lock_attempts(connection, [batch])
            if fenced := states[batch.id].fence(writer):
                raise fenced
            connection.execute(record.values(receipt=receipt.model_dump_json()))

        await self._write(write)
        if (notifier := self._existing_notifier(key)) is not None:
            await notifier.announce()
        return await self.receipt(key) or receipt

    async def receipt(self, key: AttemptKey) -> OutputReceipt | None:
        """The receipt, or None while the attempt is not sealed."""
        for (text,) in await self._database.rows(select(attempts.c.receipt).where(*_of(key, attempts.c))):
            return None if text is None else OutputReceipt.model_validate_json(text)
        return None

    def notifier(self, key: AttemptKey) -> AttemptNotifier:
        """The notifier of the changes that this process makes to the attempt; keep a reference while waiting."""
        return self._notifiers.setdefault((key.run.name, key.attempt), AttemptNotifier())

    def _existing_notifier(self, key: AttemptKey) -> AttemptNotifier | None:
        return self._notifiers.get((key.run.name, key.attempt))

    async def purge_page(self, expiry: Expiry) -> Purged | None:
        """Delete a page of an expired transcript, and with the last page its attempt. None: nothing is expired.

        A reader in the middle of it reaches its end early. SQLite's file keeps its size and reuses the space.
        """
        return await self._write(lambda connection: _purge_page(connection, expiry))

    async def _write(self, work: Work[_Result]) -> _Result:
        """Run a transaction while this process writes nothing else."""

        async def write() -> _Result:
            async with self._write_lock:
                return await self._database.write(work)

        return await self._database.shielded(write())

    async def _append_all(self, batches: Sequence["_Batch"]) -> list[_Added | RunError | ValueError]:
        """Append in one transaction; returns the added lines, or why there are none, batch by batch."""
        return await self._database.write(lambda connection: self._append(connection, batches))

    def _append(self, connection: Connection, batches: Sequence["_Batch"]) -> list[_Added | RunError | ValueError]:
        results: list[_Added | RunError | ValueError] = []
        states = self._lock_attempts(connection, batches)
        for batch in batches:
            attempt = states[batch.id]
            fenced = attempt.fence(batch.writer)
            stored = _stored(connection, batch, attempt)
            results.append(fenced or attempt.add(batch.lines, stored))
            if isinstance(results[-1], _Added):
                attempt.usage, attempt.tally = batch.usage or attempt.usage, batch.tally or attempt.tally
        if changed := [attempt for attempt in states.values() if attempt.added]:
            self._sql.add_lines.execute(connection, (row for attempt in changed for row in attempt.rows()))
            self._sql.add_counts.execute(connection, (attempt.counts() for attempt in changed))
        if usages := [attempt.new_usage(attempt.usage) for attempt in states.values() if attempt.usage]:
            connection.execute(_SET_USAGE, usages)
        return results

    def _lock_attempts(self, connection: Connection, batches: Sequence["_Batch"]) -> dict[_Id, "_AttemptState"]:
        """Lock the attempts, record the latest writer of each, and return their states."""
        latest: dict[_Id, _Batch] = {}
        for batch in batches:
            if batch.writer >= latest.get(batch.id, batch).writer:
                latest[batch.id] = batch
        if not self._database.single_writer:
            self._set_writers(connection, list(latest.values()))
            return self._states(connection, latest)
        states = self._states(connection, latest)
        later = [batch for id_, batch in latest.items() if id_ not in states or states[id_].writer < batch.writer]
        if later:
            self._set_writers(connection, later)
            states = self._states(connection, latest)
        return states

    def _set_writers(self, connection: Connection, batches: Sequence["_Batch"]) -> None:
        """Record the writers of these attempts, unless later ones are recorded.

        Always in the same order: two processes that lock the same attempts in different orders deadlock.
        """
        ordered = sorted(batches, key=lambda batch: batch.id)
        now = self._clock()
        connection.execute(self._sql.set_writer, [batch.new_attempt(now) for batch in ordered])

    def _states(self, connection: Connection, ids: Iterable[_Id]) -> dict[_Id, "_AttemptState"]:
        rows = connection.execute(self._sql.attempt_states, {"ids": sorted(ids)})
        return {(row[0], row[1]): _AttemptState.from_row(*row) for row in rows}


def _stored(connection: Connection, batch: "_Batch", attempt: "_AttemptState") -> dict[int, Line | None]:
    """Which of the batch's lines are stored already; with their contents when these must be compared."""
    old = [line.sequence for line in batch.lines if line.sequence <= attempt.last]
    if not old:
        return {}
    stored: dict[int, Line | None] = {}
    for start in range(0, len(old), PAGE_LINES):
        condition = *_of(batch.key, lines.c), lines.c.sequence.in_(old[start : start + PAGE_LINES])
        if attempt.sealed:
            rows = connection.execute(select(*_LINE).where(*condition))
            stored |= {line.sequence: line for line in map(_line, rows)}
        else:
            sequences = connection.execute(select(lines.c.sequence).where(*condition))
            stored |= dict.fromkeys(sequences.scalars())
    return stored


def _expired(expiry: Expiry) -> ColumnElement[bool]:
    age = func.coalesce(attempts.c.last_at, attempts.c.opened_at)
    return or_(age < expiry.all, and_(attempts.c.receipt.is_not(None), age < expiry.sealed))


def _purge_page(connection: Connection, expiry: Expiry) -> Purged | None:
    key = attempts.c.run, attempts.c.attempt
    oldest = select(*key).where(_expired(expiry)).order_by(attempts.c.opened_at).limit(1)
    row = connection.execute(oldest.with_for_update(skip_locked=True)).first()
    if row is None:
        return None
    of_attempt: _Conditions = lines.c.run == row.run, lines.c.attempt == row.attempt
    first_lines = select(lines.c.sequence, func.length(lines.c.data)).where(*of_attempt).order_by(lines.c.sequence)
    sizes = [(sequence, size) for sequence, size in connection.execute(first_lines.limit(PAGE_LINES))]
    until = page_end(sizes, PAGE_BYTES) or 0
    deleted = [size for sequence, size in sizes if sequence <= until]
    connection.execute(delete(lines).where(*of_attempt, lines.c.sequence <= until))
    whole = len(deleted) == len(sizes) < PAGE_LINES
    if whole:
        attempt = attempts.c.run == row.run, attempts.c.attempt == row.attempt
        connection.execute(delete(attempts).where(*attempt))
    return Purged(int(whole), len(deleted), sum(deleted))


_LINE: Final = (lines.c.sequence, lines.c.stream, lines.c.data, lines.c.terminated, lines.c.at)


def _line(row: Row[Any, Any, Any, Any, Any]) -> Line:
    sequence, stream, data, terminated, at = row
    return Line(sequence, stream, data, terminated, at=at)


def _of(key: AttemptKey, columns: Any) -> tuple[Any, Any]:
    return columns.run == key.run.name, columns.attempt == key.attempt
