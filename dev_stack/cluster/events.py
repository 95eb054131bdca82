"""Events: what controllers and the kubelet report about objects, counted instead of repeated."""

from __future__ import annotations

import time
from typing import Any

from dev_stack.cluster.kinds import EVENTS, Kind, Object
from dev_stack.cluster.objects import stamp
from dev_stack.cluster.store import Store

_MAX_KNOWN = 5000
"""Events that a recorder can count up instead of repeating."""


class Recorder:
    """Writes the events of one component."""

    def __init__(self, store: Store, component: str) -> None:
        self._store = store
        self._component = component
        self._names: dict[tuple[str, ...], str] = {}

    def record(
        self, kind: Kind, body: Object, reason: str, message: str, *, warning: bool = False, field: str = ""
    ) -> None:
        """Record that something happened to `body`; a repetition only raises the event's count."""
        meta, now = body["metadata"], stamp()
        namespace = meta.get("namespace", "default")
        key = (meta["uid"], reason, field, message)

        def count(event: Object) -> None:
            event["count"] += 1
            event["lastTimestamp"] = now

        if key in self._names and self._store.change(EVENTS, namespace, self._names[key], count) is not None:
            return
        name = self._names[key] = f"{meta['name']}.{time.time_ns():x}"  # sorts by time, as a real recorder's
        if len(self._names) > _MAX_KNOWN:
            del self._names[next(iter(self._names))]
        involved: dict[str, Any] = {"kind": kind.name, "apiVersion": kind.api_version, "namespace": namespace}
        involved |= {"name": meta["name"], "uid": meta["uid"]} | ({"fieldPath": field} if field else {})
        event = {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": "Warning" if warning else "Normal",
        }
        self._store.add(EVENTS, event)
