"""A command in a container over a WebSocket, v4.channel.k8s.io: the first byte of each message is its channel."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import timedelta
from typing import Final

import aiohttp

from agent_runs.kube.failures import CONNECTION_ERRORS, MAX_QUOTE, MAX_STATUS_BYTES, ExecFailed, bounded
from agent_runs.kube.objects import ApiObject, InvalidReply, Status, decode

MAX_STDIN_BYTES: Final = 4 * 1024 * 1024
"""Of a command in a container."""
_STDIN_MESSAGE_BYTES: Final = 16 * 1024
"""Kubernetes' own clients send at most 32 KiB at once."""
_QUOTED_RUN: Final = 8


class StatusCause(ApiObject, frozen=True):
    """One detail of a Status; the reason `ExitCode` has the code as its message."""

    reason: str = ""
    message: str = ""


class StatusDetails(ApiObject, frozen=True):
    causes: tuple[StatusCause, ...] = ()


class ExecStatus(Status, frozen=True):
    """The Status that ends the output of a command in a container."""

    status: str = ""
    details: StatusDetails = StatusDetails()

    @property
    def exit_code(self) -> int | None:
        """The command's exit code, None when it did not run."""
        codes = [cause.message for cause in self.details.causes if cause.reason == "ExitCode"]
        return int(codes[0]) if codes and codes[0].isdecimal() and len(codes[0]) < 10 else None


async def send_stdin(socket: aiohttp.ClientWebSocketResponse, stdin: bytes) -> None:
    """Send the length and the content. A connection that breaks ends the reading as well, which reports it."""
    content = b"%d\n%b" % (len(stdin), stdin)
    with suppress(*CONNECTION_ERRORS, RuntimeError):  # RuntimeError: aiohttp's, as below
        for start in range(0, len(content), _STDIN_MESSAGE_BYTES):
            await socket.send_bytes(b"\x00" + content[start : start + _STDIN_MESSAGE_BYTES])


async def iter_stdout(
    socket: aiohttp.ClientWebSocketResponse, limit: int, idle_timeout: timedelta, secret: bytes = b""
) -> AsyncGenerator[bytes]:
    """Read messages of v4.channel.k8s.io. Their first byte is 1 for stdout, 2 for stderr, 3 for the end.

    Args:
        secret: what no error quotes, nor any 8 bytes of it.
    """
    stderr, size = bytearray(), 0
    while True:
        try:
            message = await socket.receive(idle_timeout.total_seconds())
        except (*CONNECTION_ERRORS, RuntimeError) as error:  # RuntimeError: aiohttp's, of a socket closed meanwhile
            raise ExecFailed(f"the connection broke: {type(error).__name__}") from None
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise ExecFailed(f"the connection ended before the command did: {message.type.name}")
        channel, data = message.data[:1], message.data[1:]
        if channel == b"\x03":
            _raise_for_exec_status(data, _without(secret, bytes(stderr)))
            return
        if channel == b"\x02":
            stderr += data[: MAX_QUOTE - len(stderr)]
        elif channel == b"\x01" and data:
            size += len(data)
            if size > limit:
                raise ExecFailed(f"the command printed more than {limit} bytes")
            yield data


def _without(secret: bytes, text: bytes) -> bytes:
    """Replace each byte of `text` that is in a run of 8 bytes, or all of a shorter secret, that both have."""
    width = min(len(secret), _QUOTED_RUN)
    starts = [start for start in range(len(text) - width + 1) if width and text[start : start + width] in secret]
    shown = bytearray(text)
    for start in starts:
        shown[start : start + width] = b"*" * width
    return bytes(shown)


def _raise_for_exec_status(data: bytes, stderr: bytes) -> None:
    """Raise for a Status that is no success; its message comes from the container runtime.

    A `code` of it is no refusal: the runtime reports 500 also for a command that it has started and then lost.
    Source: kubernetes/kubernetes, staging/src/k8s.io/kubelet/pkg/cri/streaming/remotecommand/exec.go.
    """
    try:
        status = decode(data[:MAX_STATUS_BYTES], ExecStatus)
    except InvalidReply:
        raise ExecFailed("the end of the command's output is not Kubernetes' own") from None
    if status.status == "Success":
        return
    message = bounded(f"{status.message}: {stderr.decode(errors='replace')}")
    raise ExecFailed(message, exit_code=status.exit_code)
