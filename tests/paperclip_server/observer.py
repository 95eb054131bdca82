"""Records every state of every Job and pod of the embedded cluster, and injects faults there."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from agent_runs.kube.ownership import AGENT, RUN
from dev_stack.cluster_access import Access

JOBS, PODS = "/apis/batch/v1/jobs", "/api/v1/pods"
MAX_OBJECT: Final = 4 * 1024 * 1024
"""Bytes of one object at most."""

Object = dict[str, Any]


@dataclass
class Observer:
    """Watches the cluster from its start."""

    access: Access
    session: aiohttp.ClientSession
    trust: ssl.SSLContext
    seen: dict[str, list[Object]] = field(default_factory=lambda: {JOBS: [], PODS: []})
    deleted: set[str] = field(default_factory=set)
    """The uids of deleted objects."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @asynccontextmanager
    async def open(cls, access: Access) -> AsyncIterator["Observer"]:
        headers = {"Authorization": f"Bearer {access.token}"}
        no_timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(headers=headers, timeout=no_timeout, read_bufsize=MAX_OBJECT) as session:
            observer = cls(access, session, ssl.create_default_context(cadata=access.authority))
            watches = [asyncio.create_task(observer._watch(path)) for path in observer.seen]
            try:
                yield observer
            finally:
                for watch in watches:
                    watch.cancel()
                await asyncio.gather(*watches, return_exceptions=True)

    async def _watch(self, path: str) -> None:
        url = f"{self.access.server}{path}?watch=1"
        async with self.session.get(url, ssl=self.trust) as answer:
            async for line in answer.content:
                event = json.loads(line)
                self.seen[path].append(event["object"])
                if event["type"] == "DELETED":
                    self.deleted.add(event["object"]["metadata"]["uid"])
                self.changed.set()
                self.changed = asyncio.Event()

    def jobs(self, run: str) -> set[str]:
        """The uids of all Jobs that ever existed for this run of Paperclip's."""
        return {body["metadata"]["uid"] for body in self.seen[JOBS] if _label(body, RUN) == run}

    def jobs_of(self, agent: str) -> set[str]:
        """The uids of all Jobs that ever existed for this agent."""
        return {body["metadata"]["uid"] for body in self.seen[JOBS] if _label(body, AGENT) == agent}

    def names(self, run: str, path: str = JOBS) -> list[str]:
        """The names of the run's Jobs or pods, oldest first."""
        mine = (body["metadata"]["name"] for body in self.seen[path] if _label(body, RUN) == run)
        return list(dict.fromkeys(mine))

    def running(self, run: str) -> list[str]:
        """The names of the run's pods whose last known phase is Running."""
        last = {body["metadata"]["name"]: body for body in self.seen[PODS] if _label(body, RUN) == run}
        return [
            name
            for name, body in last.items()
            if _phase(body) == "Running" and body["metadata"]["uid"] not in self.deleted
        ]

    async def pod(self, run: str, phase: str = "Running") -> str:
        """The name of a pod of the run, once it is in this phase."""
        async with asyncio.timeout(60):
            while True:
                changed = self.changed
                for body in self.seen[PODS]:
                    if _label(body, RUN) == run and _phase(body) == phase:
                        return str(body["metadata"]["name"])
                await changed.wait()

    async def inject_fault(self, kind: str, **arguments: Any) -> None:
        """Injects one fault; see `dev_stack.cluster.faults`."""
        async with self.session.post(
            f"{self.access.server}/faults", json={"do": kind, **arguments}, ssl=self.trust
        ) as answer:
            assert answer.status == 200, await answer.text()

    def snapshot(self) -> bytes:
        """All recorded states of Jobs and pods as JSON."""
        return json.dumps(self.seen).encode()


def _label(body: Object, name: str) -> str | None:
    value = (body["metadata"].get("labels") or {}).get(name)
    return None if value is None else str(value)


def _phase(body: Object) -> object:
    return (body.get("status") or {}).get("phase")
