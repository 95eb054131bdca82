"""Records the captures of an agent anew: `python -m tests.agents.capture AGENT [CASE…]`.

Needed once a version in the agent's `package.json` changes. What differs from run to run is replaced, as the README of
the fixtures says.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from agent_runs.agents.profile import load
from dev_stack.agent_programs import PROGRAMS, ensure_program
from dev_stack.scripted_model.server import ScriptedModel, serve
from tests.agents.launch import launch

FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "agents"
CAPABILITIES: Final = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
ANSWER_SECONDS: Final = 180
END_SECONDS: Final = 8
MAX_COMMANDS, MAX_DESCRIPTION = 5, 60


@dataclass
class Conversation:
    """With one process of an agent, line by line."""

    process: asyncio.subprocess.Process
    began: float = field(default_factory=time.monotonic)
    lines: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    session: str = ""

    async def send(self, content: dict[str, Any]) -> None:
        self._note("agent", {"jsonrpc": "2.0", **content})
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(self.lines[-1]["message"]).encode() + b"\n")
        await self.process.stdin.drain()

    async def request(self, method: str, params: dict[str, Any]) -> int:
        self.number += 1
        await self.send({"id": self.number, "method": method, "params": params})
        return self.number

    async def read(self) -> dict[str, Any] | None:
        """The next message of the agent; None at its end."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            with contextlib.suppress(ValueError):
                got: dict[str, Any] = json.loads(line)
                self._note("client", got)
                return got
        return None

    async def answer(self, number: int, choose: str = "") -> dict[str, Any]:
        """The answer to a request.

        Args:
            choose: the kind of the option with which a permission is answered; empty: it is not.
        """
        for line in self.lines:
            if line["to"] == "client" and line["message"].get("id") == number and "method" not in line["message"]:
                return dict(line["message"])
        async with asyncio.timeout(ANSWER_SECONDS):
            while (got := await self.read()) is not None:
                if got.get("id") == number and "method" not in got:
                    return got
                if got.get("method") == "session/request_permission" and choose:
                    options = got["params"]["options"]
                    chosen = next(option["optionId"] for option in options if option["kind"] == choose)
                    outcome = {"outcome": {"outcome": "selected", "optionId": chosen}}
                    await self.send({"id": got["id"], "result": outcome})
        raise RuntimeError("the agent has ended")

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self.answer(await self.request(method, params))

    async def prompt(self, text: str) -> int:
        content = [{"type": "text", "text": text}]
        return await self.request("session/prompt", {"sessionId": self.session, "prompt": content})

    async def listen(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self.read() is not None:
                    pass

    def _note(self, to: str, message: dict[str, Any]) -> None:
        self.lines.append({"at": round(time.monotonic() - self.began, 3), "to": to, "message": message})


@dataclass
class Capture:
    """One case.

    Attributes:
        authenticate: a method of `authenticate`; None: not needed.
        exit: how the last process ended, or that it lived on.
    """

    agent: str
    name: str
    model: ScriptedModel
    home: Path
    authenticate: str | None
    exit: int | str = ""

    @asynccontextmanager
    async def started(self, scenario: str, end: int | None = None, *, ask: bool = False, key: bool = True,
                      origin: str | None = None) -> AsyncIterator[Conversation]:  # fmt: skip
        """A process after `initialize`; it ends by the end of its input, or by a signal.

        Args:
            ask: with the agent's mode that asks for permission.
            key: with the key of the model's provider.
            origin: of the provider; None: the scripted model.
        """
        installed = await ensure_program(self.agent)
        (self.home / "project").mkdir(exist_ok=True)
        base = origin or self.model.base_url.removesuffix("/v1")
        start = launch(self.agent, installed, self.home, f"scenario/{scenario}", base, ask=ask)
        environment = {name: value for name, value in start.environment.items() if key or not name.endswith("_KEY")}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *start.command, cwd=self.home / "project", env=environment, stdin=pipe, stdout=pipe,
            stderr=(self.home / "stderr").open("ab"), limit=2**26, start_new_session=True,
        )  # fmt: skip
        talk = Conversation(process)
        try:
            meta = load()[self.agent].client_meta
            capabilities = {**CAPABILITIES, **({"_meta": meta} if meta else {})}
            client = {"name": "agent-runs", "version": "0"}
            about = {"protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": client}
            await talk.call("initialize", about)
            if self.authenticate and key:
                await talk.call("authenticate", {"methodId": self.authenticate})
            yield talk
            if end is not None:
                process.send_signal(end)
            assert process.stdin is not None
            process.stdin.close()
            await talk.listen(END_SECONDS)
            self.exit = f"alive after {END_SECONDS} s" if process.returncode is None else process.returncode
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        self._save(talk)

    async def open(self, talk: Conversation, *servers: dict[str, Any]) -> None:
        opened = await talk.call("session/new", {"cwd": str(self.home / "project"), "mcpServers": servers})
        talk.session = opened["result"]["sessionId"]
        if load()[self.agent].set_title:
            await talk.call("session/set_title", {"sessionId": talk.session, "title": "a title"})

    async def load(self, talk: Conversation, session: str) -> None:
        talk.session = session
        await talk.call("session/load", {"sessionId": session, "cwd": str(self.home / "project"), "mcpServers": []})

    def _save(self, talk: Conversation) -> None:
        text = "".join(json.dumps({**line, "message": _short(line["message"])}) + "\n" for line in talk.lines)
        (FIXTURES / self.agent / f"{self.name}.jsonl").write_text(self._neutral(text))
        sent = [
            {name: value for name, value in asdict(each).items() if name != "protocol" and value is not None}
            for each in self.model.sent
        ]
        self.model.sent.clear()
        meta = FIXTURES / self.agent / "meta.json"
        known = json.loads(meta.read_text())
        known["versions"] = json.loads((PROGRAMS[self.agent].manifest / "package.json").read_text())["dependencies"]
        known["cases"][self.name] = json.loads(self._neutral(json.dumps({"exit": self.exit, "sent": sent})))
        cases = ",\n".join(f'  "{name}": {json.dumps(case)}' for name, case in known["cases"].items())
        versions = json.dumps(known["versions"], indent=1).replace("\n", "\n ")
        meta.write_text(f'{{\n "versions": {versions},\n "cases": {{\n{cases}\n }}\n}}\n')
        print(f"{self.name}: {len(talk.lines)} lines, exit {self.exit}")

    def _neutral(self, text: str) -> str:
        """The text without what is of this run only; a text in pieces may have the home's name in two of them."""
        home = str(self.home)
        text = re.sub(re.escape(home[:-8]) + r"\w+", "/mnt/runs", text.replace(home, "/mnt/runs"))
        return text.replace(self.model.base_url.removesuffix("/v1"), "http://model")


def _short(message: dict[str, Any]) -> dict[str, Any]:
    """The message without what is long and says nothing."""
    update = message.get("params", {}).get("update", {})
    if "availableCommands" in update:
        kept = update["availableCommands"][:MAX_COMMANDS]
        update = {**update, "availableCommands": kept}
        return {**message, "params": {**message["params"], "update": update}}
    if "result" in message:
        return {**message, "result": _shortened(message["result"])}
    return message


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: each[:MAX_DESCRIPTION] if key == "description" and isinstance(each, str) else _shortened(each)
            for key, each in value.items()
            if key != "sessionCapabilities"
        }
    return [_shortened(each) for each in value] if isinstance(value, list) else value


async def _plays(capture: Capture, scenario: str, *prompts: str, end: int | None = None, **start: Any) -> None:
    async with capture.started(scenario, end, **start) as talk:
        await capture.open(talk)
        for prompt in prompts:
            await talk.answer(await talk.prompt(prompt))


async def _refuses(capture: Capture) -> None:
    """The provider answers with the status, and with the time to wait, that the case is named after."""
    _, *arguments = capture.name.split("-")
    await _plays(capture, ":".join(["error", *arguments]), "fail")


async def _cancels(capture: Capture, scenario: str, *, go_on: bool) -> None:
    async with capture.started(scenario) as talk:
        await capture.open(talk)
        number = await talk.prompt("go")
        await talk.listen(2)
        await talk.send({"method": "session/cancel", "params": {"sessionId": talk.session}})
        await talk.answer(number)
        if go_on:
            await talk.answer(await talk.prompt("go on"))


async def _goes_on(capture: Capture, first: str, second: str, prompts: tuple[str, str], *, whole: bool) -> None:
    """Two processes of one session, the first of which is killed."""
    name, session = capture.name.removesuffix("-1"), ""
    async with capture.started(first, signal.SIGKILL) as talk:
        await capture.open(talk)
        session = talk.session
        number = await talk.prompt(prompts[0])
        if whole:
            await talk.answer(number)
        else:
            await talk.listen(2)
    capture.name = f"{name}-2"
    async with capture.started(second) as talk:
        await capture.load(talk, session)
        await talk.answer(await talk.prompt(prompts[1]))


async def _unknown(capture: Capture) -> None:
    async with capture.started("text") as talk:
        for session in ("0199c0de-0000-7000-8000-000000000000", "no-such"):
            await capture.load(talk, session)
        await talk.answer(await talk.prompt("hi"))


async def _asks(capture: Capture, choose: str) -> None:
    target = capture.home / "project/written.txt"
    async with capture.started(f"tool-write:{target}", ask=True) as talk:
        await capture.open(talk)
        await talk.answer(await talk.prompt("write it"), choose)


async def _asks_in_vain(capture: Capture) -> None:
    target = capture.home / "project/written.txt"
    async with capture.started(f"tool-write:{target}", ask=True) as talk:
        await capture.open(talk)
        number = await talk.prompt("go")
        await talk.listen(2)
        await talk.send({"method": "session/cancel", "params": {"sessionId": talk.session}})
        for line in [line["message"] for line in talk.lines]:
            if line.get("method") == "session/request_permission":
                await talk.send({"id": line["id"], "result": {"outcome": {"outcome": "cancelled"}}})
        await talk.answer(number)


async def _mcp(capture: Capture) -> None:
    server = {"name": "probe", "command": "python3", "args": ["-c", "input()"], "env": []}
    async with capture.started("text") as talk:
        await capture.open(talk, server)
        await talk.answer(await talk.prompt("hi"))


CASES: Final = {
    "text": lambda c: _plays(c, "usage", "count, please", "again"),
    "tool-bash": lambda c: _plays(c, "tool-bash", "greet", end=signal.SIGTERM),
    "tool-write": lambda c: _plays(c, "tool-write", "write it"),
    "load-1": lambda c: _goes_on(c, "echo", "echo", ("first prompt", "second prompt"), whole=True),
    "load-unknown": _unknown,
    "cancel": lambda c: _cancels(c, "slow-steps:3:30", go_on=True),
    "cancel-hang": lambda c: _cancels(c, "hang:600", go_on=False),
    "error-400": _refuses,
    "error-401": _refuses,
    "error-429": _refuses,
    "error-429-3600": _refuses,
    "error-500": _refuses,
    "error-503": _refuses,
    "model-unknown": lambda c: _plays(c, "nothing", "fail"),
    "no-auth": lambda c: _plays(c, "text", "hi", key=False),
    "provider-away": lambda c: _plays(c, "text", "hi", origin="http://127.0.0.1:9"),
    "sigkill-in-tool-1": lambda c: _goes_on(c, "slow-steps:3:20", "echo", ("go", "go on"), whole=False),
    "mcp": _mcp,
    "ask-tool-write": lambda c: _asks(c, "allow_once"),
    "ask-tool-reject": lambda c: _asks(c, "reject_once"),
    "ask-silent": _asks_in_vain,
}
"""What is played, by the name of the case; one that ends with `-1` makes a second file as well."""


async def _record(agent: str, cases: list[str], authenticate: str | None) -> None:
    async with serve() as model:
        for name in cases:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
                capture = Capture(agent, name, model, Path(home), authenticate)
                try:
                    await CASES[name](capture)
                except Exception as error:  # noqa: BLE001 - the other cases are of use, too
                    print(f"{name}: {type(error).__name__}: {error}\n{(Path(home) / 'stderr').read_text()[-2000:]}")
                model.sent.clear()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.agents.capture", description="Record captures anew.")
    parser.add_argument("agent", choices=PROGRAMS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--authenticate", metavar="METHOD", help="call `authenticate` with it")
    options = parser.parse_args()
    asyncio.run(_record(options.agent, options.cases or [*CASES], options.authenticate))


if __name__ == "__main__":
    main()
