"""An agent that speaks the Agent Client Protocol, version 1, on its standard streams: its process ends with each run.

`drive.drive` does one turn, as the lines that `opencode run` writes. It needs the standard library only. The agent is
hostile: whatever it writes is bounded, and nothing of it is believed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from agent_runs.pod.sidecar import shared

INPUT, PROTOCOL = "input", "protocol"
"""Names in the folder that both containers share, of the agent's standard input and output."""
BEGIN_SECONDS = 3.0
DEAD_SECONDS = 10
"""After the end of its rest, until the agent's container ends by itself: its sidecar is dead."""


class AcpAgent:
    """See `agent_runs.pod.sidecar.drivers.Driver`. The standard input is a FIFO, the standard output a file.

    Raises:
        OSError: something that cannot be deleted is in their place.
    """

    lost = "agent_lost"

    def __init__(self, output: str, address: str, order: Callable[[str], None]) -> None:
        self._output, self._address, self._order = output, address, order
        self._make_channel()

    def _make_channel(self) -> None:
        shared.make_fifo(self._output, INPUT)
        shared.write(self._output, PROTOCOL, "")

    def ready(self, *, may_rest: bool) -> tuple[str, ...]:  # noqa: ARG002 - its process never does
        return ()

    @property
    def reached(self) -> dict[str, str]:
        return {"output": self._output, "address": self._address}

    def load(self) -> Callable[[str], None]:
        # not above: what it needs is large, and the forwarder is to start at once
        from agent_runs.pod.sidecar.drivers.acp.drive import drive  # noqa: PLC0415

        return drive

    def rest_limit(self, keep_warm: float) -> int:
        """Seconds, after which the agent's container ends by itself."""
        return int(keep_warm) + DEAD_SECONDS

    def take(self, within: Callable[[float, Callable[[], bool]], bool]) -> bool:
        """Whether the agent's container has begun the next run."""
        self._make_channel()
        self._order("run")
        return within(BEGIN_SECONDS, self._has_begun)

    def _has_begun(self) -> bool:
        """Whether the agent's input is open.

        Raises:
            OSError: the agent has put something else in its place.
        """
        try:
            os.close(shared.open_fifo(self._output, INPUT, os.O_WRONLY))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
        return True
