"""What the Job controller promises."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_runs.contracts.messages import JobRef
from agent_runs.kube.client import Cluster
from agent_runs.kube.objects import Job
from agent_runs.kube.ownership import TTL
from tests.contract.api import Api, Object, job, outcome, pod, running, state


async def pods_of(api: Api, name: str) -> list[Object]:
    return await api.items("pods", labelSelector=f"job-name={name}")


async def test_a_job_whose_pod_succeeds_is_complete(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "exit 0"))
    done = await api.until_finished(name)
    assert outcome(done) is not None
    assert outcome(done)[0] == "Complete"  # type: ignore[index] # asserted just above
    assert done["status"]["succeeded"] == 1
    assert {"startTime", "completionTime"} <= done["status"].keys()
    assert "active" not in done["status"]


async def test_a_job_makes_its_pod_its_own(api: Api, name: str) -> None:
    created = (await api.create("jobs", job(name, "exit 0"))).body
    own = await api.pod_of(name)
    assert own["metadata"]["name"].startswith(f"{name}-")
    assert own["metadata"]["labels"]["controller-uid"] == created["metadata"]["uid"]
    owner = own["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Job", name, created["metadata"]["uid"])
    assert owner["controller"] is owner["blockOwnerDeletion"] is True


async def test_template_labels_and_annotations_reach_the_pod(api: Api, name: str) -> None:
    body = job(name, "exit 0")
    body["spec"]["template"]["metadata"] = {"labels": {"a": "1"}, "annotations": {"b": "2"}}
    await api.create("jobs", body)
    meta = (await api.pod_of(name))["metadata"]
    assert (meta["labels"]["a"], meta["annotations"]["b"]) == ("1", "2")


async def test_a_job_without_retries_fails_with_its_pod(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "exit 3", backoffLimit=0))
    done = await api.until_finished(name)
    assert outcome(done) == ("Failed", "BackoffLimitExceeded")
    assert done["status"]["failed"] == 1
    (only,) = await pods_of(api, name)
    assert only["status"]["phase"] == "Failed"
    assert state(only)["terminated"]["exitCode"] == 3


async def test_a_deadline_ends_the_job_and_its_pod(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "sleep 600", activeDeadlineSeconds=1))
    done = await api.until_finished(name)
    assert outcome(done) == ("Failed", "DeadlineExceeded")
    await api.until("pods", lambda body: not body["items"], labelSelector=f"job-name={name}")


async def test_active_counts_what_runs(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "sleep 600"))
    await api.until(f"jobs/{name}", lambda body: body["status"].get("active") == 1)
    await api.delete(f"jobs/{name}", propagation="Background")


async def test_the_time_to_live_removes_a_finished_job_with_its_pods(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "exit 0", ttlSecondsAfterFinished=1))
    own = await api.pod_of(name)
    await api.until_deleted(f"jobs/{name}")
    await api.until_deleted(f"pods/{own['metadata']['name']}")


async def test_background_deletion_takes_running_pods_along(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "sleep 600"))
    own = await api.pod_of(name, running)
    assert (await api.delete(f"jobs/{name}", propagation="Background")).code == 200
    await api.until_deleted(f"jobs/{name}")
    await api.until_deleted(f"pods/{own['metadata']['name']}")


async def test_a_plain_delete_of_a_job_leaves_its_pods(api: Api, name: str) -> None:
    """The API's default for batch/v1 Jobs; kubectl asks for Background itself."""
    await api.create("jobs", job(name, "exit 0"))
    await api.until_finished(name)
    await api.delete(f"jobs/{name}")
    await api.until_deleted(f"jobs/{name}")
    (left,) = await pods_of(api, name)
    assert "ownerReferences" not in left["metadata"]
    await api.delete(f"pods/{left['metadata']['name']}")


async def test_orphans_stay(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "sleep 600"))
    own = (await api.pod_of(name, running))["metadata"]["name"]
    await api.delete(f"jobs/{name}", propagation="Orphan")
    await api.until_deleted(f"jobs/{name}")
    left = await api.until(f"pods/{own}", lambda body: "ownerReferences" not in body["metadata"])
    assert running(left)
    await api.delete(f"pods/{own}", grace=0)


async def test_the_controller_records_events(api: Api, name: str) -> None:
    created = (await api.create("jobs", job(name, "exit 0"))).body
    own = (await api.pod_of(name))["metadata"]["name"]
    await api.until_finished(name)
    found = await api.until(
        "events",
        lambda body: {"SuccessfulCreate", "Completed"} <= {one["reason"] for one in body["items"]},
        fieldSelector=f"involvedObject.uid={created['metadata']['uid']}",
    )
    event = next(one for one in found["items"] if one["reason"] == "SuccessfulCreate")
    assert event["message"] == f"Created pod: {own}"
    assert event["source"]["component"] == "job-controller"
    assert event["involvedObject"]["kind"] == "Job"


async def test_a_job_wants_a_restart_policy_that_ends(api: Api, name: str) -> None:
    answer = await api.create("jobs", job(name, "true", pod={"restartPolicy": "Always"}))
    assert answer.causes == {"spec.template.spec.restartPolicy": "FieldValueRequired"}


async def test_a_pod_of_no_job_is_not_counted(api: Api, name: str) -> None:
    await api.create("jobs", job(name, "sleep 600"))
    await api.until(f"jobs/{name}", lambda body: body["status"].get("active") == 1)
    unowned = pod("exit 0")
    unowned["metadata"]["labels"] = {"job-name": name}
    created = await api.create("pods", unowned)
    await api.until_ended(created.body["metadata"]["name"])
    body = (await api.get(f"jobs/{name}")).body
    assert "succeeded" not in body["status"]
    await api.delete(f"jobs/{name}", propagation="Background")


CLAIM = "paperclip.io/claim"
OTHER_UID = "00000000-0000-0000-0000-000000000000"


async def settled(api: Api, client: Cluster, name: str) -> Job:
    """A Job whose pod runs, read once the controller has nothing more to write."""
    await api.create("jobs", job(name, "sleep 600"))
    await api.pod_of(name, running)
    await api.until(f"jobs/{name}", lambda body: body["status"].get("ready", body["status"].get("active")) == 1)
    found = await client.read_job(api.namespace, name)
    assert found is not None
    return found


async def test_of_two_that_annotate_the_same_version_of_a_job_one_succeeds(
    api: Api, kubeconfig: Path, name: str
) -> None:
    async with await Cluster.connect(str(kubeconfig), environ={}) as client:
        own = (await settled(api, client, name)).metadata

        async def claim(run: str) -> Job | None:
            return await client.annotate_job(api.namespace, name, own.uid, own.resource_version, {CLAIM: run})

        runs = [f"run-{number}" for number in range(10)]
        claims = await asyncio.gather(*map(claim, runs))
        ((winner, claimed),) = [(run, claim) for run, claim in zip(runs, claims, strict=True) if claim is not None]
        assert claimed.metadata.annotations[CLAIM] == winner
        assert claimed.metadata.resource_version != own.resource_version
        now = await client.read_job(api.namespace, name)
        assert now is not None
        assert now.metadata.annotations[CLAIM] == winner
        repeated = await claim(winner)
        assert repeated is not None  # a reply that was lost: the same caller asks a second time
        assert await claim("run-10") is None
    await api.delete(f"jobs/{name}", propagation="Background")


async def test_an_annotation_of_a_job_is_removed_by_its_version(api: Api, kubeconfig: Path, name: str) -> None:
    async with await Cluster.connect(str(kubeconfig), environ={}) as client:
        own = (await settled(api, client, name)).metadata
        place = (api.namespace, name, own.uid)
        claimed = await client.annotate_job(*place, own.resource_version, {CLAIM: "one", "paperclip.io/other": "x"})
        assert claimed is not None
        assert await client.annotate_job(*place, own.resource_version, {CLAIM: "two"}) is None
        free = await client.annotate_job(*place, claimed.metadata.resource_version, {CLAIM: None})
        assert free is not None
        assert CLAIM not in free.metadata.annotations
        assert free.metadata.annotations["paperclip.io/other"] == "x"
    await api.delete(f"jobs/{name}", propagation="Background")


async def test_a_job_whose_lifetime_is_changed_while_it_runs_is_deleted_when_it_ends(
    api: Api, kubeconfig: Path, name: str
) -> None:
    async with await Cluster.connect(str(kubeconfig), environ={}) as client:
        own = (await settled(api, client, name)).metadata
        place = (api.namespace, name, own.uid, own.resource_version)
        assert await client.annotate_job(*place, {CLAIM: "one"}, spec={TTL: 0}) is not None
        [pod] = await client.pods_of(JobRef(namespace=api.namespace, name=name, uid=own.uid))
        assert await client.stop_pod(api.namespace, pod.metadata.name, pod.metadata.uid)
    await api.until_deleted(f"jobs/{name}")


async def test_a_job_that_is_another_or_none_is_not_annotated(api: Api, kubeconfig: Path, name: str) -> None:
    async with await Cluster.connect(str(kubeconfig), environ={}) as client:
        version = (await settled(api, client, name)).metadata.resource_version
        assert await client.annotate_job(api.namespace, name, OTHER_UID, version, {CLAIM: "one"}) is None
        now = await client.read_job(api.namespace, name)
        assert now is not None
        assert CLAIM not in now.metadata.annotations
        assert await client.annotate_job(api.namespace, "nobody", OTHER_UID, version, {CLAIM: "one"}) is None
    await api.delete(f"jobs/{name}", propagation="Background")
