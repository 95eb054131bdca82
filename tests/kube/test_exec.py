"""What the end of a command in a container proves."""

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import aiohttp
import pytest

from agent_runs.kube.exec import iter_stdout
from agent_runs.kube.failures import ExecFailed

LIMIT, IDLE = 100, timedelta(seconds=60)


class Socket:
    """One that has these messages of a command."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = list(messages)

    async def receive(self, _timeout: float) -> aiohttp.WSMessage:
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, self._messages.pop(0), None)


async def test_a_command_that_a_container_runtime_lost_is_none_that_was_refused() -> None:
    lost = b'\x03{"status":"Failure","reason":"InternalError","code":500,"message":"error executing command: ttrpc"}'
    socket = cast("aiohttp.ClientWebSocketResponse", Socket([b"\x01read", lost]))
    with pytest.raises(ExecFailed, match="ttrpc") as failed:
        _ = [piece async for piece in iter_stdout(socket, LIMIT, IDLE)]
    assert (failed.value.exit_code, failed.value.status) == (None, 0)
