"""The program `agent-runs`: Ctrl-C ends it with one line, also while its modules are imported."""

import os
import signal
import sys
from typing import Final

INTERRUPTED: Final = 130
"""The exit code, as shells count it: 128 + SIGINT."""


def main() -> None:
    signal.signal(signal.SIGINT, _interrupted)
    from agent_runs.cli.main import main as run  # noqa: PLC0415 - half a second, in which somebody may press Ctrl-C

    run()


def _interrupted(*_: object) -> None:
    """End the process. A command that has something to say of its run handles the signal itself."""
    os.write(sys.stderr.fileno(), b"agent-runs: interrupted\n")
    os._exit(INTERRUPTED)
