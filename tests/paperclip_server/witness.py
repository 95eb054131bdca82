"""Sees every Job and pod of the embedded cluster in each of its states, and orders accidents there."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from cluster.ownership import AGENT, RUN
from local.embedded import Access

JOBS, PODS = "/apis/batch/v1/jobs", "/api/v1/pods"
LINE: Final = 4 * 1024 * 1024
"""Bytes of one object at most."""

Object = dict[str, Any]


@dataclass
class Witness:
    """Whoever watches from the beginning."""

    access: Access
    session: aiohttp.ClientSession
    trust: ssl.SSLContext
    seen: dict[str, list[Object]] = field(default_factory=lambda: {JOBS: [], PODS: []})
    gone: set[str] = field(default_factory=set)
    """The uids of what was deleted."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @asynccontextmanager
    async def open(cls, access: Access) -> AsyncIterator["Witness"]:
        headers = {"Authorization": f"Bearer {access.token}"}
        nothing = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(headers=headers, timeout=nothing, read_bufsize=LINE) as session:
            witness = cls(access, session, ssl.create_default_context(cadata=access.authority))
            watches = [asyncio.create_task(witness._watch(path)) for path in witness.seen]
            try:
                yield witness
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
                    self.gone.add(event["object"]["metadata"]["uid"])
                self.changed.set()
                self.changed = asyncio.Event()

    def jobs(self, run: str) -> set[str]:
        """The uids of all Jobs there ever were for this run of Paperclip's."""
        return {body["metadata"]["uid"] for body in self.seen[JOBS] if _label(body, RUN) == run}

    def jobs_of(self, agent: str) -> set[str]:
        """And of this agent's."""
        return {body["metadata"]["uid"] for body in self.seen[JOBS] if _label(body, AGENT) == agent}

    def names(self, run: str, path: str = JOBS) -> list[str]:
        """The names of the run's Jobs or pods, oldest first."""
        mine = (body["metadata"]["name"] for body in self.seen[path] if _label(body, RUN) == run)
        return list(dict.fromkeys(mine))

    def running(self, run: str) -> list[str]:
        """The names of the run's pods whose containers were running when they were seen last."""
        last = {body["metadata"]["name"]: body for body in self.seen[PODS] if _label(body, RUN) == run}
        return [
            name
            for name, body in last.items()
            if _phase(body) == "Running" and body["metadata"]["uid"] not in self.gone
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

    async def order(self, do: str, **what: Any) -> None:
        """One accident; see `local.cluster.faults`."""
        async with self.session.post(f"{self.access.server}/faults", json={"do": do, **what}, ssl=self.trust) as answer:
            assert answer.status == 200, await answer.text()

    def described(self) -> bytes:
        """Everything that was ever visible of Jobs and pods."""
        return json.dumps(self.seen).encode()


def _label(body: Object, name: str) -> str | None:
    value = (body["metadata"].get("labels") or {}).get(name)
    return None if value is None else str(value)


def _phase(body: Object) -> object:
    return (body.get("status") or {}).get("phase")
