"""Paperclip's HTTP API as the board and the tests use it. Source: Paperclip 2026.916.1; results are its JSON."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import aiohttp

ENDED: Final = frozenset({"succeeded", "failed", "cancelled", "timed_out", "interrupted"})
POLL_INTERVAL: Final = timedelta(milliseconds=200)
TIMEOUT: Final = timedelta(seconds=240)
"""Ends a wait that would last for ever; what is waited for takes seconds, on a busy machine a minute or two."""
PAGE: Final = 200_000
NOT_FOUND: Final = 404
ADAPTER: Final = "opencode_k8s"

Object = dict[str, Any]


class ApiError(Exception):
    """Paperclip answered with a status other than 2xx."""

    def __init__(self, what: str, status: int, body: str) -> None:
        super().__init__(f"{what}: HTTP {status}: {body[:600]}")
        self.status = status
        self.body = body


@dataclass(frozen=True)
class Entry:
    stream: str
    chunk: str


@dataclass
class Api:
    """Requests of a board user, or of the owner of a token.

    Attributes:
        adapter: the type of the plugin and of the agents.
    """

    url: str
    session: aiohttp.ClientSession
    adapter: str = ADAPTER

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, adapter: str = ADAPTER) -> AsyncIterator["Api"]:
        # An idle connection breaks when the server is killed, so each request opens its own.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=90)) as session:
            yield cls(url, session, adapter)

    async def call(self, method: str, path: str, body: Any = None, token: str | None = None) -> Any:
        """Sends one request and returns the JSON of the response.

        Raises:
            ApiError: any status that is not 2xx.
        """
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        what = f"{method} {path}"
        async with self.session.request(method, f"{self.url}/api{path}", json=body, headers=headers) as answer:
            text = await answer.text()
            if answer.status // 100 != 2:
                raise ApiError(what, answer.status, text)
            return json.loads(text) if text and answer.content_type == "application/json" else text

    async def get(self, path: str) -> Any:
        return await self.call("GET", path)

    async def post(self, path: str, body: Any = None) -> Any:
        return await self.call("POST", path, {} if body is None else body)

    # the plugin

    async def install(self, folder: str) -> Object:
        installed: Object = await self.post("/adapters/install", {"packageName": folder, "isLocalPath": True})
        return installed

    async def uninstall(self) -> None:
        await self.call("DELETE", f"/adapters/{self.adapter}")

    async def installed(self) -> Object:
        """What Paperclip says of the adapter of this type."""
        found: Object = next(each for each in await self.get("/adapters") if each["type"] == self.adapter)
        return found

    async def test_environment(self, company: str, config: Mapping[str, Any]) -> Object:
        path = f"/companies/{company}/adapters/{self.adapter}/test-environment"
        tested: Object = await self.post(path, {"adapterConfig": dict(config)})
        return tested

    async def ui_parser(self) -> str:
        return str(await self.get(f"/adapters/{self.adapter}/ui-parser.js"))

    # companies, agents, issues

    async def company(self, name: str) -> str:
        return str((await self.post("/companies", {"name": name}))["id"])

    async def agent(self, company: str, name: str, config: Mapping[str, Any]) -> str:
        body = {
            "name": name,
            "role": "engineer",
            "adapterType": self.adapter,
            "adapterConfig": dict(config),
            "runtimeConfig": {"heartbeat": {"enabled": False}},
        }
        return str((await self.post(f"/companies/{company}/agents", body))["id"])

    async def project(self, company: str, name: str, folder: str) -> str:
        """Creates a project whose workspace is this folder of the server."""
        workspace = {"name": name, "cwd": folder, "isPrimary": True}
        return str((await self.post(f"/companies/{company}/projects", {"name": name, "workspace": workspace}))["id"])

    async def issue(
        self, company: str, agent: str, title: str, description: str = "Please do it.", project: str | None = None
    ) -> str:
        """Creates an issue that is assigned to the agent, which wakes it."""
        body = {"title": title, "description": description, "status": "todo", "assigneeAgentId": agent}
        if project is not None:
            body["projectId"] = project
        return str((await self.post(f"/companies/{company}/issues", body))["id"])

    async def read_issue(self, issue: str) -> Object:
        found: Object = await self.get(f"/issues/{issue}")
        return found

    async def comment(self, issue: str, text: str, **options: Any) -> Object:
        created: Object = await self.post(f"/issues/{issue}/comments", {"body": text, **options})
        return created

    async def close(self, issue: str) -> None:
        """Sets the issue to done as the board; no agent wakes for it afterwards."""
        await self.call("PATCH", f"/issues/{issue}", {"status": "done"})

    async def comments(self, issue: str) -> list[Object]:
        found: list[Object] = await self.get(f"/issues/{issue}/comments")
        return found

    async def task_sessions(self, agent: str) -> list[Object]:
        found: list[Object] = await self.get(f"/agents/{agent}/task-sessions")
        return found

    async def retry(self, agent: str, run: str) -> str | None:
        """Retries a failed run, as its button does; the id of the new run, None while Paperclip refuses."""
        body = {"source": "on_demand", "triggerDetail": "manual", "reason": "retry_failed_run", "failedRunId": run}
        woken: Object = await self.post(f"/agents/{agent}/wakeup", body)
        return str(woken["id"]) if "id" in woken else None

    # runs

    async def runs(self, company: str, issue: str, agent: str | None = None) -> list[Object]:
        """The runs of an issue, oldest first; naming its only agent makes the request faster."""
        query = "" if agent is None else f"?agentId={agent}"
        found = await self.get(f"/companies/{company}/heartbeat-runs{query}")
        mine = [run for run in found if (run.get("contextSnapshot") or {}).get("issueId") == issue]
        return sorted(mine, key=lambda run: str(run["createdAt"]))

    async def run(self, run: str) -> Object:
        found: Object = await self.get(f"/heartbeat-runs/{run}")
        return found

    async def cancel(self, run: str) -> Object:
        """Returns when the run's adapter has answered; Paperclip answers 500 after 60 s."""
        cancelled: Object = await self.post(f"/heartbeat-runs/{run}/cancel")
        return cancelled

    async def events(self, run: str) -> list[Object]:
        found: list[Object] = await self.get(f"/heartbeat-runs/{run}/events")
        return found

    async def log(self, run: str) -> list[Entry]:
        """The env log, paged."""
        text, offset = "", 0
        while True:
            try:
                page = await self.get(f"/heartbeat-runs/{run}/log?offset={offset}&limitBytes={PAGE}")
            except ApiError as refusal:
                if refusal.status == NOT_FOUND:  # nothing was written yet
                    return []
                raise
            text += page.get("content") or ""
            following = page.get("nextOffset")
            if following is None or following == offset:
                break
            offset = following
        env, _, _ = text.rpartition("\n")  # the last record may be incomplete
        records = [json.loads(line) for line in env.split("\n") if line]
        return [Entry(record["stream"], record["chunk"]) for record in records]

    # waiting

    async def wait_until(self, question: Callable[[], Any], what: str, limit: timedelta = TIMEOUT) -> Any:
        """Calls `question` until its answer is true, and returns that."""
        try:
            async with asyncio.timeout(limit.total_seconds()):
                while not (answer := await question()):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(POLL_INTERVAL.total_seconds())
                return answer
        except TimeoutError:
            raise AssertionError(f"not within {limit.total_seconds():.0f} s: {what}") from None

    async def next_run(self, company: str, issue: str, after: int = 0, agent: str | None = None) -> str:
        """The id of the issue's run number `after` + 1, once it exists."""

        async def run_id() -> str | None:
            runs = await self.runs(company, issue, agent)
            return str(runs[after]["id"]) if len(runs) > after else None

        return str(await self.wait_until(run_id, f"run {after + 1} of issue {issue}"))

    async def wait_ended(self, run: str) -> Object:
        async def ended_run() -> Object | None:
            found = await self.run(run)
            return found if found["status"] in ENDED else None

        found: Object = await self.wait_until(ended_run, f"the end of run {run}")
        return found

    async def wait_logged(self, run: str, words: str) -> list[Entry]:
        """The log, once one of its records contains `words`."""

        async def matching_log() -> list[Entry] | None:
            log = await self.log(run)
            return log if any(words in entry.chunk for entry in log) else None

        found: list[Entry] = await self.wait_until(matching_log, f"{words!r} in the log of run {run}")
        return found
