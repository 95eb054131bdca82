"""Every object of the cluster in memory, with a history for watches, and a file that an orderly end leaves.

All methods are synchronous and run on the event loop's thread, so a read and the write that follows it are one step.
Objects handed out are shared and must not be changed; writers pass in copies of their own.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dev_stack.cluster.errors import already_exists, expired, not_found
from dev_stack.cluster.kinds import EVENTS, KINDS, PODS, Kind, Object
from dev_stack.cluster.objects import owner_uids, stamp

_HISTORY = 5000  # changes kept per kind for watches that resume


@dataclass(frozen=True)
class Change:
    """One step in the history of a kind; `before` is what the object was, None when it was added."""

    version: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    body: Object
    before: Object | None


class Shelf:
    """The objects of one kind, and the recent changes among them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.changes: deque[Change] = deque(maxlen=_HISTORY)
        self.forgotten = 0  # the newest version that is no longer in `changes`
        self.changed = asyncio.Event()
        self.observers: set[asyncio.Queue[Change]] = set()

    def record(self, change: Change) -> None:
        """Append to the history and wake whoever waits for it."""
        if len(self.changes) == self.changes.maxlen:
            self.forgotten = self.changes[0].version
        self.changes.append(change)
        self.wake()
        for observer in self.observers:
            observer.put_nowait(change)

    def after(self, version: int) -> list[Change]:
        """The changes after this version, oldest first."""
        newer: list[Change] = []
        for change in reversed(self.changes):
            if change.version <= version:
                break
            newer.append(change)
        return newer[::-1]

    def forget(self, version: int) -> None:
        """Drop the history before `version`."""
        self.changes.clear()
        self.forgotten = version
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Store:
    """Objects by kind, namespace and name, each write numbered by one resourceVersion for the whole cluster."""

    def __init__(self, file: Path) -> None:
        """Begin with what an earlier store saved to `file`."""
        self._file = file
        self._shelves = {kind: Shelf() for kind in KINDS}
        self.version = 1
        if file.exists():
            saved = json.loads(file.read_text())
            self.version = saved["version"]
            for kind in KINDS:
                objects = self._shelves[kind].objects
                for body in saved["objects"].get(kind.qualified, ()):
                    objects[body["metadata"].get("namespace", ""), body["metadata"]["name"]] = body
        self.forget_history()

    def save(self) -> None:
        """Write everything but events to the file."""
        objects = {kind.qualified: self.every(kind) for kind in KINDS if kind is not EVENTS}
        self._file.touch(mode=0o600)  # Secrets are in it
        self._file.write_text(json.dumps({"version": self.version, "objects": objects}))

    # ---------------------------------------------------------------- reading

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._shelves[kind].objects.get((namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """The object, or 404."""
        body = self.find(kind, namespace, name)
        if body is None:
            raise not_found(kind, name)
        return body

    def every(self, kind: Kind, namespace: str = "") -> list[Object]:
        """All objects of a kind, of one namespace if that is given, in the order of their names."""
        objects = self._shelves[kind].objects
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def owned_by(self, uid: str, *kinds: Kind) -> list[tuple[Kind, Object]]:
        """The objects that name `uid` among their owners; of these kinds only, if any are given."""
        return [
            (kind, body)
            for kind in kinds or KINDS
            for body in list(self._shelves[kind].objects.values())
            if uid in owner_uids(body)
        ]

    # ---------------------------------------------------------------- writing

    def add(self, kind: Kind, body: Object) -> Object:
        """Store a new object, giving it what it lacks of uid and age, and a version; 409 if its name is taken."""
        meta = body["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        if key in self._shelves[kind].objects:
            raise already_exists(kind, meta["name"])
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", stamp())
        return self._write(kind, key, "ADDED", body, None)

    def replace(self, kind: Kind, body: Object) -> Object:
        """Store a changed object; it is removed once its deletion has nothing left to wait for."""
        meta = body["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        before = self.get(kind, *key)
        if body == before:
            return before
        step: Literal["MODIFIED", "DELETED"] = "DELETED" if _removable(kind, body) else "MODIFIED"
        return self._write(kind, key, step, body, before)

    def change(
        self, kind: Kind, namespace: str, name: str, how: Callable[[Object], None], uid: str | None = None
    ) -> Object | None:
        """Apply `how` to a copy and store that; None if the object, or that incarnation of it, does not exist."""
        current = self.find(kind, namespace, name)
        if current is None or (uid is not None and current["metadata"]["uid"] != uid):
            return None
        body = copy.deepcopy(current)
        how(body)
        return self.replace(kind, body)

    def forget_history(self) -> None:
        """Compact: a watch from any version before now is answered 410."""
        for shelf in self._shelves.values():
            shelf.forget(self.version)

    def _write(
        self,
        kind: Kind,
        key: tuple[str, str],
        step: Literal["ADDED", "MODIFIED", "DELETED"],
        body: Object,
        before: Object | None,
    ) -> Object:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        shelf = self._shelves[kind]
        if step == "DELETED":
            del shelf.objects[key]
        else:
            shelf.objects[key] = body
        shelf.record(Change(self.version, step, body, before))
        return body

    # ---------------------------------------------------------------- watching

    async def changes(self, kind: Kind, since: int) -> AsyncIterator[Change]:
        """Every change of a kind after the version `since`, for ever.

        Raises:
            ApiError: 410, when the history after `since` is no longer kept, at the start or later.
        """
        shelf = self._shelves[kind]
        while True:
            if since < shelf.forgotten:
                raise expired(since, shelf.forgotten)
            wake = shelf.changed
            for change in shelf.after(since):
                yield change
                since = change.version
            if wake is shelf.changed:
                await wake.wait()

    async def observe(self, kind: Kind) -> AsyncIterator[Change]:
        """Every object of a kind as ADDED, then every change, for ever, whatever becomes of the history."""
        observer: asyncio.Queue[Change] = asyncio.Queue()
        shelf = self._shelves[kind]
        shelf.observers.add(observer)
        try:
            version = self.version
            for body in self.every(kind):
                yield Change(version, "ADDED", body, None)
            while True:
                yield await observer.get()
        finally:
            shelf.observers.discard(observer)


def _removable(kind: Kind, body: Object) -> bool:
    meta = body["metadata"]
    if "deletionTimestamp" not in meta or meta.get("finalizers"):
        return False
    if kind.name == "Namespace" and body["spec"].get("finalizers"):
        return False
    return kind is not PODS or meta.get("deletionGracePeriodSeconds") == 0
