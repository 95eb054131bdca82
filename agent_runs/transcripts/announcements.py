"""Announces the changes of this process to the others through PostgreSQL's LISTEN and NOTIFY, and hears theirs.

An announcement is a hint: it names attempts, not lines, and may be lost. It is sent after the commit, on a connection
of its own: within the transaction it would make all commits of the database wait for each other's write to disk.

Source: PostgreSQL's src/backend/commands/async.c, PreCommit_Notify, which takes a lock that is held until the commit.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final

import asyncpg
import structlog
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

log: Final[Any] = structlog.get_logger()

CHANNEL: Final = "agent_runs_transcripts"
RECHECK: Final = timedelta(seconds=5)
"""Readers query the store this often although nothing was announced: a lost announcement delays lines, no more."""
RECONNECT: Final = timedelta(seconds=1)
LISTEN_TIMEOUT: Final = timedelta(seconds=5)
FLUSH_TIMEOUT: Final = timedelta(seconds=1)
NAMES_PER_NOTIFICATION: Final = 500
"""Of 13 characters each: PostgreSQL refuses a payload of 8000 bytes."""


def name_of(run: str, attempt: int) -> str:
    """A short name of the attempt. If two share one, the readers of both are woken, which is harmless."""
    return blake2b(f"{run}\0{attempt}".encode(errors="surrogatepass"), digest_size=6).hexdigest()


class Announcements:
    """One connection that sends and hears announcements. It is opened at the first use and after each loss.

    Args:
        changed: called with the names of the attempts that other processes have changed.
        reconnected: called when announcements may have been lost.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        changed: Callable[[set[str]], Awaitable[None]],
        reconnected: Callable[[], Awaitable[None]],
    ) -> None:
        self._engine = engine
        self._changed = changed
        self._reconnected = reconnected
        self._unsent: set[str] = set()
        self._heard: set[str] = set()
        self._work = asyncio.Event()
        self._sent = asyncio.Condition()
        self._listening = False
        self._task: asyncio.Task[None] | None = None

    @property
    def recheck(self) -> timedelta:
        """How long a reader may trust that a change would have been announced."""
        return RECHECK if self._listening else timedelta()

    def start(self) -> None:
        """Listen from now on."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="transcript announcements")

    def announce(self, run: str, attempt: int) -> None:
        """Announce a change of this process soon, together with others of the moment."""
        self._unsent.add(name_of(run, attempt))
        self._work.set()
        self.start()

    async def close(self) -> None:
        """Send what is not sent yet, unless that takes long, and disconnect."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT.total_seconds()), self._sent:
                while self._unsent:
                    await self._sent.wait()
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._engine.dispose()

    async def _run(self) -> None:
        while True:
            try:
                async with self._connection() as connection:
                    await self._exchange(connection)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, DBAPIError, OSError) as error:
                log.warning("transcripts.announcements_lost", error=type(error).__name__)
            await asyncio.sleep(RECONNECT.total_seconds())

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        async with self._engine.connect() as connection:
            driver: Any = (await connection.get_raw_connection()).driver_connection
            driver.add_termination_listener(self._terminated)
            try:
                async with asyncio.timeout(LISTEN_TIMEOUT.total_seconds()):
                    await driver.add_listener(CHANNEL, self._hear)
                self._listening = True
                yield driver
            finally:
                self._listening = False
                driver.terminate()  # an orderly end would wait for a server that does not answer

    async def _exchange(self, connection: Any) -> None:
        """Send and hear until the connection ends. A query in silent times finds out that the network is dead."""
        await self._reconnected()
        while not connection.is_closed():
            self._work.clear()
            await self._send(connection)
            heard, self._heard = self._heard, set()
            await self._changed(heard)
            try:
                async with asyncio.timeout(RECHECK.total_seconds()):
                    await self._work.wait()
            except TimeoutError:
                await connection.execute("SELECT 1", timeout=RECHECK.total_seconds())

    async def _send(self, connection: Any) -> None:
        while self._unsent:
            # Taken out first: what changes once more while this is being sent must be announced once more.
            names = [self._unsent.pop() for _ in range(min(len(self._unsent), NAMES_PER_NOTIFICATION))]
            try:
                limit = RECHECK.total_seconds()
                await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, " ".join(names), timeout=limit)
            except BaseException:
                self._unsent.update(names)
                raise
        async with self._sent:
            self._sent.notify_all()

    def _hear(self, connection: Any, sender: int, _channel: str, payload: str) -> None:
        if sender != connection.get_server_pid():
            self._heard.update(payload.split())
            self._work.set()

    def _terminated(self, _connection: object) -> None:
        self._listening = False
        self._work.set()
