"""Faults on purpose: refused, slow and broken answers of the API server, and failures of the node.

In a test: `cluster.faults.http(status=503, times=6)` or `await cluster.faults.restart_kubelet()`. From another process
the same by POST to `/faults`, e.g. `{"do": "http", "status": 429, "retry_after": 1, "times": 3}`; DELETE ends them all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dev_stack.cluster.deletion import begin_deletion
from dev_stack.cluster.errors import bad_request
from dev_stack.cluster.kinds import PODS, Object
from dev_stack.cluster.store import Store

if TYPE_CHECKING:
    from dev_stack.cluster.kubelet import Kubelet


_FROM_OUTSIDE = ("http", "refuse_image", "evict")
_NAMESPACE = "default"
"""Of the pods that fail."""


@dataclass
class HttpFault:
    """What happens to matching requests, the next `times` of them or, with None, all until cleared.

    `status` answers instead of the server; with `cut_after` the request, unless it is an exec, is served and its answer
    cut after so many bytes of body, by a reset or, with `clean`, as if it ended there; `text` is put at the end of a
    cut body, as kubelets put error texts into logs.
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


@dataclass
class NodeFaults:
    """The faults of the node that last until they are cleared.

    Attributes:
        images: image name -> the registry's error text.
        unschedulable: why the scheduler finds no node.
        sandboxes_stay: whether the sandboxes of pods whose containers have ended stay, and with them the phase.
        changed: set, and replaced, at every change.
    """

    images: dict[str, str] = field(default_factory=dict)
    unschedulable: str | None = None
    sandboxes_stay: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        """Wake whoever waits for a change."""
        self.changed.set()
        self.changed = asyncio.Event()


class Faults:
    """The faults in force, and the failures that can be caused."""

    def __init__(
        self, store: Store, node: NodeFaults, kubelet: Kubelet, serving: tuple[Callable[[], Any], Callable[[], Any]]
    ) -> None:
        self.http_faults: list[HttpFault] = []
        self._store = store
        self._node = node
        self._kubelet = kubelet
        self._stop_serving, self._serve = serving

    # ---------------------------------------------------------------- requests

    def http(self, **what: Any) -> HttpFault:
        """Add a fault for coming requests, which counts its `hits`. Fields: see HttpFault."""
        fault = HttpFault(**what)
        self.http_faults.append(fault)
        return fault

    def hitting(self, method: str, path: str) -> list[HttpFault]:
        return [fault for fault in self.http_faults if fault.takes(method, path)]

    def clear(self) -> None:
        """End all faults that last."""
        self.http_faults.clear()
        self._node.images.clear()
        self._node.unschedulable = None
        self._node.sandboxes_stay = False
        self._node.notify()

    def expire_history(self) -> None:
        """Compact: resumed watches get 410."""
        self._store.forget_history()

    async def restart_api_server(self, down: float = 0.0) -> None:
        """Restart the API server, down for `down` seconds. Containers run on; resumed watches get 410."""
        await self._stop_serving()
        await asyncio.sleep(down)
        self._store.forget_history()
        await self._serve()

    # ---------------------------------------------------------------- the node

    def refuse_image(self, image: str, message: str = "not found") -> None:
        """Let pulls of `image` fail with the registry's `message`, until cleared."""
        self._node.images[image] = message
        self._node.notify()

    def fill_node(self, message: str = "1 Insufficient memory.") -> None:
        """Let the scheduler find no node, for this reason, until cleared."""
        self._node.unschedulable = message
        self._node.notify()

    def keep_sandboxes(self) -> None:
        """Let pods whose containers have ended keep their phase, until cleared."""
        self._node.sandboxes_stay = True
        self._node.notify()

    async def restart_kubelet(self, down: float = 0.0) -> None:
        """Restart the kubelet, down for `down` seconds; follows end cleanly, containers run on."""
        await self._kubelet.restart(timedelta(seconds=down))

    async def evict(self, pod: str, message: str = "The node was low on resource: memory.") -> None:
        """Evict a pod: it stays, Failed, with the reason `Evicted`."""
        await self._kubelet.evict(self._pod(pod), message)

    async def lose_node(self, forget_after: float) -> None:
        """Lose the node; its pods are marked for deletion and, after `forget_after` seconds, removed."""
        await self._kubelet.lose(timedelta(seconds=forget_after))

    async def recover_node(self) -> None:
        """Bring the lost node back, empty."""
        self._kubelet.resume()

    def delete_pod(self, pod: str, grace: int) -> None:
        """Delete a pod as somebody with kubectl would."""
        begin_deletion(self._store, PODS, self._pod(pod), grace)

    async def kill_container(self, pod: str, container: str, *, oom: bool = False) -> None:
        """Kill everything in a container, and wait for its end; `oom`: because of its memory, as the kernel does."""
        running = self._kubelet.container(self._pod(pod), container)
        running.kill(oom=oom)
        await running.finished.wait()

    def end_follows(self) -> None:
        """End every open log stream cleanly while its container runs on."""
        self._kubelet.end_follows()

    def rotate_log(self, pod: str, container: str) -> None:
        """Rotate a container's log: new requests see nothing of what was."""
        self._kubelet.container(self._pod(pod), container).log.rotate()

    def _pod(self, name: str) -> Object:
        return self._store.get(PODS, _NAMESPACE, name)

    async def inject(self, request: dict[str, Any]) -> None:
        """Carry out a request to `/faults`: the method named by `do` with the other keys as arguments."""
        name = request.pop("do", None)
        if name not in _FROM_OUTSIDE:
            raise bad_request(f"do: one of {', '.join(_FROM_OUTSIDE)} is needed, not {name!r}")
        try:
            result = getattr(self, name)(**request)
        except TypeError as error:
            raise bad_request(str(error)) from None
        if asyncio.iscoroutine(result):
            await result
