"""Every object of the cluster: in memory for reading, in SQLite for the next start, with a history for watches.

All methods are synchronous and run on the event loop's thread, so a read and the write that follows it are one step.
Objects handed out are shared and must not be changed; writers pass in copies of their own.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sqlite3
import uuid
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from local.cluster.kinds import KINDS, PODS, Kind, Object
from local.cluster.objects import stamp
from local.cluster.refusals import Refused, already_exists, expired, not_found

Key = tuple[Kind, str, str]
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

    def record(self, change: Change) -> None:
        """Append to the history and wake whoever waits for it."""
        if len(self.changes) == self.changes.maxlen:
            self.forgotten = self.changes[0].version
        self.changes.append(change)
        self.changed.set()
        self.changed = asyncio.Event()


class Store:
    """Objects by kind, namespace and name, each write numbered by one resourceVersion for the whole cluster."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA synchronous = OFF;
            CREATE TABLE IF NOT EXISTS objects (kind TEXT, namespace TEXT, name TEXT, body TEXT,
                PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID;
            CREATE TABLE IF NOT EXISTS counter (version INTEGER);
            INSERT INTO counter SELECT 1 WHERE NOT EXISTS (SELECT * FROM counter);
            """
        )
        self._shelves: dict[Kind, Shelf] = {kind: Shelf() for kind in KINDS}
        self._owned: defaultdict[str, set[Key]] = defaultdict(set)
        (self.version,) = self._database.execute("SELECT version FROM counter").fetchone()
        self._load()

    def _load(self) -> None:
        kinds = {kind.qualified: kind for kind in KINDS}
        for name, namespace, own, text in self._database.execute("SELECT * FROM objects").fetchall():
            body = json.loads(text)
            self._shelves[kinds[name]].objects[namespace, own] = body
            self._index((kinds[name], namespace, own), None, body)
        for shelf in self._shelves.values():
            shelf.forgotten = self.version

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    # ---------------------------------------------------------------- reading

    def find(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The object, if there is one."""
        return self._shelves[kind].objects.get((namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """The object, or 404."""
        body = self.find(kind, namespace, name)
        if body is None:
            raise not_found(kind, name)
        return body

    def every(self, kind: Kind, namespace: str = "") -> Iterable[Object]:
        """All objects of a kind, of one namespace if that is given, in the order of their names."""
        objects = self._shelves[kind].objects
        return [objects[key] for key in sorted(objects) if not namespace or key[0] == namespace]

    def owned_by(self, uid: str, kind: Kind | None = None) -> list[tuple[Kind, Object]]:
        """The objects that name `uid` among their owners."""
        keys = sorted(self._owned.get(uid, ()), key=lambda key: (key[0].plural, *key[1:]))
        return [(key[0], self._shelves[key[0]].objects[key[1:]]) for key in keys if kind in (None, key[0])]

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
        """Store a changed object; it goes away for good once its deletion has nothing left to wait for."""
        meta = body["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        before = self.get(kind, *key)
        if body == before:
            return before
        if self._ready_to_go(kind, body):
            return self._drop(kind, key, body)
        return self._write(kind, key, "MODIFIED", body, before)

    def change(
        self, kind: Kind, namespace: str, name: str, how: Callable[[Object], None], uid: str | None = None
    ) -> Object | None:
        """Apply `how` to a copy and store that; None if the object, or that incarnation of it, is gone."""
        current = self.find(kind, namespace, name)
        if current is None or (uid is not None and current["metadata"]["uid"] != uid):
            return None
        body = copy.deepcopy(current)
        how(body)
        return self.replace(kind, body)

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object at once, whatever it waits for."""
        body = self.find(kind, namespace, name)
        if body is not None:
            self._drop(kind, (namespace, name), copy.deepcopy(body))

    def forget_history(self) -> None:
        """Compact: a watch from any version before now is answered 410."""
        for shelf in self._shelves.values():
            shelf.changes.clear()
            shelf.forgotten = self.version
            shelf.changed.set()
            shelf.changed = asyncio.Event()

    @staticmethod
    def _ready_to_go(kind: Kind, body: Object) -> bool:
        meta = body["metadata"]
        if "deletionTimestamp" not in meta or meta.get("finalizers"):
            return False
        if kind.name == "Namespace" and body.get("spec", {}).get("finalizers"):
            return False
        return kind is not PODS or meta.get("deletionGracePeriodSeconds") == 0

    def _write(
        self,
        kind: Kind,
        key: tuple[str, str],
        step: Literal["ADDED", "MODIFIED"],
        body: Object,
        before: Object | None,
    ) -> Object:
        self._number(body)
        row = (kind.qualified, *key, json.dumps(body, separators=(",", ":")))
        self._database.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)", row)
        shelf = self._shelves[kind]
        shelf.objects[key] = body
        self._index((kind, *key), before, body)
        shelf.record(Change(self.version, step, body, before))
        return body

    def _drop(self, kind: Kind, key: tuple[str, str], body: Object) -> Object:
        shelf = self._shelves[kind]
        before = shelf.objects.pop(key)
        self._number(body)
        row = (kind.qualified, *key)
        self._database.execute("DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?", row)
        self._index((kind, *key), before, None)
        shelf.record(Change(self.version, "DELETED", body, before))
        return body

    def _number(self, body: Object) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self._database.execute("UPDATE counter SET version = ?", (self.version,))

    def _index(self, key: Key, before: Object | None, after: Object | None) -> None:
        for body, known in ((before, False), (after, True)):
            for owner in (body or {}).get("metadata", {}).get("ownerReferences") or ():
                keys = self._owned[owner["uid"]]
                (keys.add if known else keys.discard)(key)
                if not keys:
                    del self._owned[owner["uid"]]

    # ---------------------------------------------------------------- watching

    async def changes(self, kind: Kind, since: int | None = None) -> AsyncIterator[Change]:
        """Every change of a kind after the version `since` (default: now), for ever.

        Raises:
            Refused: 410, when the history after `since` is no longer kept, at the start or later.
        """
        shelf = self._shelves[kind]
        seen = self.version if since is None else since
        while True:
            if seen < shelf.forgotten:
                raise expired(seen, shelf.forgotten)
            wake = shelf.changed
            for change in self._after(shelf, seen):
                yield change
                seen = change.version
            if wake is shelf.changed:
                await wake.wait()

    async def observe(self, kind: Kind) -> AsyncIterator[Change]:
        """Every object of a kind as ADDED, then every change; starts over if it ever falls behind the history."""
        while True:
            since = self.version
            for body in self.every(kind):
                yield Change(since, "ADDED", body, None)
            try:
                async for change in self.changes(kind, since):
                    yield change
            except Refused:
                continue

    @staticmethod
    def _after(shelf: Shelf, seen: int) -> list[Change]:
        if not shelf.changes or shelf.changes[-1].version <= seen:
            return []
        fresh = []
        for change in reversed(shelf.changes):
            if change.version <= seen:
                break
            fresh.append(change)
        return fresh[::-1]
