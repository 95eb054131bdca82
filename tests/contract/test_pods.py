"""What a kubelet promises about containers; scripts use sh and POSIX tools only."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.contract.api import Api, condition, container, pod, running, state


async def test_phase_and_exit_code_show_how_it_ended(api: Api) -> None:
    good, bad = await api.run("exit 0"), await api.run("exit 42")
    well = await api.until_ended(good)
    ill = await api.until_ended(bad)
    assert (well["status"]["phase"], state(well)["terminated"]["reason"]) == ("Succeeded", "Completed")
    assert (ill["status"]["phase"], state(ill)["terminated"]["reason"]) == ("Failed", "Error")
    assert state(ill)["terminated"]["exitCode"] == 42
    assert {"startedAt", "finishedAt", "containerID"} <= state(ill)["terminated"].keys()


async def test_conditions_follow_the_pods_life(api: Api) -> None:
    name = await api.run("sleep 600")
    alive = await api.until(f"pods/{name}", lambda body: condition(body, "Ready").get("status") == "True")
    for one in ("PodScheduled", "Initialized", "ContainersReady"):
        assert condition(alive, one)["status"] == "True"
    assert alive["spec"]["nodeName"]
    assert alive["status"]["startTime"]
    status = alive["status"]["containerStatuses"][0]
    assert (status["ready"], status["started"], status["restartCount"]) == (True, True, 0)
    await api.delete(f"pods/{name}", grace=0)
    ended = await api.until_ended(await api.run("exit 0"))
    assert condition(ended, "Ready")["reason"] == "PodCompleted"


async def test_a_pods_start_is_recorded_in_events(api: Api) -> None:
    name = await api.run("exit 0")
    uid = (await api.until_ended(name))["metadata"]["uid"]
    reported = await api.until(
        "events",
        lambda body: {"Scheduled", "Pulled", "Created", "Started"} <= {one["reason"] for one in body["items"]},
        fieldSelector=f"involvedObject.uid={uid}",
    )
    started = next(one for one in reported["items"] if one["reason"] == "Started")
    assert started["source"]["component"] == "kubelet"
    assert started["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert started["type"] == "Normal"


async def test_a_missing_command_is_a_start_error(api: Api) -> None:
    ended = await api.until_ended(await api.run("", container={"command": ["no-such-program"]}))
    reported = state(ended)["terminated"]
    assert (reported["exitCode"], reported["reason"]) == (128, "StartError")
    assert 'exec: "no-such-program": executable file not found in $PATH' in reported["message"]


async def test_command_and_args_are_expanded(api: Api) -> None:
    text = await api.output(
        "",
        container={
            "command": ["sh", "-c"],
            "args": ["echo '$(WHO)' '$(NOBODY)' '$$(WHO)'"],
            "env": [{"name": "FIRST", "value": "a"}, {"name": "WHO", "value": "$(FIRST)-$(LATER)"}],
        },
    )
    assert text == "a-$(LATER) $(NOBODY) $(WHO)\n"


async def test_variables_are_values_and_keys_of_secrets(api: Api, name: str) -> None:
    await api.create("secrets", {"metadata": {"name": name}, "stringData": {"password": "p w"}})
    env = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": name, "key": "password"}}},
        {"name": "PLAIN", "value": "x=$(PASSWORD)"},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": name, "key": "none", "optional": True}}},
    ]
    text = await api.output('echo "$PASSWORD|$PLAIN|${NONE-unset}"', container={"env": env})
    assert text == "p w|x=p w|unset\n"


async def test_a_missing_secret_key_keeps_the_container_waiting(api: Api, name: str) -> None:
    await api.create("secrets", {"metadata": {"name": name}, "stringData": {"other": "x"}})
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": "wanted"}}}]
    own = await api.run("echo $A", container={"env": env})
    missing = f"couldn't find key wanted in Secret {api.namespace}/{name}"
    waiting = await api.until(f"pods/{own}", lambda body: state(body).get("waiting", {}).get("message") == missing)
    assert state(waiting)["waiting"]["reason"] == "CreateContainerConfigError"
    assert waiting["status"]["phase"] == "Pending"
    await api.patch(f"secrets/{name}", {"stringData": {"wanted": "found"}})
    await api.until_ended(own)
    assert await api.log(own) == "found\n"


async def test_a_missing_secret_keeps_the_container_waiting(api: Api, name: str) -> None:
    own = await api.run(
        "true", container={"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": name, "key": "a"}}}]}
    )
    # Until then a busy kubelet says "failed to sync secret cache: timed out waiting for the condition".
    waiting = await api.until(
        f"pods/{own}", lambda body: state(body).get("waiting", {}).get("message") == f'secret "{name}" not found'
    )
    assert state(waiting)["waiting"]["reason"] == "CreateContainerConfigError"
    refused = await api.get(f"pods/{own}/log")
    assert refused.code == 400
    assert refused.message == f'container "main" in pod "{own}" is waiting to start: CreateContainerConfigError'
    await api.delete(f"pods/{own}", grace=0)


async def test_a_volume_of_a_missing_secret_keeps_the_pod_waiting(api: Api, name: str) -> None:
    volumes = [{"name": "v", "secret": {"secretName": name}}]
    own = await api.run("cat /v/a", volumes=volumes, container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]})
    uid = (await api.get(f"pods/{own}")).body["metadata"]["uid"]
    reported = await api.until(
        "events",
        lambda body: any(f'secret "{name}" not found' in one["message"] for one in body["items"]),
        fieldSelector=f"involvedObject.uid={uid}",
    )
    assert {one["reason"] for one in reported["items"] if name in one["message"]} >= {"FailedMount"}
    assert state((await api.get(f"pods/{own}")).body)["waiting"]["reason"] == "ContainerCreating"
    await api.create("secrets", {"metadata": {"name": name}, "stringData": {"a": "late"}})
    await api.until_ended(own)
    assert await api.log(own) == "late"


async def test_init_containers_run_in_order_before_the_rest(api: Api) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    spec = {
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [
            container("echo one >> /v/order", "first", **mount),
            container("echo two >> /v/order", "second", **mount),
        ],
    }
    own = await api.run("cat /v/order", container=mount, **spec)
    ended = await api.until_ended(own)
    assert await api.log(own, container="main") == "one\ntwo\n"
    assert [one["ready"] for one in ended["status"]["initContainerStatuses"]] == [True, True]
    assert condition(ended, "Initialized")["status"] == "True"


async def test_a_failed_init_container_fails_the_pod(api: Api) -> None:
    own = await api.run("echo never", initContainers=[container("echo oops; exit 7", "first")])
    ended = await api.until_ended(own)
    assert ended["status"]["phase"] == "Failed"
    assert state(ended, "first")["terminated"]["exitCode"] == 7
    assert state(ended)["waiting"]["reason"] == "PodInitializing"
    assert condition(ended, "Initialized")["status"] == "False"
    assert await api.log(own, container="first") == "oops\n"


async def test_the_end_of_a_failed_containers_log_can_be_its_termination_message(api: Api) -> None:
    script = container("echo one; echo two >&2; exit 7", "first")
    own = await api.run("echo never", initContainers=[{**script, "terminationMessagePolicy": "FallbackToLogsOnError"}])
    message = state(await api.until_ended(own), "first")["terminated"]["message"]
    assert sorted(message.splitlines()) == ["one", "two"]


async def test_what_a_container_writes_to_its_termination_log_is_its_message(api: Api) -> None:
    first = container("echo known > /dev/termination-log", "first")
    answers = {"terminationMessagePath": "/tmp/answer", "terminationMessagePolicy": "FallbackToLogsOnError"}
    own = await api.run("echo seen; echo own > /tmp/answer; exit 3", initContainers=[first], container=answers)
    ended = await api.until_ended(own)
    assert [state(ended, name)["terminated"]["message"] for name in ("first", "main")] == ["known\n", "own\n"]


async def test_a_container_waits_for_init_containers(api: Api) -> None:
    own = await api.run("true", initContainers=[container("sleep 600", "first")])
    waiting = await api.until(f"pods/{own}", lambda body: "running" in state(body, "first"))
    assert state(waiting)["waiting"]["reason"] == "PodInitializing"
    assert waiting["status"]["phase"] == "Pending"
    refused = await api.get(f"pods/{own}/log", container="main")
    assert (refused.code, refused.reason) == (400, "BadRequest")
    assert refused.message == f'container "main" in pod "{own}" is waiting to start: PodInitializing'
    await api.delete(f"pods/{own}", grace=0)


async def test_an_empty_dir_is_shared_and_open_to_all(api: Api) -> None:
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/deep/er/data"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    writer = container("mkdir /deep/er/data/sub && echo hi > /deep/er/data/sub/file", "writer", **mount)
    script = "cat /deep/er/data/sub/file; ls -ld /deep/er/data | cut -c1-10"
    own = await api.run(script, volumes=volumes, initContainers=[writer], container=mount)
    await api.until_ended(own)
    assert await api.log(own, container="main") == "hi\ndrwxrwxrwx\n"


async def test_the_files_of_a_secret_have_their_modes_and_are_read_only(api: Api, name: str) -> None:
    await api.create("secrets", {"metadata": {"name": name}, "stringData": {"a": "A", "b": "B"}})
    volumes = [
        {"name": "s", "secret": {"secretName": name, "defaultMode": 0o440}},
        {"name": "i", "secret": {"secretName": name, "items": [{"key": "b", "path": "sub/renamed", "mode": 0o400}]}},
        {"name": "o", "secret": {"secretName": f"{name}-none", "optional": True}},
    ]
    mounts = [{"name": one["name"], "mountPath": f"/etc/of/{one['name']}"} for one in volumes]
    script = """cd /etc/of
        echo $(ls s) $(ls i) "[$(ls o)]" $(cat s/a i/sub/renamed)
        ls -lL s/a i/sub/renamed | cut -c1-10
        (echo x > s/a) 2>/dev/null || echo refused"""
    lines = (await api.output(script, volumes=volumes, container={"volumeMounts": mounts})).splitlines()
    assert lines[0] == "a b sub [] AB"
    assert sorted(lines[1:3]) == ["-r--------", "-r--r-----"]
    assert lines[-1] == "refused"


async def test_a_changed_secret_reaches_a_running_pod_when_an_annotation_of_it_changes(api: Api, name: str) -> None:
    """What brings an agent's new token; without it a kubelet takes a minute or two."""
    await api.create("secrets", {"metadata": {"name": name}, "stringData": {"a": "old"}})
    volumes = [
        {"name": "missing", "secret": {"secretName": f"{name}-none", "optional": True}},
        {"name": "v", "secret": {"secretName": name}},
    ]
    script = "cat /v/a; echo; until [ -e /v/b ] && [ new = $(cat /v/a) ]; do sleep 0.1; done; cat /v/a"
    own = await api.run(script, volumes=volumes, container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]})
    await api.until(f"pods/{own}", running)
    async with api.follow(own) as log:  # a container runs a moment before its program does
        assert await log.readline() == b"old\n"
    changed = await api.patch(f"secrets/{name}", {"data": {"a": "bmV3", "b": "bmV3"}})
    assert changed.code == 200
    pushes = 0
    while running((await api.get(f"pods/{own}")).body):
        pushes += 1
        assert (await api.patch(f"pods/{own}", {"metadata": {"annotations": {"x/push": str(pushes)}}})).code == 200
        await asyncio.sleep(1)
    assert pushes < 30
    assert await api.log(own) == "old\nnew"


async def test_a_sub_path_shows_one_file_or_folder(api: Api, name: str) -> None:
    await api.create("secrets", {"metadata": {"name": name}, "stringData": {"x.conf": "here"}})
    volumes = [{"name": "c", "secret": {"secretName": name}}, {"name": "e", "emptyDir": {}}]
    mounts = [
        {"name": "c", "mountPath": "/etc/app/x.conf", "subPath": "x.conf"},
        {"name": "e", "mountPath": "/made", "subPath": "made/for/me"},
        {"name": "e", "mountPath": "/all"},
    ]
    script = "cat /etc/app/x.conf; touch /made/file; ls /all/made/for/me"
    assert await api.output(script, volumes=volumes, container={"volumeMounts": mounts}) == "herefile\n"


async def test_a_read_only_mount_refuses_writes(api: Api) -> None:
    mounts = [{"name": "v", "mountPath": "/ro", "readOnly": True}, {"name": "v", "mountPath": "/rw"}]
    script = "echo 1 > /rw/a; (echo 2 > /ro/a) 2>/dev/null || cat /ro/a"
    volumes = [{"name": "v", "emptyDir": {}}]
    assert await api.output(script, volumes=volumes, container={"volumeMounts": mounts}) == "1\n"


async def test_a_working_directory_is_made(api: Api) -> None:
    assert await api.output("pwd", container={"workingDir": "/not/there/yet"}) == "/not/there/yet\n"


async def test_home_and_path_are_as_given(api: Api) -> None:
    env = [{"name": "HOME", "value": "/somewhere"}, {"name": "PATH", "value": "/mine:/bin:/usr/bin"}]
    assert await api.output("echo $HOME $PATH", container={"env": env}) == "/somewhere /mine:/bin:/usr/bin\n"


async def test_the_main_process_is_pid_1(api: Api) -> None:
    """It is pid 1 of its own, so without a handler SIGTERM does not end it."""
    own = await api.run("echo $$$$; kill -TERM $$$$; echo alive; sleep 600")
    await api.until(f"pods/{own}", running)
    async with api.follow(own) as log:
        assert [await log.readline() for _ in range(2)] == [b"1\n", b"alive\n"]
    await api.delete(f"pods/{own}")
    await api.until_deleted(f"pods/{own}")


async def test_what_is_left_in_the_background_does_not_keep_a_container(api: Api) -> None:
    own = await api.run("(sleep 600; echo late) & echo done")
    ended = await api.until_ended(own)
    assert ended["status"]["phase"] == "Succeeded"
    assert await api.log(own) == "done\n"


async def test_deletion_sends_sigterm_and_waits_for_the_grace(api: Api) -> None:
    script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.1; done"
    own = await api.run(script, terminationGracePeriodSeconds=20)
    await api.until(f"pods/{own}", running)
    async with api.follow(own) as log:
        assert await log.readline() == b"ready\n"
        marked = (await api.delete(f"pods/{own}")).body
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 20
        rest = await log.read()
        assert rest == b"caught\n" or rest.startswith(b"caught\nrpc error: ")  # an error text of the kubelet may follow
    await api.until_deleted(f"pods/{own}")


async def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(api: Api) -> None:
    own = await api.run("trap '' TERM; while :; do sleep 0.1; done", terminationGracePeriodSeconds=1)
    await api.until(f"pods/{own}", running)
    version = (await api.get(f"pods/{own}")).body["metadata"]["resourceVersion"]
    last = {}
    async with api.watch("pods", fieldSelector=f"metadata.name={own}", resourceVersion=version) as events:
        await api.delete(f"pods/{own}")
        async for event in events:
            last = event["object"]
            if event["type"] == "DELETED":
                break
    assert state(last)["terminated"]["exitCode"] == 137


async def test_a_deadline_set_on_a_running_pod_ends_it(api: Api) -> None:
    """The pod, its log and its exit code stay: how to stop an agent without losing its last output."""
    own = await api.run(
        "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done", terminationGracePeriodSeconds=10
    )
    await api.until(f"pods/{own}", running)
    async with api.follow(own) as log:
        patched = await api.patch(f"pods/{own}", {"spec": {"activeDeadlineSeconds": 1}})
        assert patched.code == 200
        assert (await log.read()).endswith(b"bye\n")
    ended = await api.until(f"pods/{own}", lambda body: body["status"]["phase"] == "Failed")
    assert ended["status"]["reason"] == "DeadlineExceeded"
    assert state(ended)["terminated"]["exitCode"] == 3


async def test_two_containers_live_and_end_each_on_its_own(api: Api) -> None:
    both = [container("echo a; exit 0", "a"), container("echo b; exit 4", "b")]
    own = (await api.create("pods", pod("") | {"spec": {"restartPolicy": "Never", "containers": both}})).body
    name = own["metadata"]["name"]
    ended = await api.until_ended(name)
    assert ended["status"]["phase"] == "Failed"
    assert [state(ended, one)["terminated"]["exitCode"] for one in "ab"] == [0, 4]
    assert [await api.log(name, container=one) for one in "ab"] == ["a\n", "b\n"]


async def test_an_unschedulable_pod_has_the_reason(api: Api) -> None:
    own = await api.run("true", nodeSelector={"example.com/nowhere": "yes"})
    waiting = await api.until(f"pods/{own}", lambda body: bool(condition(body, "PodScheduled")))
    reported = condition(waiting, "PodScheduled")
    assert (reported["status"], reported["reason"]) == ("False", "Unschedulable")
    assert reported["message"].startswith("0/1 nodes are available: 1 node(s) didn't match ")
    refused = await api.get(f"pods/{own}/log")
    assert refused.code == 204  # no node, hence nobody to ask, and no error either
    await api.delete(f"pods/{own}")
    await api.until_deleted(f"pods/{own}")


async def test_a_pod_of_a_missing_claim_is_not_placed(api: Api, name: str) -> None:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]
    own = await api.run("true", volumes=volumes, container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]})
    waiting = await api.until(f"pods/{own}", lambda body: bool(condition(body, "PodScheduled")))
    assert f'persistentvolumeclaim "{name}" not found' in condition(waiting, "PodScheduled")["message"]
    await api.delete(f"pods/{own}")


@pytest.mark.slow
async def test_a_changed_secret_reaches_a_running_pod_by_itself_within_minutes(api: Api, name: str) -> None:
    await api.create("secrets", {"metadata": {"name": name}, "stringData": {"token": "old"}})
    volumes = [{"name": "s", "secret": {"secretName": name}}]
    script = "until grep -q new /s/token; do sleep 0.1; done; echo $(cat /s/token) $(ls /s)"
    own = await api.run(script, volumes=volumes, container={"volumeMounts": [{"name": "s", "mountPath": "/s"}]})
    await api.until(f"pods/{own}", running)
    await api.patch(f"secrets/{name}", {"stringData": {"token": "new", "second": "x"}})
    async with asyncio.timeout(150):  # a real kubelet looks about once a minute
        while (await api.get(f"pods/{own}")).body["status"]["phase"] == "Running":  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.5 if api.real else 0.02)
    assert await api.log(own) == "new second token\n"


@pytest.mark.parametrize("grace", [0, 1])
async def test_a_pod_that_has_ended_is_removed_at_once(api: Api, grace: int) -> None:
    own = await api.run("exit 0")
    await api.until_ended(own)
    await api.delete(f"pods/{own}", grace=grace)
    await api.until_deleted(f"pods/{own}")
    assert json.dumps(await api.items("pods", fieldSelector=f"metadata.name={own}")) == "[]"
