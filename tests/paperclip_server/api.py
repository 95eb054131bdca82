"""Paperclip's HTTP API as the board and tests use it. Source: the real 2026.916.1; answers are its JSON as it comes."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import aiohttp

ENDED: Final = frozenset({"succeeded", "failed", "cancelled", "timed_out", "interrupted"})
LOOK: Final = timedelta(milliseconds=200)
PATIENCE: Final = timedelta(seconds=90)
PAGE: Final = 200_000
NOT_FOUND: Final = 404
ADAPTER: Final = "opencode_k8s"

Object = dict[str, Any]


class Refused(Exception):
    """Paperclip answered something else than success."""

    def __init__(self, what: str, status: int, body: str) -> None:
        super().__init__(f"{what}: HTTP {status}: {body[:600]}")
        self.status = status
        self.body = body


@dataclass(frozen=True)
class Entry:
    """One record of a run's log."""

    stream: str
    chunk: str


@dataclass
class Api:
    """Calls of a board user, or of whoever has the token."""

    url: str
    session: aiohttp.ClientSession

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["Api"]:
        # An idle connection does not outlive a server that is killed; each call makes its own.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=90)) as session:
            yield cls(url, session)

    async def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        """The answer's JSON.

        Raises:
            Refused: any status that is not 2xx.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        what = f"{method} {path}"
        async with self.session.request(method, f"{self.url}/api{path}", json=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status // 100 != 2:
                raise Refused(what, answer.status, text)
            return json.loads(text) if text and answer.content_type == "application/json" else text

    async def get(self, path: str) -> Any:
        return await self.call("GET", path)

    async def post(self, path: str, body: Any = None) -> Any:
        return await self.call("POST", path, {} if body is None else body)

    # the plugin

    async def install(self, folder: str) -> Object:
        installed: Object = await self.post("/adapters/install", {"packageName": folder, "isLocalPath": True})
        return installed

    async def test_environment(self, company: str, config: Mapping[str, Any]) -> Object:
        path = f"/companies/{company}/adapters/{ADAPTER}/test-environment"
        tested: Object = await self.post(path, {"adapterConfig": dict(config)})
        return tested

    async def ui_parser(self) -> str:
        return str(await self.get(f"/adapters/{ADAPTER}/ui-parser.js"))

    # companies, agents, issues

    async def company(self, name: str) -> str:
        return str((await self.post("/companies", {"name": name}))["id"])

    async def agent(self, company: str, name: str, config: Mapping[str, Any]) -> str:
        body = {
            "name": name,
            "role": "engineer",
            "adapterType": ADAPTER,
            "adapterConfig": dict(config),
            "runtimeConfig": {"heartbeat": {"enabled": False}},
        }
        return str((await self.post(f"/companies/{company}/agents", body))["id"])

    async def issue(self, company: str, agent: str, title: str, description: str = "Please do it.") -> str:
        """Assigned, hence the agent wakes."""
        body = {"title": title, "description": description, "status": "todo", "assigneeAgentId": agent}
        return str((await self.post(f"/companies/{company}/issues", body))["id"])

    async def read_issue(self, issue: str) -> Object:
        found: Object = await self.get(f"/issues/{issue}")
        return found

    async def comment(self, issue: str, text: str, **options: Any) -> Object:
        said: Object = await self.post(f"/issues/{issue}/comments", {"body": text, **options})
        return said

    async def close(self, issue: str) -> None:
        """As done, by the board: nobody wakes for it any more."""
        await self.call("PATCH", f"/issues/{issue}", {"status": "done"})

    async def comments(self, issue: str) -> list[Object]:
        found: list[Object] = await self.get(f"/issues/{issue}/comments")
        return found

    async def task_sessions(self, agent: str) -> list[Object]:
        found: list[Object] = await self.get(f"/agents/{agent}/task-sessions")
        return found

    async def wakeup(self, agent: str, issue: str, **options: Any) -> Object:
        body = {"source": "on_demand", "triggerDetail": "manual", "reason": "test", "payload": {"issueId": issue}}
        woken: Object = await self.post(f"/agents/{agent}/wakeup", {**body, **options})
        return woken

    # runs

    async def runs(self, company: str, issue: str, agent: str | None = None) -> list[Object]:
        """The runs of an issue, oldest first; quicker when its only agent is named."""
        query = "" if agent is None else f"?agentId={agent}"
        found = await self.get(f"/companies/{company}/heartbeat-runs{query}")
        mine = [run for run in found if (run.get("contextSnapshot") or {}).get("issueId") == issue]
        return sorted(mine, key=lambda run: str(run["createdAt"]))

    async def run(self, run: str) -> Object:
        found: Object = await self.get(f"/heartbeat-runs/{run}")
        return found

    async def cancel(self, run: str) -> Object:
        """Answers when the run's adapter has, or with 500 after 60 s."""
        cancelled: Object = await self.post(f"/heartbeat-runs/{run}/cancel")
        return cancelled

    async def events(self, run: str) -> list[Object]:
        found: list[Object] = await self.get(f"/heartbeat-runs/{run}/events")
        return found

    async def log(self, run: str) -> list[Entry]:
        """The whole log, paged."""
        text, offset = "", 0
        while True:
            try:
                page = await self.get(f"/heartbeat-runs/{run}/log?offset={offset}&limitBytes={PAGE}")
            except Refused as refusal:
                if refusal.status == NOT_FOUND:  # nothing was written yet
                    return []
                raise
            text += page.get("content") or ""
            following = page.get("nextOffset")
            if following is None or following == offset:
                break
            offset = following
        whole, _, _ = text.rpartition("\n")  # the last record may be on its way
        records = [json.loads(line) for line in whole.split("\n") if line]
        return [Entry(record["stream"], record["chunk"]) for record in records]

    # waiting

    async def until(
        self, question: Callable[[], Any], what: str, patience: timedelta = PATIENCE, *, deaf: bool = False
    ) -> Any:
        """Ask until the answer is true; gives it.

        Args:
            deaf: the server may be away.
        """
        answer: Any = None
        try:
            async with asyncio.timeout(patience.total_seconds()):
                while True:
                    try:
                        if answer := await question():
                            return answer
                    except (Refused, aiohttp.ClientError, TimeoutError, OSError):
                        if not deaf:
                            raise
                    await asyncio.sleep(LOOK.total_seconds())
        except TimeoutError:
            raise AssertionError(f"not within {patience.total_seconds():.0f} s: {what}") from None

    async def next_run(
        self, company: str, issue: str, after: int = 0, agent: str | None = None, patience: timedelta = PATIENCE
    ) -> str:
        """The id of the issue's run number `after` + 1, as soon as there is one."""

        async def there() -> str | None:
            runs = await self.runs(company, issue, agent)
            return str(runs[after]["id"]) if len(runs) > after else None

        return str(await self.until(there, f"run {after + 1} of issue {issue}", patience))

    async def ended(self, run: str, patience: timedelta = PATIENCE) -> Object:
        """The run, once it is over."""

        async def over() -> Object | None:
            found = await self.run(run)
            return found if found["status"] in ENDED else None

        found: Object = await self.until(over, f"the end of run {run}", patience)
        return found

    async def logged(self, run: str, words: str, patience: timedelta = PATIENCE) -> list[Entry]:
        """The log, once some record of it has these words."""

        async def said() -> list[Entry] | None:
            log = await self.log(run)
            return log if any(words in entry.chunk for entry in log) else None

        found: list[Entry] = await self.until(said, f"{words!r} in the log of run {run}", patience)
        return found
