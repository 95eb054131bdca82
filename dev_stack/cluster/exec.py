"""`kubectl exec` without a terminal: one more command inside a running container, over a WebSocket.

Each message begins with a byte: 0 stdin, 1 stdout, 2 stderr, 3 the Status at the end; with v5, 255 and a 0 end stdin.
Source: kubernetes apimachinery pkg/util/remotecommand, and what a real API server sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass

from aiohttp import WSMsgType, web

from dev_stack.cluster.containers import Command, Container
from dev_stack.cluster.errors import bad_request
from dev_stack.cluster.kinds import Object

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_END_OF_STDIN = b"\xff\x00"
_READ = 32 * 1024
"""Bytes of a message, as a real kubelet's."""
_PING = 30.0  # seconds
_MAX_UNREAD = 64 * 1024 * 1024
"""Bytes of stdin that a command has not read. A real kubelet would read the client's messages no faster than those."""


@dataclass
class Exec:
    """One command in one container, and the client that reads its output."""

    request: web.Request
    container: Container
    command: list[str]

    def __post_init__(self) -> None:
        """400 for what no kubelet would do, and for what is not imitated."""
        query = self.request.query
        if not self.command:
            raise bad_request("you must specify at least one command for the container")
        if query.get("tty") == "true":
            raise bad_request("the embedded cluster has no terminal for exec")

    async def serve(self, closing: asyncio.Event) -> web.StreamResponse:
        """Run the command to its end, or until the client, the container or the server has ended."""
        socket = web.WebSocketResponse(protocols=PROTOCOLS, heartbeat=_PING, compress=False)
        if not socket.can_prepare(self.request).ok:
            raise bad_request("Upgrade request required: the embedded cluster knows WebSockets only")
        await socket.prepare(self.request)
        with contextlib.suppress(ConnectionError):
            await self._run(socket, closing)
        await socket.close()
        return socket

    async def _run(self, socket: web.WebSocketResponse, closing: asyncio.Event) -> None:
        stdin = self.request.query.get("stdin") == "true"
        async with self.container.execute(self.command, stdin=stdin) as command:
            output = asyncio.ensure_future(self._forward(socket, command))
            ended, *others = (
                asyncio.ensure_future(wait)
                for wait in (self.container.finished.wait(), closing.wait(), _receive(socket, command.stdin))
            )
            try:
                await asyncio.wait([output, ended, *others], return_when=asyncio.FIRST_COMPLETED)
                if ended.done() and not output.done():
                    command.kill()  # as the end of the container ends what else runs in it
                    await asyncio.wait([output])
                if output.done():
                    await socket.send_bytes(b"\x03" + json.dumps(output.result()).encode())
            finally:
                for task in (output, ended, *others):
                    task.cancel()
                await asyncio.gather(output, ended, *others, return_exceptions=True)

    async def _forward(self, socket: web.WebSocketResponse, command: Command) -> Object:
        """Send all output; returns the Status of the end."""
        process = command.process

        async def copy(source: asyncio.StreamReader | None, mark: bytes) -> None:
            while source is not None and (data := await source.read(_READ)):
                await socket.send_bytes(mark + data)

        await asyncio.gather(copy(process.stdout, b"\x01"), copy(process.stderr, b"\x02"))
        code = await process.wait()
        return _not_started(failure) if (failure := command.failure) else _status(code, self.command)


async def _receive(socket: web.WebSocketResponse, stdin: asyncio.WriteTransport | None) -> None:
    """Pass on what comes for stdin, until the client has left or may not go on."""
    while (message := await socket.receive()).type is WSMsgType.BINARY:
        if stdin is None or stdin.is_closing():
            continue
        if message.data == _END_OF_STDIN and socket.ws_protocol == PROTOCOLS[0]:
            stdin.close()
        elif message.data[:1] == b"\x00":
            stdin.write(message.data[1:])
        if stdin.get_write_buffer_size() > _MAX_UNREAD:
            return


def _not_started(failure: str) -> Object:
    message = f"Internal error occurred: error executing command in container: {failure}"
    status = {"metadata": {}, "status": "Failure", "message": message, "reason": "InternalError", "code": 500}
    return status | {"details": {"causes": [{"message": message}]}}


def _status(code: int, command: list[str]) -> Object:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    code = code if code > 0 else 128 - code
    words = f"error executing command [{' '.join(command)}], exit code {code}"
    status = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode"}
    status |= {"message": f"command terminated with non-zero exit code: {words}"}
    return status | {"details": {"causes": [{"reason": "ExitCode", "message": str(code)}]}}
