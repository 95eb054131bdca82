"""Creating, reading, changing and deleting objects."""

from __future__ import annotations

import base64

import pytest

from tests.contract.api import IMAGE, Api, job, pod


async def test_a_created_object_gets_identity_and_defaults(api: Api, name: str) -> None:
    created = await api.create("jobs", job(name, "true"))
    meta, spec = created.body["metadata"], created.body["spec"]
    assert created.code == 201
    assert len(meta["uid"]) == 36
    assert meta["creationTimestamp"].endswith("Z")
    assert int(meta["resourceVersion"]) > 0
    assert meta["namespace"] == api.namespace
    assert (spec["parallelism"], spec["completions"]) == (1, 1)
    assert spec["template"]["metadata"]["labels"]["job-name"] == name
    assert spec["template"]["metadata"]["labels"]["controller-uid"] == meta["uid"]
    assert spec["template"]["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert spec["template"]["spec"]["dnsPolicy"] == "ClusterFirst"


async def test_a_name_is_given_once(api: Api, name: str) -> None:
    body = {"metadata": {"name": name}, "data": {"a": "1"}}
    assert (await api.create("configmaps", body)).code == 201
    second = await api.create("configmaps", body)
    assert (second.code, second.reason) == (409, "AlreadyExists")
    assert second.message == f'configmaps "{name}" already exists'
    assert second.body["details"]["name"] == name


async def test_a_repeated_job_is_answered_409(api: Api, name: str) -> None:
    assert (await api.create("jobs", job(name, "true"))).code == 201
    second = await api.create("jobs", job(name, "true"))
    assert (second.code, second.reason) == (409, "AlreadyExists")
    assert second.message == f'jobs.batch "{name}" already exists'
    assert second.body["details"] == {"name": name, "group": "batch", "kind": "jobs"}


async def test_what_is_not_there_is_404(api: Api, name: str) -> None:
    missing = await api.get(f"jobs/{name}")
    assert (missing.code, missing.reason) == (404, "NotFound")
    assert missing.message == f'jobs.batch "{name}" not found'
    assert missing.body["kind"] == "Status"
    assert (await api.delete(f"pods/{name}")).code == 404
    assert (await api.patch(f"secrets/{name}", {"data": {}})).code == 404


async def test_a_namespace_that_is_not_there_is_404(api: Api, name: str) -> None:
    answer = await api.call("POST", f"/api/v1/namespaces/{name}/configmaps", {"metadata": {"name": "x"}})
    assert answer.code == 404
    assert answer.message == f'namespaces "{name}" not found'


async def test_a_generated_name_has_the_prefix_and_is_new(api: Api) -> None:
    body = {"metadata": {"generateName": "gen-"}}
    names = {(await api.create("configmaps", body)).body["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(one.startswith("gen-") and len(one) == 9 for one in names)


@pytest.mark.parametrize("bad", ["Upper", "under_score", "-dash", "dot.", "a" * 254])
async def test_a_bad_name_is_422_and_named(api: Api, bad: str) -> None:
    answer = await api.create("configmaps", {"metadata": {"name": bad}})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes == {"metadata.name": "FieldValueInvalid"}
    assert answer.message.startswith(f'ConfigMap "{bad}" is invalid: metadata.name: Invalid value: "{bad}": ')


async def test_a_job_name_must_fit_into_a_label(api: Api) -> None:
    answer = await api.create("jobs", job("j" * 64, "true"))
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes["spec.template.labels"] == "FieldValueInvalid"
    assert "must be no more than 63 bytes" in answer.message


@pytest.mark.parametrize(
    "value",
    ["x" * 64, "spaces are wrong", "-begins", "ends-", "slash/es"],
    ids=["long", "space", "begin", "end", "slash"],
)
async def test_a_bad_label_value_is_422(api: Api, name: str, value: str) -> None:
    answer = await api.create("configmaps", {"metadata": {"name": name, "labels": {"a": value}}})
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.causes == {"metadata.labels": "FieldValueInvalid"}


async def test_a_bad_label_key_is_422(api: Api, name: str) -> None:
    answer = await api.create("configmaps", {"metadata": {"name": name, "labels": {"bad key": "a"}}})
    assert answer.causes == {"metadata.labels": "FieldValueInvalid"}


async def test_a_label_that_is_no_text_is_400(api: Api, name: str) -> None:
    answer = await api.create("configmaps", {"metadata": {"name": name, "labels": {"a": 1}}})
    assert (answer.code, answer.reason) == (400, "BadRequest")


async def test_a_body_that_is_no_json_is_400(api: Api) -> None:
    async with api.session.post(
        api.path("configmaps"), data="{nonsense", headers={"Content-Type": "application/json"}
    ) as reply:
        assert reply.status == 400
        assert (await reply.json())["reason"] == "BadRequest"


async def test_a_name_that_contradicts_the_path_is_400(api: Api, name: str) -> None:
    await api.create("configmaps", {"metadata": {"name": name}})
    assert (await api.replace(f"configmaps/{name}", {"metadata": {"name": "another"}})).code == 400
    assert (await api.create("configmaps", {"metadata": {"name": "x", "namespace": "another"}})).code == 400


async def test_secret_text_becomes_base64_data(api: Api, name: str) -> None:
    created = await api.create("secrets", {"metadata": {"name": name}, "stringData": {"key": "värde"}})
    assert base64.b64decode(created.body["data"]["key"]).decode() == "värde"
    assert created.body["type"] == "Opaque"
    assert "stringData" not in created.body


async def test_a_secret_over_a_mebibyte_is_422(api: Api, name: str) -> None:
    fits = {"metadata": {"name": f"{name}-fits"}, "data": {"a": base64.b64encode(b"x" * 1024 * 1024).decode()}}
    assert (await api.create("secrets", fits)).code == 201
    large = {"metadata": {"name": name}, "data": {"a": base64.b64encode(b"x" * (1024 * 1024 + 1)).decode()}}
    answer = await api.create("secrets", large)
    assert (answer.code, answer.causes) == (422, {"data": "FieldValueTooLong"})


async def test_secret_data_that_is_no_base64_is_400(api: Api, name: str) -> None:
    answer = await api.create("secrets", {"metadata": {"name": name}, "data": {"a": "%%%"}})
    assert (answer.code, answer.reason) == (400, "BadRequest")


async def test_a_secret_key_with_bad_characters_is_422(api: Api, name: str) -> None:
    answer = await api.create("secrets", {"metadata": {"name": name}, "stringData": {"a b": "x"}})
    assert (answer.code, answer.causes) == (422, {"data[a b]": "FieldValueInvalid"})


async def test_an_immutable_secret_cannot_be_changed(api: Api, name: str) -> None:
    await api.create("secrets", {"metadata": {"name": name}, "immutable": True, "stringData": {"a": "1"}})
    answer = await api.patch(f"secrets/{name}", {"stringData": {"a": "2"}})
    assert (answer.code, answer.causes) == (422, {"data": "FieldValueForbidden"})


async def test_a_replacement_from_an_old_version_is_409(api: Api, name: str) -> None:
    old = (await api.create("configmaps", {"metadata": {"name": name}, "data": {"n": "0"}})).body
    new = await api.replace(f"configmaps/{name}", {**old, "data": {"n": "1"}})
    assert new.code == 200
    assert int(new.body["metadata"]["resourceVersion"]) > int(old["metadata"]["resourceVersion"])
    late = await api.replace(f"configmaps/{name}", {**old, "data": {"n": "2"}})
    assert (late.code, late.reason) == (409, "Conflict")
    assert late.message.endswith(
        "the object has been modified; please apply your changes to the latest version and try again"
    )


async def test_a_replacement_without_a_version_wins(api: Api, name: str) -> None:
    await api.create("configmaps", {"metadata": {"name": name}, "data": {"n": "0"}})
    answer = await api.replace(f"configmaps/{name}", {"metadata": {"name": name}, "data": {"n": "1"}})
    assert (answer.code, answer.body["data"]) == (200, {"n": "1"})


async def test_a_change_that_changes_nothing_keeps_the_version(api: Api, name: str) -> None:
    created = (await api.create("configmaps", {"metadata": {"name": name}, "data": {"n": "0"}})).body
    same = await api.patch(f"configmaps/{name}", {"data": {"n": "0"}})
    assert same.body["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_another_uid_is_409_in_a_replacement_and_422_in_a_patch(api: Api, name: str) -> None:
    await api.create("configmaps", {"metadata": {"name": name}})
    other = {"metadata": {"name": name, "uid": "00000000-0000-0000-0000-000000000000"}}
    replaced = await api.replace(f"configmaps/{name}", other)
    assert (replaced.code, replaced.reason) == (409, "Conflict")
    patched = await api.patch(f"configmaps/{name}", other)
    assert (patched.code, patched.causes) == (422, {"metadata.uid": "FieldValueInvalid"})


async def test_a_merge_patch_sets_and_removes(api: Api, name: str) -> None:
    await api.create("configmaps", {"metadata": {"name": name, "labels": {"a": "1"}}, "data": {"x": "1", "y": "2"}})
    patch = {"metadata": {"labels": {"b": "2"}}, "data": {"x": None, "z": "3"}}
    body = (await api.patch(f"configmaps/{name}", patch)).body
    assert body["data"] == {"y": "2", "z": "3"}
    assert body["metadata"]["labels"] == {"a": "1", "b": "2"}


async def test_a_json_patch_applies_in_order_or_not_at_all(api: Api, name: str) -> None:
    await api.create("configmaps", {"metadata": {"name": name}, "data": {"x": "1"}})
    steps = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "add", "path": "/data/y~1z", "value": "2"},
        {"op": "remove", "path": "/data/x"},
    ]
    refused = await api.patch(f"configmaps/{name}", steps, "json")
    assert refused.code == 422  # a key with a slash is no config key
    steps[1] = {"op": "add", "path": "/data/y", "value": "2"}
    assert (await api.patch(f"configmaps/{name}", steps, "json")).body["data"] == {"y": "2"}
    second = await api.patch(f"configmaps/{name}", steps, "json")
    assert second.code == 422
    assert (await api.get(f"configmaps/{name}")).body["data"] == {"y": "2"}


async def test_an_unknown_patch_type_is_415(api: Api, name: str) -> None:
    await api.create("configmaps", {"metadata": {"name": name}})
    answer = await api.patch(f"configmaps/{name}", {}, "nonsense")
    assert (answer.code, answer.reason) == (415, "UnsupportedMediaType")


async def test_a_jobs_template_cannot_be_changed(api: Api, name: str) -> None:
    created = (await api.create("jobs", job(name, "true"))).body
    created["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"
    del created["metadata"]["resourceVersion"]  # the controller may have written meanwhile
    answer = await api.replace(f"jobs/{name}", created)
    assert (answer.code, answer.causes) == (422, {"spec.template": "FieldValueInvalid"})
    assert answer.message.endswith("field is immutable")
    changed = await api.patch(f"jobs/{name}", {"spec": {"activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 60}})
    assert changed.code == 200


async def test_a_pods_spec_cannot_be_changed_but_its_deadline(api: Api) -> None:
    name = await api.run("sleep 60", activeDeadlineSeconds=600)
    answer = await api.patch(f"pods/{name}", {"spec": {"restartPolicy": "Always"}})
    assert (answer.code, answer.causes) == (422, {"spec": "FieldValueForbidden"})
    assert (await api.patch(f"pods/{name}", {"spec": {"activeDeadlineSeconds": 300}})).code == 200
    await api.delete(f"pods/{name}", grace=0)


async def test_errors_of_a_pod_spec_are_all_named(api: Api, name: str) -> None:
    wrong = job(name, "true", pod={"restartPolicy": "Always", "volumes": [{"name": "Bad"}]})
    wrong["spec"]["template"]["spec"]["containers"][0] |= {
        "name": "",
        "volumeMounts": [{"name": "nowhere", "mountPath": "/x"}],
    }
    answer = await api.create("jobs", wrong)
    where = "spec.template.spec"
    assert answer.code == 422
    assert answer.causes[f"{where}.volumes[0].name"] == "FieldValueInvalid"
    assert answer.causes[f"{where}.containers[0].name"] == "FieldValueRequired"
    assert answer.causes[f"{where}.containers[0].volumeMounts[0].name"] == "FieldValueNotFound"
    assert answer.causes[f"{where}.restartPolicy"] == "FieldValueRequired"


async def test_a_nonsense_quantity_is_refused(api: Api, name: str) -> None:
    wrong = job(name, "true", pod={})
    wrong["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"memory": "lots"}}
    assert (await api.create("jobs", wrong)).code == 400


async def test_requests_above_limits_are_422(api: Api, name: str) -> None:
    wrong = job(name, "true")
    resources = {"limits": {"cpu": "100m"}, "requests": {"cpu": "1"}}
    wrong["spec"]["template"]["spec"]["containers"][0]["resources"] = resources
    answer = await api.create("jobs", wrong)
    assert answer.causes == {"spec.template.spec.containers[0].resources.requests": "FieldValueInvalid"}


async def test_deletion_waits_for_finalizers(api: Api, name: str) -> None:
    body = {"metadata": {"name": name, "finalizers": ["example.com/hold"]}}
    await api.create("configmaps", body)
    assert (await api.delete(f"configmaps/{name}")).code == 200
    held = await api.get(f"configmaps/{name}")
    assert "deletionTimestamp" in held.body["metadata"]
    assert (await api.create("configmaps", body)).reason == "AlreadyExists"
    await api.patch(f"configmaps/{name}", {"metadata": {"finalizers": None}})
    assert (await api.get(f"configmaps/{name}")).code == 404


async def test_a_precondition_protects_the_next_incarnation(api: Api, name: str) -> None:
    await api.create("configmaps", {"metadata": {"name": name}})
    options = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    answer = await api.call("DELETE", f"configmaps/{name}", options)
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert (await api.get(f"configmaps/{name}")).code == 200


async def test_a_collection_is_deleted_by_selector(api: Api, name: str) -> None:
    for index in range(3):
        labels = {"of": name, "odd": str(index % 2)}
        await api.create("configmaps", {"metadata": {"name": f"{name}-{index}", "labels": labels}})
    assert (await api.delete("configmaps", selector=f"of={name},odd=0")).code == 200
    left = await api.items("configmaps", labelSelector=f"of={name}")
    assert [one["metadata"]["name"] for one in left] == [f"{name}-1"]


async def test_dependents_are_deleted_with_their_owner(api: Api, name: str) -> None:
    owner = (await api.create("configmaps", {"metadata": {"name": name}})).body["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner["uid"]}
    await api.create("secrets", {"metadata": {"name": name, "ownerReferences": [reference]}})
    await api.delete(f"configmaps/{name}", propagation="Background")
    await api.until_deleted(f"secrets/{name}")


async def test_a_dependent_of_a_missing_owner_is_deleted(api: Api, name: str) -> None:
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "nobody",
        "uid": "00000000-0000-0000-0000-000000000002",
    }
    await api.create("secrets", {"metadata": {"name": name, "ownerReferences": [reference]}})
    await api.until_deleted(f"secrets/{name}")


async def test_a_namespace_takes_everything_with_it(api: Api, name: str) -> None:
    created = await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert created.body["status"]["phase"] == "Active"
    inside = f"/api/v1/namespaces/{name}"
    await api.call("POST", f"{inside}/configmaps", {"metadata": {"name": "x"}})
    await api.call("DELETE", inside)
    await api.until_deleted(inside)
    assert (await api.get(f"{inside}/configmaps/x")).code == 404


async def test_a_claim_is_accepted_with_its_size(api: Api, name: str) -> None:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    created = await api.create("persistentvolumeclaims", {"metadata": {"name": name}, "spec": spec})
    assert (created.code, created.body["spec"]["volumeMode"]) == (201, "Filesystem")
    wrong = await api.create("persistentvolumeclaims", {"metadata": {"name": f"{name}-x"}, "spec": {}})
    assert set(wrong.causes) >= {"spec.accessModes"}
    assert wrong.code == 422


async def test_metadata_alone_can_be_requested(api: Api, name: str) -> None:
    await api.create("secrets", {"metadata": {"name": name}, "stringData": {"a": "secret"}})
    accept = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"}
    async with api.session.get(api.path(f"secrets/{name}"), headers=accept) as reply:
        body = await reply.json()
    assert (body["kind"], body["metadata"]["name"]) == ("PartialObjectMetadata", name)
    assert "data" not in body


async def test_a_pod_may_be_made_without_a_job(api: Api) -> None:
    created = await api.create("pods", pod("true"))
    assert created.body["status"]["phase"] == "Pending"
    assert created.body["spec"]["restartPolicy"] == "Never"


async def test_a_dry_run_judges_a_creation_and_stores_nothing(api: Api, name: str) -> None:
    secret = {"metadata": {"name": name}, "data": {"a": "Yg=="}}
    tried = await api.create("secrets", secret, dryRun="All")
    assert (tried.code, tried.body["metadata"]["name"]) == (201, name)
    assert (await api.get(f"secrets/{name}")).code == 404
    assert (await api.create("secrets", secret)).code == 201
    again = await api.create("secrets", secret, dryRun="All")
    assert (again.code, again.reason) == (409, "AlreadyExists")
    wrong = await api.create("secrets", secret | {"metadata": {"name": "Not A Name"}}, dryRun="All")
    assert (wrong.code, wrong.reason) == (422, "Invalid")
    await api.delete(f"secrets/{name}")


async def test_a_dry_run_of_a_job_and_of_a_pod_creates_no_pod(api: Api, name: str) -> None:
    spec = {"restartPolicy": "Never", "containers": [{"name": "main", "image": IMAGE, "command": ["true"]}]}
    body = {"metadata": {"name": name}, "spec": {"template": {"spec": spec}}}
    assert (await api.create("jobs", body, dryRun="All")).code == 201
    assert (await api.create("pods", {"metadata": {"name": name}, "spec": spec}, dryRun="All")).code == 201
    assert [(await api.get(f"{each}/{name}")).code for each in ("jobs", "pods")] == [404, 404]


async def test_a_dry_run_that_is_none_of_all_stages_is_refused(api: Api, name: str) -> None:
    answer = await api.create("secrets", {"metadata": {"name": name}}, dryRun="Some")
    assert (answer.code, answer.reason) == (422, "Invalid")
