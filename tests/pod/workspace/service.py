"""The real workspace service in a thread of its own, and pods that use it from processes."""

import asyncio
import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from joserfc.jwk import OctKey
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_runs.contracts.identity import AttemptKey, RunKey
from agent_runs.pod.sidecar.workspace.store import Store
from agent_runs.transcript.tokens import Tokens
from agent_runs.web.server import serving
from agent_runs.web.workspaces import Workspaces
from agent_runs.workspace.store import Record, WorkspaceStore

TOKENS = Tokens([OctKey.generate_key(256)])
_RUNS = itertools.count(1)


@dataclass
class Service:
    """Answers at `url`.

    Attributes:
        asked: requests by their paths.
        away: answers 503.
        before: called before a request is answered, with its path.
    """

    store: WorkspaceStore
    folder: Path
    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    away: bool = False
    before: Callable[[str], None] = field(default=lambda _: None)

    def new_run(self) -> "Run":
        return Run(self, RunKey(agent_id="ada", company_id="Acme", run_id=f"run-{next(_RUNS)}"))


@dataclass
class Run:
    """One run and the attempt that works for it."""

    service: Service
    key: RunKey
    attempt: int = 1

    def config(self, roots: dict[str, Path]) -> dict[str, Any]:
        token = TOKENS.mint_workspace(AttemptKey(run=self.key, attempt=self.attempt), timedelta(hours=1))
        named = {place: str(path) for place, path in roots.items()}
        return {"url": self.service.url, "token": token, "roots": named}

    def client(self) -> Store:
        return Store(self.config({}), lambda _, failed_for: failed_for < 10)

    def ledger(self) -> dict[int, Record]:
        return asyncio.run(self.service.store.ledger(self.key))

    def tree(self, number: int = 0) -> dict[str, dict[str, Any]]:
        """The entries of a stored tree by their paths; 0: of the last one."""
        ledger = self.ledger()
        raw = asyncio.run(self.service.store.raw_tree("Acme", ledger[number or max(ledger)].tree))
        return {entry["path"]: entry for entry in json.loads(raw)["entries"]}


class _Between:
    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rpartition("/")[2]
        self._service.asked[path] += 1
        await asyncio.to_thread(self._service.before, path)
        if not self._service.away:
            await self._app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 503, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@contextmanager
def serving_workspaces(folder: Path) -> Iterator[Service]:
    """Serve a store in this folder."""
    service, ready = Service(WorkspaceStore.open(f"file://{folder}"), folder), threading.Event()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        application = Workspaces(service.store, TOKENS).application
        application.add_middleware(_Between, service=service)
        async with serving(application) as service.url:
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait(10)
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
