"""`kubectl exec`: one more command inside a running container, over a WebSocket.

Each message begins with a byte that says what it is: 0 stdin, 1 stdout, 2 stderr, 3 the Status at the end, 4 the size
of a terminal, 255 (from protocol v5 on) the end of a channel. Terminals are not offered.
Source: kubernetes apimachinery pkg/util/remotecommand, and what a real API server sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import WSMsgType, web

from local.cluster.instances import Command, Instance
from local.cluster.kinds import Object
from local.cluster.refusals import Refused, bad_request
from local.cluster.streams import FAULTS

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_CHUNK = 32 * 1024  # bytes of a message, as a real kubelet's
_BEAT = 30.0  # seconds between pings


@dataclass(frozen=True)
class ExecOptions:
    """The query of an exec request."""

    command: tuple[str, ...]
    stdin: bool
    stdout: bool
    stderr: bool

    @classmethod
    def parse(cls, query: Mapping[str, str], command: list[str]) -> ExecOptions:
        """400 for what no kubelet would do."""
        wanted = {name: query.get(name, "").lower() in ("true", "1") for name in ("stdin", "stdout", "stderr", "tty")}
        if not command:
            raise bad_request("you must specify at least one command for the container")
        if wanted.pop("tty"):
            raise bad_request("the embedded cluster has no terminals: exec without a tty")
        if not any(wanted.values()):
            raise bad_request("you must specify at least one of stdin, stdout, stderr")
        return cls(tuple(command), **wanted)


class Execution:
    """One command in one container, and the client that watches it."""

    def __init__(self, request: web.Request, instance: Instance, options: ExecOptions) -> None:
        self._request = request
        self._instance = instance
        self._options = options
        self._cut = next((hit.cut_after for hit in request.get(FAULTS, ()) if hit.cut_after is not None), None)

    async def serve(self, closing: asyncio.Event) -> web.StreamResponse:
        """Run the command to its end, or until the client, the container or the server goes away."""
        socket = web.WebSocketResponse(protocols=PROTOCOLS, heartbeat=_BEAT, compress=False)
        if not socket.can_prepare(self._request).ok:
            raise Refused(400, "BadRequest", "Upgrade request required: the embedded cluster speaks WebSocket only")
        await socket.prepare(self._request)
        with contextlib.suppress(ConnectionError):
            await self._converse(socket, closing)
        await socket.close()
        return socket

    async def _converse(self, socket: web.WebSocketResponse, closing: asyncio.Event) -> None:
        async with self._instance.execute(self._options.command) as command:
            waits = (self._instance.finished.wait(), closing.wait(), self._listen(socket, command.process))
            over, *gone = [asyncio.ensure_future(wait) for wait in waits]
            telling = asyncio.ensure_future(self._tell(socket, command))
            try:
                await asyncio.wait([telling, over, *gone], return_when=asyncio.FIRST_COMPLETED)
                if over.done() and not telling.done():
                    command.kill()  # as the end of the container ends what else runs in it
                    await asyncio.wait([telling])
                if telling.done():
                    await socket.send_bytes(b"\x03" + json.dumps(telling.result()).encode())
            finally:
                for task in (telling, over, *gone):
                    task.cancel()
                await asyncio.gather(telling, over, *gone, return_exceptions=True)

    async def _tell(self, socket: web.WebSocketResponse, command: Command) -> Object:
        """Send all output; the Status of the end."""
        process, lock = command.process, asyncio.Lock()
        sources = []
        if self._options.stdout:
            sources.append(self._forward(socket, lock, process.stdout, b"\x01"))
        if self._options.stderr:
            sources.append(self._forward(socket, lock, process.stderr, b"\x02"))
        await asyncio.gather(*sources)
        code = await process.wait()
        return _not_started(failure) if (failure := command.failure) else _status(code, self._options.command)

    async def _forward(
        self, socket: web.WebSocketResponse, lock: asyncio.Lock, source: asyncio.StreamReader | None, mark: bytes
    ) -> None:
        while source is not None and (data := await source.read(_CHUNK)):
            async with lock:
                await self._send(socket, mark, data)

    async def _send(self, socket: web.WebSocketResponse, mark: bytes, data: bytes) -> None:
        if self._cut is not None:
            data, self._cut = data[: self._cut], self._cut - len(data)
        if data:
            await socket.send_bytes(mark + data)
        if self._cut is not None and self._cut <= 0:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("cut by a fault")

    async def _listen(self, socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
        """Pass on stdin; returns when the client is gone."""
        if process.stdin is not None and not self._options.stdin:
            process.stdin.close()
        async for message in socket:
            if message.type is not WSMsgType.BINARY or process.stdin is None or not self._options.stdin:
                continue
            if message.data[:1] == b"\x00":
                process.stdin.write(message.data[1:])
                with contextlib.suppress(ConnectionError):
                    await process.stdin.drain()
            elif message.data[:2] == b"\xff\x00":
                process.stdin.close()


def _not_started(failure: str) -> Object:
    told = f"error executing command in container: {failure}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {told}",
        "reason": "InternalError",
        "details": {"causes": [{"message": told}]},
        "code": 500,
    }


def _status(code: int, command: tuple[str, ...]) -> Object:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    told = code if code > 0 else 128 - code
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: error executing command [{' '.join(command)}], "
        f"exit code {told}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(told)}]},
    }
