"""A real headless Chromium, driven over its DevTools protocol with nothing but aiohttp."""

import asyncio
import base64
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--remote-debugging-port=0",
        "--disable-dev-shm-usage",
    ),
]


def installed() -> str | None:
    """Where it is, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Tab:
    """One page. `happened` holds every DevTools event of it, in order."""

    socket: aiohttp.ClientWebSocketResponse
    happened: list[dict[str, Any]] = field(default_factory=list)
    _answers: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _count: int = 0
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def listen(self) -> None:
        async for received in self.socket:
            message = received.json()
            if "id" in message:
                self._answers.pop(message["id"]).set_result(message)
                continue
            async with self._news:
                self.happened.append(message)
                self._news.notify_all()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        answer = self._answers[self._count] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": self._count, "method": method, "params": params})
        message = await answer
        assert "error" not in message, message
        return dict(message["result"])

    async def event(self, method: str, wanted: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The first such event, past or to come."""

        def found() -> dict[str, Any] | None:
            fits = (one["params"] for one in self.happened if one["method"] == method)
            return next((params for params in fits if wanted(params)), None)

        async with self._news:
            await self._news.wait_for(lambda: found() is not None)
        return found() or {}

    async def open(self, url: str, ends_at: str | None = None) -> None:
        """Go there and wait until the page at `ends_at` is loaded; an address that is no page refreshes itself."""
        end = ends_at or url
        await self.call("Page.navigate", url=url)
        loaded = await self.event("Page.frameNavigated", lambda message: message["frame"]["url"] == end)
        await self.event(
            "Page.lifecycleEvent",
            lambda message: message["name"] == "load" and message["loaderId"] == loaded["frame"]["loaderId"],
        )

    async def evaluate(self, expression: str) -> Any:
        message = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in message, message
        return message["result"].get("value")

    async def until(self, condition: str) -> None:
        """Return once this expression is true, looked at after every change of the document."""
        await self.evaluate(
            f"""new Promise(done => {{
                const look = () => ({condition}) && done(true);
                new MutationObserver(look).observe(document, {{
                    subtree: true, childList: true, characterData: true, attributes: true}});
                look();
            }})"""
        )

    async def picture(self, file: Path) -> None:
        """Saves what the page looks like, as PNG."""
        picture = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(file.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(picture["data"]))

    async def html(self) -> str:
        """The document as it is now, asked without any script."""
        root = await self.call("DOM.getDocument")
        return str((await self.call("DOM.getOuterHTML", nodeId=root["root"]["nodeId"]))["outerHTML"])


@dataclass
class Chromium:
    """The running browser."""

    http: aiohttp.ClientSession
    base: str

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        async with self.http.put(f"{self.base}/json/new?about:blank") as answer:
            target = await answer.json()
        async with self.http.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            listening = asyncio.create_task(tab.listen())
            for domain in ("Page", "Runtime", "Log", "DOM"):
                await tab.call(f"{domain}.enable")
            await tab.call("Page.setLifecycleEventsEnabled", enabled=True)
            try:
                yield tab
            finally:
                listening.cancel()
                await asyncio.wait([listening])


@asynccontextmanager
async def chromium(program: str, folder: Path) -> AsyncIterator[Chromium]:
    """The browser with an empty profile."""
    process = await asyncio.create_subprocess_exec(
        program,
        *QUIET,
        f"--user-data-dir={folder}",
        env={**os.environ, "HOME": str(folder)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with aiohttp.ClientSession() as http:
            while b"DevTools listening on" not in (said := await process.stderr.readline()):
                assert said, "Chromium ended before it listened"
            address = said.decode().split("ws://")[1].split("/")[0]
            draining = asyncio.create_task(process.stderr.read())
            yield Chromium(http, f"http://{address}")
    finally:
        process.terminate()
        await process.wait()
        await draining
