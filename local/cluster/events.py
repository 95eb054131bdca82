"""Events: what controllers and the kubelet tell about objects, counted instead of repeated."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from local.cluster.kinds import EVENTS, Kind, Object
from local.cluster.objects import stamp
from local.cluster.store import Store

LIFETIME = timedelta(hours=1)  # the API server's default event TTL


class Recorder:
    """Writes the events of one component."""

    def __init__(self, store: Store, component: str) -> None:
        self._store = store
        self._component = component

    def tell(
        self, kind: Kind, body: Object, reason: str, message: str, *, warning: bool = False, field: str = ""
    ) -> None:
        """Record that something happened to `body`; the same again only raises the event's count."""
        meta = body["metadata"]
        namespace = meta.get("namespace", "default")
        told = f"{meta['uid']} {self._component} {reason} {field} {message}"
        digest = hashlib.sha256(told.encode()).hexdigest()[:16]
        name = f"{meta['name']}.{digest}"
        now = stamp()

        def again(event: Object) -> None:
            event["count"] += 1
            event["lastTimestamp"] = now

        if self._store.change(EVENTS, namespace, name, again) is not None:
            return
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
