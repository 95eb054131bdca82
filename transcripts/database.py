"""The store's connections: URL and driver of each dialect, transactions, and one name for every outage.

SQLite and PostgreSQL differ here and nowhere else: how a writing transaction starts, and which of their errors mean
that the store is away rather than that we made a mistake.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Final, Protocol, TypeAlias, TypeVar, TypeVarTuple

from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Function,
    Row,
    Select,
    Table,
    bindparam,
    create_engine,
    event,
    func,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from contracts.errors import TranscriptsUnavailable
from transcripts.packing import PackedInsert, among_packed, as_json

BUSY: Final = timedelta(seconds=30)
"""How long SQLite waits for another process's write before it gives up."""
CONNECT: Final = timedelta(seconds=10)
ANSWER: Final = timedelta(seconds=30)
"""How long PostgreSQL may take over one statement: a server behind a dead network never says that it is gone."""
READERS: Final = 4
"""Threads that read a SQLite file."""

_Columns = TypeVarTuple("_Columns")
_Result = TypeVar("_Result")
Insert = sqlite.Insert | postgresql.Insert
Work: TypeAlias = Callable[[Connection], _Result]
Many: TypeAlias = Callable[[Connection, Iterable[Mapping[str, Any]]], object]
_INSERTS: Final[dict[str, Callable[[Table], Insert]]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_PACKED: Final[dict[str, tuple[Any, Any]]] = {
    "sqlite": (func.json_group_array, func.json_array),
    "postgresql": (func.json_agg, func.json_build_array),
}

_SERVER_AWAY: Final = (
    *("08", "53", "57", "58", "XX"),  # connection, resources, an operator's shutdown, disk, damage
    *("40", "55"),  # another transaction won
    *("25006", "28", "3D", "42501", "42P01"),  # a standby; credentials, database, rights or table that are not there
)
"""Beginnings of the SQLSTATEs that somebody can mend from outside.

Source: PostgreSQL documentation, Appendix A, "PostgreSQL Error Codes".
"""


class Database:
    """One SQLite file or PostgreSQL database.

    Work is a function over a SQLAlchemy connection. PostgreSQL runs it on the asynchronous engine. SQLite runs all of
    it in one trip to a thread: its asynchronous driver makes some four trips per statement, and after each waits for
    the event loop, which under load is busy for tens of milliseconds. That was seconds per transaction.
    """

    def __init__(self, url: str) -> None:
        self._url = driven(url)
        self._busy: set[asyncio.Task[Any]] = set()
        self._engine: _Engine = _Threads(self._url) if _is_sqlite(self._url) else _Server(self._url)
        dialect = self._url.get_backend_name()
        self.insert = _INSERTS[dialect]
        self._packed = _PACKED[dialect]

    @property
    def alone(self) -> bool:
        """Whether a writing transaction is the only one, so that it need not lock what it reads."""
        return _is_sqlite(self._url)

    async def close(self) -> None:
        """Give the connections back, once nobody uses them."""
        while self._busy:
            await asyncio.wait(self._busy)
        await self._engine.close()

    async def write(self, work: Work[_Result]) -> _Result:
        """Do it in a transaction that may write: on SQLite it is the only one from its start on.

        Raises:
            TranscriptsUnavailable: the file or server cannot be used.
        """
        return await self.undisturbed(self._named(self._engine.write(work)))

    async def ask(self, question: Work[_Result]) -> _Result:
        """What a question finds. The same error."""
        return await self.undisturbed(self._named(self._engine.ask(question)))

    async def rows(self, query: Select[*_Columns]) -> Sequence[Row[*_Columns]]:
        """What a query finds."""
        return await self.ask(lambda connection: connection.execute(query).all())

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[AsyncConnection]:
        """A writing transaction for changes of the schema, which may take longer than any answer to a run."""
        engine = _engine(self._url, poolclass=NullPool, answer=None).execution_options(writing=True)
        try:
            with _named(self._url):
                async with engine.begin() as connection:
                    yield connection
        finally:
            await engine.dispose()

    def many(self, statement: Insert, *columns: Column[Any]) -> Many:
        """An insert of any number of rows, each of which names these columns of the statement's table."""
        if _is_sqlite(self._url):
            return PackedInsert(statement, columns)
        return lambda connection, rows: connection.execute(statement, list(rows))

    def among(self, columns: Sequence[ColumnElement[Any]], name: str) -> ColumnElement[bool]:
        """Whether these columns have the values of one of the `places` that the parameter of this name gives."""
        if _is_sqlite(self._url):
            return among_packed(columns, name)
        return tuple_(*columns).in_(bindparam(name, expanding=True))

    def places(self, places: Sequence[tuple[Any, ...]]) -> object:
        """The parameter's value for `among`; no place comes twice."""
        return as_json(places) if _is_sqlite(self._url) else places

    def packed(self, *columns: ColumnElement[Any]) -> Function[Any]:
        """All rows of a query as one JSON list of lists, in no order.

        SQLite lets go of the GIL at each row, and a busy event loop does not give it back soon.
        """
        many, one = self._packed
        packed: Function[Any] = many(one(*columns), type_=JSON())
        return packed

    async def _named(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        with _named(self._url):
            return await work

    async def undisturbed(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """A cancel ends the wait and not the work: a connection that is left in the middle keeps its locks."""
        task = asyncio.create_task(work)
        self._busy.add(task)
        task.add_done_callback(self._finished)
        return await asyncio.shield(task)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._busy.discard(task)
        if not task.cancelled():
            task.exception()  # seen: whoever asked may be gone


class _Engine(Protocol):
    """How a dialect runs work."""

    async def write(self, work: Work[_Result]) -> _Result: ...

    async def ask(self, question: Work[_Result]) -> _Result: ...

    async def close(self) -> None: ...


class _Server:
    """PostgreSQL."""

    def __init__(self, url: URL) -> None:
        self._engine = _engine(url)

    async def write(self, work: Work[_Result]) -> _Result:
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def ask(self, question: Work[_Result]) -> _Result:
        async with self._engine.connect() as connection:
            return await connection.run_sync(question)

    async def close(self) -> None:
        await self._engine.dispose()


class _Threads:
    """SQLite: one thread writes, because only one may; a few read beside it."""

    def __init__(self, url: URL) -> None:
        self._engine = _prepared(create_engine(url.set(drivername="sqlite"), **_sqlite_options()))
        self._writing = self._engine.execution_options(writing=True)
        self._writer = ThreadPoolExecutor(1, "transcripts-writer")
        self._readers = ThreadPoolExecutor(READERS, "transcripts-reader")

    async def write(self, work: Work[_Result]) -> _Result:
        def transaction() -> _Result:
            with self._writing.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._writer, transaction)

    async def ask(self, question: Work[_Result]) -> _Result:
        def answer() -> _Result:
            with self._engine.connect() as connection:
                return question(connection)

        return await asyncio.get_running_loop().run_in_executor(self._readers, answer)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, self._engine.dispose)
        self._writer.shutdown()
        self._readers.shutdown()


def driven(url: str) -> URL:
    """The URL with the asynchronous driver we use for its dialect.

    Raises:
        ValueError: it is not a URL of ours; the text names the remedy.
    """
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


def _engine(url: URL, *, answer: timedelta | None = ANSWER, **options: Any) -> AsyncEngine:
    if _is_sqlite(url):
        engine = create_async_engine(url, **_sqlite_options(), **options)
        _prepared(engine.sync_engine)
        return engine
    limits = {"timeout": CONNECT.total_seconds(), "command_timeout": answer and answer.total_seconds()}
    # Asked before use, connections that a restarted server cut are replaced before anybody notices.
    return create_async_engine(url, connect_args=limits, pool_pre_ping=True, hide_parameters=True, **options)


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _sqlite_options() -> dict[str, Any]:
    # A cached statement keeps the parameters of its last use, and every number of rows makes another one: kept, 128 of
    # them held the agent's output of minutes. Parameters must not appear in an error, either.
    connecting = {"timeout": BUSY.total_seconds(), "cached_statements": 0}
    return {"connect_args": connecting, "hide_parameters": True}


def _prepared(engine: Engine) -> Engine:
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Readers beside one writer. A power cut may cost the newest lines, which the next attempt to read brings again."""
    connection.isolation_level = None  # sqlite3 begins no transactions by itself: see below
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """A writer waits for its turn before it reads anything: who reads first and writes later is refused at once.

    Readers need no transaction: each of their statements sees one state.
    """
    if connection.get_execution_options().get("writing"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _named(url: URL) -> Iterator[None]:
    """Give the store's outages their name. What is our own mistake (bad SQL, bad types) stays what it is."""
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
    """Whether the store is away or damaged. A bare DatabaseError is SQLite's word for a damaged file."""
    state: object = getattr(error.orig, "sqlstate", None)
    if isinstance(state, str):
        return state.startswith(_SERVER_AWAY)
    away = isinstance(error, OperationalError | InterfaceError | InternalError) or error.connection_invalidated
    return away or type(error) is DatabaseError


def _unavailable(url: URL, cause: BaseException | None) -> TranscriptsUnavailable:
    told = str(cause) or type(cause).__name__
    shown = url.set(query={}).render_as_string(hide_password=True)  # a password may stand in the query, too
    return TranscriptsUnavailable(f"{shown}: {told}")
