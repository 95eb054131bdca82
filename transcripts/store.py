"""The transcript store: a port of ours, and its SQL implementation for SQLite (the default) and PostgreSQL.

Lines are only ever added. The primary key (run, attempt, sequence) makes a repeated batch harmless, reading goes by
pages bounded in lines and bytes, and a seal ends an attempt with its receipt.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, Self, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

from sqlalchemy import Row, Select, Table, event, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.schema import CreateTable

from contracts.errors import TranscriptsUnavailable
from contracts.identity import AttemptKey
from contracts.outcome import OutputReceipt
from transcripts.group_commit import GroupCommit
from transcripts.schema import attempts, lines, metadata

PAGE_LINES: Final = 1000
PAGE_BYTES: Final = 4 * 1024 * 1024
GROUP_BYTES: Final = 8 * 1024 * 1024
"""Of several writers' lines in one transaction; it bounds how long the next one waits."""
_Columns = TypeVarTuple("_Columns")
_Result = TypeVar("_Result")
_Insert = Callable[[Table], sqlite.Insert | postgresql.Insert]  # both know "on conflict", in one spelling
_INSERTS: Final[dict[str, _Insert]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}

BUSY: Final = timedelta(seconds=30)
"""How long SQLite waits for another process's write before it gives up."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output as the agent wrote it, without its newline.

    Attributes:
        sequence: from 1 on; orders the lines of an attempt over all streams.
        stream: `stdout`, `stderr` or whatever the source calls it.
        data: raw bytes: any length, any byte but the newline, not necessarily text.
        terminated: False for a last line that ended without a newline.
        at: when it was written, aware.
    """

    sequence: int
    stream: str
    data: bytes
    terminated: bool = True
    at: datetime = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.sequence < 1:
            raise ValueError(f"sequence {self.sequence}: lines count from 1")
        if self.at.tzinfo is None:
            raise ValueError(f"at {self.at}: give it a time zone")


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


class News:
    """Wakes the readers of one attempt in this process. `count` grows with every change they should look at."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Condition()

    async def announce(self) -> None:
        """Wake everyone who waits."""
        async with self._changed:
            self.count += 1
            self._changed.notify_all()

    async def beyond(self, count: int, patience: timedelta) -> None:
        """Return once there was news after `count`, or after `patience`: other processes cannot announce here."""
        try:
            async with asyncio.timeout(patience.total_seconds()), self._changed:
                await self._changed.wait_for(lambda: self.count > count)
        except TimeoutError:
            return


class TranscriptStore(Protocol):
    """What the rest of the application knows of a transcript store. Every method may raise TranscriptsUnavailable."""

    async def append(self, key: AttemptKey, batch: Sequence[Line]) -> int:
        """Keep these lines, all or none; those already kept stay as they are. Returns how many were new."""
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
        """The attempts that wrote or were sealed, ascending."""
        ...

    async def runs(self, limit: int = 100) -> list[RunSummary]:
        """The newest runs first."""
        ...

    async def seal(self, key: AttemptKey, receipt: OutputReceipt) -> OutputReceipt:
        """Record how the attempt's output ended. The first receipt stands and is returned, whoever asks again."""
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
class _Batch:
    """Lines of one attempt on their way into the store."""

    key: AttemptKey
    lines: Sequence[Line]

    def bytes(self) -> int:
        return sum(len(line.data) for line in self.lines)

    def rows(self) -> Iterator[dict[str, Any]]:
        for line in self.lines:
            yield {
                "run_id": self.key.run.run_id,
                "attempt": self.key.attempt,
                "sequence": line.sequence,
                "stream": line.stream,
                "data": line.data,
                "terminated": line.terminated,
                "at": line.at,
            }

    def claim(self, unclaimed: set[tuple[str, int, int]]) -> list[Line]:
        """The lines that were inserted; a line that came twice counts for the first who brought it."""
        mine = []
        for line in self.lines:
            name = (self.key.run.run_id, self.key.attempt, line.sequence)
            if name in unclaimed:
                unclaimed.remove(name)
                mine.append(line)
        return mine

    def counts(self, added: Sequence[Line]) -> dict[str, Any]:
        """What `added` adds to the attempt's counts."""
        return _fresh(self.key) | {
            "lines": len(added),
            "bytes": sum(len(line.data) for line in added),
            "first_at": added[0].at,
            "last_at": added[-1].at,
        }


class SqlTranscripts:
    """Transcripts in SQLite or PostgreSQL. One writer at a time per process; readers page beside it."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._insert = _INSERTS[engine.dialect.name]
        self._writing = asyncio.Lock()
        self._appending = GroupCommit(
            self._append_all, turn=self._writing, weigh=_Batch.bytes, limit=GROUP_BYTES, shared=TranscriptsUnavailable
        )
        self._busy: set[asyncio.Task[Any]] = set()
        self._news: WeakValueDictionary[tuple[str, int], News] = WeakValueDictionary()

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect to `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…` and make missing tables.

        Raises:
            ValueError: the URL is not one of these; SQLite needs a file, because a database in memory has one
                connection and no readers beside the writer.
            TranscriptsUnavailable: the file or server cannot be used.
        """
        store = cls(_engine(_driven(url)))
        try:
            async with store._transaction() as database:
                for table in metadata.sorted_tables:  # "if not exists": two processes may open a fresh store at once
                    await database.execute(CreateTable(table, if_not_exists=True))
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Give the connections back, once nobody uses them."""
        await self._appending.idle()
        while self._busy:
            await asyncio.wait(self._busy)
        await self._engine.dispose()

    async def append(self, key: AttemptKey, batch: Sequence[Line]) -> int:
        """Keep these lines in one transaction; those already kept stay as they are. Returns how many were new."""
        if not batch:
            return 0
        new = await self._appending.submit(_Batch(key, batch))
        if new:
            await self._announce(key)
        return new

    async def last(self, key: AttemptKey) -> int | None:
        """The highest sequence kept, or None."""
        highest = select(func.max(lines.c.sequence)).where(*_of(key, lines.c))
        for (sequence,) in await self._rows(highest):
            return None if sequence is None else int(sequence)
        return None

    async def read(
        self, key: AttemptKey, after: int = 0, limit: int = PAGE_LINES, max_bytes: int = PAGE_BYTES
    ) -> list[Line]:
        """The next page. Sizes are asked first, so that what does not fit is never loaded."""
        ahead = select(lines.c.sequence, func.length(lines.c.data)).where(*_of(key, lines.c))
        sizes = await self._rows(ahead.where(lines.c.sequence > after).order_by(lines.c.sequence).limit(limit))
        until = page_end(((sequence, size) for sequence, size in sizes), max_bytes)
        if until is None:
            return []
        columns = select(lines.c.sequence, lines.c.stream, lines.c.data, lines.c.terminated, lines.c.at)
        page = columns.where(*_of(key, lines.c), lines.c.sequence > after, lines.c.sequence <= until)
        return [
            Line(sequence, stream, data, terminated, at=at)
            for sequence, stream, data, terminated, at in await self._rows(page.order_by(lines.c.sequence))
        ]

    async def attempts(self, run_id: str) -> list[int]:
        """The attempts that wrote or were sealed, ascending."""
        known = select(attempts.c.attempt).where(attempts.c.run_id == run_id).order_by(attempts.c.attempt)
        return [attempt for (attempt,) in await self._rows(known)]

    async def runs(self, limit: int = 100) -> list[RunSummary]:
        """The newest runs first, by their first line; a run that was sealed without one comes last."""
        newest = select(attempts.c.run_id, func.min(attempts.c.first_at).label("started"))
        newest = newest.group_by(attempts.c.run_id).order_by(func.min(attempts.c.first_at).desc().nulls_last())
        order = [run_id for run_id, _ in await self._rows(newest.limit(limit))]
        members: dict[str, list[Row[Any]]] = {run_id: [] for run_id in order}
        for row in await self._rows(select(attempts).where(attempts.c.run_id.in_(order)).order_by(attempts.c.attempt)):
            members[row.run_id].append(row)
        return [_summary(rows) for rows in members.values()]

    async def seal(self, key: AttemptKey, receipt: OutputReceipt) -> OutputReceipt:
        """Record the receipt unless there is one; returns the one that stands."""
        row = self._insert(attempts).values(**_fresh(key), receipt=receipt.model_dump_json())
        first = row.on_conflict_do_update(
            index_elements=["run_id", "attempt"],
            set_={"receipt": row.excluded.receipt},
            where=attempts.c.receipt.is_(None),
        )

        async def write() -> None:
            async with self._writing, self._transaction() as database:
                await database.execute(first)

        await self._undisturbed(write())
        await self._announce(key)
        return await self.receipt(key) or receipt

    async def receipt(self, key: AttemptKey) -> OutputReceipt | None:
        """The receipt, or None while the attempt is not sealed."""
        for (text,) in await self._rows(select(attempts.c.receipt).where(*_of(key, attempts.c))):
            return None if text is None else OutputReceipt.model_validate_json(text)
        return None

    def news(self, key: AttemptKey) -> News:
        """Wakes on changes that this process makes to the attempt."""
        return self._news.setdefault((key.run.run_id, key.attempt), News())

    async def _announce(self, key: AttemptKey) -> None:
        heard = self._news.get((key.run.run_id, key.attempt))
        if heard is not None:
            await heard.announce()

    async def _append_all(self, batches: Sequence["_Batch"]) -> list[int]:
        """Insert what is missing, in one transaction; how many lines were new, batch by batch."""
        missing = self._insert(lines).on_conflict_do_nothing()
        async with self._transaction() as database:
            kept = await database.execute(
                missing.returning(lines.c.run_id, lines.c.attempt, lines.c.sequence),
                [row for batch in batches for row in batch.rows()],
            )
            unclaimed = {(run_id, attempt, sequence) for run_id, attempt, sequence in kept}
            new = [batch.claim(unclaimed) for batch in batches]
            counts = [batch.counts(added) for batch, added in zip(batches, new, strict=True) if added]
            if counts:
                await database.execute(self._add_counts(), counts)
        return [len(added) for added in new]

    def _add_counts(self) -> sqlite.Insert | postgresql.Insert:
        """Running counts of an attempt, so that no list ever scans the lines."""
        row = self._insert(attempts)
        return row.on_conflict_do_update(
            index_elements=["run_id", "attempt"],
            set_={
                "lines": attempts.c.lines + row.excluded.lines,
                "bytes": attempts.c.bytes + row.excluded.bytes,
                "first_at": func.coalesce(attempts.c.first_at, row.excluded.first_at),
                "last_at": row.excluded.last_at,
            },
        )

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        with _named(self._engine):
            async with self._engine.begin() as database:
                yield database

    async def _rows(self, query: Select[*_Columns]) -> Sequence[Row[*_Columns]]:
        async def fetch() -> Sequence[Row[*_Columns]]:
            with _named(self._engine):
                async with self._engine.connect() as database:
                    return (await database.execute(query)).all()

        return await self._undisturbed(fetch())

    async def _undisturbed(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """A cancel ends the wait and not the work: a connection that is left in the middle keeps its locks."""
        task = asyncio.create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._busy.discard(task)
        if not task.cancelled():
            task.exception()  # seen: whoever asked may be gone


def page_end(sizes: Iterable[tuple[int, int]], max_bytes: int) -> int | None:
    """The last sequence of a page of at most `max_bytes`, given (sequence, bytes) in order; None for no lines.

    A first line beyond the limit is a page of its own, else a reader would never get past it.
    """
    end = None
    total = 0
    for sequence, size in sizes:
        total += size
        if end is not None and total > max_bytes:
            break
        end = sequence
    return end


def _driven(url: str) -> URL:
    """The URL with the asynchronous driver we use for its dialect."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError("the transcript store's URL is not a URL: write sqlite:///FILE or postgresql://…") from None
    match parsed.get_backend_name():
        case "sqlite":
            if parsed.database in (None, "", ":memory:"):
                raise ValueError(f"{url}: name a file, like sqlite:///transcripts.db")
            return parsed.set(drivername="sqlite+aiosqlite")
        case "postgresql":
            return parsed.set(drivername="postgresql+asyncpg")
        case other:
            raise ValueError(f"the transcript store cannot be kept in {other}: use sqlite:///FILE or postgresql://…")


def _engine(url: URL) -> AsyncEngine:
    # Parameters are the agent's output: they must not appear in an error.
    if url.get_backend_name() != "sqlite":
        return create_async_engine(url, hide_parameters=True)
    engine = create_async_engine(url, hide_parameters=True, connect_args={"timeout": BUSY.total_seconds()})
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Readers beside one writer. A power cut may cost the newest lines, which the next attempt to read brings again."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


@contextmanager
def _named(engine: AsyncEngine) -> Iterator[None]:
    """Give the store's outages their name. What is our own mistake (bad SQL, bad types) stays what it is."""
    try:
        yield
    except (OperationalError, InterfaceError, InternalError) as error:
        raise _unavailable(engine, error.orig) from error
    except DatabaseError as error:
        if type(error) is not DatabaseError:  # a mistake of ours; the bare class is a damaged file
            raise
        raise _unavailable(engine, error.orig) from error
    except (PoolTimeout, OSError) as error:
        raise _unavailable(engine, error) from error


def _unavailable(engine: AsyncEngine, cause: BaseException | None) -> TranscriptsUnavailable:
    return TranscriptsUnavailable(f"{engine.url.render_as_string(hide_password=True)}: {cause}")


def _of(key: AttemptKey, columns: Any) -> tuple[Any, Any]:
    return columns.run_id == key.run.run_id, columns.attempt == key.attempt


def _fresh(key: AttemptKey) -> dict[str, Any]:
    return {
        "run_id": key.run.run_id,
        "attempt": key.attempt,
        "agent_id": key.run.agent_id,
        "company_id": key.run.company_id,
        "lines": 0,
        "bytes": 0,
    }


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
