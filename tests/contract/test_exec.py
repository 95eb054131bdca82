"""`exec`: one more command in a running container, over a WebSocket."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_runs.kube.client import Cluster
from agent_runs.kube.failures import ExecFailed
from tests.contract.api import TIMEOUT, Api, Object, running

QUERY = {"stdout": "true", "stderr": "true"}


@dataclass(frozen=True)
class Ended:
    out: bytes
    err: bytes
    status: Object


async def execute(api: Api, own: str, *command: str, **query: str) -> Ended:
    """Run it and read the messages by their first byte."""
    given = [*(QUERY | query).items(), *(("command", word) for word in command)]
    streams = {1: b"", 2: b"", 3: b""}
    url = api.path(f"pods/{own}/exec")
    async with api.session.ws_connect(url, params=given, protocols=("v4.channel.k8s.io",)) as socket:
        async for message in socket:
            assert message.type is aiohttp.WSMsgType.BINARY
            streams[message.data[0]] += message.data[1:]
    return Ended(streams[1], streams[2], json.loads(streams[3]))


async def waiting(api: Api, **spec: Any) -> str:
    own = await api.run("sleep 600", **spec)
    await api.until(f"pods/{own}", running)
    return own


async def test_a_command_runs_in_the_container_and_its_output_comes_back(api: Api) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/deep/er/data"}], "env": [{"name": "MINE", "value": "yes"}]}
    own = await waiting(api, volumes=[{"name": "v", "emptyDir": {}}], container={**mount, "workingDir": "/deep/er"})
    ended = await execute(api, own, "sh", "-c", "echo $MINE > data/file; cat /deep/er/data/file; echo err >&2; pwd")
    assert (ended.out, ended.err) == (b"yes\n/deep/er\n", b"err\n")
    assert ended.status["status"] == "Success"
    second = await execute(api, own, "cat", "/deep/er/data/file")
    assert second.out == b"yes\n"
    await api.delete(f"pods/{own}", grace=0)


async def test_a_command_sees_the_containers_processes(api: Api) -> None:
    own = await waiting(api)
    ended = await execute(api, own, "sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline; [ $$ -gt 1 ]")
    assert ended.out.rstrip().endswith(b"sleep 600")
    assert ended.status["status"] == "Success"
    await api.delete(f"pods/{own}", grace=0)


async def test_the_exit_code_comes_back(api: Api) -> None:
    own = await waiting(api)
    status = (await execute(api, own, "sh", "-c", "exit 3")).status
    assert (status["status"], status["reason"]) == ("Failure", "NonZeroExitCode")
    assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
    assert "exit code 3" in status["message"]
    missing = (await execute(api, own, "no-such-command")).status
    assert (missing["reason"], missing["code"]) == ("InternalError", 500)
    assert '"no-such-command": executable file not found in $PATH' in missing["message"]
    await api.delete(f"pods/{own}", grace=0)


async def test_an_exec_into_a_missing_pod_is_refused(api: Api, name: str) -> None:
    own = await waiting(api)
    for target, more, code in [(name, {}, 404), (own, {"container": "nobody"}, 400)]:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await execute(api, target, "true", **more)
        assert refused.value.status == code
    await api.delete(f"pods/{own}", grace=0)


async def test_there_is_no_exec_into_what_has_ended(api: Api) -> None:
    own = await api.run("true")
    await api.until_ended(own)
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await execute(api, own, "true")
    assert refused.value.status == 500


async def test_a_command_ends_with_its_container(api: Api) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    own = await api.run("mkfifo /v/fifo; read x < /v/fifo", volumes=volumes, container=mount)
    await api.until(f"pods/{own}", running)
    script = "until [ -p /v/fifo ]; do sleep 0.05; done; echo go > /v/fifo; sleep 600; echo late"
    ended = await execute(api, own, "sh", "-c", script)
    assert ended.out == b""
    assert ended.status["details"]["causes"] == [{"reason": "ExitCode", "message": "137"}]


@asynccontextmanager
async def typing(api: Api, own: str, *command: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A command that has stdin, and its connection."""
    given = [*(QUERY | {"stdin": "true"}).items(), *(("command", word) for word in command)]
    url = api.path(f"pods/{own}/exec")
    async with api.session.ws_connect(url, params=given, protocols=("v4.channel.k8s.io",)) as socket:
        yield socket


async def printed(socket: aiohttp.ClientWebSocketResponse, text: bytes) -> None:
    """Read stdout until it has ended with this text."""
    out = b""
    while not out.endswith(text):
        message = await socket.receive(TIMEOUT)
        assert message.type is aiohttp.WSMsgType.BINARY
        assert message.data[:1] == b"\x01" or not message.data[1:]
        out += message.data[1:]


async def test_a_command_reads_what_its_client_sends(api: Api) -> None:
    own = await waiting(api)
    async with typing(api, own, "sh", "-c", "read a; echo $a; read b < /dev/stdin; echo $b") as socket:
        await socket.send_bytes(b"\x00one\n")
        await printed(socket, b"one\n")
        await socket.send_bytes(b"\x00tw")
        await socket.send_bytes(b"\x00o\n")
        await printed(socket, b"two\n")
    await api.delete(f"pods/{own}", grace=0)


async def test_a_client_may_leave_a_command_that_does_not_read_its_stdin(api: Api) -> None:
    own = await waiting(api)
    async with typing(api, own, "sh", "-c", "echo begun; sleep 600") as socket:
        await printed(socket, b"begun\n")
        await socket.send_bytes(b"\x00" + bytes(1000))
    assert (await execute(api, own, "echo", "fine")).out == b"fine\n"
    await api.delete(f"pods/{own}", grace=0)


async def test_our_client_runs_commands(api: Api, kubeconfig: Path) -> None:
    own = await waiting(api)
    idle = timedelta(seconds=30)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await Cluster.connect(str(kubeconfig), environ={}))

        async def output(*argv: str, limit: int = 1_000_000, pod: str = own) -> bytes:
            opened = client.exec_output(api.namespace, pod, "main", argv, limit=limit, idle_timeout=idle)
            async with opened as pieces:
                return b"".join([piece async for piece in pieces])

        assert await output("sh", "-c", "head -c 300000 /dev/zero; echo err >&2") == bytes(300_000)
        assert await output("true") == b""
        with pytest.raises(ExecFailed, match="more than 1000 bytes"):
            await output("head", "-c", "300000", "/dev/zero", limit=1000)
        with pytest.raises(ExecFailed, match=r"exit code 5: oops") as failed:
            await output("sh", "-c", "echo oops >&2; exit 5")
        assert failed.value.exit_code == 5
        with pytest.raises(ExecFailed, match="not found in") as failed:
            await output("no-such-command")
        assert failed.value.exit_code is None
        with pytest.raises(ExecFailed, match="404") as failed:
            await output("true", pod="nobody")
        assert failed.value.status == 404
    await api.delete(f"pods/{own}", grace=0)


READ_EXACTLY = "read size; head -c $size"
"""Bytes, not a buffer of them: `read` of a shell takes no more than its line from a pipe."""


@asynccontextmanager
async def entering(api: Api, kubeconfig: Path, own: str) -> AsyncIterator[Callable[..., Awaitable[bytes]]]:
    """Our client's `exec_input` for a pod."""
    async with await Cluster.connect(str(kubeconfig), environ={}) as client:

        async def enter(stdin: bytes, *argv: str, limit: int = 4_000_000, pod: str = own, seconds: int = 30) -> bytes:
            idle = timedelta(seconds=seconds)
            async with asyncio.timeout(TIMEOUT):
                return await client.exec_input(api.namespace, pod, "main", argv, stdin, limit=limit, idle_timeout=idle)

        yield enter


async def test_our_client_gives_a_command_its_stdin(api: Api, kubeconfig: Path) -> None:
    own = await waiting(api)
    async with entering(api, kubeconfig, own) as enter:
        every_byte = bytes(range(256))
        assert await enter(every_byte, "sh", "-c", READ_EXACTLY) == every_byte
        assert await enter(b"", "sh", "-c", READ_EXACTLY + "; echo none") == b"none\n"
        big = os.urandom(1024 * 1024)
        assert await enter(big, "sh", "-c", READ_EXACTLY) == big
        digest = await enter(bytes(4 * 1024 * 1024), "sh", "-c", READ_EXACTLY + " | sha256sum")
        assert digest.split()[0].decode() == hashlib.sha256(bytes(4 * 1024 * 1024)).hexdigest()
        with pytest.raises(ExecFailed, match="4194305 bytes, more than 4194304"):
            await enter(bytes(4 * 1024 * 1024 + 1), "true")
        with pytest.raises(ExecFailed, match="more than 1000 bytes"):
            await enter(big, "sh", "-c", READ_EXACTLY, limit=1000)
    await api.delete(f"pods/{own}", grace=0)


async def test_a_command_need_not_read_its_stdin(api: Api, kubeconfig: Path) -> None:
    own = await waiting(api)
    async with entering(api, kubeconfig, own) as enter:
        assert await enter(b"x", "echo", "done") == b"done\n"
        with pytest.raises(ExecFailed) as failed:
            await enter(b"x", "sh", "-c", "exit 4")
        assert failed.value.exit_code == 4
        with pytest.raises(ExecFailed) as failed:  # its end may be lost if it leaves much
            await enter(bytes(1024 * 1024), "sh", "-c", "exit 4", seconds=3)
        assert failed.value.exit_code in (4, None)
        with pytest.raises(ExecFailed, match="not found in"):
            await enter(b"x", "no-such-command")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):  # too short only leaves it earlier
                await enter(bytes(1024 * 1024), "sleep", "600")
        assert await enter(b"x", "echo", "fine") == b"fine\n"
    await api.delete(f"pods/{own}", grace=0)


async def test_a_failed_command_is_quoted_without_its_stdin(api: Api, kubeconfig: Path) -> None:
    own = await waiting(api)
    async with entering(api, kubeconfig, own) as enter:
        script = "read size; head -c $size >&2; echo ' is what I read' >&2; exit 7"
        with pytest.raises(ExecFailed, match=r"exit code 7: \*{22} is what I read") as failed:
            await enter(b"pct_0123456789abcdefgh", "sh", "-c", script)
        assert failed.value.exit_code == 7
        script = "read size; head -c 12 >&2; exit 7"
        with pytest.raises(ExecFailed) as failed:
            await enter(b"pct_0123456789abcdefgh", "sh", "-c", script)
        assert "pct_" not in str(failed.value)
    await api.delete(f"pods/{own}", grace=0)


async def test_no_stdin_reaches_a_container_that_has_ended(api: Api, kubeconfig: Path) -> None:
    own = await api.run("true")
    await api.until_ended(own)
    async with entering(api, kubeconfig, own) as enter:
        with pytest.raises(ExecFailed) as failed:
            await enter(b"pct_0123456789", "cat")
        assert (failed.value.status, failed.value.exit_code) == (500, None)
        assert "pct_" not in f"{failed.value!r} {failed.value}"
        with pytest.raises(ExecFailed, match="404"):
            await enter(b"pct_0123456789", "cat", pod="nobody")


async def test_a_container_that_ends_ends_a_command_that_reads(api: Api, kubeconfig: Path) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    own = await api.run("mkfifo /v/fifo; read x < /v/fifo", volumes=[{"name": "v", "emptyDir": {}}], container=mount)
    await api.until(f"pods/{own}", running)
    async with entering(api, kubeconfig, own) as enter:
        # Its standard input may end before it is killed, so what it reads is no proof that it was given that.
        script = "until [ -p /v/fifo ]; do sleep 0.05; done; echo go > /v/fifo; cat > /dev/null; exit 9"
        with pytest.raises(ExecFailed) as failed:
            await enter(b"x", "sh", "-c", script)
        assert failed.value.exit_code in (9, 137, None)
