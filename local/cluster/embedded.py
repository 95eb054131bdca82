"""The embedded cluster as one thing to start and stop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
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

from local.cluster.api import Api
from local.cluster.deletion import Collector
from local.cluster.events import Recorder
from local.cluster.faults import Faults
from local.cluster.instances import Namespaces
from local.cluster.jobs import JobController
from local.cluster.kinds import NAMESPACES, NODES
from local.cluster.kubelet import Kubelet
from local.cluster.pod_status import Verdict
from local.cluster.pods import Surroundings
from local.cluster.scheduler import Binder, Scheduler
from local.cluster.store import Store
from local.cluster.tls import server_context

log = logging.getLogger(__name__)
_HOST = "127.0.0.1"
_NODE = "embedded"
_REMEMBERED = 100_000  # requests
_SHUTDOWN = Verdict("Terminated", "Pod was terminated in response to imminent node shutdown.")


class CannotStart(Exception):
    """The cluster cannot run here; the text says why and what to do."""


class EmbeddedCluster:
    """A Kubernetes API, a Job controller and a node in this process; state in `state_dir` survives it.

    Leaving the context ends all pods, with at most `shutdown_grace` between SIGTERM and SIGKILL. A process that dies
    instead leaves its containers running; the next cluster on the same directory takes them up again.

    Args:
        state_dir: made if missing, with mode 0700; one cluster at a time may use it.
        port: 0 takes the port of the last start if that is free, else any.
        token: bearer token for the API; by default that of the last start, else a random one.
        host: refused unless it is 127.0.0.1, for whoever may speak to this API may run programs here.
        status_lag: how late the kubelet publishes what happened; real ones take 1 to 2 seconds.
        backoff: first pause of the doubling pauses between a Job's pods and a container's restarts.
        shutdown_grace: upper bound for the pods' own termination grace when leaving.

    Attributes:
        requests: method and path with query of what the API was asked, oldest first; the last 100,000.
    """

    namespace = "default"

    def __init__(
        self,
        state_dir: Path,
        port: int = 0,
        token: str | None = None,
        *,
        host: str = _HOST,
        status_lag: timedelta = timedelta(),
        backoff: timedelta = timedelta(seconds=10),
        shutdown_grace: timedelta = timedelta(seconds=5),
    ) -> None:
        if host != _HOST:
            raise CannotStart(f"host {host}: the embedded cluster runs programs for whoever reaches it; only {_HOST}")
        if sys.platform != "linux":
            raise CannotStart("the embedded cluster runs containers as Linux processes; elsewhere use a kubeconfig")
        self.state_dir = state_dir.absolute()
        self.kubeconfig_path = self.state_dir / "kubeconfig"
        self.url = ""
        self.requests: deque[tuple[str, str]] = deque(maxlen=_REMEMBERED)
        self._port = port
        self._token = token
        self._status_lag = status_lag
        self._backoff = backoff
        self._shutdown_grace = shutdown_grace
        self._controllers: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve, and take up what an earlier start left.

        Raises:
            CannotStart: the state directory is in use, or the port is taken.
        """
        self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = _lock(self.state_dir)
        self.token = self._token or _remembered(self.state_dir / "token", secrets.token_urlsafe(32))
        self.namespaces = await asyncio.to_thread(Namespaces.probe, self.state_dir / "probe")
        if not self.namespaces.mount:
            log.warning(
                "no private mount namespaces on this system (%s): pods with volumes cannot run. Allow unprivileged "
                "user namespaces, or run where they are allowed",
                self.namespaces.problem,
            )
        self.store = Store(self.state_dir / "objects.sqlite")
        self._make_namespaces()
        self._assemble()
        self._kubelet.start()
        self._controllers = asyncio.create_task(self._control())
        await self._serve()

    def _make_namespaces(self) -> None:
        for name in ("default", "kube-system"):
            if self.store.find(NAMESPACES, "", name) is None:
                meta = {"name": name, "labels": {"kubernetes.io/metadata.name": name}}
                body = {"kind": "Namespace", "apiVersion": "v1", "metadata": meta}
                self.store.add(
                    NAMESPACES, {**body, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
                )

    def _assemble(self) -> None:
        faults = Faults(self.store)
        around = Surroundings(
            self.store,
            self.state_dir,
            Recorder(self.store, "kubelet"),
            faults,
            self.namespaces,
            self._backoff,
            self._status_lag,
        )
        self._kubelet = Kubelet(_NODE, around)
        faults.node = self._kubelet
        self.faults = faults
        self._claims = around.claims

    async def _control(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(JobController(self.store, self._backoff).run())
                tasks.create_task(Collector(self.store).run())
                tasks.create_task(Scheduler(self.store, _NODE, self.faults).run())
                tasks.create_task(Binder(self.store, self._claims).run())
                tasks.create_task(self._kubelet.fail_with())
        except BaseExceptionGroup as errors:
            log.exception("cluster.controller_died", exc_info=errors)
            raise

    async def _serve(self) -> None:
        context, authority = server_context(self.state_dir)
        self.ca_path = authority
        self._api = Api(self.store, self._kubelet, self.faults, self.token, self.requests)
        self._runner = web.AppRunner(
            self._api.application(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await self._runner.setup()
        listener = _listen(self._port, self.state_dir / "port")
        site = web.SockSite(self._runner, listener, ssl_context=context)
        await site.start()
        self.url = f"https://{_HOST}:{listener.getsockname()[1]}"
        _write_private(self.kubeconfig_path, json.dumps(self._kubeconfig(authority), indent=1))

    def _kubeconfig(self, authority: Path) -> dict[str, object]:
        data = base64.b64encode(authority.read_bytes()).decode()
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": _NODE, "cluster": {"server": self.url, "certificate-authority-data": data}}],
            "users": [{"name": _NODE, "user": {"token": self.token}}],
            "contexts": [{"name": _NODE, "context": {"cluster": _NODE, "user": _NODE, "namespace": self.namespace}}],
            "current-context": _NODE,
        }

    async def stop(self) -> None:
        """End all pods, then everything else."""
        await self._kubelet.drain(self._shutdown_grace, _SHUTDOWN)
        await self.abandon()

    async def abandon(self) -> None:
        """End everything but the containers, as if this process had died."""
        self._kubelet.end_follows()
        self._api.closing.set()
        await self._runner.cleanup()
        if self._controllers is not None:
            self._controllers.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._controllers
        await self._kubelet.stop()
        self.store.close()
        os.close(self._lock)

    @property
    def node(self) -> str:
        """The name of the one node."""
        return str(next(iter(self.store.every(NODES)))["metadata"]["name"])


def _lock(directory: Path) -> int:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CannotStart(
            f"state {directory}: another embedded cluster is using it; stop that or name another"
        ) from None
    return descriptor


def _remembered(path: Path, fallback: str) -> str:
    if path.exists():
        return path.read_text().strip()
    _write_private(path, fallback)
    return fallback


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)


def _listen(port: int, memory: Path) -> socket.socket:
    """Listen on `port`; on 0 prefer the port of the last start, so that old kubeconfigs stay true."""
    last = int(memory.read_text()) if memory.exists() and not port else 0
    for candidate in dict.fromkeys((port or last, port)):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, candidate))
        except OSError as error:
            listener.close()
            if candidate == port:
                raise CannotStart(f"port {port}: {error.strerror}; choose another with --port") from None
            continue
        listener.listen(256)
        memory.write_text(str(listener.getsockname()[1]))
        return listener
    raise AssertionError("unreachable")  # the last candidate either listens or raises
