"""How objects are deleted: the grace of pods, what an owner owned, and everything in a namespace."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from dev_stack.cluster.kinds import KINDS, NAMESPACES, PODS, Kind, Object
from dev_stack.cluster.objects import deleting, ended, owner_uids, stamp
from dev_stack.cluster.store import Change, Store


def begin_deletion(store: Store, kind: Kind, body: Object, grace: int | None = None) -> Object:
    """Start the deletion of an object, or end it where nothing must be waited for; returns its last state.

    `grace` is in seconds and matters to pods alone; a pod that has no node, or has ended, is removed at once.
    """
    meta = body["metadata"]
    seconds = 0
    if kind is PODS and body["spec"].get("nodeName") and not ended(body):
        seconds = body["spec"]["terminationGracePeriodSeconds"] if grace is None else grace

    def mark(new: Object) -> None:
        meta = new["metadata"]
        if "deletionTimestamp" not in meta or seconds < meta["deletionGracePeriodSeconds"]:
            meta["deletionTimestamp"] = stamp(datetime.now(UTC) + timedelta(seconds=seconds))
            meta["deletionGracePeriodSeconds"] = seconds
        if kind is NAMESPACES:
            new["status"] = {"phase": "Terminating"}

    return store.change(kind, meta.get("namespace", ""), meta["name"], mark) or body


def orphan(store: Store, owner: Object) -> None:
    """Let the dependents of an owner stay when it is deleted."""
    for kind, body in store.owned_by(owner["metadata"]["uid"]):
        meta = body["metadata"]
        store.change(kind, meta["namespace"], meta["name"], lambda new: new["metadata"].pop("ownerReferences"))


class Collector:
    """Deletes dependents whose owner does not exist any more, and what is in a deleted namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for kind in KINDS:
                tasks.create_task(self._follow(kind))

    async def _follow(self, kind: Kind) -> None:
        async for change in self._store.observe(kind):
            self._collect(kind, change)

    def _collect(self, kind: Kind, change: Change) -> None:
        body, meta = change.body, change.body["metadata"]
        if change.type == "DELETED":
            for dependent_kind, dependent in self._store.owned_by(meta["uid"]):
                self._delete_unowned(dependent_kind, dependent)
        elif change.type == "ADDED" and owner_uids(body):
            self._delete_unowned(kind, body)
        if kind is NAMESPACES and deleting(body):
            self._empty(meta["name"])
        elif change.type == "DELETED" and meta.get("namespace"):
            self._empty(meta["namespace"])

    def _delete_unowned(self, kind: Kind, body: Object) -> None:
        meta = body["metadata"]
        if not deleting(body) and not any(self._exists(owner, meta["namespace"]) for owner in meta["ownerReferences"]):
            begin_deletion(self._store, kind, body)

    def _exists(self, owner: Object, namespace: str) -> bool:
        for kind in KINDS:
            if (kind.api_version, kind.name) == (owner["apiVersion"], owner["kind"]):
                body = self._store.find(kind, namespace if kind.namespaced else "", owner["name"])
                return body is not None and body["metadata"]["uid"] == owner["uid"]
        return True  # of a kind that this cluster does not know

    def _empty(self, name: str) -> None:
        namespace = self._store.find(NAMESPACES, "", name)
        if namespace is None or not deleting(namespace):
            return
        left = [(kind, body) for kind in KINDS if kind.namespaced for body in self._store.every(kind, name)]
        for kind, body in left:
            if not deleting(body):
                begin_deletion(self._store, kind, body)
        if not left:
            self._store.change(NAMESPACES, "", name, lambda new: new["spec"].pop("finalizers", None))
