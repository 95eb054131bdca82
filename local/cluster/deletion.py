"""How objects go: grace for pods, finalizers, owner references, namespaces, and what is left without an owner."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import Literal

from local.cluster.events import LIFETIME
from local.cluster.kinds import EVENTS, JOBS, KINDS, NAMESPACES, PODS, Kind, Object
from local.cluster.objects import deleting, parse_stamp, stamp
from local.cluster.store import Change, Store

log = logging.getLogger(__name__)
Propagation = Literal["Foreground", "Background", "Orphan"]
_FOREGROUND = "foregroundDeletion"
_ORPHAN = "orphan"


def default_propagation(kind: Kind) -> Propagation:
    """What a DELETE without options does to dependents: batch/v1 Jobs *orphan* their pods, for old clients' sake."""
    return "Orphan" if kind is JOBS else "Background"


def begin(store: Store, kind: Kind, body: Object, propagation: Propagation, grace: int | None) -> Object:
    """Start the deletion of an object, or end it where nothing must be waited for; returns its last state.

    `grace` is in seconds and matters to pods alone; a pod nobody runs yet, or that has ended, goes at once.
    """
    seconds = _grace(kind, body, grace)
    waiting = {"Foreground": _FOREGROUND, "Orphan": _ORPHAN, "Background": None}[propagation]

    def mark(fresh: Object) -> None:
        meta = fresh["metadata"]
        if "deletionTimestamp" not in meta or (kind is PODS and seconds < meta["deletionGracePeriodSeconds"]):
            meta["deletionTimestamp"] = stamp(datetime.now(UTC) + timedelta(seconds=seconds))
            meta["deletionGracePeriodSeconds"] = seconds
        if waiting and store.owned_by(meta["uid"]) and waiting not in (meta.get("finalizers") or ()):
            meta["finalizers"] = [*(meta.get("finalizers") or ()), waiting]
        if kind is NAMESPACES:
            fresh["status"] = {"phase": "Terminating"}

    meta = body["metadata"]
    return store.change(kind, meta.get("namespace", ""), meta["name"], mark) or body


def _grace(kind: Kind, body: Object, asked: int | None) -> int:
    if kind is not PODS or not body["spec"].get("nodeName") or body["status"]["phase"] in ("Succeeded", "Failed"):
        return 0
    return int(body["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked)


class Collector:
    """Deletes what nobody owns any more, empties namespaces, and forgets old events."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self) -> None:
        """Collect until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for kind in KINDS:
                tasks.create_task(self._follow(kind))
            tasks.create_task(self._expire_events())

    async def _follow(self, kind: Kind) -> None:
        async for change in self._store.observe(kind):
            self._consider(change, kind)

    def _consider(self, change: Change, kind: Kind) -> None:
        body = change.body
        uid = body["metadata"]["uid"]
        if change.type == "DELETED":
            for dependent_kind, dependent in self._store.owned_by(uid):
                self._disown(dependent_kind, dependent, uid)
            for owner in body["metadata"].get("ownerReferences") or ():
                self._release(owner)
            self._empty_namespace(body["metadata"].get("namespace", ""))
            return
        if deleting(body):
            self._work_off_finalizers(kind, body)
        if change.type == "ADDED":
            for owner in body["metadata"].get("ownerReferences") or ():
                if not self._exists(owner, body["metadata"].get("namespace", "")):
                    self._disown(kind, body, owner["uid"])
        if kind is NAMESPACES and deleting(body):
            self._empty_namespace(body["metadata"]["name"])

    def _exists(self, owner: Object, namespace: str) -> bool:
        for kind in KINDS:
            if (kind.api_version, kind.name) == (owner["apiVersion"], owner["kind"]):
                found = self._store.find(kind, namespace if kind.namespaced else "", owner["name"])
                return found is not None and found["metadata"]["uid"] == owner["uid"]
        return True  # a kind this cluster does not know: leave it alone

    def _disown(self, kind: Kind, body: Object, uid: str) -> None:
        meta = body["metadata"]
        others = [owner for owner in meta["ownerReferences"] if owner["uid"] != uid]
        if any(self._exists(owner, meta.get("namespace", "")) for owner in others):
            self._drop_reference(kind, body, uid)
        elif not deleting(body):
            begin(self._store, kind, body, "Background", None)

    def _drop_reference(self, kind: Kind, body: Object, uid: str) -> None:
        def drop(fresh: Object) -> None:
            owners = fresh["metadata"].get("ownerReferences") or ()
            left = [owner for owner in owners if owner["uid"] != uid]
            fresh["metadata"].pop("ownerReferences", None)
            if left:
                fresh["metadata"]["ownerReferences"] = left

        self._store.change(kind, body["metadata"].get("namespace", ""), body["metadata"]["name"], drop)

    def _work_off_finalizers(self, kind: Kind, body: Object) -> None:
        finalizers = body["metadata"].get("finalizers") or ()
        dependents = self._store.owned_by(body["metadata"]["uid"])
        if _ORPHAN in finalizers:
            for dependent_kind, dependent in dependents:
                self._drop_reference(dependent_kind, dependent, body["metadata"]["uid"])
            self._remove_finalizer(kind, body, _ORPHAN)
        elif _FOREGROUND in finalizers:
            for dependent_kind, dependent in dependents:
                if not deleting(dependent):
                    begin(self._store, dependent_kind, dependent, "Foreground", None)
            if not self._store.owned_by(body["metadata"]["uid"]):
                self._remove_finalizer(kind, body, _FOREGROUND)

    def _release(self, owner: Object) -> None:
        """An owner in foreground deletion may have waited for this dependent only."""
        for kind in KINDS:
            if (kind.api_version, kind.name) != (owner["apiVersion"], owner["kind"]):
                continue
            for body in self._store.every(kind):
                if body["metadata"]["uid"] == owner["uid"] and deleting(body):
                    self._work_off_finalizers(kind, body)

    def _remove_finalizer(self, kind: Kind, body: Object, name: str) -> None:
        def remove(fresh: Object) -> None:
            left = [one for one in fresh["metadata"].get("finalizers") or () if one != name]
            fresh["metadata"].pop("finalizers", None)
            if left:
                fresh["metadata"]["finalizers"] = left

        self._store.change(kind, body["metadata"].get("namespace", ""), body["metadata"]["name"], remove)

    def _empty_namespace(self, name: str) -> None:
        namespace = self._store.find(NAMESPACES, "", name)
        if namespace is None or not deleting(namespace):
            return
        left = [(kind, body) for kind in KINDS if kind.namespaced for body in self._store.every(kind, name)]
        for kind, body in left:
            if not deleting(body):
                begin(self._store, kind, body, "Background", None)
        if not left:
            self._store.change(NAMESPACES, "", name, lambda fresh: fresh["spec"].pop("finalizers", None))

    async def _expire_events(self) -> None:
        while True:
            oldest = datetime.now(UTC) - LIFETIME
            for event in self._store.every(EVENTS):
                last = event.get("lastTimestamp") or event["metadata"]["creationTimestamp"]
                if parse_stamp(last) < oldest:
                    self._store.remove(EVENTS, event["metadata"]["namespace"], event["metadata"]["name"])
            await asyncio.sleep(60)
