"""The agents of `bench.follow`: an API server with N running pods whose logs grow, in a process of its own.

It serves TLS and the log endpoint as a kubelet does (time stamps, one chunk per line, an end when the container ends)
and the runner's frames, and it answers reads of the pods. It forks no process per agent: 500 of them on 2 cores would
be the load that is measured. Under `/bench` it serves the requests of the measurement.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from agent_runs.logs.frames import Frame
from agent_runs.pod.sidecar.encoding import Checksum
from bench.parser import line_of, step_of
from dev_stack.cluster.tls import server_context
from tests.logs.frame_encoding import encode_frame, split_frames

RATE: Final = 5
"""Lines a second of each agent."""
NAMESPACE: Final = "bench"
READERS: Final = 2
"""Of each log: the worker and the baseline."""
_CLOCK: Final = b"1795294546888"


def events() -> Iterator[tuple[bytes, bytes]]:
    """OpenCode's events for ever, of 1.1 kB on average, in two halves: the time of writing belongs between them."""
    for number in count():
        for event in step_of(number, last=False):
            before, _, after = line_of({**event, "timestamp": int(_CLOCK)}).rstrip(b"\n").partition(_CLOCK)
            yield before, after


class Events:
    """The same events for all agents, generated once."""

    def __init__(self) -> None:
        self._source = events()
        self._generated: list[tuple[bytes, bytes]] = []

    def written(self, number: int) -> bytes:
        """Event `number`, stamped with the millisecond in which it is written, as OpenCode does."""
        while number >= len(self._generated):
            self._generated.append(next(self._source))
        before, after = self._generated[number]
        return b"%s%d%s" % (before, time.time_ns() // 1_000_000, after)


@dataclass(eq=False)
class Agent:
    name: str
    frames: int = 0
    lines: int = 0
    size: int = 0
    checksum: Checksum = field(default_factory=Checksum)
    log: list[bytes] = field(default_factory=list)
    readers: list[web.StreamResponse] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, frame: Frame) -> None:
        """A frame of the sidecar as the log API passes it on, to everyone who follows."""
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z ").encode()
        piece = stamp + encode_frame(frame)
        self.frames = frame.seq
        self.log.append(piece)
        for reader in self.readers:
            await reader.write(piece)

    async def print(self, line: bytes) -> None:
        """A line of OpenCode on stdout."""
        self.lines += 1
        self.size += len(line) + 1
        self.checksum.update(line + b"\n")
        for frame in split_frames("stdout", line + b"\n", self.frames + 1):
            await self.write(frame)

    async def end(self) -> None:
        """The sidecar's last frame; then the container has ended."""
        nothing = {"lines": 0, "bytes": 0, "checksum": str(Checksum())}
        written = {"lines": self.lines, "bytes": self.size, "checksum": str(self.checksum)}
        last = json.dumps({"exit_code": 0, "stdout": written, "stderr": nothing}).encode()
        await self.write(Frame(self.frames + 1, "last", ".", last))
        self.ended.set()


class Agents:
    """All pods, and the requests about them by kind."""

    def __init__(self, count: int) -> None:
        self.agents = {f"agent-{number}": Agent(f"agent-{number}") for number in range(count)}
        self.requests: Counter[str] = Counter()
        self._events = Events()
        self._followed = asyncio.Event()
        self._ended = asyncio.Event()

    def application(self) -> web.Application:
        application = web.Application()
        pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}"
        application.router.add_get(f"/api/v1/namespaces/{NAMESPACE}/pods", self.pods)
        application.router.add_get(pod, self.pod)
        application.router.add_get(f"{pod}/log", self.follow)
        application.router.add_get("/bench", self.state)
        application.router.add_get("/bench/followed", self.followed)
        application.router.add_post("/bench/write", self.write_lines)
        application.router.add_post("/bench/end", self.end)
        return application

    async def hello(self) -> None:
        for agent in self.agents.values():
            await agent.write(Frame(1, "hello", ".", b'{"format":1}'))

    async def pod(self, request: web.Request) -> web.Response:
        self._count(request)
        return web.json_response(_pod(self.agents[request.match_info["name"]]))

    async def pods(self, request: web.Request) -> web.StreamResponse:
        """The list, or a watch that shows the end of all."""
        if request.query.get("watch") != "true":
            items = [_pod(agent) for agent in self.agents.values()]
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        await self._ended.wait()
        for agent in self.agents.values():
            event = {"type": "MODIFIED", "object": _pod(agent)}
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    async def follow(self, request: web.Request) -> web.StreamResponse:
        agent = self.agents[request.match_info["name"]]
        self._count(request)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"".join(agent.log))
        agent.readers.append(response)
        if all(len(agent.readers) == READERS for agent in self.agents.values()):
            self._followed.set()
        try:
            await agent.ended.wait()
        finally:
            agent.readers.remove(response)
        return response

    async def followed(self, _request: web.Request) -> web.Response:
        """Answer once worker and baseline follow every agent."""
        await self._followed.wait()
        return web.json_response({})

    async def state(self, _request: web.Request) -> web.Response:
        lines = sum(agent.lines for agent in self.agents.values())
        return web.json_response({"lines": lines, "requests": dict(self.requests)})

    async def write_lines(self, request: web.Request) -> web.Response:
        """Every agent writes `RATE` lines a second, each at its own time; answers at the end."""
        seconds = int(request.query["seconds"])
        due = sorted(((turn + random.random()) / RATE, name) for name in self.agents for turn in range(RATE))
        began = time.monotonic()
        for second in range(seconds):
            for moment, name in due:
                if (early := began + second + moment - time.monotonic()) > 0:
                    await asyncio.sleep(early)
                agent = self.agents[name]
                await agent.print(self._events.written(agent.lines))
        return web.json_response({"took": time.monotonic() - began})

    async def end(self, _request: web.Request) -> web.Response:
        for agent in self.agents.values():
            await agent.end()
        self._ended.set()
        return web.json_response({})

    def _count(self, request: web.Request) -> None:
        if not request.headers.get("User-Agent", "").startswith("bare"):
            self.requests["log" if request.path.endswith("/log") else "pod"] += 1


def _pod(agent: Agent) -> dict[str, Any]:
    running = {"running": {"startedAt": "2026-11-22T00:00:00Z"}}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    version = "2" if agent.ended.is_set() else "1"
    containers = [
        {"name": "sidecar", "state": running, "containerID": "containerd://1"},
        {"name": "opencode", "state": ended if agent.ended.is_set() else running, "containerID": "containerd://2"},
    ]
    owner = {"kind": "Job", "name": agent.name, "uid": agent.name, "controller": True}
    metadata = {"name": agent.name, "namespace": NAMESPACE, "uid": agent.name, "resourceVersion": version}
    return {
        "metadata": {**metadata, "ownerReferences": [owner]},
        "spec": {"nodeName": "node"},
        "status": {"phase": "Running", "containerStatuses": containers},
    }


async def serve(count: int, folder: Path, *, plain: bool) -> None:
    """Serves until stdin ends; writes a kubeconfig and prints its address when it is ready."""
    agents = Agents(count)
    await agents.hello()
    context, authority = server_context(folder)
    runner = web.AppRunner(agents.application(), access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=None if plain else context, backlog=2048)
    await site.start()
    address = f"http{'' if plain else 's'}://127.0.0.1:{runner.addresses[0][1]}"
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig(address, authority)))
    print(address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def kubeconfig(address: str, authority: Path) -> dict[str, Any]:
    """How clients reach it."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": address, "certificate-authority": str(authority)}}],
        "users": [{"name": "bench", "user": {"token": "bench"}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench", "namespace": NAMESPACE}}],
        "current-context": "bench",
    }


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2]), plain="--plain" in sys.argv))
