"""Events: what controllers and the kubelet tell about objects, counted instead of repeated."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from local.cluster.kinds import EVENTS, Kind, Object
from local.cluster.objects import stamp
from local.cluster.store import Store

LIFETIME = timedelta(hours=1)  # the API server's default event TTL
_REMEMBERED = 5000  # events that a recorder can count up instead of repeating


class Recorder:
    """Writes the events of one component."""

    def __init__(self, store: Store, component: str) -> None:
        self._store = store
        self._component = component
        self._told: dict[tuple[str, ...], str] = {}  # what was told -> the event's name

    def tell(
        self, kind: Kind, body: Object, reason: str, message: str, *, warning: bool = False, field: str = ""
    ) -> None:
        """Record that something happened to `body`; the same again only raises the event's count."""
        meta = body["metadata"]
        namespace = meta.get("namespace", "default")
        told = (meta["uid"], reason, field, message)
        name = self._told.get(told, "")
        now = stamp()

        def again(event: Object) -> None:
            event["count"] += 1
            event["lastTimestamp"] = now

        if name and self._store.change(EVENTS, namespace, name, again) is not None:
            return
        # Like the real recorder's: names that sort in the order of their making.
        name = self._told[told] = f"{meta['name']}.{time.time_ns():x}"
        if len(self._told) > _REMEMBERED:
            del self._told[next(iter(self._told))]
        involved: dict[str, Any] = {
            "kind": kind.name,
            "apiVersion": kind.api_version,
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
        }
        if "namespace" in meta:
            involved["namespace"] = namespace
        if field:
            involved["fieldPath"] = field
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
            "eventTime": None,
            "reportingComponent": self._component,
            "reportingInstance": "",
        }
        self._store.add(EVENTS, event)
