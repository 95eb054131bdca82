"""A client of the Agent Client Protocol that assumes nothing: it keeps every line and answers permission requests."""

import asyncio
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.agents.launch import Launch

LONGEST_LINE: Final = 16 * 1024 * 1024
"""Bytes; Qwen tells its skills in one line of half a megabyte."""
TIMEOUT: Final = 60.0

Message = dict[str, Any]


class RequestFailed(Exception):
    """The agent answered a request with an error, or ended instead; `error` is its JSON."""

    def __init__(self, error: Message) -> None:
        super().__init__(json.dumps(error))
        self.error = error


class AcpClient:
    """One running agent.

    Attributes:
        updates: the `session/update` notifications' updates, in order.
        asked: the permission requests.
        begun: set once a tool is called.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.updates: list[Message] = []
        self.asked: list[Message] = []
        self.begun = asyncio.Event()
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    async def initialize(self) -> Message:
        """The agent's capabilities. The client offers neither files nor terminals."""
        offered = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        return await self.call("initialize", {"protocolVersion": 1, "clientCapabilities": offered})

    async def new(self, folder: Path) -> str:
        """The id of a new session."""
        created = await self.call("session/new", {"cwd": str(folder), "mcpServers": []})
        return str(created["sessionId"])

    async def load(self, session: str, folder: Path) -> Message:
        """Continue a session."""
        return await self.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})

    async def prompt(self, session: str, text: str) -> Message:
        """The result of a turn."""
        blocks = [{"type": "text", "text": text}]
        return await self.call("session/prompt", {"sessionId": session, "prompt": blocks})

    async def cancel(self, session: str) -> None:
        """Ask for the end of the turn."""
        await self._send({"method": "session/cancel", "params": {"sessionId": session}})

    @property
    def text(self) -> str:
        """What the agent said."""
        chunks = (each for each in self.updates if each["sessionUpdate"] == "agent_message_chunk")
        return "".join(str(chunk["content"].get("text", "")) for chunk in chunks)

    async def call(self, method: str, params: Message) -> Message:
        """The result of a request.

        Raises:
            RequestFailed: an error, or the agent's end.
            TimeoutError: no answer within a minute.
        """
        number = next(self._ids)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._send({"id": number, "method": method, "params": params})
        async with asyncio.timeout(TIMEOUT):
            answer = await self._waiting[number]
        if "error" in answer:
            raise RequestFailed(answer["error"])
        return dict(answer["result"])

    async def read(self) -> None:
        """Take what the agent writes, until its end."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if "method" not in message:
                self._waiting.pop(message["id"]).set_result(message)
            elif message["method"] == "session/update":
                self._take(message["params"]["update"])
            elif "id" in message:
                await self._answer(message)
        for waiting in self._waiting.values():
            waiting.set_result({"error": {"message": "the agent has ended"}})

    def _take(self, update: Message) -> None:
        self.updates.append(update)
        if update["sessionUpdate"] == "tool_call":
            self.begun.set()

    async def _answer(self, request: Message) -> None:
        if request["method"] != "session/request_permission":
            error = {"code": -32601, "message": "Method not found"}
            await self._send({"id": request["id"], "error": error})
            return
        self.asked.append(request["params"])
        allowed = next(each for each in request["params"]["options"] if each["kind"] == "allow_once")
        outcome = {"outcome": "selected", "optionId": allowed["optionId"]}
        await self._send({"id": request["id"], "result": {"outcome": outcome}})

    async def _send(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await self.process.stdin.drain()


@asynccontextmanager
async def running(launch: Launch, folder: Path) -> AsyncIterator[AcpClient]:
    """An initialized agent. At the end its whole process group is killed: a crash, for its sessions."""
    process = await asyncio.create_subprocess_exec(
        *launch.command,
        env=launch.environment,
        cwd=folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=LONGEST_LINE,
        start_new_session=True,
    )
    client = AcpClient(process)
    reading = asyncio.create_task(client.read())
    try:
        await client.initialize()
        yield client
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await reading
