"""One watch for all runs: whatever fails, every run gets each state of its own pods and no false deletion."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from agent_runs.contracts.errors import ClusterForbidden, ClusterUnavailable
from agent_runs.contracts.messages import JobRef
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Pod, decode
from agent_runs.kube.watch import NamespaceWatch, WatchTiming, snapshots
from dev_stack.cluster import EmbeddedCluster
from tests.kube.conftest import Scripted, kubeconfig
from tests.kube.test_client import NAMESPACE, job_manifest, start_job, wait_for_phase

QUICK = timedelta(milliseconds=10)
LATE = timedelta(minutes=10)
TIMING = WatchTiming(
    first_pause=QUICK, max_pause=QUICK, list_interval=QUICK, confirm_delay=QUICK, unlabelled_interval=QUICK
)
UNCONFIRMED = WatchTiming(first_pause=QUICK, max_pause=QUICK, confirm_delay=LATE, unlabelled_interval=LATE)
"""Reads nothing by name, so whatever arrives has come by the watch."""


@pytest.fixture
async def client_of_watch(embedded: EmbeddedCluster) -> AsyncIterator[Cluster]:
    """A client of the embedded cluster that learns of pods by the watch alone."""
    path = str(embedded.kubeconfig_path)
    async with await Cluster.connect(path, environ={}, timing=UNCONFIRMED) as client:
        yield client


def wait_script(gate: Path) -> str:
    return f"while ! test -e {gate}; do sleep 0.02; done"


async def next_in_phase(states: AsyncIterator[list[Pod]], phase: str) -> Pod:
    async with asyncio.timeout(60):
        async for pods in states:
            if pods and pods[0].status.phase == phase:
                return pods[0]
    raise AssertionError("the watch ended")


# on the embedded cluster


async def test_a_pods_changes_reach_its_run(client_of_watch: Cluster, name: str, tmp_path: Path) -> None:
    job = await start_job(client_of_watch, job_manifest(name, wait_script(tmp_path / "gate")))
    async with client_of_watch.watch_pods(job) as states:
        await next_in_phase(states, "Running")
        (tmp_path / "gate").touch()
        await next_in_phase(states, "Succeeded")
        await client_of_watch.delete_job(NAMESPACE, name, job.uid)
        async with asyncio.timeout(60):
            while await anext(states):
                pass


async def test_runs_share_one_list_and_one_connection(
    client_of_watch: Cluster, embedded: EmbeddedCluster, name: str, tmp_path: Path
) -> None:
    embedded.requests.clear()
    jobs = [
        await start_job(client_of_watch, job_manifest(f"{name}-{n}", wait_script(tmp_path / "gate"))) for n in range(3)
    ]
    async with AsyncExitStack() as open_watches:
        watches = [await open_watches.enter_async_context(client_of_watch.watch_pods(job)) for job in jobs]
        for states, job in zip(watches, jobs, strict=True):
            assert (await next_in_phase(states, "Running")).metadata.name.startswith(job.name)
        (tmp_path / "gate").touch()
        for states in watches:
            await next_in_phase(states, "Succeeded")
    reads = [path for method, path in embedded.requests if method == "GET"]
    assert ["watch=true" in path for path in reads] == [False, True], reads


@pytest.mark.parametrize("bytes_left", [0, 1000])
async def test_a_change_during_a_cut_is_not_missed(
    client_of_watch: Cluster, embedded: EmbeddedCluster, name: str, tmp_path: Path, bytes_left: int
) -> None:
    fault = embedded.faults.http(method="GET", path="watch=true", cut_after=bytes_left, times=4)
    job = await start_job(client_of_watch, job_manifest(name, wait_script(tmp_path / "gate")))
    async with client_of_watch.watch_pods(job) as states:
        await next_in_phase(states, "Running")
        (tmp_path / "gate").touch()
        await next_in_phase(states, "Succeeded")
    assert fault.hits >= 1


async def test_a_watch_continues_after_its_history_was_compacted(
    client_of_watch: Cluster, embedded: EmbeddedCluster, name: str, tmp_path: Path
) -> None:
    job = await start_job(client_of_watch, job_manifest(name, wait_script(tmp_path / "gate")))
    async with client_of_watch.watch_pods(job) as states:
        await next_in_phase(states, "Running")
        embedded.faults.http(method="GET", path="watch=true", status=410, message="too old", times=2)
        embedded.faults.expire_history()
        (tmp_path / "gate").touch()
        await next_in_phase(states, "Succeeded")


async def test_a_watch_continues_with_a_restarted_api_server(
    client_of_watch: Cluster, embedded: EmbeddedCluster, name: str, tmp_path: Path
) -> None:
    job = await start_job(client_of_watch, job_manifest(name, wait_script(tmp_path / "gate")))
    async with client_of_watch.watch_pods(job) as states:
        await next_in_phase(states, "Running")
        restart = asyncio.create_task(embedded.faults.restart_api_server(down=0.3))
        (tmp_path / "gate").touch()
        await restart
        await next_in_phase(states, "Succeeded")


async def test_a_pod_without_our_labels_is_found_by_its_job(embedded: EmbeddedCluster, name: str) -> None:
    manifest = job_manifest(name, "exit 0")
    del manifest["spec"]["template"]["metadata"]["labels"]
    async with await Cluster.connect(str(embedded.kubeconfig_path), environ={}, timing=TIMING) as client:
        await wait_for_phase(client, await start_job(client, manifest), "Succeeded")


async def test_a_job_has_no_pod_only_after_a_read_by_name(embedded: EmbeddedCluster, name: str) -> None:
    job = JobRef(namespace=NAMESPACE, name=name, uid="none yet")
    client = await Cluster.connect(str(embedded.kubeconfig_path), environ={}, timing=TIMING)
    async with client, client.watch_pods(job) as states:
        assert await anext(states) == []
    assert any(f"job-name%3D{name}" in path for _, path in embedded.requests)


# failures of watches


class Api:
    """A scripted API with pods and the watches it serves one after another; the last one stays open."""

    def __init__(self, scripted: Scripted) -> None:
        self.listed: list[dict[str, Any]] = []
        self.by_name: list[dict[str, Any]] = []
        self.watches: list[str | web.Response] = []
        self.requests: list[tuple[str, str]] = []
        self.watch_requested = asyncio.Event()
        self.all_served = asyncio.Event()
        self.closing = asyncio.Event()
        scripted.answer = self.answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            kind = "named" if request.query["labelSelector"].startswith("job-name") else "list"
            self.requests.append((kind, ""))
            items = self.by_name if kind == "named" else self.listed
            return web.json_response({"metadata": {"resourceVersion": "1", "continue": None}, "items": items or None})
        self.requests.append(("watch", request.query["resourceVersion"]))
        self.watch_requested.set()
        if self.watches:
            script = self.watches.pop(0)
            return script if isinstance(script, web.Response) else web.Response(text=script)
        return await self._stay_open(request)

    async def _stay_open(self, request: web.Request) -> web.StreamResponse:
        self.all_served.set()
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            await response.write(b"\n")
            await self.closing.wait()
        return response

    @property
    def versions(self) -> list[str]:
        """The version from which each watch began."""
        return [version for kind, version in self.requests if kind == "watch"]

    @property
    def watch_requests(self) -> list[tuple[str, str]]:
        """The requests of the watch itself; how often pods are read by name depends on the load of the machine."""
        return [request for request in self.requests if request[0] != "named"]

    async def served(self) -> None:
        async with asyncio.timeout(60):
            await self.all_served.wait()


@pytest.fixture
async def api(scripted: Scripted) -> AsyncIterator[Api]:
    api = Api(scripted)
    yield api
    api.closing.set()


@pytest.fixture
async def client(api: Api, scripted: Scripted, tmp_path: Path) -> AsyncIterator[Cluster]:  # noqa: ARG001 - order
    async with await connect(scripted, tmp_path, TIMING) as client:
        yield client


async def connect(scripted: Scripted, folder: Path, timing: WatchTiming) -> Cluster:
    path = folder / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(scripted.url, {"token": "the-token"})))
    return await Cluster.connect(str(path), environ={}, timing=timing)


def pod(version: int, name: str = "p", owner: str = "u") -> dict[str, Any]:
    return {
        "metadata": {"uid": name, "name": name, "resourceVersion": str(version), "ownerReferences": [{"uid": owner}]}
    }


def event(kind: str, body: dict[str, Any]) -> str:
    return json.dumps({"type": kind, "object": body}) + "\n"


def error(code: int, reason: str) -> str:
    return event("ERROR", {"kind": "Status", "code": code, "reason": reason, "message": "m"})


def refusal(code: int, reason: str, message: str = "m") -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


JOB = JobRef(namespace=NAMESPACE, name="j", uid="u")


async def version_reaches(client: Cluster, wanted: str) -> list[list[str]]:
    """The versions of the pods in each state until that one is there."""
    seen: list[list[str]] = []
    async with client.watch_pods(JOB) as states, asyncio.timeout(60):
        async for pods in states:
            seen.append([each.metadata.resource_version for each in pods])
            if wanted in seen[-1]:
                return seen
    raise AssertionError("the watch ended")


@pytest.mark.parametrize(
    ("ends", "versions"),
    [
        pytest.param(event("MODIFIED", pod(3)) + event("MODIFIED", pod(4))[:30], ["1", "3"], id="a cut line"),
        pytest.param(event("MODIFIED", pod(3)) + "<html>proxy</html>\n", ["1", "3"], id="no JSON"),
        pytest.param(event("MODIFIED", pod(3)), ["1", "3"], id="a clean end"),
        pytest.param(event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), ["1", "9"], id="a bookmark"),
        pytest.param(event("MODIFIED", pod(3)) + error(500, "InternalError"), ["1", "3"], id="an error inside"),
        pytest.param(event("UNKNOWN", pod(3)), ["1", "3"], id="an unknown event"),
        pytest.param(error(410, "Expired"), ["1", "1"], id="410 inside"),
        pytest.param(refusal(410, "Gone"), ["1", "1"], id="410"),
        pytest.param(refusal(429, "TooManyRequests"), ["1", "1"], id="429"),
        pytest.param(refusal(503, "ServiceUnavailable"), ["1", "1"], id="503"),
        pytest.param(web.Response(text="<html>", status=502), ["1", "1"], id="a proxy's 502"),
    ],
)
async def test_a_watch_that_ends_continues_from_its_last_version(
    client: Cluster, api: Api, ends: str | web.Response, versions: list[str]
) -> None:
    api.listed = api.by_name = [pod(2)]
    api.watches = [ends, event("MODIFIED", pod(12))]
    assert ["12"] in await version_reaches(client, "12")
    assert api.versions[:2] == versions


async def test_only_an_expired_version_leads_to_a_new_list(client: Cluster, api: Api) -> None:
    api.listed = api.by_name = [pod(2)]
    api.watches = [refusal(503, "x"), event("MODIFIED", pod(3)), "", refusal(410, "Gone"), event("MODIFIED", pod(12))]
    await version_reaches(client, "12")
    assert [kind for kind, _ in api.watch_requests][:7] == [
        *("list", "watch", "watch", "watch", "watch"),
        *("list", "watch"),
    ]


async def test_a_silent_connection_is_replaced(api: Api, scripted: Scripted, tmp_path: Path) -> None:
    api.listed = [pod(2)]
    timing = WatchTiming(
        first_pause=QUICK, max_pause=QUICK, idle_timeout=timedelta(milliseconds=50), confirm_delay=LATE
    )
    client = await connect(scripted, tmp_path, timing)
    async with client, client.watch_pods(JOB) as states, asyncio.timeout(60):
        await anext(states)
        await api.served()
        api.watches = [event("MODIFIED", pod(12))]
        assert [each.metadata.resource_version for each in await anext(states)] == ["12"]


@pytest.mark.parametrize(
    "loses",
    [
        pytest.param(event("DELETED", pod(3)), id="a deletion"),
        pytest.param(error(410, "Expired"), id="absence from a later list"),
    ],
)
async def test_a_watch_alone_never_reports_a_pod_as_deleted(client: Cluster, api: Api, loses: str) -> None:
    api.listed = api.by_name = [pod(2)]
    async with client.watch_pods(JOB) as states, asyncio.timeout(60):
        assert len(await anext(states)) == 1
        api.listed, api.watches = [], [loses]
        api.closing.set()  # the open connection ends, the next one brings the loss
        api.by_name = [pod(7)]
        assert [each.metadata.resource_version for each in await anext(states)] == ["7"]
        api.by_name = []
        assert await anext(states) == []


async def test_a_failed_read_by_name_is_no_absence(client: Cluster, api: Api) -> None:
    api.listed, api.watches = [pod(2)], [event("DELETED", pod(3))]
    api.by_name = [{"metadata": {"uid": 7}}]  # an answer that cannot be read
    async with client.watch_pods(JOB) as states, asyncio.timeout(60):
        with pytest.raises(ClusterUnavailable):
            _ = [pods async for pods in states]


async def test_an_invalid_pod_does_not_hide_others(client: Cluster, api: Api) -> None:
    odd = {"metadata": {"uid": "odd", "labels": 7}}
    api.listed = [odd, pod(2)]
    api.watches = [event("MODIFIED", odd) + event("MODIFIED", pod(12))]
    await version_reaches(client, "12")


FORBIDDEN = 'pods is forbidden: User "x" cannot watch resource "pods"'


async def test_where_watching_is_forbidden_lists_do(client: Cluster, api: Api) -> None:
    api.listed = api.by_name = [pod(2)]
    api.watches = [refusal(403, "Forbidden", FORBIDDEN) for _ in range(1000)]
    with capture_logs() as logs:
        async with client.watch_pods(JOB) as states, asyncio.timeout(60):
            await anext(states)
            await api.watch_requested.wait()  # after the list: only a refusal leads to another one
            api.listed = [pod(12)]
            assert [each.metadata.resource_version for each in await anext(states)] == ["12"]
    entry = next(entry for entry in logs if entry["event"] == "watch.forbidden")
    assert "cannot watch pods: 403" in entry["cause"]


async def test_where_listing_is_forbidden_every_run_gets_what_to_grant(client: Cluster, scripted: Scripted) -> None:
    scripted.refuse_with(403, "Forbidden", FORBIDDEN.replace("watch", "list"))

    async def follow(uid: str) -> None:
        async with client.watch_pods(JOB.model_copy(update={"uid": uid})) as states:
            await anext(states)

    async with asyncio.timeout(60):
        ends = await asyncio.gather(follow("a"), follow("b"), return_exceptions=True)
    assert [type(end) for end in ends] == [ClusterForbidden, ClusterForbidden]
    assert all("cannot list pods" in str(end) for end in ends)


async def test_a_watch_without_readers_ends_and_the_next_reader_starts_a_new_one(client: Cluster, api: Api) -> None:
    api.listed = api.by_name = [pod(2)]
    earlier = asyncio.all_tasks()
    async with client.watch_pods(JOB) as states, asyncio.timeout(60):
        await anext(states)
        await api.served()
    async with client.watch_pods(JOB) as states, asyncio.timeout(60):
        assert len(await anext(states)) == 1
    assert api.watch_requests == [("list", ""), ("watch", "1")]
    api.closing.set()
    async with asyncio.timeout(60):
        own = asyncio.all_tasks() - earlier
        await asyncio.wait([task for task in own if task.get_name() == f"watch {NAMESPACE}"])
    api.listed = [pod(12)]
    assert (await version_reaches(client, "12"))[-1] == ["12"]
    assert api.watch_requests[2] == ("list", "")


class LateList:
    """Its only list arrives in the very turn of the event loop in which the wait before a read by name ends."""

    async def list_pods(self, *_: object) -> tuple[list[Pod], str]:
        late = time.monotonic() + 5 * QUICK.total_seconds()
        while time.monotonic() < late:  # a busy machine: no timer fires
            pass
        await asyncio.sleep(0)
        return [decode(json.dumps(pod(12)).encode(), Pod)], "12"

    async def pod_events(self, *_: object, **__: object) -> AsyncGenerator[tuple[str, Pod]]:
        await asyncio.Event().wait()
        yield "", Pod()

    async def pods_of(self, _: JobRef) -> list[Pod]:
        return [decode(json.dumps(pod(2)).encode(), Pod)]


async def test_what_the_watch_shows_is_not_replaced_by_an_earlier_read_by_name() -> None:
    watch = NamespaceWatch(cast("Cluster", LateList()), NAMESPACE, TIMING)
    async with aclosing(watch.states(JOB)) as states, asyncio.timeout(60):
        assert [each.metadata.resource_version for each in await anext(states)] == ["12"]
    await watch.close()


async def test_500_runs_on_one_connection_each_get_their_own_pod(api: Api, scripted: Scripted, tmp_path: Path) -> None:
    names = [f"run-{number}" for number in range(500)]
    api.watches = ["".join(event("ADDED", pod(10 + number, name, name)) for number, name in enumerate(names))]

    async def first_pod(client: Cluster, name: str) -> str:
        async with client.watch_pods(JOB.model_copy(update={"uid": name})) as states:
            (only,) = await anext(states)
            return only.metadata.name

    async with await connect(scripted, tmp_path, UNCONFIRMED) as client, asyncio.timeout(60):
        assert await asyncio.gather(*(first_pod(client, name) for name in names)) == names
    assert [kind for kind, _ in api.requests if kind == "list"] == ["list"]
    assert "named" not in [kind for kind, _ in api.requests]


async def test_snapshots_repeat_the_last_state_and_are_none_at_first() -> None:
    gate = asyncio.Event()

    async def states() -> AsyncIterator[list[Pod]]:
        await gate.wait()
        yield [Pod()]
        await asyncio.Event().wait()

    repeated = snapshots(states(), timedelta(milliseconds=1))
    assert await anext(repeated) is None
    gate.set()
    while await anext(repeated) is None:
        pass
    assert [await anext(repeated) for _ in range(3)] == [[Pod()]] * 3
    await repeated.aclose()
