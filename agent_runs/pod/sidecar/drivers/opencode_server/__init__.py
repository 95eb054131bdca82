"""OpenCode's server, which serves several runs one after the other.

`drive.drive` has one turn done by it, and writes what `opencode run` would. It needs nothing but Python 3.9 and h11.
"""

from __future__ import annotations

import os
from collections.abc import Callable

HEALTH_SECONDS = 3.0
"""For a resting server's answer. A worker that claims it waits for ten seconds in all, so that a server which hangs is
found before the worker must take the pod for lost."""
STDOUT = "server"
"""Name in the folder that both containers share: the server's standard output, in which its address is."""


class OpenCodeServer:
    """See `agent_runs.pod.sidecar.drivers.Driver`.

    Args:
        max_memory: bytes that it may use while it rests.
    """

    def __init__(self, output: str, max_memory: int, *, may_rest: bool) -> None:
        self.lost = "server_lost"
        self._stdout, self._password = f"{output}/{STDOUT}", os.urandom(16).hex()
        self.ready: tuple[str, ...] = (self._password, "rests" if may_rest else "ends")
        self.reached = {"server": self._stdout, "password": self._password}
        self.rest_limit = max_memory // 1024

    def load(self) -> Callable[[str], None]:
        # not above: what it needs is large, and the forwarder is to start at once
        from agent_runs.pod.sidecar.drivers.opencode_server.drive import drive  # noqa: PLC0415

        return drive

    def take(self, within: Callable[[float, Callable[[], bool]], bool]) -> bool:  # noqa: ARG002 - a server is there
        """Whether the server answers. Asked by a child, which may wait and have signals."""
        child = os.fork()
        if not child:
            healthy = False
            try:
                healthy = self._answers()
            finally:
                os._exit(0 if healthy else 1)
        return os.waitpid(child, 0)[1] == 0

    def _answers(self) -> bool:
        # not above: see `load`
        from agent_runs.pod.sidecar.drivers.opencode_server.address import Unusable, await_address  # noqa: PLC0415
        from agent_runs.pod.sidecar.drivers.opencode_server.drive import way_of  # noqa: PLC0415
        from agent_runs.pod.sidecar.drivers.opencode_server.wire import NoAnswer, Wire  # noqa: PLC0415
        from agent_runs.pod.sidecar.drivers.waiting import Waiter  # noqa: PLC0415

        waiter = Waiter()
        try:
            address = await_address(self._stdout, 0, waiter)
            way_of(address).check(Wire(address.port, self._password, waiter, HEALTH_SECONDS))
        except (Unusable, NoAnswer):
            return False
        return True
