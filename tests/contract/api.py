"""A thin client for the contract tests: plain HTTP and JSON, so that nothing hides the server's answers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

Object = dict[str, Any]
IMAGE = "busybox:1.36"  # present on the test cluster; only a name to the embedded one
TIMEOUT = 120.0  # seconds for something that must happen; a real node may be slow


@dataclass(frozen=True)
class Answer:
    code: int
    body: Object
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        return str(self.body.get("reason"))

    @property
    def message(self) -> str:
        return str(self.body.get("message"))

    @property
    def causes(self) -> dict[str, str]:
        """Field to reason."""
        causes = self.body.get("details", {}).get("causes") or []
        return {cause["field"]: cause["reason"] for cause in causes}


class Api:
    def __init__(self, session: aiohttp.ClientSession, namespace: str, *, real: bool) -> None:
        self.session = session
        self.namespace = namespace
        self.real = real

    # ---------------------------------------------------------------- requests

    async def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **query: str
    ) -> Answer:
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        headers = {"Content-Type": kind} if data is not None else {}
        url = path if path.startswith("/") else self.path(path)
        async with self.session.request(method, url, data=data, headers=headers, params=query) as reply:
            text = await reply.text()
            return Answer(reply.status, json.loads(text) if text[:1] == "{" else {"text": text}, dict(reply.headers))

    def path(self, path: str) -> str:
        """`jobs/x` to the whole path in our namespace."""
        group = "/apis/batch/v1" if path.startswith("jobs") else "/api/v1"
        return f"{group}/namespaces/{self.namespace}/{path}"

    async def get(self, path: str, **query: str) -> Answer:
        return await self.call("GET", path, **query)

    async def create(self, plural: str, body: Object, **query: str) -> Answer:
        return await self.call("POST", plural, body, **query)

    async def replace(self, path: str, body: Object) -> Answer:
        return await self.call("PUT", path, body)

    async def patch(self, path: str, body: Any, kind: str = "merge") -> Answer:
        return await self.call("PATCH", path, body, kind=f"application/{kind}-patch+json")

    async def delete(
        self, path: str, *, selector: str = "", grace: int | None = None, propagation: str | None = None
    ) -> Answer:
        options = {"gracePeriodSeconds": grace, "propagationPolicy": propagation}
        body = {key: value for key, value in options.items() if value is not None}
        return await self.call("DELETE", path, body, **({"labelSelector": selector} if selector else {}))

    async def items(self, path: str, **query: str) -> list[Object]:
        answer = await self.get(path, **query)
        assert answer.code == 200, answer
        found: list[Object] = answer.body["items"]
        return found

    async def version(self) -> str:
        """The resourceVersion of now."""
        return str((await self.get("configmaps")).body["metadata"]["resourceVersion"])

    # ---------------------------------------------------------------- watches

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[Object]]:
        """The events of a watch, until the server ends it."""
        query = {"watch": "true", "timeoutSeconds": "30"} | query
        async with self.session.get(self.path(path), params=query) as reply:
            assert reply.status == 200, await reply.text()

            async def events() -> AsyncIterator[Object]:
                async for line in reply.content:
                    yield json.loads(line)

            yield events()

    # ---------------------------------------------------------------- waiting

    async def until(self, path: str, met: Callable[[Object], bool], **query: str) -> Object:
        """Poll an object until it is as wanted."""
        seen: Answer | None = None
        try:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    seen = await self.get(path, **query)
                    if seen.code == 200 and met(seen.body):
                        return seen.body
                    await asyncio.sleep(0.3 if self.real else 0.02)
        except TimeoutError:
            raise AssertionError(f"{path} did not become what was expected: {seen}") from None

    async def until_deleted(self, path: str) -> None:
        async with asyncio.timeout(TIMEOUT):
            while (await self.get(path)).code != 404:  # noqa: ASYNC110 - the server is another process
                await asyncio.sleep(0.3 if self.real else 0.02)

    async def until_finished(self, job: str) -> Object:
        """The Job, once it is complete or has failed."""
        return await self.until(f"jobs/{job}", lambda body: bool(outcome(body)))

    async def pod_of(self, job: str, met: Callable[[Object], bool] = lambda _: True) -> Object:
        """The first pod of a Job, once there is one that is as wanted."""
        body = await self.until(
            "pods", lambda body: any(met(pod) for pod in body["items"]), labelSelector=f"job-name={job}"
        )
        found: Object = next(pod for pod in body["items"] if met(pod))
        return found

    # ---------------------------------------------------------------- pods and logs

    async def run(self, script: str, **spec: Any) -> str:
        """Create a pod with one container `main` that runs a script; returns its name."""
        answer = await self.create("pods", pod(script, **spec))
        assert answer.code == 201, answer
        return str(answer.body["metadata"]["name"])

    async def until_ended(self, name: str) -> Object:
        """The pod, once all of it has ended."""
        return await self.until(f"pods/{name}", lambda body: body["status"]["phase"] in ("Succeeded", "Failed"))

    async def output(self, script: str, **spec: Any) -> str:
        """What a pod that ran a script has printed."""
        name = await self.run(script, **spec)
        await self.until_ended(name)
        return await self.log(name)

    async def log(self, name: str, **query: str) -> str:
        answer = await self.get(f"pods/{name}/log", **query)
        assert answer.code == 200, answer
        return str(answer.body["text"])

    @asynccontextmanager
    async def follow(self, name: str, **query: str) -> AsyncIterator[aiohttp.StreamReader]:
        query = {"follow": "true"} | query
        async with self.session.get(self.path(f"pods/{name}/log"), params=query) as reply:
            assert reply.status == 200, await reply.text()
            yield reply.content


def container(script: str, name: str = "main", **more: Any) -> Object:
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", script]} | more


def pod(script: str, **spec: Any) -> Object:
    """A pod of one container; `container` adds fields to that, anything else to the pod's spec."""
    main = container(script, **spec.pop("container", {}))
    fields = {"containers": [main], "restartPolicy": "Never", "terminationGracePeriodSeconds": 1} | spec
    return {"metadata": {"generateName": "pod-"}, "spec": fields}


def job(name: str, script: str, **spec: Any) -> Object:
    """A Job of one container; `pod` adds fields to the pod's spec, anything else to the Job's."""
    template = {"spec": pod(script, **spec.pop("pod", {}))["spec"]}
    return {"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": template} | spec}


def outcome(body: Object) -> tuple[str, str] | None:
    """The final condition of a Job and its reason."""
    for one in body["status"].get("conditions") or ():
        if one["type"] in ("Complete", "Failed") and one["status"] == "True":
            return one["type"], one.get("reason", "")
    return None


def state(body: Object, name: str = "main") -> Object:
    """The state of a container: one key, `waiting`, `running` or `terminated`; empty before it is published."""
    for field in ("containerStatuses", "initContainerStatuses"):
        for one in body["status"].get(field) or ():
            if one["name"] == name:
                return dict(one["state"])
    return {}


def running(body: Object) -> bool:
    return "running" in state(body)


def condition(body: Object, name: str) -> Object:
    found = [one for one in body["status"].get("conditions") or () if one["type"] == name]
    return dict(found[0]) if found else {}
