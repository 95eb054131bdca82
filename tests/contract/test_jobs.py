"""What the Job controller promises."""

from __future__ import annotations

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
