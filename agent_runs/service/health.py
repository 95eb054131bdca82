"""The worker's health over HTTP, for probes: whether it can do its work, not whether its process runs.

    GET /readyz             200 while Temporal and the cluster answer, lines can be stored and Temporal sees our polls
    GET /livez, /healthz    503 only when a restart would help: Temporal answers, and sees no polls of this worker

Both answer with the same JSON: `{"ready", "live", "draining", "checks": [{"name", "state", "detail"}]}`. A worker that
shuts down is live and not ready. Responses quote no error text of others: it may hold addresses and users.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal

import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.service import RPCError

from agent_runs.contracts.errors import RunError
from agent_runs.kube.client import Cluster
from agent_runs.service.polling import Polling
from agent_runs.service.settings import WorkerSettings
from agent_runs.transcript.store import TranscriptStore
from agent_runs.web.server import CannotListen, serving

REPORT_MAX_AGE: Final = timedelta(seconds=2)
"""A report serves all probes of this time."""
CLUSTER_MAX_AGE: Final = timedelta(seconds=30)
"""The API server's good answer serves all reports of this time, so idle workers hardly load it. A failure is not kept:
readiness returns with the next probe."""
CHECK_TIMEOUT: Final = timedelta(seconds=3)
"""Probes should have a longer time-out."""

log: Final[Any] = structlog.get_logger()


@dataclass(frozen=True)
class CheckResult:
    """The state of one thing that the worker needs.

    Attributes:
        restart_helps: it fails because of this process.
    """

    name: str
    state: Literal["ok", "failing", "unknown"]
    detail: str = ""
    restart_helps: bool = False


@dataclass(frozen=True)
class Report:
    """The results of all checks."""

    checks: Sequence[CheckResult]
    draining: bool = False

    @property
    def ready(self) -> bool:
        """All checks are ok, and there is at least one."""
        return not self.draining and bool(self.checks) and all(check.state == "ok" for check in self.checks)

    @property
    def live(self) -> bool:
        """A restart would not help. A worker that shuts down correctly does not poll any more."""
        return self.draining or not any(check.restart_helps for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The response to probes."""
        checks = [{"name": each.name, "state": each.state, "detail": each.detail} for each in self.checks]
        return {"ready": self.ready, "live": self.live, "draining": self.draining, "checks": checks}


class HealthCheck:
    """Runs a check with one or more results. While a run is pending no second one starts: none pile up in an outage.

    With a `max_age`, results that are all ok are returned again until they are older than that.
    """

    def __init__(
        self,
        names: Sequence[str],
        check: Callable[[], Awaitable[Sequence[CheckResult]]],
        *,
        max_age: timedelta = timedelta(0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._check = check
        self._max_age = max_age
        self._clock = clock
        self._pending: asyncio.Task[Sequence[CheckResult]] | None = None
        self._good: tuple[float, Sequence[CheckResult]] | None = None

    async def run(self, limit: timedelta) -> Sequence[CheckResult]:
        """The results, within `limit`."""
        if self._good is not None and self._clock() - self._good[0] < self._max_age.total_seconds():
            return self._good[1]
        results = await self._run(limit)
        self._good = (self._clock(), results) if all(result.state == "ok" for result in results) else None
        return results

    async def _run(self, limit: timedelta) -> Sequence[CheckResult]:
        if self._pending is None:
            self._pending = asyncio.ensure_future(self._check())
        done, _ = await asyncio.wait([self._pending], timeout=limit.total_seconds())
        if not done:
            return self._all(f"no answer in {limit.total_seconds():g} s")
        task, self._pending = self._pending, None
        if task.cancelled():
            return self._all("was cancelled")
        return task.result() if (error := task.exception()) is None else self._all(_describe(error))

    async def close(self) -> None:
        """Cancel a pending run."""
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.wait([self._pending])

    def _all(self, detail: str) -> Sequence[CheckResult]:
        return [CheckResult(name, "failing", detail) for name in self._names]


class Health:
    """The worker's health. Until the worker runs there are no checks, and it is live and not ready."""

    def __init__(
        self,
        *,
        max_age: timedelta = REPORT_MAX_AGE,
        check_timeout: timedelta = CHECK_TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_age = max_age
        self._check_timeout = check_timeout
        self._clock = clock
        self._lock = asyncio.Lock()
        self._checks: Sequence[HealthCheck] = ()
        self._latest: tuple[float, Report] | None = None
        self._draining = False

    def set_checks(self, *checks: HealthCheck) -> None:
        """Replace the checks."""
        self._checks, self._latest = checks, None

    def drain(self) -> None:
        """The worker shuts down: it is not ready from now on, whatever the last report was."""
        self._draining = True

    async def report(self) -> Report:
        """The report, at most `max_age` old."""
        async with self._lock:
            if self._latest is None or self._clock() - self._latest[0] > self._max_age.total_seconds():
                results = await asyncio.gather(*(check.run(self._check_timeout) for check in self._checks))
                self._log_change(report := Report([result for of_check in results for result in of_check]))
                self._latest = self._clock(), report
            return replace(self._latest[1], draining=self._draining)

    async def close(self) -> None:
        """Cancel pending checks."""
        for check in self._checks:
            await check.close()

    def _log_change(self, report: Report) -> None:
        """Log each change once: probes come every few seconds."""
        before = None if self._latest is None else self._latest[1]
        if not self._draining and before is not None and (before.ready, before.live) != (report.ready, report.live):
            failing = {check.name: check.detail for check in report.checks if check.state != "ok"}
            log.warning("health.changed", ready=report.ready, live=report.live, failing=failing)


def awaited(server: str) -> HealthCheck:
    """The check of a worker that cannot start before this server answers."""

    async def check() -> Sequence[CheckResult]:
        return [CheckResult(server, "failing", "it does not answer, and the worker starts once it does; see its log")]

    return HealthCheck([server], check)


def health_checks(
    polling: Polling, store: TranscriptStore, cluster: Cluster, clock: Callable[[], float] = time.monotonic
) -> Sequence[HealthCheck]:
    """The checks of a worker."""

    async def temporal() -> Sequence[CheckResult]:
        try:
            state = await polling.observe()
        except RPCError as error:
            detail = f"{error.status.name}: runs continue once it answers; restarting this worker would not help"
            return [
                CheckResult("temporal", "failing", detail),
                CheckResult("polling", "unknown", "Temporal does not answer"),
            ]
        polls = CheckResult("polling", "ok" if state.polls else "failing", state.detail, restart_helps=state.lost)
        return [CheckResult("temporal", "ok"), polls]

    async def transcripts() -> Sequence[CheckResult]:
        await store.check_writable()
        return [CheckResult("transcripts", "ok")]

    async def api() -> Sequence[CheckResult]:
        return [CheckResult("cluster", "ok", await cluster.version())]

    return (
        HealthCheck(["temporal", "polling"], temporal),
        HealthCheck(["transcripts"], transcripts),
        HealthCheck(["cluster"], api, max_age=CLUSTER_MAX_AGE, clock=clock),
    )


def _describe(error: BaseException) -> str:
    """An error without any text of others."""
    if isinstance(error, RunError):
        return f"{error.code}: {error.next_step}"
    log.warning("health.check_failed", error=type(error).__name__)
    return type(error).__name__


def application(health: Health) -> Starlette:
    """The ASGI application with the endpoints."""

    def response(report: Report, ok: bool) -> Response:
        return JSONResponse(report.as_json(), 200 if ok else 503, {"Cache-Control": "no-store"})

    async def ready(_request: Request) -> Response:
        report = await health.report()
        return response(report, report.ready)

    async def live(_request: Request) -> Response:
        report = await health.report()
        return response(report, report.live)

    return Starlette(routes=[Route("/readyz", ready), Route("/livez", live), Route("/healthz", live)])


@asynccontextmanager
async def health_service(settings: WorkerSettings) -> AsyncIterator[Health]:
    """Serve at `health_listen`, if it is set, and yield the Health that the endpoints report.

    Raises:
        CannotListen: the address is in use, or not one of this machine.
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
                f"AGENT_RUNS_HEALTH_LISTEN: the worker cannot listen at {settings.health_listen}: the address is in "
                "use, not one of this machine, or not allowed to this user. Set another one"
            ) from None
        parts.push_async_callback(health.close)
        log.info("health.served", at=base)
        yield health
