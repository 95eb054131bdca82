"""The store's connections: URL and driver of each dialect, transactions, and one error for every outage.

SQLite and PostgreSQL differ here and nowhere else: how a writing transaction starts, and which of their errors mean
that the store is unavailable rather than that the query is wrong.
"""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, TypeVarTuple

from sqlalchemy import (
    Connection,
    Row,
    Select,
    Table,
    UpdateBase,
    create_engine,
    event,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from agent_runs.contracts.errors import TranscriptsUnavailable
from agent_runs.metrics.definitions import STORE_DURATION, STORE_ERRORS
from agent_runs.metrics.recorder import NOT_RECORDED, Recorder

SQLITE_BUSY_TIMEOUT: Final = timedelta(seconds=30)
"""SQLite waits this long for another process's write."""
CONNECT_TIMEOUT: Final = timedelta(seconds=10)
STATEMENT_TIMEOUT: Final = timedelta(seconds=30)
"""Limit of one statement of PostgreSQL: a server behind a dead network never closes the connection."""
CACHED_STATEMENTS: Final = 8
"""Of each connection to SQLite: those of the transaction that stores lines."""
READER_THREADS: Final = 4
"""For one SQLite file."""
CONNECTIONS: Final = 10
"""A process's connections to PostgreSQL at the most, by default."""
MIN_CONNECTIONS: Final = 4
_OWN_PURPOSE: Final = 1
"""Of them outside of the pool: for changes of the schema."""

_Columns = TypeVarTuple("_Columns")
_Result = TypeVar("_Result")
Insert = sqlite.Insert | postgresql.Insert
Work: TypeAlias = Callable[[Connection], _Result]
_INSERTS: Final[dict[str, Callable[[Table], Insert]]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}

_OUTAGE_STATES: Final = (
    *("08", "53", "57", "58", "XX"),  # connection, resources, an operator's shutdown, disk, damage
    *("40", "55"),  # another transaction won
    *("25006", "28", "3D", "42501", "42P01"),  # a standby; missing credentials, database, privileges or table
)
"""Prefixes of the SQLSTATEs that an administrator can fix.

Source: PostgreSQL documentation, Appendix A, "PostgreSQL Error Codes".
"""


class Database:
    """One SQLite file or PostgreSQL database.

    Work is a function over a SQLAlchemy connection. PostgreSQL runs it on the asynchronous engine. SQLite runs all of
    it in one call to a thread: its asynchronous driver makes some four calls per statement, and after each waits for
    the event loop, which under load is busy for tens of milliseconds. That was seconds per transaction.
    """

    def __init__(self, url: str, connections: int = CONNECTIONS, metrics: Recorder = NOT_RECORDED) -> None:
        self._url = parse_url(url)
        self._running: set[asyncio.Task[Any]] = set()
        self._engine: _SqliteEngine | _PostgresEngine = (
            _SqliteEngine(self._url) if _is_sqlite(self._url) else _PostgresEngine(self._url, connections)
        )
        self.insert = _INSERTS[self._url.get_backend_name()]
        self._metrics = metrics

    def row_statement(self, statement: UpdateBase) -> "RowStatement":
        return RowStatement(statement, self._url)

    @property
    def single_writer(self) -> bool:
        """Whether a writing transaction is always the only one, so that it need not lock the rows it reads."""
        return _is_sqlite(self._url)

    async def close(self) -> None:
        """Close the connections once no work uses them."""
        while self._running:
            await asyncio.wait(self._running)
        await self._engine.close()

    async def write(self, work: Work[_Result]) -> _Result:
        """Run `work` in a transaction that may write: on SQLite it is the only one from its start on.

        Raises:
            TranscriptsUnavailable: the file or server cannot be used.
        """
        return await self.shielded(self._measured("write", self._engine.write(work)))

    async def read(self, query: Work[_Result]) -> _Result:
        """Run a query that only reads. Raises as `write`."""
        return await self.shielded(self._measured("read", self._engine.read(query)))

    async def rows(self, query: Select[*_Columns]) -> Sequence[Row[*_Columns]]:
        """Fetch all rows of a SELECT. Raises as `write`."""
        return await self.read(lambda connection: connection.execute(query).all())

    async def change_schema(self, work: Work[None]) -> None:
        """Run `work` in a writing transaction without a limit on the duration of a statement. Raises as `write`."""
        with _naming_outages(self._url):
            await self.shielded(self._engine.change_schema(work))

    async def _measured(self, operation: Literal["read", "write"], work: Coroutine[Any, Any, _Result]) -> _Result:
        began = time.monotonic()
        try:
            with _naming_outages(self._url):
                return await work
        except TranscriptsUnavailable:
            self._metrics.count(STORE_ERRORS, operation=operation)
            raise
        finally:
            self._metrics.observe(STORE_DURATION, time.monotonic() - began, operation=operation)

    async def shielded(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Await work such that a cancel ends the wait, not the work: an abandoned transaction keeps its locks."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller may have been cancelled


class RowStatement:
    """A statement that is run once for each of many rows, whose values are the driver's own: SQLAlchemy would take
    longer to look at each value than SQLite takes to store the row."""

    def __init__(self, statement: UpdateBase, url: URL) -> None:
        compiled = statement.compile(dialect=url.get_dialect()())
        self._text = compiled.string
        self._values = itemgetter(*compiled.positiontup or ())

    def execute(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        connection.exec_driver_sql(self._text, [self._values(row) for row in rows])


class _PostgresEngine:
    def __init__(self, url: URL, connections: int) -> None:
        pool = max(connections, MIN_CONNECTIONS) - _OWN_PURPOSE
        self._url = url
        self._engine = _postgres_engine(url, STATEMENT_TIMEOUT, pool_size=pool, max_overflow=0)

    async def write(self, work: Work[_Result]) -> _Result:
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def read(self, query: Work[_Result]) -> _Result:
        async with self._engine.connect() as connection:
            return await connection.run_sync(query)

    async def change_schema(self, work: Work[None]) -> None:
        engine = _postgres_engine(self._url, None, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                await connection.run_sync(work)
        finally:
            await engine.dispose()

    async def close(self) -> None:
        await self._engine.dispose()


class _SqliteEngine:
    """SQLite: one thread writes, because only one may; a few others read."""

    def __init__(self, url: URL) -> None:
        _keep_private(Path(str(url.database)))
        # A cached statement keeps the parameters of its last use, up to a megabyte of output; there are 128 by default.
        connect_args = {"timeout": SQLITE_BUSY_TIMEOUT.total_seconds(), "cached_statements": CACHED_STATEMENTS}
        self._engine = create_engine(url, connect_args=connect_args, hide_parameters=True)
        event.listen(self._engine, "connect", _prepare_sqlite)
        event.listen(self._engine, "begin", _begin_sqlite)
        self._connection: Connection | None = None  # the writer's: taking one from the pool costs as much as its work
        self._writer = ThreadPoolExecutor(1, "transcripts-writer")
        self._readers = ThreadPoolExecutor(READER_THREADS, "transcripts-reader")

    async def write(self, work: Work[_Result]) -> _Result:
        def transaction() -> _Result:
            connection = self._writing_connection()
            try:
                with connection.begin():
                    return work(connection)
            except DBAPIError:
                self._close_connection()  # the next transaction opens the file anew: this one may have been replaced
                raise

        return await asyncio.get_running_loop().run_in_executor(self._writer, transaction)

    async def change_schema(self, work: Work[None]) -> None:
        await self.write(work)

    def _writing_connection(self) -> Connection:
        if self._connection is None:
            self._connection = self._engine.connect().execution_options(writing=True)
        return self._connection

    def _close_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def read(self, query: Work[_Result]) -> _Result:
        def run() -> _Result:
            with self._engine.connect() as connection:
                return query(connection)

        return await asyncio.get_running_loop().run_in_executor(self._readers, run)

    async def close(self) -> None:
        def dispose() -> None:
            self._close_connection()
            self._engine.dispose()

        await asyncio.get_running_loop().run_in_executor(self._writer, dispose)
        self._writer.shutdown()
        self._readers.shutdown()


def parse_url(url: str) -> URL:
    """Parse a store's URL, and set the driver of its dialect.

    Raises:
        ValueError: not a URL of a supported database. The text names the remedy and never quotes the URL: it may hold
            a password.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError("the transcript store's URL is not a URL: write sqlite:///FILE or postgresql://…") from None
    match parsed.get_backend_name():
        case "sqlite":
            if parsed.database in (None, "", ":memory:"):
                raise ValueError("the transcript store's URL names no file: write sqlite:///FILE")
            return parsed.set(drivername="sqlite")
        case "postgresql":
            return parsed.set(drivername="postgresql+asyncpg")
        case other:
            raise ValueError(f"{other} is not supported: write sqlite:///FILE or postgresql://…")


def _postgres_engine(url: URL, statement_timeout: timedelta | None, **options: Any) -> AsyncEngine:
    limits = {
        "timeout": CONNECT_TIMEOUT.total_seconds(),
        "command_timeout": statement_timeout and statement_timeout.total_seconds(),
    }
    # The ping replaces connections that a restarted server has cut, before a statement fails on them.
    return create_async_engine(url, connect_args=limits, pool_pre_ping=True, hide_parameters=True, **options)


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _keep_private(file: Path) -> None:
    """Create a missing database with mode 0600; SQLite gives the files beside it the same one."""
    with suppress(OSError):  # reported by SQLite, with the file's name
        os.close(os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Allow readers beside one writer. A power cut may lose the newest lines: the next `stream_logs` stores them."""
    connection.isolation_level = None  # sqlite3 begins no transactions by itself: see below
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """A writer locks before it reads anything: SQLite refuses a transaction that reads first and writes later.

    Readers need no transaction: each of their statements sees one state.
    """
    if connection.get_execution_options().get("writing"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _naming_outages(url: URL) -> Iterator[None]:
    """Turn outages into TranscriptsUnavailable; errors of this program (bad SQL, bad types) stay as they are."""
    try:
        yield
    except DBAPIError as error:
        if not _outage(error):
            raise
        # Without its cause, which quotes a statement of thousands of rows: Temporal refuses failures of that size.
        raise _unavailable(url, error.orig) from None
    except (PoolTimeout, OSError) as error:  # a TimeoutError is an OSError, too
        raise _unavailable(url, error) from error


def _outage(error: DBAPIError) -> bool:
    """Whether the store is unavailable or damaged. For a damaged file SQLite raises a bare DatabaseError."""
    state: object = getattr(error.orig, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_OUTAGE_STATES)
    unavailable = isinstance(error, OperationalError | InterfaceError | InternalError) or error.connection_invalidated
    return unavailable or type(error) is DatabaseError


def _unavailable(url: URL, cause: BaseException | None) -> TranscriptsUnavailable:
    detail = str(cause) or type(cause).__name__
    public_url = url.set(query={}).render_as_string(hide_password=True)  # the query may hold a password, too
    return TranscriptsUnavailable(f"{public_url}: {detail}")
