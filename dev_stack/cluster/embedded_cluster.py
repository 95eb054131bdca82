"""The embedded cluster as one thing to start and stop."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import logging
import os
import secrets
import socket
import sys
from collections import deque
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from dev_stack.cluster.api import Api
from dev_stack.cluster.containers import Namespaces
from dev_stack.cluster.deletion import Collector
from dev_stack.cluster.events import Recorder
from dev_stack.cluster.faults import Faults, NodeFaults
from dev_stack.cluster.jobs import JobController
from dev_stack.cluster.kinds import NAMESPACES
from dev_stack.cluster.kubelet import Kubelet
from dev_stack.cluster.pods import NodeContext
from dev_stack.cluster.scheduler import Binder, Scheduler
from dev_stack.cluster.store import Store
from dev_stack.cluster.tls import server_context
from dev_stack.cluster.validation import load

log = logging.getLogger(__name__)
_NODE = "embedded"
_REQUESTS_KEPT = 100_000


class CannotStart(Exception):
    """The cluster cannot run here; the text states why and the remedy."""


class EmbeddedCluster:
    """A Kubernetes API, a Job controller and a node in this process.

    Leaving the context ends all pods, with at most `shutdown_grace` between SIGTERM and SIGKILL, and keeps objects,
    logs and claims in `state_dir` for the next start. A process that dies takes its containers along and keeps only the
    claims.

    Args:
        state_dir: made if missing, with mode 0700; one cluster at a time may use it.
        port: on 127.0.0.1, for whoever may reach this API may run programs here; 0 takes any.
        shutdown_grace: upper bound for the pods' own termination grace when leaving.

    Attributes:
        requests: method and path with query of the requests to the API, oldest first; the last 100,000.
    """

    namespace = "default"

    def __init__(self, state_dir: Path, port: int = 0, *, shutdown_grace: timedelta = timedelta(seconds=5)) -> None:
        if sys.platform != "linux":
            raise CannotStart("the embedded cluster runs containers as Linux processes; elsewhere use a kubeconfig")
        self.state_dir = state_dir.absolute()
        self.kubeconfig_path = self.state_dir / "kubeconfig"
        self.requests: deque[tuple[str, str]] = deque(maxlen=_REQUESTS_KEPT)
        self.token = secrets.token_urlsafe(32)
        self._port = port
        self._shutdown_grace = shutdown_grace

    async def __aenter__(self) -> Self:
        """Serve, with the objects that an earlier start has left.

        Raises:
            CannotStart: the state directory is in use, or the port is taken.
        """
        self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(self.state_dir)
        self._loading = asyncio.create_task(asyncio.to_thread(load))
        self.namespaces = await Namespaces.probe(self.state_dir / "probe")
        if not self.namespaces.mount:
            log.warning(
                "no private mount namespaces on this system (%s): pods with volumes cannot run. Allow unprivileged "
                "user namespaces, or run where they are allowed",
                self.namespaces.problem,
            )
        self.store = Store(self.state_dir / "objects.json")
        if self.store.find(NAMESPACES, "", self.namespace) is None:
            self.store.add(NAMESPACES, _namespace(self.namespace))
        self._assemble()
        self._controllers = asyncio.create_task(self._control())
        self._tls, self.ca_path = server_context(self.state_dir)
        await self._serve()
        self.url = f"https://127.0.0.1:{self._port}"
        _write_private(self.kubeconfig_path, json.dumps(self._kubeconfig(), indent=1))
        return self

    def _assemble(self) -> None:
        faults = NodeFaults()
        node = NodeContext(self.store, self.state_dir, Recorder(self.store, "kubelet"), faults, self.namespaces)
        self._kubelet = Kubelet(_NODE, node)
        self.faults = Faults(self.store, faults, self._kubelet, (self._stop_serving, self._serve))
        self._works = (
            self._kubelet.run(),
            JobController(self.store).run(),
            Collector(self.store).run(),
            Scheduler(self.store, _NODE, faults).run(),
            Binder(self.store, node.claims).run(),
        )

    async def _control(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for work in self._works:
                    tasks.create_task(work)
        except BaseExceptionGroup as errors:
            log.exception("cluster.controller_failed", exc_info=errors)
            raise

    async def _serve(self) -> None:
        self._api = Api(self.store, self._kubelet, self.faults, self.token, self.requests)
        self._runner = web.AppRunner(
            self._api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await self._runner.setup()
        listener = _listen(self._port)
        self._port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener, ssl_context=self._tls).start()

    async def _stop_serving(self) -> None:
        self._kubelet.end_follows()
        self._api.closing.set()
        await self._runner.cleanup()

    def _kubeconfig(self) -> dict[str, object]:
        authority = base64.b64encode(self.ca_path.read_bytes()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": _NODE, "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": _NODE, "user": {"token": self.token}}],
            "contexts": [{"name": _NODE, "context": {"cluster": _NODE, "user": _NODE, "namespace": self.namespace}}],
            "current-context": _NODE,
        }

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._kubelet.drain(self._shutdown_grace)
        await self._stop_serving()
        self._controllers.cancel()
        await asyncio.gather(self._controllers, self._loading, return_exceptions=True)
        self.store.save()
        os.close(self._lock)


def _namespace(name: str) -> dict[str, object]:
    spec, status = {"finalizers": ["kubernetes"]}, {"phase": "Active"}
    return {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec, "status": status}


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CannotStart(
            f"state {directory}: another embedded cluster is using it; stop that or choose another directory"
        ) from None
    return descriptor


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise CannotStart(f"port {port}: {error.strerror}; choose another with --port") from None
    listener.listen(256)
    return listener
