"""Things that go wrong on purpose: refused, slow and broken answers, and accidents of the node.

In a test: `cluster.faults.http(status=503, times=6)` or `await cluster.faults.restart_kubelet()`. From another process
the same by POST to `/faults`, e.g. `{"do": "http", "status": 429, "retry_after": 1, "times": 3}`; DELETE ends them all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from local.cluster.deletion import begin
from local.cluster.kinds import PODS
from local.cluster.refusals import bad_request
from local.cluster.store import Store


@dataclass
class HttpFault:
    """What happens to matching requests, the next `times` of them or, with None, all until cleared.

    `status` answers instead of the server; with `cut_after` the request is served and its answer cut after so many
    bytes of body, by a reset or, with `clean`, as if it ended there; `text` is put at the end of a cut body, as
    kubelets put error texts into logs.
    """

    method: str = ".*"
    path: str = ".*"  # a regular expression searched for in path and query
    status: int | None = None
    message: str = "injected fault"
    retry_after: int | None = None  # seconds
    delay: float = 0.0  # seconds before anything else happens
    cut_after: int | None = None
    clean: bool = False
    text: str = ""
    times: int | None = 1
    hits: int = 0

    def takes(self, method: str, path: str) -> bool:
        """Whether this request is hit; counts it if so."""
        if self.times is not None and self.hits >= self.times:
            return False
        if not re.fullmatch(self.method, method) or not re.search(self.path, path):
            return False
        self.hits += 1
        return True


class Node(Protocol):
    """What accidents need of the kubelet."""

    async def restart(self, down: timedelta) -> None:
        """Stop, stay away, come back; containers go on."""

    async def evict(self, namespace: str, pod: str, reason: str, message: str) -> None:
        """End a pod as the node does under pressure."""

    async def lose(self, forget_after: timedelta) -> None:
        """Vanish with everything that runs."""

    async def recover(self) -> None:
        """Come back empty."""

    def end_follows(self) -> None:
        """End every open log stream cleanly."""

    def rotate_log(self, namespace: str, pod: str, container: str) -> None:
        """Begin a new log file."""


@dataclass
class Faults:
    """The faults in force, and the accidents that can be caused."""

    store: Store
    node: Node = field(init=False)  # whoever makes the kubelet sets it
    http_faults: list[HttpFault] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)  # image name -> the registry's error text
    no_room: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    # ---------------------------------------------------------------- requests

    def http(self, **what: Any) -> HttpFault:
        """Add a fault for coming requests; its `hits` tell how many it has met. Fields: see HttpFault."""
        fault = HttpFault(**what)
        self.http_faults.append(fault)
        return fault

    def taken_by(self, method: str, path: str) -> list[HttpFault]:
        """The faults that hit this request."""
        return [fault for fault in self.http_faults if fault.takes(method, path)]

    def clear(self) -> None:
        """End all faults that last."""
        self.http_faults.clear()
        self.images.clear()
        self.no_room = None
        self._tell()

    def expire_history(self) -> None:
        """Compact: resumed watches get 410."""
        self.store.forget_history()

    # ---------------------------------------------------------------- the node

    def refuse_image(self, image: str, message: str = "not found") -> None:
        """Let pulls of `image` fail with the registry's `message`, until cleared."""
        self.images[image] = message
        self._tell()

    def fill_node(self, message: str = "1 Insufficient memory.") -> None:
        """Let the scheduler find no node, with its reason, until cleared."""
        self.no_room = message
        self._tell()

    async def restart_kubelet(self, down: float = 0.0) -> None:
        """Restart the kubelet, away for `down` seconds; follows end cleanly, containers go on."""
        await self.node.restart(timedelta(seconds=down))

    async def evict(
        self,
        pod: str,
        namespace: str = "default",
        reason: str = "Evicted",
        message: str = "The node was low on resource: memory.",
    ) -> None:
        """Evict a pod: it stays, Failed, with `reason`."""
        await self.node.evict(namespace, pod, reason, message)

    async def lose_node(self, forget_after: float = 0.0) -> None:
        """Lose the node; its pods are marked for deletion and, after `forget_after` seconds, gone."""
        await self.node.lose(timedelta(seconds=forget_after))

    async def recover_node(self) -> None:
        """Bring the lost node back."""
        await self.node.recover()

    def delete_pod(self, pod: str, namespace: str = "default", grace: int | None = None) -> None:
        """Delete a pod as somebody with kubectl would."""
        begin(self.store, PODS, self.store.get(PODS, namespace, pod), "Background", grace)

    def end_follows(self) -> None:
        """End every open log stream cleanly while its container goes on."""
        self.node.end_follows()

    def rotate_log(self, pod: str, container: str, namespace: str = "default") -> None:
        """Rotate a container's log: new requests see nothing of what was."""
        self.node.rotate_log(namespace, pod, container)

    async def do(self, order: dict[str, Any]) -> None:
        """Carry out an order of the admin endpoint: the method named by `do` with the other keys as arguments."""
        actions: dict[str, Callable[..., Awaitable[None] | Any]] = {
            name: getattr(self, name)
            for name in ("http", "clear", "expire_history", "refuse_image", "fill_node", "restart_kubelet", "evict",
                         "lose_node", "recover_node", "delete_pod", "end_follows", "rotate_log")
        }  # fmt: skip
        name = order.pop("do", None)
        if name not in actions:
            raise bad_request(f"do: one of {', '.join(actions)} is needed, not {name!r}")
        try:
            result = actions[name](**order)
        except TypeError as error:
            raise bad_request(str(error)) from None
        if asyncio.iscoroutine(result):
            await result

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
