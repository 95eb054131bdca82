"""What the embedded cluster promises beyond the Kubernetes API: safety, restarts and faults on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from dev_stack.cluster import CannotStart, EmbeddedCluster
from dev_stack.cluster.containers import Namespaces
from tests.contract.api import Api, condition, job, outcome, running, state

FAST = timedelta(seconds=0.1)


@contextlib.asynccontextmanager
async def reach_by(url: str, token: str, authority: Path) -> AsyncIterator[Api]:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(authority)), limit=0)
    async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {token}"}, connector=connector) as session:
        yield Api(session, "default", real=False)


def reach(cluster: EmbeddedCluster) -> contextlib.AbstractAsyncContextManager[Api]:
    return reach_by(cluster.url, cluster.token, cluster.ca_path)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(tmp_path / "state", shutdown_grace=FAST) as cluster:
        yield cluster


@pytest.fixture
async def api(cluster: EmbeddedCluster) -> AsyncIterator[Api]:
    async with reach(cluster) as api:
        yield api


def processes_with(text: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def until(met: Callable[[], bool]) -> None:
    """Wait for what another process does to the file system."""
    async with asyncio.timeout(60):
        while not met():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def ticking(api: Api, **spec: object) -> str:
    """A pod that prints a rising number ten times a second, once it runs."""
    own = await api.run("i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.1; done", **spec)
    await api.until(f"pods/{own}", running)
    return own


# -------------------------------------------------------------------- safety


async def test_its_secrets_are_for_its_user_alone(cluster: EmbeddedCluster) -> None:
    for path in (cluster.kubeconfig_path, cluster.state_dir / "server.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(cluster.state_dir.stat().st_mode) == 0o700


async def test_every_path_requires_the_token(cluster: EmbeddedCluster) -> None:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(cluster.ca_path)))
    async with aiohttp.ClientSession(cluster.url, connector=connector) as stranger:
        for path in ("/version", "/api/v1/pods", "/faults", "/nonsense"):
            async with stranger.get(path) as reply:
                assert reply.status == 401, path


async def test_one_state_directory_serves_one_cluster(cluster: EmbeddedCluster) -> None:
    with pytest.raises(CannotStart, match="another embedded cluster"):
        await EmbeddedCluster(cluster.state_dir).__aenter__()


async def test_a_container_sees_nothing_of_the_hosts_environment(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_HOST_SECRET", "do-not-tell")
    text = await api.output("env")
    assert "do-not-tell" not in text
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert names <= {"PATH", "HOME", "HOSTNAME", "PWD", "OLDPWD", "SHLVL", "_", "RUNNER_CGROUP"}


async def test_a_container_has_python_itself_where_the_machine_has_a_script(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, managers = tmp_path / "first", tmp_path / "version-manager"
    for folder, program in ((first, "tool"), (managers, "python3")):
        folder.mkdir()
        (folder / program).write_text("#!/bin/sh\necho the script\n")
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{first}:{managers}:/usr/bin:/bin")
    text = await api.output("command -v python3; head -c 4 $(command -v python3) | tail -c 3; echo; tool; echo $PATH")
    program, kind, script, path = text.splitlines()
    assert kind == "ELF"
    assert (script, path) == ("the script", f"{first}:{Path(program).parent}:{managers}:/usr/bin:/bin")


async def test_a_container_has_terminals_and_the_devices_of_a_runtime(api: Api) -> None:
    opens = "import pty; pty.spawn(['sh', '-c', 'test -t 1 && tty'])"
    text = await api.output(f'python3 -c "{opens}"; echo lost > /dev/null; ls /dev | tr "\n" " "')
    terminal, devices = text.splitlines()
    assert terminal == "/dev/pts/0"
    assert devices == "fd full null ptmx pts random shm stderr stdin stdout termination-log tty urandom zero "


async def test_mounts_leave_nothing_on_the_host(api: Api, name: str) -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    mounts = [{"name": "v", "mountPath": f"/{name}/top"}, {"name": "v", "mountPath": f"/usr/share/{name}"}]
    text = await api.output(
        f"touch /{name}/top/file; ls /usr/share/{name}; ls -d /usr/share/* | wc -l",
        volumes=volumes,
        container={"volumeMounts": mounts},
    )
    lines = text.split()
    assert lines[0] == "file"
    assert int(lines[1]) > 1  # the host's own entries are still there beside it
    left = [place for place in (Path(f"/{name}"), Path(f"/usr/share/{name}")) if place.exists()]
    assert left == []


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A name no other object has."""
    return f"it-{abs(hash(str(tmp_path))):x}"[:20]


# -------------------------------------------------------------------- containers


async def test_descendants_in_sessions_of_their_own_end_with_the_container(api: Api, name: str) -> None:
    own = await api.run(
        f"setsid sh -c 'setsid sh -c \"sleep 600; : {name}\" & sleep 600; : {name}' & sleep 0.3; exit 0"
    )
    await api.until_ended(own)
    assert processes_with(name) == []


def probed(namespaces: Namespaces) -> Callable[[Path], Awaitable[Namespaces]]:
    async def probe(_directory: Path) -> Namespaces:
        return namespaces

    return probe


@pytest.mark.parametrize(
    "namespaces",
    [Namespaces(user=False, mount=False, pid=False, problem="tried"), Namespaces(user=True, mount=True, pid=False)],
    ids=["none", "user"],
)
async def test_descendants_are_found_without_a_pid_namespace(
    tmp_path: Path, name: str, namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Namespaces, "probe", probed(namespaces))
    script = f"setsid sh -c 'setsid sh -c \"sleep 600; : {name}\" & sleep 600; : {name}' & sleep 0.3; echo out; exit 5"
    async with EmbeddedCluster(tmp_path / "state") as cluster, reach(cluster) as api:
        own = await api.run(script)
        ended = await api.until_ended(own)
        assert state(ended)["terminated"]["exitCode"] == 5
        assert await api.log(own) == "out\n"
        assert processes_with(name) == []


async def test_without_mounts_only_pods_with_volumes_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    none = Namespaces(user=False, mount=False, pid=False, problem="not permitted")
    monkeypatch.setattr(Namespaces, "probe", probed(none))
    async with EmbeddedCluster(tmp_path / "state") as cluster, reach(cluster) as api:
        assert "no private mount namespaces on this system (not permitted)" in caplog.text
        assert await api.output("echo hello") == "hello\n"
        mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
        own = await api.run("true", volumes=[{"name": "v", "emptyDir": {}}], container=mount)
        waiting = await api.until(f"pods/{own}", lambda body: state(body).get("waiting", {}).get("message"))
        assert state(waiting)["waiting"]["reason"] == "CreateContainerError"
        assert "volumes cannot be mounted" in state(waiting)["waiting"]["message"]


async def test_a_claim_keeps_its_data_until_it_is_deleted(cluster: EmbeddedCluster, api: Api, name: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await api.create("persistentvolumeclaims", {"metadata": {"name": name}, "spec": spec})
    bound = await api.until(f"persistentvolumeclaims/{name}", lambda body: body["status"]["phase"] == "Bound")
    assert bound["status"]["capacity"] == {"storage": "1Gi"}
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/data"}]}
    await api.output("echo kept > /data/file", volumes=volumes, container=mount)
    assert await api.output("cat /data/file", volumes=volumes, container=mount) == "kept\n"
    await api.delete(f"persistentvolumeclaims/{name}")
    await api.until_deleted(f"persistentvolumeclaims/{name}")
    await until(lambda: not (cluster.state_dir / "claims" / "default" / name).exists())


async def test_a_container_ends_when_its_supervisor_is_killed(api: Api, name: str) -> None:
    own = await api.run(f"while :; do sleep 0.1; : {name}; done")
    await api.until(f"pods/{own}", running)
    main = min(processes_with(name))  # a fork that is about to become `sleep` has the same arguments
    os.kill(parent_of(main), signal.SIGKILL)
    ended = await api.until_ended(own)
    assert state(ended)["terminated"]["exitCode"] == 137
    await until(lambda: processes_with(name) == [])


async def test_a_deleted_pod_counts_as_failed(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "sleep 600"))
    own = await api.pod_of(name, running)
    await api.delete(f"pods/{own['metadata']['name']}")
    assert outcome(await api.until_finished(name)) == ("Failed", "BackoffLimitExceeded")
    assert len(await api.items("pods", labelSelector=f"job-name={name}")) <= 1


async def test_a_suspended_job_waits_until_it_is_resumed(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "exit 0", suspend=True))
    await api.create("jobs", job(f"{name}-other", "exit 0"))
    await api.until_finished(f"{name}-other")  # by then the controller has seen the first one too
    assert await api.items("pods", labelSelector=f"job-name={name}") == []
    await api.patch(f"jobs/{name}", {"spec": {"suspend": False}})
    assert outcome(await api.until_finished(name)) is not None


# -------------------------------------------------------------------- restarts


async def test_old_watches_get_410_after_a_restart_and_new_ones_work(tmp_path: Path) -> None:
    async with EmbeddedCluster(tmp_path / "state") as first, reach(first) as api:
        old = await api.version()
        await api.create("configmaps", {"metadata": {"name": "kept"}})
        new = await api.version()
    async with EmbeddedCluster(tmp_path / "state") as second, reach(second) as api:
        assert (await api.get("configmaps/kept")).code == 200
        async with api.watch("configmaps", resourceVersion=old) as events:
            event = await anext(events)
            assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        async with api.watch("configmaps", resourceVersion=str(int(await api.version()))) as events:
            await api.create("configmaps", {"metadata": {"name": "later"}})
            assert (await anext(events))["object"]["metadata"]["name"] == "later"
        assert int(await api.version()) > int(new)


async def test_logs_of_ended_pods_and_outcomes_survive_a_restart(tmp_path: Path) -> None:
    async with EmbeddedCluster(tmp_path / "state", shutdown_grace=FAST) as first, reach(first) as api:
        await api.create("jobs", job("long", "echo begun; sleep 600"))
        own = (await api.pod_of("long", running))["metadata"]["name"]
    async with EmbeddedCluster(tmp_path / "state") as second, reach(second) as api:
        pod = (await api.get(f"pods/{own}")).body
        assert (pod["status"]["phase"], pod["status"]["reason"]) == ("Failed", "Terminated")
        assert await api.log(own) == "begun\n"
        assert outcome(await api.until_finished("long")) == ("Failed", "BackoffLimitExceeded")


async def test_a_killed_process_takes_its_containers_along(tmp_path: Path, name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dev_stack.cluster", "--state", str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode().strip() for _ in range(3)]
    printed = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert Path(printed["KUBECONFIG"]) == tmp_path / "kubeconfig"
    async with reach_by(printed["url"], printed["token"], tmp_path / "ca.crt") as api:
        own = await api.run(f"trap '' TERM; while :; do sleep 0.1; : {name}; done")
        await api.until(f"pods/{own}", running)
    assert processes_with(name)
    process.kill()
    await process.wait()
    await until(lambda: processes_with(name) == [])


# -------------------------------------------------------------------- faults


async def test_a_request_can_be_refused_with_retry_after(cluster: EmbeddedCluster, api: Api) -> None:
    fault = cluster.faults.http(status=429, retry_after=7, path="/pods", times=2)
    refused = [await api.get("pods") for _ in range(3)]
    assert [one.code for one in refused] == [429, 429, 200]
    assert refused[0].headers["Retry-After"] == "7"
    assert refused[0].reason == "TooManyRequests"
    assert (await api.get("jobs")).code == 200
    assert fault.hits == 2


async def test_a_lost_answer_leaves_the_work_done(cluster: EmbeddedCluster, api: Api) -> None:
    cluster.faults.http(method="POST", path="/configmaps", cut_after=0)
    with pytest.raises(aiohttp.ClientError):
        await api.create("configmaps", {"metadata": {"name": "made"}})
    assert (await api.create("configmaps", {"metadata": {"name": "made"}})).reason == "AlreadyExists"


async def test_an_answer_can_break_off_in_the_middle(cluster: EmbeddedCluster, api: Api) -> None:
    own = await ticking(api)
    cluster.faults.http(path="/log", cut_after=20)
    got = b""
    with contextlib.suppress(aiohttp.ClientError):
        async with api.follow(own) as log:
            async for data in log.iter_any():
                got += data
        raise AssertionError("the stream ended as if it were complete")
    assert got == b"tick 0\ntick 1\ntick 2"[:20]


async def test_a_follow_can_end_cleanly_with_an_error_text_of_the_kubelet(cluster: EmbeddedCluster, api: Api) -> None:
    own = await ticking(api)
    text = "failed to create fsnotify watcher: too many open files"
    cluster.faults.http(path="/log", cut_after=7, clean=True, text=text)
    async with api.follow(own) as log:
        assert (await log.read()).decode() == f"tick 0\n{text}"
    assert running((await api.get(f"pods/{own}")).body)


async def test_an_answer_can_be_slow(cluster: EmbeddedCluster, api: Api) -> None:
    cluster.faults.http(delay=30, path="/slow")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await api.get("configmaps/slow")
    assert (await api.get("configmaps/slow")).code == 404


async def test_history_can_expire_under_a_watch(cluster: EmbeddedCluster, api: Api) -> None:
    version = await api.version()
    await api.create("configmaps", {"metadata": {"name": "seen"}})
    async with api.watch("configmaps", resourceVersion=version) as events:
        assert (await anext(events))["type"] == "ADDED"
        await api.create("secrets", {"metadata": {"name": "unseen"}})
        cluster.faults.expire_history()
        assert (await anext(events))["object"]["code"] == 410


async def test_a_kubelet_restart_ends_follows_cleanly_and_no_container(cluster: EmbeddedCluster, api: Api) -> None:
    own = await ticking(api)
    async with api.follow(own) as log:
        assert await log.readline() == b"tick 0\n"
        restart = asyncio.create_task(cluster.faults.restart_kubelet(down=0.2))
        await log.read()  # ends
    away = await api.get(f"pods/{own}/log")
    assert (away.code, away.reason) == (500, "InternalError")
    await restart
    assert (await api.log(own)).startswith("tick 0\ntick 1\n")
    after = (await api.get(f"pods/{own}")).body
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert running(after)


async def test_an_eviction_leaves_a_failed_pod_with_its_reason(cluster: EmbeddedCluster, api: Api, name: str) -> None:
    await api.create("jobs", job(name, "sleep 600"))
    own = (await api.pod_of(name, running))["metadata"]["name"]
    await cluster.faults.evict(own)
    evicted = (await api.get(f"pods/{own}")).body
    assert (evicted["status"]["phase"], evicted["status"]["reason"]) == ("Failed", "Evicted")
    assert condition(evicted, "DisruptionTarget")["status"] == "True"
    assert outcome(await api.until_finished(name)) == ("Failed", "BackoffLimitExceeded")


async def test_a_lost_node_takes_its_pods_and_may_come_back(cluster: EmbeddedCluster, api: Api) -> None:
    own = await ticking(api)
    await cluster.faults.lose_node(forget_after=0.05)
    await api.until_deleted(f"pods/{own}")
    next_one = await api.run("echo back")
    waiting = await api.until(f"pods/{next_one}", lambda body: bool(condition(body, "PodScheduled")))
    assert condition(waiting, "PodScheduled")["reason"] == "Unschedulable"
    await cluster.faults.recover_node()
    await api.until_ended(next_one)
    assert await api.log(next_one) == "back\n"


async def test_an_image_can_be_refused_for_a_while(cluster: EmbeddedCluster, api: Api) -> None:
    cluster.faults.refuse_image("registry.example/agent:1", "429 Too Many Requests")
    own = await api.run("echo pulled", container={"image": "registry.example/agent:1"})
    waiting = await api.until(
        f"pods/{own}", lambda body: state(body).get("waiting", {}).get("reason") in ("ErrImagePull", "ImagePullBackOff")
    )
    uid = waiting["metadata"]["uid"]
    events = await api.items("events", fieldSelector=f"involvedObject.uid={uid},reason=Failed")
    assert any("429 Too Many Requests" in event["message"] for event in events)
    refused = await api.get(f"pods/{own}/log")
    assert (refused.code, refused.reason) == (400, "BadRequest")
    cluster.faults.clear()
    await api.until_ended(own)
    assert await api.log(own) == "pulled\n"


async def test_a_full_node_refuses_pods_with_the_reason_until_it_has_space(cluster: EmbeddedCluster, api: Api) -> None:
    cluster.faults.fill_node("1 Insufficient memory.")
    own = await api.run("echo placed")
    waiting = await api.until(f"pods/{own}", lambda body: bool(condition(body, "PodScheduled")))
    assert condition(waiting, "PodScheduled")["message"] == "0/1 nodes are available: 1 Insufficient memory."
    cluster.faults.clear()
    await api.until_ended(own)


async def test_rotation_hides_earlier_output_but_not_from_an_open_follow(cluster: EmbeddedCluster, api: Api) -> None:
    own = await ticking(api)
    async with api.follow(own) as log:
        assert await log.readline() == b"tick 0\n"
        assert await log.readline() == b"tick 1\n"
        cluster.faults.rotate_log(own, "main")
        for number in range(2, 8):
            assert await log.readline() == f"tick {number}\n".encode()
    assert not (await api.log(own)).startswith("tick 0\n")


async def test_faults_can_be_injected_from_another_process(api: Api) -> None:
    injected = await api.call("POST", "/faults", {"do": "http", "status": 503, "path": "/pods", "times": None})
    assert injected.code == 200
    assert (await api.get("pods")).code == 503
    assert (await api.call("DELETE", "/faults")).code == 200
    assert (await api.get("pods")).code == 200
    assert (await api.call("POST", "/faults", {"do": "nonsense"})).code == 400
    assert (await api.call("POST", "/faults", {"do": "evict"})).code == 400


async def test_a_pod_that_somebody_deletes_is_removed(cluster: EmbeddedCluster, api: Api) -> None:
    own = await ticking(api)
    cluster.faults.delete_pod(own, grace=1)
    await api.until_deleted(f"pods/{own}")
