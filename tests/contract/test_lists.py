"""Lists, selectors, pages and watches."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.api import Api, Object


@pytest.fixture
async def three(api: Api, name: str) -> AsyncIterator[str]:
    """Three config maps with labels `set`, `n` and, on the last, `extra`."""
    for index in range(3):
        labels = {"set": name, "n": str(index)} | ({"extra": "yes"} if index == 2 else {})
        await api.create("configmaps", {"metadata": {"name": f"{name}-{index}", "labels": labels}})
    yield name
    await api.delete("configmaps", selector=f"set={name}")


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("n=1", "1"),
        ("n==1", "1"),
        ("n!=1", "02"),
        ("extra", "2"),
        ("!extra", "01"),
        ("extra!=no", "012"),
        ("!extra,n!=0", "1"),
    ],
)
async def test_labels_select(api: Api, three: str, selector: str, expected: str) -> None:
    found = await api.items("configmaps", labelSelector=f"set={three},{selector}")
    assert [one["metadata"]["name"][-1] for one in found] == list(expected)


async def test_fields_select(api: Api, three: str) -> None:
    found = await api.items("configmaps", fieldSelector=f"metadata.name={three}-1")
    assert [one["metadata"]["name"] for one in found] == [f"{three}-1"]
    others = await api.items("configmaps", fieldSelector=f"metadata.name!={three}-1", labelSelector=f"set={three}")
    assert len(others) == 2


@pytest.mark.parametrize("query", [{"fieldSelector": "data.x=1"}, {"labelSelector": "a in b"}])
async def test_a_bad_query_is_400(api: Api, query: dict[str, str]) -> None:
    answer = await api.get("configmaps", **query)
    assert (answer.code, answer.reason) == (400, "BadRequest")


async def test_events_are_found_by_their_object(api: Api, name: str) -> None:
    event = {
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "namespace": api.namespace, "name": name, "uid": f"uid-{name}"},
        "reason": "Tested",
        "type": "Normal",
        "message": "hello",
        "source": {"component": "test"},
    }
    assert (await api.create("events", event)).code == 201
    for selector in (f"involvedObject.name={name}", f"involvedObject.uid=uid-{name},reason=Tested"):
        found = await api.items("events", fieldSelector=selector)
        assert [one["message"] for one in found] == ["hello"]


async def take(events: AsyncIterator[Object], number: int) -> list[tuple[str, str]]:
    """The next events but bookmarks, as (type, last letter of the name)."""
    found: list[tuple[str, str]] = []
    async for event in events:
        if event["type"] != "BOOKMARK":
            found.append((event["type"], event["object"]["metadata"]["name"][-1]))
            if len(found) == number:
                break
    return found


async def test_a_watch_reports_changes_after_a_version(api: Api, name: str) -> None:
    version = await api.version()
    await api.create("configmaps", {"metadata": {"name": f"{name}-a", "labels": {"set": name}}})
    async with api.watch("configmaps", resourceVersion=version, labelSelector=f"set={name}") as events:
        assert await take(events, 1) == [("ADDED", "a")]
        await api.patch(f"configmaps/{name}-a", {"data": {"x": "1"}})
        await api.delete(f"configmaps/{name}-a")
        assert await take(events, 2) == [("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_without_a_version_begins_with_what_is_there(api: Api, three: str) -> None:
    async with api.watch("configmaps", labelSelector=f"set={three}") as events:
        assert sorted(await take(events, 3)) == [("ADDED", "0"), ("ADDED", "1"), ("ADDED", "2")]


async def test_a_watch_from_a_list_misses_nothing(api: Api, three: str) -> None:
    listed = await api.get("configmaps", labelSelector=f"set={three}")
    version = listed.body["metadata"]["resourceVersion"]
    await api.patch(f"configmaps/{three}-2", {"data": {"x": "1"}})
    async with api.watch("configmaps", resourceVersion=version, labelSelector=f"set={three}") as events:
        assert await take(events, 1) == [("MODIFIED", "2")]


async def test_an_object_that_leaves_the_selection_is_deleted_for_the_watch(api: Api, three: str) -> None:
    async with api.watch("configmaps", resourceVersion=await api.version(), labelSelector=f"set={three},n=1") as events:
        await api.patch(f"configmaps/{three}-1", {"metadata": {"labels": {"n": "9"}}})
        await api.patch(f"configmaps/{three}-0", {"metadata": {"labels": {"n": "1"}}})
        assert await take(events, 2) == [("DELETED", "1"), ("ADDED", "0")]


async def test_a_watch_may_be_for_one_object(api: Api, three: str) -> None:
    async with api.watch(
        "configmaps", resourceVersion=await api.version(), fieldSelector=f"metadata.name={three}-1"
    ) as events:
        await api.patch(f"configmaps/{three}-0", {"data": {"x": "1"}})
        await api.patch(f"configmaps/{three}-1", {"data": {"x": "1"}})
        assert await take(events, 1) == [("MODIFIED", "1")]


async def test_a_watch_ends_by_itself_after_its_timeout(api: Api) -> None:
    async with api.watch("configmaps", timeoutSeconds="1", resourceVersion=await api.version()) as events:
        assert [event async for event in events if event["type"] != "BOOKMARK"] == []


async def test_a_deployment_is_found_by_its_labels_with_the_template_of_its_pods(api: Api, name: str) -> None:
    path = f"/apis/apps/v1/namespaces/{api.namespace}/deployments"
    container = {"name": "server", "image": "server:1", "env": [{"name": "A", "value": "b"}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": name}}, "template": template}
    labels = {"app.kubernetes.io/name": name}
    created = await api.call("POST", path, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    assert created.code == 201, created
    listed = await api.call("GET", path, labelSelector=f"app.kubernetes.io/name={name}")
    none = await api.call("GET", path, labelSelector="app.kubernetes.io/name=another")
    await api.call("DELETE", f"{path}/{name}")
    [found] = listed.body["items"]
    assert found["metadata"]["name"] == name
    assert found["spec"]["template"]["spec"]["containers"][0]["env"] == container["env"]
    assert none.body["items"] == []
