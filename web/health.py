"""The worker's health over HTTP, for probes: whether it does its work, not whether its process runs.

    GET /readyz             200 while Temporal, the cluster and the transcript store answer and Temporal sees us poll
    GET /livez, /healthz    503 only when a restart would help: Temporal answers, and says that our polling has stopped

Both answer with the same JSON: `{"ready", "live", "draining", "checks": [{"name", "state", "detail"}]}`. A worker that
hands over is live and not ready. Answers quote no error: what others say about it may hold addresses and users.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.service import RPCError

from client.polling import Polling
from client.settings import WorkerSettings
from cluster.port import Cluster
from contracts.errors import RunError
from transcripts.service import CannotListen, serving
from transcripts.store import TranscriptStore

FRESH: Final = timedelta(seconds=2)
"""An answer serves all probes of this time."""
PATIENCE: Final = timedelta(seconds=3)
"""For one check; probes should wait for longer."""

log: Final[Any] = structlog.get_logger()


@dataclass(frozen=True)
class Check:
    """One thing the worker needs.

    Attributes:
        restart_helps: it fails because of this process.
    """

    name: str
    state: Literal["ok", "failing", "unknown"]
    detail: str = ""
    restart_helps: bool = False


@dataclass(frozen=True)
class Report:
    """What all checks said."""

    checks: Sequence[Check]
    draining: bool = False

    @property
    def ready(self) -> bool:
        """Everything that was asked is well, and something was asked."""
        return not self.draining and bool(self.checks) and all(check.state == "ok" for check in self.checks)

    @property
    def live(self) -> bool:
        """A restart would change nothing for the better. Who hands over no longer polls, and should not."""
        return self.draining or not any(check.restart_helps for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """As probes get it."""
        checks = [{name: value for name, value in asdict(it).items() if name != "restart_helps"} for it in self.checks]
        return {"ready": self.ready, "live": self.live, "draining": self.draining, "checks": checks}


class Question:
    """Asks for some checks. What has not answered is not asked a second time: nothing piles up behind an outage."""

    def __init__(self, names: Sequence[str], ask: Callable[[], Awaitable[Sequence[Check]]]) -> None:
        self._names = names
        self._ask = ask
        self._asked: asyncio.Task[Sequence[Check]] | None = None

    async def checks(self, patience: timedelta) -> Sequence[Check]:
        """The answer, whatever it is, within `patience`."""
        if self._asked is None:
            self._asked = asyncio.ensure_future(self._ask())
        done, _ = await asyncio.wait([self._asked], timeout=patience.total_seconds())
        if not done:
            return self._all(f"no answer in {patience.total_seconds():g} s")
        asked, self._asked = self._asked, None
        if asked.cancelled():
            return self._all("was cancelled")
        return asked.result() if (error := asked.exception()) is None else self._all(_said(error))

    async def close(self) -> None:
        """Nobody waits for the answer any more."""
        if self._asked is not None:
            self._asked.cancel()
            await asyncio.wait([self._asked])

    def _all(self, detail: str) -> Sequence[Check]:
        return [Check(name, "failing", detail) for name in self._names]


class Health:
    """What probes are told. Until the worker runs there are no questions, and it is live and not ready."""

    def __init__(
        self,
        *,
        fresh: timedelta = FRESH,
        patience: timedelta = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fresh = fresh
        self._patience = patience
        self._clock = clock
        self._turn = asyncio.Lock()
        self._questions: Sequence[Question] = ()
        self._latest: tuple[float, Report] | None = None
        self._draining = False

    def ask(self, *questions: Question) -> None:
        """From now on these decide."""
        self._questions, self._latest = questions, None

    def drain(self) -> None:
        """The worker was told to stop: not ready from now on, whatever the last answer was."""
        self._draining = True

    async def report(self) -> Report:
        """The state, as old as `fresh` at the most."""
        async with self._turn:
            if self._latest is None or self._clock() - self._latest[0] > self._fresh.total_seconds():
                asked = await asyncio.gather(*(question.checks(self._patience) for question in self._questions))
                self._tell(report := Report([check for checks in asked for check in checks]))
                self._latest = self._clock(), report
            return replace(self._latest[1], draining=self._draining)

    async def close(self) -> None:
        """Let go of questions that are still open."""
        for question in self._questions:
            await question.close()

    def _tell(self, report: Report) -> None:
        """Log each change once; probes come every few seconds."""
        before = None if self._latest is None else self._latest[1]
        if not self._draining and before is not None and (before.ready, before.live) != (report.ready, report.live):
            failing = {check.name: check.detail for check in report.checks if check.state != "ok"}
            log.warning("health.changed", ready=report.ready, live=report.live, failing=failing)


def questions(polling: Polling, store: TranscriptStore, cluster: Cluster) -> Sequence[Question]:
    """What decides about a worker."""

    async def temporal() -> Sequence[Check]:
        try:
            polls = await polling.look()
        except RPCError as error:
            away = f"{error.status.name}: runs go on once it answers; restarting this worker would not help"
            return [Check("temporal", "failing", away), Check("polling", "unknown", "Temporal does not say")]
        polled = Check("polling", "ok" if polls.seen else "failing", polls.detail, restart_helps=polls.lost)
        return [Check("temporal", "ok"), polled]

    async def transcripts() -> Sequence[Check]:
        await store.attempts("")
        return [Check("transcripts", "ok")]

    async def api() -> Sequence[Check]:
        return [Check("cluster", "ok", await cluster.version())]

    return (
        Question(["temporal", "polling"], temporal),
        Question(["transcripts"], transcripts),
        Question(["cluster"], api),
    )


def _said(error: BaseException) -> str:
    """An error without any text from outside."""
    if isinstance(error, RunError):
        return f"{error.code}: {error.next_step}"
    log.warning("health.check_broke", error=type(error).__name__)
    return type(error).__name__


def application(health: Health) -> Starlette:
    """The endpoints."""

    def answer(report: Report, well: bool) -> Response:
        return JSONResponse(report.as_json(), 200 if well else 503, {"Cache-Control": "no-store"})

    async def ready(_request: Request) -> Response:
        report = await health.report()
        return answer(report, report.ready)

    async def live(_request: Request) -> Response:
        report = await health.report()
        return answer(report, report.live)

    return Starlette(routes=[Route("/readyz", ready), Route("/livez", live), Route("/healthz", live)])


@asynccontextmanager
async def health_service(settings: WorkerSettings) -> AsyncIterator[Health]:
    """Serve at `health_listen`, if it is set, and give what decides the answers.

    Raises:
        CannotListen: the address is in use, or none of this machine.
    """
    health = Health()
    if settings.health_listen is None:
        yield health
        return
    service = application(health)
    service.state.draining = asyncio.Event()
    host, _, port = settings.health_listen.rpartition(":")
    async with AsyncExitStack() as parts:
        try:
            base = await parts.enter_async_context(serving(service, host.strip("[]"), int(port)))
        except CannotListen:
            raise CannotListen(
                f"AGENT_RUNS_HEALTH_LISTEN: nothing can listen at {settings.health_listen}: it is in use, none of this "
                "machine's addresses, or not allowed to this user. Choose another"
            ) from None
        parts.push_async_callback(health.close)
        log.info("health.served", at=base)
        yield health
