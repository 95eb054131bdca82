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

    Args:
        order: gives the agent's container an order.
        keep_warm: seconds for which it may rest.

    Raises:
        OSError: something that cannot be deleted is in their place.
    """

    def __init__(self, output: str, address: str, order: Callable[[str], None], keep_warm: float) -> None:
        self.lost = "agent_lost"
        self.ready: tuple[str, ...] = ()
        self.reached = {"output": output, "address": address}
        self.rest_limit = int(keep_warm) + DEAD_SECONDS
        self._output, self._order = output, order
        self._make_channel()

    def _make_channel(self) -> None:
        shared.make_fifo(self._output, INPUT)
        shared.write(self._output, PROTOCOL, "")

    def load(self) -> Callable[[str], None]:
        # not above: what it needs is large, and the forwarder is to start at once
        from agent_runs.pod.sidecar.drivers.acp.drive import drive  # noqa: PLC0415

        return drive

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
